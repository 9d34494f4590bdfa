"""A report as one HTML file that needs neither network nor other files."""

import base64
import functools
import hashlib
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING

from markupsafe import Markup, escape

from moebox import __version__
from moebox.assess.assessment import Assessment
from moebox.assess.format import format_date, format_time, join_names, unique_names
from moebox.assess.naming import box_title, engine_title, label_runs, model_title, quant_title
from moebox.assess.run import assess_run
from moebox.escape import escape_invisible
from moebox.report.block import Section
from moebox.report.sections.checks import check_evidence, checks_section, probe_evidence, quality_section
from moebox.report.sections.compare import compare_section, models_section
from moebox.report.sections.hardware import hardware_section
from moebox.report.sections.kernels import kernels_section
from moebox.report.sections.launches import attempts_section, climb_section, problems_section, recommendations_section
from moebox.report.sections.memory import memory_section, plan_section
from moebox.report.sections.performance import figures_section, performance_section
from moebox.report.sections.reproduce import notes_section, reproduce_section
from moebox.report.sections.summary import summary_section
from moebox.report.sections.tasks import tasks_section
from moebox.report.svg import DARK, LIGHT, css_variables, run_colour
from moebox.runs.record import RunRecord
from moebox.units import format_seconds

if TYPE_CHECKING:
    from jinja2 import Environment

SectionMaker = Callable[[Sequence[RunRecord]], Section | None]
SECTIONS: tuple[SectionMaker, ...] = (summary_section, compare_section, hardware_section, models_section)
SECTIONS += (performance_section, figures_section, memory_section, plan_section, kernels_section, checks_section)
SECTIONS += (quality_section, tasks_section, attempts_section, climb_section, problems_section)
SECTIONS += (recommendations_section, reproduce_section, notes_section)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportPage:
    """A report before it is HTML or Markdown."""

    title: str
    subtitle: str
    date: str
    made: str
    records: tuple[RunRecord, ...]
    sections: tuple[Section, ...]
    assessments: tuple[Assessment, ...]  # one a run

    @property
    def simulated_runs(self) -> str:
        """The simulated runs as a sentence; "" if there are none."""
        marked = [record.label for record in self.records if record.simulation]
        if not marked:
            return ""
        return "all runs." if len(marked) == len(self.records) else f"{join_names(marked)}."


def make_sections(records: Sequence[RunRecord], makers: Sequence[SectionMaker] = SECTIONS) -> list[Section]:
    """Every section that has content, in reading order."""
    return [section for make in makers if (section := make(records)) and section.blocks]


def build_page(records: Sequence[RunRecord], *, title: str = "") -> ReportPage:
    """Build the content of a report. Without a title it is named after models and boxes."""
    named = label_runs(records)
    moments = [record.started if record.imported else max(record.started, record.ended) for record in named]
    requested = [record.recipe.model if record.recipe else record.requested_model for record in named]
    models, boxes = unique_names(map(model_title, requested)), unique_names(map(box_title, named))
    title = title or named[0].info.title
    if not title and models:
        title = join_names(models[:3]) + (f" on {join_names(boxes[:2])}" if boxes else "")
    elif not title:
        title = f"Run {named[0].id}" if len(named) == 1 else f"{len(named)} runs"
    engines, quants = unique_names(map(engine_title, named)), unique_names(map(quant_title, named))
    is_published = all(record.imported for record in named)
    subtitle = [join_names(engines[:3]), join_names(quants[:4]), "published figures, imported" if is_published else ""]
    return ReportPage(
        title=title,
        subtitle=" · ".join(filter(None, subtitle)),
        date=format_date(max(moments, default=0.0)),
        made=format_time(time.time()),
        records=tuple(named),
        sections=tuple(make_sections(named)),
        assessments=tuple(map(assess_run, named)),
    )


@functools.cache
def jinja_environment(*packages: str) -> "Environment":
    """Templates of `packages`, then of the report. Text that is not marked as markup is escaped."""
    from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

    made = Environment(
        loader=ChoiceLoader([*map(PackageLoader, (*packages, "moebox.report"))]),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=escape_value,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {"ticked": code_in_ticks, "seconds": format_seconds, "moment": format_time}
    made.filters |= {"check_evidence": check_evidence, "probe_evidence": probe_evidence}
    return made


def escape_value(value: object) -> object:
    """Return what a template shows of a value: text without invisible characters, unless it is marked as markup."""
    return escape_invisible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def code_in_ticks(text: str) -> Markup:
    """Text with words in backticks set as code."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(escape_invisible(text)))))  # noqa: S704  (escaped here)


@functools.cache
def read_asset(name: str) -> Markup:
    """A template file that goes into the page unchanged."""
    return Markup(resources.files("moebox.report").joinpath("templates", name).read_text(encoding="utf-8"))  # noqa: S704


@functools.cache
def style_sheet() -> Markup:
    """The style sheet with its font inside, so that a page looks the same if Inter is not installed."""
    font = resources.files("moebox.report").joinpath("templates", "inter.woff2").read_bytes()
    face = f"url(data:font/woff2;base64,{base64.b64encode(font).decode()}) format('woff2')"
    return Markup("@font-face{font-family:Inter;font-weight:100 900;src:" + face + "}\n") + read_asset("style.css")  # noqa: S704


def render_html(page: ReportPage, *, home: str = "") -> str:
    """Render the whole file, with a link to `home`. Only its own script may run: its hash is in the content policy."""
    script = read_asset("script.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return (
        jinja_environment()
        .get_template("report.html")
        .render(
            page=page,
            home=home,
            version=__version__,
            runs=[
                {"record": record, "colour": run_colour(index), "assessment": assessment}
                for index, (record, assessment) in enumerate(zip(page.records, page.assessments, strict=True))
            ],
            light=Markup(css_variables(LIGHT)),  # noqa: S704
            dark=Markup(css_variables(DARK)),  # noqa: S704
            style=style_sheet(),
            script=script,
            script_hash=f"sha256-{digest}",
        )
    )
