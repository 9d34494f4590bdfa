"""Reports as files: HTML always, PDF and Markdown when asked."""

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path

from moebox.errors import Outside
from moebox.report.expect import foretold
from moebox.report.page import Page, html, page_of
from moebox.report.reading import read
from moebox.store import Run


def report(runs: Sequence[Run], *, title: str = "") -> Page:
    """What there is to say about these runs."""
    return page_of([foretold(read(run)) for run in runs], title=title)


def write_report(
    runs: Sequence[Run], target: Path, *, pdf: bool = False, markdown: bool = False, title: str = ""
) -> list[Path]:
    """Write the report of `runs` to `target` (and beside it); the paths that were written."""
    page = report(runs, title=title)
    text = html(page)
    made = [save(target, text)]
    if markdown:
        from moebox.report.markdown import markdown as as_markdown

        made.append(save(target.with_suffix(".md"), as_markdown(page)))
    if pdf:
        from moebox.report.pdf import pdf as as_pdf

        made.append(as_pdf(text, target.with_suffix(".pdf")))
    return made


def save(path: Path, text: str) -> Path:
    """Write a file whole or not at all, its folder made if need be."""
    real = path.resolve()
    # A pipe or a device takes the text itself; putting a file in its place would be a surprise.
    half = real.with_name(f".{real.name}.{os.getpid()}.part") if real.is_file() or not real.exists() else real
    try:
        real.parent.mkdir(parents=True, exist_ok=True)
        half.write_text(text, encoding="utf-8")
        half.replace(real)
    except OSError as problem:
        if half != real:
            with contextlib.suppress(OSError):
                half.unlink(missing_ok=True)
        raise Outside(f"{path}: cannot be written: {problem.strerror}", hint="`-o FILE` puts it elsewhere") from problem
    return path
