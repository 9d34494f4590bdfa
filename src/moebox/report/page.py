"""Stories to one HTML file that needs nothing else: no network, no second file."""

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
from moebox.report import palette
from moebox.report.block import Section
from moebox.report.chapters import sections
from moebox.report.decision import Decision, decide
from moebox.report.naming import box_title, engine_title, labelled, model_title, quant_title
from moebox.report.palette import colour
from moebox.report.story import Story
from moebox.report.words import clock, day, listed

if TYPE_CHECKING:
    from jinja2 import Environment


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A report before it is HTML or Markdown."""

    title: str
    subtitle: str
    date: str
    made: str
    stories: tuple[Story, ...]
    sections: tuple[Section, ...]
    decisions: tuple[Decision, ...]  # one a run

    @property
    def simulation(self) -> str:
        """A sentence where any of it is simulated."""
        marked = [story.label for story in self.stories if story.simulation]
        if not marked:
            return ""
        return "" if len(marked) == 0 else "all runs." if len(marked) == len(self.stories) else f"{listed(marked)}."


def page_of(stories: Sequence[Story], *, title: str = "", now: float | None = None) -> Page:
    """What the report says, in order."""
    named = labelled(stories)
    latest = max((story.started if story.imported else max(story.started, story.ended) for story in named), default=0.0)
    return Page(
        title=title or title_of(named),
        subtitle=subtitle_of(named),
        date=day(latest),
        made=clock(now if now is not None else time.time()),
        stories=tuple(named),
        sections=tuple(sections(named)),
        decisions=tuple(decide(story) for story in named),
    )


def title_of(stories: Sequence[Story]) -> str:
    """Models on boxes, or the run's own title."""
    if stories[0].title:
        return stories[0].title
    models = list(dict.fromkeys(model_title(story.recipe.model) for story in stories if story.recipe))
    boxes = list(dict.fromkeys(box_title(story) for story in stories if box_title(story)))
    if not models and stories[0].asked:
        models = [model_title(stories[0].asked)]
    if not models:
        return f"Run {stories[0].id}" if len(stories) == 1 else f"{len(stories)} runs"
    return listed(models[:3]) + (f" on {listed(boxes[:2])}" if boxes else "")


def subtitle_of(stories: Sequence[Story]) -> str:
    """Engines and checkpoints."""
    engines = list(dict.fromkeys(engine_title(story) for story in stories if engine_title(story)))
    quants = list(dict.fromkeys(quant_title(story) for story in stories if quant_title(story)))
    published = all(story.imported for story in stories)
    words = [listed(engines[:3]), listed(quants[:4]), "published figures, imported" if published else ""]
    return " · ".join(word for word in words if word)


@functools.cache
def environment() -> "Environment":
    """Templates with everything escaped that is not marked as markup."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    made = Environment(
        loader=PackageLoader("moebox.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["ticked"] = ticked
    return made


def ticked(text: str) -> Markup:
    """Text with `words in ticks` set as code."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))  # noqa: S704  (escaped here)


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
            live=any(story.live for story in page.stories),
            runs=[
                {
                    "id": story.id,
                    "label": story.label,
                    "colour": colour(index),
                    "simulation": story.simulation,
                    "decision": page.decisions[index],
                }
                for index, story in enumerate(page.stories)
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
