"""Records to one HTML file that needs nothing else: no network, no second file."""

import base64
import functools
import hashlib
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING

from markupsafe import Markup, escape

from moebox import __version__
from moebox.escape import escape_invisible
from moebox.report import palette
from moebox.report.block import Section
from moebox.report.chapters import make_sections
from moebox.report.decision import Decision, decide
from moebox.report.format import format_date, format_time, join_names, unique_names
from moebox.report.naming import box_title, engine_title, label_runs, model_title, quant_title
from moebox.report.palette import run_colour
from moebox.report.record import RunRecord

if TYPE_CHECKING:
    from jinja2 import Environment


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportPage:
    """A report before it is HTML or Markdown."""

    title: str
    subtitle: str
    date: str
    made: str
    records: tuple[RunRecord, ...]
    sections: tuple[Section, ...]
    decisions: tuple[Decision, ...]  # one a run

    @property
    def simulated_runs(self) -> str:
        """A sentence where any of it is simulated."""
        marked = [record.label for record in self.records if record.simulation]
        if not marked:
            return ""
        return "all runs." if len(marked) == len(self.records) else f"{join_names(marked)}."


def build_page(records: Sequence[RunRecord], *, title: str = "", now: float | None = None) -> ReportPage:
    """What the report says, in order."""
    named = label_runs(records)
    moments = [record.started if record.imported else max(record.started, record.ended) for record in named]
    return ReportPage(
        title=title or page_title(named),
        subtitle=page_subtitle(named),
        date=format_date(max(moments, default=0.0)),
        made=format_time(now if now is not None else time.time()),
        records=tuple(named),
        sections=tuple(make_sections(named)),
        decisions=tuple(map(decide, named)),
    )


def page_title(records: Sequence[RunRecord]) -> str:
    """Models on boxes, or the run's own title."""
    if records[0].title:
        return records[0].title
    models = unique_names(model_title(model_asked(record)) for record in records)
    if not models:
        return f"Run {records[0].id}" if len(records) == 1 else f"{len(records)} runs"
    boxes = unique_names(map(box_title, records))
    return join_names(models[:3]) + (f" on {join_names(boxes[:2])}" if boxes else "")


def model_asked(record: RunRecord) -> str:
    """The model of the recipe, or the one that was asked for where no recipe came of it."""
    return record.recipe.model if record.recipe else record.requested_model


def page_subtitle(records: Sequence[RunRecord]) -> str:
    """Engines and checkpoints."""
    engines = unique_names(map(engine_title, records))
    quants = unique_names(map(quant_title, records))
    published = all(record.imported for record in records)
    words = [join_names(engines[:3]), join_names(quants[:4]), "published figures, imported" if published else ""]
    return " · ".join(filter(None, words))


@functools.cache
def jinja_environment(*packages: str) -> "Environment":
    """Templates of the report, and before them those of `packages`; what is not marked as markup is escaped."""
    from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

    made = Environment(
        loader=ChoiceLoader([PackageLoader(package) for package in (*packages, "moebox.report")]),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["ticked"] = ticked
    return made


def shown(value: object) -> object:
    """A value as a page shows it: letters that turn lines around or do not show are written as their numbers."""
    return escape_invisible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def ticked(text: str) -> Markup:
    """Text with `words in ticks` set as code."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(escape_invisible(text)))))  # noqa: S704  (escaped here)


@functools.cache
def read_asset(name: str) -> Markup:
    """A file of ours that goes into the page as it is."""
    return Markup(resources.files("moebox.report").joinpath("templates", name).read_text(encoding="utf-8"))  # noqa: S704


@functools.cache
def style_sheet() -> Markup:
    """The sheet with its font inside, so that a page looks the same where Inter is not installed."""
    font = resources.files("moebox.report").joinpath("templates", "inter.woff2").read_bytes()
    face = f"url(data:font/woff2;base64,{base64.b64encode(font).decode()}) format('woff2')"
    return Markup("@font-face{font-family:Inter;font-weight:100 900;src:" + face + "}\n") + read_asset("style.css")  # noqa: S704


def render_html(page: ReportPage) -> str:
    """The whole file. Only the page's own script may run: its hash is in the content policy."""
    script = read_asset("script.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return (
        jinja_environment()
        .get_template("report.html")
        .render(
            title=page.title,
            subtitle=page.subtitle,
            date=page.date,
            made=page.made,
            version=__version__,
            simulation=page.simulated_runs,
            live=any(record.live for record in page.records),
            runs=[
                {
                    "id": record.id,
                    "label": record.label,
                    "colour": run_colour(index),
                    "simulation": record.simulation,
                    "decision": page.decisions[index],
                }
                for index, record in enumerate(page.records)
            ],
            links=[section.id for section in page.sections],
            sections=page.sections,
            light=Markup(palette.css_variables(palette.LIGHT)),  # noqa: S704
            dark=Markup(palette.css_variables(palette.DARK)),  # noqa: S704
            style=style_sheet(),
            script=script,
            script_hash=f"sha256-{digest}",
        )
    )
