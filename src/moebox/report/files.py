"""Reports as files: HTML, Markdown, and PDF with drawings kept as vectors.

Markdown is written by templates: the same sections, tables as tables, drawings by their captions.

A Chromium on this machine prints the PDF, else WeasyPrint (`pip install moebox[pdf]`). Chromium comes first because it
lays the page out as the user saw it. It gets no network and a profile of its own.
"""

import functools
import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from moebox import files
from moebox.environment import chosen_environment
from moebox.errors import BadInput, ExternalError, refuse_if
from moebox.escape import code_block, escape_markdown, printable_line
from moebox.report.expect import with_forecast
from moebox.report.page import ReportPage, build_page, escape_value, read_asset, render_html
from moebox.report.svg import inline_colours
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
        written.append(save_file(target.with_suffix(".md"), render_markdown(page)))
    if pdf or suffix == ".pdf":
        written.append(write_pdf(render_html(page), target.with_suffix(".pdf")))
    return written


def save_file(path: Path, text: str | bytes) -> Path:
    """Write a file atomically; create its folder if needed."""
    with files.report_write_errors(path, hint=OUTPUT_HINT):
        files.write_atomic(path.resolve(), text)
    return path


BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "microsoft-edge")
FLAGS: tuple[str, ...] = ("--headless", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync")
FLAGS += ("--disable-background-networking", "--disable-component-update", "--disable-extensions")
PDF_FLAGS = ("--host-resolver-rules=MAP * ~NOTFOUND", "--no-pdf-header-footer")
TIMEOUT_S = 120.0  # a five-megabyte page takes a few seconds


def find_browser() -> str | None:
    """The Chromium to use: $MOEBOX_BROWSER, or one on PATH."""
    named = os.environ.get("MOEBOX_BROWSER")
    if named is not None:
        return shutil.which(named) if named else None
    return next((found for name in BROWSERS if (found := shutil.which(name))), None)


def write_pdf(html: str, target: Path) -> Path:
    target.parent.mkdir(parents=True, exist_ok=True)
    if found := find_browser():
        print_with_browser(found, html, target)
    elif importlib.util.find_spec("weasyprint"):
        print_with_weasyprint(html, target)
    else:
        hint = "`pip install 'moebox[pdf]'` or, on Debian, `apt install chromium`; any browser prints the HTML well too"
        raise ExternalError("no way to make a PDF here: neither a Chromium nor WeasyPrint is installed", hint=hint)
    return target


def print_with_browser(program: str, html: str, target: Path) -> None:
    hint = "MOEBOX_BROWSER= (empty) uses WeasyPrint instead"
    with files.scratch_folder("pdf") as folder:
        page, made = folder / "report.html", folder / "report.pdf"
        page.write_text(html, encoding="utf-8")
        # Chromium's own sandbox refuses to run as root; the page is ours and runs no foreign script.
        flags = (*FLAGS, *PDF_FLAGS, *(("--no-sandbox",) if os.geteuid() == 0 else ()))
        argv = [program, *flags, f"--user-data-dir={folder}/profile", f"--print-to-pdf={made}", page.as_uri()]
        try:
            done = subprocess.run(argv, capture_output=True, timeout=TIMEOUT_S, check=False, env=chosen_environment())
        except (OSError, subprocess.TimeoutExpired) as problem:
            raise ExternalError(f"{program}: {problem}", hint=hint) from None
        if not made.exists():
            last = done.stderr.decode(errors="replace").strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
            raise ExternalError(f"{program} made no PDF: {last[0]}", hint=hint)
        shutil.move(made, target)


def print_with_weasyprint(html: str, target: Path) -> None:
    """Print the page with WeasyPrint, with the light palette inlined because its SVG has no CSS variables."""
    try:
        import weasyprint
    except OSError as problem:  # Pango is a system library that pip cannot bring
        hint = "Debian: apt install libpango-1.0-0 libpangoft2-1.0-0"
        raise ExternalError(f"WeasyPrint cannot start: {problem}", hint=hint) from None
    page = re.sub(r'<button class="(?:copy|theme)".*?</button>', "", inline_colours(html))
    page = re.sub(r"<button\b[^>]*>(.*?)</button>", r'<span class="key">\1</span>', page, flags=re.DOTALL)
    # Not supported by WeasyPrint 70: `all: unset` on buttons, clamp(), grids that count their columns, flex headings.
    page = page.replace("</style>", f"{read_asset('weasyprint.css')}</style>", 1)
    weasyprint.HTML(string=page, url_fetcher=refuse_fetch).write_pdf(str(target))


def refuse_fetch(url: str, *_: object, **__: object) -> dict[str, object]:
    """Refuse every fetch: a report needs nothing from outside."""
    raise ValueError(f"{url} is not fetched")


@functools.cache
def load_template(name: str) -> Any:
    """A template of the report that writes Markdown: each of its texts is escaped by the filter `md`."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(  # noqa: S701  (not HTML)
        loader=PackageLoader("moebox.report"),
        undefined=StrictUndefined,
        finalize=escape_value,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"md": escape_markdown, "fenced": lambda text: "\n".join(code_block(text))}
    environment.filters |= {"quoted": quote_url, "line": printable_line}
    return environment.get_template(name)


def render_markdown(page: ReportPage) -> str:
    return str(load_template("report.md").render(page=page))


def quote_url(url: str) -> str:
    """A URL that cannot leave the angle brackets around it."""
    return "".join(letter if letter.isprintable() and letter not in "<> " else "%20" for letter in url)
