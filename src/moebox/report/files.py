"""Reports as files: HTML always, PDF and Markdown when asked."""

from collections.abc import Sequence
from pathlib import Path

from moebox import files
from moebox.errors import BadInput, refuse_if
from moebox.report.expect import foretold
from moebox.report.page import Page, html, page_of
from moebox.report.reading import read
from moebox.store import Run, plain

FORMS = ("", ".html", ".htm", ".md", ".pdf")
ELSEWHERE = "`-o FILE` puts it elsewhere"


def report(runs: Sequence[Run], *, title: str = "") -> Page:
    """What there is to say about these runs."""
    return page_of([foretold(read(run)) for run in runs], title=title)


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
    refuse_if(suffix not in FORMS, f"{target}: a report cannot be {suffix!r}", hint="name it .html, .md or .pdf")
    with files.report_write_errors(target, error_type=BadInput, hint=ELSEWHERE):
        files.check_writable(target)
    page = report(runs, title=title)
    return [write(page, target) for write, is_wanted in wanted.items() if is_wanted]


def _as_html(page: Page, target: Path) -> Path:
    return save(target, html(page))


def _as_markdown(page: Page, target: Path) -> Path:
    from moebox.report.markdown import markdown

    return save(target.with_suffix(".md"), markdown(page))


def _as_pdf(page: Page, target: Path) -> Path:
    from moebox.report.pdf import pdf

    return pdf(html(page), target.with_suffix(".pdf"))


def save(path: Path, text: str | bytes) -> Path:
    """Write a file whole or not at all, its folder made if need be."""
    with files.report_write_errors(path, hint=ELSEWHERE):
        files.write_atomic(path.resolve(), text)
    return path
