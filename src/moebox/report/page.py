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
from moebox.report.chapters import sections
from moebox.report.decision import Decision, decide
from moebox.report.format import clock, day, listed
from moebox.report.naming import box_title, engine_title, labelled, model_title, quant_title
from moebox.report.order import once
from moebox.report.palette import colour
from moebox.report.record import RunRecord

if TYPE_CHECKING:
    from jinja2 import Environment


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A report before it is HTML or Markdown."""

    title: str
    subtitle: str
    date: str
    made: str
    records: tuple[RunRecord, ...]
    sections: tuple[Section, ...]
    decisions: tuple[Decision, ...]  # one a run

    @property
    def simulation(self) -> str:
        """A sentence where any of it is simulated."""
        marked = [record.label for record in self.records if record.simulation]
        if not marked:
            return ""
        return "all runs." if len(marked) == len(self.records) else f"{listed(marked)}."


def page_of(records: Sequence[RunRecord], *, title: str = "", now: float | None = None) -> Page:
    """What the report says, in order."""
    named = labelled(records)
    moments = [record.started if record.imported else max(record.started, record.ended) for record in named]
    return Page(
        title=title or title_of(named),
        subtitle=subtitle_of(named),
        date=day(max(moments, default=0.0)),
        made=clock(now if now is not None else time.time()),
        records=tuple(named),
        sections=tuple(sections(named)),
        decisions=tuple(map(decide, named)),
    )


def title_of(records: Sequence[RunRecord]) -> str:
    """Models on boxes, or the run's own title."""
    if records[0].title:
        return records[0].title
    models = once(model_title(model_asked(record)) for record in records)
    if not models:
        return f"Run {records[0].id}" if len(records) == 1 else f"{len(records)} runs"
    boxes = once(map(box_title, records))
    return listed(models[:3]) + (f" on {listed(boxes[:2])}" if boxes else "")


def model_asked(record: RunRecord) -> str:
    """The model of the recipe, or the one that was asked for where no recipe came of it."""
    return record.recipe.model if record.recipe else record.asked


def subtitle_of(records: Sequence[RunRecord]) -> str:
    """Engines and checkpoints."""
    engines = once(map(engine_title, records))
    quants = once(map(quant_title, records))
    published = all(record.imported for record in records)
    words = [listed(engines[:3]), listed(quants[:4]), "published figures, imported" if published else ""]
    return " · ".join(filter(None, words))


@functools.cache
def environment(*packages: str) -> "Environment":
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
def asset(name: str) -> Markup:
    """A file of ours that goes into the page as it is."""
    return Markup(resources.files("moebox.report").joinpath("templates", name).read_text(encoding="utf-8"))  # noqa: S704


@functools.cache
def style() -> Markup:
    """The sheet with its font inside, so that a page looks the same where Inter is not installed."""
    font = resources.files("moebox.report").joinpath("templates", "inter.woff2").read_bytes()
    face = f"url(data:font/woff2;base64,{base64.b64encode(font).decode()}) format('woff2')"
    return Markup("@font-face{font-family:Inter;font-weight:100 900;src:" + face + "}\n") + asset("style.css")  # noqa: S704


def html(page: Page) -> str:
    """The whole file. Only the page's own script may run: its hash is in the content policy."""
    script = asset("script.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return (
        environment()
        .get_template("report.html")
        .render(
            title=page.title,
            subtitle=page.subtitle,
            date=page.date,
            made=page.made,
            version=__version__,
            simulation=page.simulation,
            live=any(record.live for record in page.records),
            runs=[
                {
                    "id": record.id,
                    "label": record.label,
                    "colour": colour(index),
                    "simulation": record.simulation,
                    "decision": page.decisions[index],
                }
                for index, record in enumerate(page.records)
            ],
            links=[section.id for section in page.sections],
            sections=page.sections,
            light=Markup(palette.variables(palette.LIGHT)),  # noqa: S704
            dark=Markup(palette.variables(palette.DARK)),  # noqa: S704
            style=style(),
            script=script,
            script_hash=f"sha256-{digest}",
        )
    )
