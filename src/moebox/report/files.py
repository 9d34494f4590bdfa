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
    text, print_out = target.with_suffix(".md"), target.with_suffix(".pdf")
    for name in (target, text, print_out):
        if name.parent in [run.path for run in runs]:  # elsewhere a link is the person's own
            plain.refuse_strange(name)
    suffix = target.suffix.lower()
    refuse_if(suffix not in FORMS, f"{target}: a report cannot be {suffix!r}", hint="name it .html, .md or .pdf")
    with files.writing(target, refused=BadInput, hint=ELSEWHERE):
        files.try_out(target)
    page = report(runs, title=title)
    paths: list[Path] = []
    if suffix not in (".md", ".pdf"):
        paths.append(save(target, html(page)))
    if markdown or suffix == ".md":
        from moebox.report.markdown import markdown as as_markdown

        paths.append(save(text, as_markdown(page)))
    if pdf or suffix == ".pdf":
        from moebox.report.pdf import pdf as as_pdf

        paths.append(as_pdf(html(page), print_out))
    return paths


def save(path: Path, text: str | bytes) -> Path:
    """Write a file whole or not at all, its folder made if need be."""
    with files.writing(path, hint=ELSEWHERE):
        files.write_atomic(path.resolve(), text)
    return path
