"""Reports as files: HTML always, PDF and Markdown when asked."""

from collections.abc import Sequence
from pathlib import Path

from moebox import files
from moebox.errors import BadInput, refuse_if
from moebox.report.expect import with_forecast
from moebox.report.page import ReportPage, build_page, render_html
from moebox.report.reading import read_record
from moebox.store import Run, plain

SUFFIXES = ("", ".html", ".htm", ".md", ".pdf")
OUTPUT_HINT = "`-o FILE` puts it elsewhere"


def make_page(runs: Sequence[Run], *, title: str = "") -> ReportPage:
    """What there is to say about these runs."""
    return build_page([with_forecast(read_record(run)) for run in runs], title=title)


def write_report(
    runs: Sequence[Run], target: Path, *, pdf: bool = False, markdown: bool = False, title: str = ""
) -> list[Path]:
    """Write the report of `runs` to `target`, in the form that its suffix says, and beside it; the paths written."""
    suffix = target.suffix.lower()
    wanted = {
        _as_html: suffix not in (".md", ".pdf"),
        _as_markdown: markdown or suffix == ".md",
        _as_pdf: pdf or suffix == ".pdf",
    }
    if target.parent in [run.path for run in runs]:  # elsewhere a link is the person's own
        for name in (target, target.with_suffix(".md"), target.with_suffix(".pdf")):
            plain.refuse_unusual(name)
    refuse_if(suffix not in SUFFIXES, f"{target}: a report cannot be {suffix!r}", hint="name it .html, .md or .pdf")
    with files.report_write_errors(target, error_type=BadInput, hint=OUTPUT_HINT):
        files.check_writable(target)
    page = make_page(runs, title=title)
    return [write(page, target) for write, is_wanted in wanted.items() if is_wanted]


def _as_html(page: ReportPage, target: Path) -> Path:
    return save_file(target, render_html(page))


def _as_markdown(page: ReportPage, target: Path) -> Path:
    from moebox.report.markdown import render_markdown

    return save_file(target.with_suffix(".md"), render_markdown(page))


def _as_pdf(page: ReportPage, target: Path) -> Path:
    from moebox.report.pdf import write_pdf

    return write_pdf(render_html(page), target.with_suffix(".pdf"))


def save_file(path: Path, text: str | bytes) -> Path:
    """Write a file whole or not at all, its folder made if need be."""
    with files.report_write_errors(path, hint=OUTPUT_HINT):
        files.write_atomic(path.resolve(), text)
    return path
