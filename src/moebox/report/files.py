"""Reports as files: HTML, PDF and Markdown."""

from collections.abc import Sequence
from pathlib import Path

from moebox import files
from moebox.errors import BadInput, refuse_if
from moebox.report.expect import with_forecast
from moebox.report.page import ReportPage, build_page, render_html
from moebox.runs.reader import read_run
from moebox.store import Run, plain

SUFFIXES = ("", ".html", ".htm", ".md", ".pdf")
OUTPUT_HINT = "`-o FILE` puts it elsewhere"


def make_page(runs: Sequence[Run], *, title: str = "") -> ReportPage:
    return build_page([with_forecast(read_run(run)) for run in runs], title=title)


def write_report(
    runs: Sequence[Run], target: Path, *, pdf: bool = False, markdown: bool = False, title: str = ""
) -> list[Path]:
    """Write the report to `target`, in the format of its suffix, and the other formats beside it; return the paths."""
    suffix = target.suffix.lower()
    if target.parent in [run.path for run in runs]:  # elsewhere the user may have put a link there
        for name in (target, target.with_suffix(".md"), target.with_suffix(".pdf")):
            plain.refuse_unusual(name)
    refuse_if(suffix not in SUFFIXES, f"{target}: a report cannot be {suffix!r}", hint="name it .html, .md or .pdf")
    with files.report_write_errors(target, error_type=BadInput, hint=OUTPUT_HINT):
        files.check_writable(target)
    page = make_page(runs, title=title)
    written = [save_file(target, render_html(page))] if suffix not in (".md", ".pdf") else []
    if markdown or suffix == ".md":
        from moebox.report.markdown import render_markdown

        written.append(save_file(target.with_suffix(".md"), render_markdown(page)))
    if pdf or suffix == ".pdf":
        from moebox.report.pdf import write_pdf

        written.append(write_pdf(render_html(page), target.with_suffix(".pdf")))
    return written


def save_file(path: Path, text: str | bytes) -> Path:
    """Write a file atomically; create its folder if needed."""
    with files.report_write_errors(path, hint=OUTPUT_HINT):
        files.write_atomic(path.resolve(), text)
    return path
