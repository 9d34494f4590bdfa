"""A report as Markdown, by templates: the same sections, tables as tables, drawings by their captions."""

import functools
from typing import Any

from moebox.escape import code_block, escape_markdown
from moebox.report.page import ReportPage
from moebox.report.sections.checks import score_text


@functools.cache
def load_template(name: str) -> Any:
    """A template of the report that writes Markdown: each of its texts is escaped by the filter `md`."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(  # noqa: S701  (not HTML)
        loader=PackageLoader("moebox.report"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"md": escape_markdown, "fenced": lambda text: "\n".join(code_block(text))}
    environment.filters |= {"quoted": quote_url, "score": score_text}
    return environment.get_template(name)


def render_markdown(page: ReportPage) -> str:
    return str(load_template("report.md").render(page=page))


def quote_url(url: str) -> str:
    """A URL that cannot leave the angle brackets around it."""
    return "".join(letter if letter.isprintable() and letter not in "<> " else "%20" for letter in url)
