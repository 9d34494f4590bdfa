"""A run as it happens: its steps, its measurements, the engine's log explained, the journal, results of trials."""

import asyncio
import os
import threading
import time
from collections.abc import AsyncIterator, Callable
from typing import TypeVar

from moebox import codec
from moebox.assess.format import format_time
from moebox.assess.naming import label_runs
from moebox.assess.run import assess_run
from moebox.core.event import CheckDone, LoadDone, StepRunning, UpgradeStep
from moebox.core.pipeline import Pipeline, display_state, figure_text
from moebox.core.upgrade_result import UPGRADE_FILE, UpgradeResult
from moebox.doctor.logs import search_pieces
from moebox.errors import BadInput
from moebox.escape import clip_text
from moebox.flows import pipeline as pipelines
from moebox.flows.trials import TABLE_FILE
from moebox.flows.tune_state import FRONT, SCREENED, START, TUNE_FILE, WHOLE, TuneState, pareto_charts
from moebox.flows.walk import ClimbTrial
from moebox.loose import Document, Json, get_objects
from moebox.report.block import Block, Bullets, CustomBlock, LegendKey, Prose, ReportChart, Section, chart_blocks
from moebox.report.charts import ChartAxis, ChartSeries, line_chart
from moebox.report.expect import with_forecast
from moebox.report.page import SectionMaker, make_sections
from moebox.report.sections.checks import checks_section
from moebox.report.sections.launches import attempts_section, climb_section, problems_section
from moebox.report.sections.performance import figures_section, performance_section
from moebox.report.sections.tasks import tasks_section
from moebox.runs.listing import folder_stamp, summarize_record
from moebox.runs.reader import read_run
from moebox.serve import state
from moebox.store import PIPELINE, PIPELINE_BEFORE, Run, plain
from moebox.units import format_seconds

POLL_S = 0.3  # between two looks at the folder
PING_S = 15.0  # proxies and browsers give up on a silent stream
MAX_EVENTS = 40
MAX_LOG_LINES = 14
COMMAND_LOG = "command.log"  # what a command that the page started prints
WATCHED: tuple[str, ...] = ("events.jsonl", PIPELINE, PIPELINE_BEFORE, "engine.log", COMMAND_LOG)
WATCHED += (TUNE_FILE, UPGRADE_FILE, "verdicts", "measurements")  # files and folders that the page shows
TAIL_BYTES = 32 << 10  # of the engine's log that are read
LIVE_SECTIONS: tuple[SectionMaker, ...] = (checks_section, performance_section, figures_section, climb_section)
LIVE_SECTIONS += (tasks_section, attempts_section, problems_section)
TONES = {"keep": "good", "no difference": "good", "roll back": "bad"}
LEGEND = {"the start": START, "whole model": WHOLE, "screened": SCREENED, "best trade-offs": FRONT}
T = TypeVar("T")
Step = tuple[str, str, str]  # name, state and text of a step as the page shows it


def live_view(run: Run) -> Document:
    """Return everything that the page of a run shows, by the names that its template uses."""
    records = label_runs([with_forecast(read_run(run))])
    record = records[0]
    engines, summary = state.live_run_folders(), summarize_record(record)
    serving, newest = bool(state.engine_writing_to(engines, run.path)), run.read_journal().entries[-MAX_EVENTS:]
    shown = summary.state_text(live=state.is_run_active(run, engines, unfinished_step=summary.left_in))
    shown = "serving" if serving and not run.is_locked and not summary.left_in else shown
    return {
        "id": run.id,
        "live": run.is_locked or serving,
        "locked": run.is_locked,  # a process works on it, which can be stopped
        "state": shown,  # as in the list of runs
        "simulation": record.simulation,
        "assessment": assess_run(record, serving=serving),
        "steps": step_views(record.pipeline, live=record.locked) or upgrade_views(run),
        "time_left": time_left_text(run, record.pipeline) if record.locked else "",
        "engine": "" if record.simulation else engines.get(run.path.resolve(), ""),  # not one that a trial measures
        "charts": time_charts(run),
        "sections": (*trial_sections(run), *make_sections(records, LIVE_SECTIONS)),
        "log": log_lines(run, "engine.log"),
        "output": log_lines(run, COMMAND_LOG),
        "events": [(format_time(row.time)[11:19], row.kind, event_text(row.event.data)) for row in reversed(newest)],
    }


def time_charts(run: Run) -> CustomBlock | None:
    """Checks made and output rates over the minutes of the run; None before the first of them."""
    entries = run.read_journal().entries
    checks: dict[str, list[tuple[float, float]]] = {"passed": [], "failed or warned": []}
    rates: list[tuple[float, float]] = []
    for entry in entries:
        minute = (entry.time - entries[0].time) / 60
        if isinstance(entry.event, CheckDone) and entry.event.verdict != "skip":
            points = checks["passed" if entry.event.verdict == "pass" else "failed or warned"]
            points.append((minute, len(points) + 1.0))
        elif isinstance(entry.event, LoadDone):
            rates.append((minute, entry.event.output_tok_s))
    x = ChartAxis(title="minutes since the start", log=False, zero=False, format=lambda value: f"{value:.1f}")
    made = [ChartSeries(name=name, colour=index, points=tuple(checks[name])) for index, name in enumerate(checks, 1)]
    measured = [ChartSeries(name="output tok/s", colour=1, points=tuple(rates))]
    count, rate = ChartAxis(title="checks", log=False), ChartAxis(title="output tok/s", log=False)
    checks_chart = line_chart("Checks made", made, x=x, y=count, label="Checks made over time")
    rates_chart = line_chart("Output of each load", measured, x=x, y=rate, label="Output rates over time")
    return next(iter(chart_blocks((checks_chart, rates_chart))), None)


def step_views(pipeline: Pipeline, *, live: bool) -> list[Step]:
    """Each step with its state and result; a running step without a process was interrupted."""
    views: list[Step] = []
    for step in pipeline.steps:
        if step.state == "waiting" and step.name not in pipeline.request.wanted_steps:
            continue  # not requested
        shown = "interrupted" if step.state == "running" and not live else step.state
        took = format_seconds(step.seconds) if step.state == "done" and step.seconds > 0 else ""
        text = ", ".join(filter(None, (took, step.text)))
        views.append((step.name, display_state(shown, step.figures), text))
    return views


def upgrade_views(run: Run) -> list[Step]:
    """The steps of an upgrade, the last of which is running or was interrupted if there is no result."""
    views = [(format_time(when)[11:19], "done", step.text) for when, step in upgrade_steps(run)]
    if views and not (run.path / UPGRADE_FILE).exists():
        when, _, text = views[-1]
        views[-1] = (when, "running" if run.is_locked else "interrupted", text)
    return views


def time_left_text(run: Run, pipeline: Pipeline) -> str:
    """How long the rest takes, by earlier runs or a tuning's budget; "" if that is not known."""
    if not pipeline.steps:
        return trial_time_left(run)
    started = [entry.time for entry in run.read_journal().entries if isinstance(entry.event, StepRunning)]
    past_s = max(0.0, time.time() - started[-1]) if started else 0.0
    return pipelines.time_left_text(
        pipeline.steps, pipeline.request, pipelines.expected_step_seconds(run), past_s=past_s
    )


def log_lines(run: Run, name: str) -> list[tuple[str, str]]:
    """The last lines of a log, each with cause and remedy if it is a known one."""
    try:
        with plain.open_bytes(run.path / name) as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
            text = file.read(TAIL_BYTES).decode("utf-8", "replace")
    except OSError:
        return []
    rows = []
    for line in list(filter(str.strip, text.splitlines()))[-MAX_LOG_LINES:]:
        cause = search_pieces([line.encode() + b"\n"]).cause
        rows.append((line[:400], f"{cause.cause} {cause.remedy}".strip() if cause else ""))
    return rows


def event_text(data: Json) -> str:
    """An event's data in one line."""
    plain = ((key, value) for key, value in data.items() if isinstance(value, str | int | float) and value != "")
    return clip_text(", ".join(f"{key} {figure_text(value)}" for key, value in plain), 160)


def read_state(run: Run, kind: type[T], name: str) -> T | None:
    """What a tuning or an upgrade wrote, or None if there is nothing that can be read."""
    try:
        found = run.read_json(name)
        return codec.decode(kind, found, where=name) if found else None
    except BadInput:
        return None


def trial_sections(run: Run) -> list[Section]:
    """The result so far, with its reasons and the picture of a tuning."""
    sections = []
    if tuning := read_state(run, TuneState, TUNE_FILE):
        rows = get_objects(run.read_json(TABLE_FILE), "steps")
        trials = [codec.decode(ClimbTrial, row, where=TABLE_FILE) for row in rows]
        keys = tuple(LegendKey(name=name, colour=colour, dashed=colour == SCREENED) for name, colour in LEGEND.items())
        drawn = pareto_charts(trials, tuning.screened) if trials and trials[0].output_tok_s else []
        charts = chart_blocks(ReportChart(title=title, svg=svg, legend=keys) for title, svg in drawn)
        blocks: tuple[Block, ...] = (Bullets(items=tuple(map(str.strip, tuning.findings))), *charts)
        sections.append(Section(id="tuning", title=f"Tuning for {tuning.options.goal}", blocks=blocks))
    if result := read_state(run, UpgradeResult, UPGRADE_FILE):
        text = f"{result.outcome}{', applied' * result.applied}"
        outcome = Prose(paragraphs=(text,), tone=TONES.get(result.outcome, "warn"))  # type: ignore[arg-type]
        blocks = (outcome, Bullets(items=tuple(result.findings)))
        sections.append(Section(id="upgrade", title="Upgrade", lead=result.headline, blocks=blocks))
    return sections


def upgrade_steps(run: Run) -> list[tuple[float, UpgradeStep]]:
    """When each step of an upgrade began, and what it does."""
    entries = run.read_journal().entries
    return [(entry.time, entry.event) for entry in entries if isinstance(entry.event, UpgradeStep)]


def trial_time_left(run: Run) -> str:
    """How long a tuning takes at most, or an upgrade by the last one of its recipe; "" if the run is neither."""
    if tuning := read_state(run, TuneState, TUNE_FILE):
        since = time.time() - (run.path / TUNE_FILE).stat().st_mtime
        return f"at most {format_seconds(max(0.0, tuning.options.budget_s - tuning.spent_s - since))} left"
    if not (steps := upgrade_steps(run)):
        return ""
    past_s, kind = time.time() - steps[0][0], run.id.partition("-upgrade-")[2][:-5]  # without the random letters
    earlier = sorted(run.path.parent.glob(f"*-upgrade-{kind}-????"))
    results = [read_state(Run(path), UpgradeResult, UPGRADE_FILE) for path in earlier]
    lengths = [result.seconds for result in results if result and result.gains]
    left = f"about {format_seconds(max(0.0, lengths[-1] - past_s))} left, by the last one" if lengths else ""
    return left or f"{format_seconds(past_s)} so far; how long it takes is known after the first one"


class RunFeed:
    """The present state of a run as text. Its folder is looked at and rendered once for all who follow it."""

    def __init__(self, run: Run, render: Callable[[Run], str]) -> None:
        self.run, self.render = run, render
        self.followers = 0
        self._lock = asyncio.Lock()
        self._stamp: tuple[bool, str] | None = None
        self._looked_at = 0.0
        self._version, self._text = 0, ""

    async def read_latest(self) -> tuple[int, str]:
        """Return the number of the present state, and the state; at most POLL_S old."""
        async with self._lock:
            if time.monotonic() - self._looked_at >= POLL_S:
                stamp = await asyncio.to_thread(lambda: (self.run.is_locked, folder_stamp(self.run.path, WATCHED)))
                if stamp != self._stamp:
                    self._text = await asyncio.to_thread(self.render, self.run)
                    self._stamp, self._version = stamp, self._version + 1
                self._looked_at = time.monotonic()
            return self._version, self._text

    async def follow(self, over: threading.Event) -> AsyncIterator[str]:
        """Yield the state at first and on each change, "" if only a sign of life is due, until `over`."""
        seen, shown_at = 0, time.monotonic()
        while not over.is_set() and self.run.path.is_dir():
            version, text = await self.read_latest()
            if version != seen or time.monotonic() - shown_at >= PING_S:
                yield text if version != seen else ""
                seen, shown_at = version, time.monotonic()
            await asyncio.sleep(POLL_S)
