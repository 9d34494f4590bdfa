"""A run as it happens: its steps, what is measured, the engine's log explained, the journal."""

import asyncio
import os
import threading
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass

from moebox import codec
from moebox.core.event import StepRunning
from moebox.core.pipeline import Pipeline, display_state
from moebox.doctor.logs import search_pieces
from moebox.errors import BadInput
from moebox.escape import clip_text
from moebox.flows import pipeline as pipelines
from moebox.loose import Json, as_object, get_number, get_object, get_objects, get_text
from moebox.report.block import Section
from moebox.report.chapters import make_sections
from moebox.report.decision import Decision, decide
from moebox.report.expect import with_forecast
from moebox.report.format import format_time
from moebox.report.naming import label_runs
from moebox.report.reading import read_record
from moebox.report.sections import attempts, climb, ladder, performance, problems, tables
from moebox.report.svg import draw_sparkline
from moebox.serve import state
from moebox.store import PIPELINE, PIPELINE_BEFORE, Run, plain
from moebox.store.summary import summarize_run
from moebox.units import format_seconds

LOOK_S = 0.3  # how often the folder is looked at
PING_S = 15.0  # proxies and browsers give up on a silent stream
SHOWN_EVENTS = 40
SHOWN_LOG = 14
TAIL = 32 << 10  # bytes of the engine's log that are looked at
CHAPTERS = (
    ladder.section,
    performance.section,
    tables.section,
    climb.section,
    attempts.section,
    problems.section,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepView:
    """One step of the pipeline as the page shows it."""

    name: str
    state: str
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    """A line of the engine's log; `meaning` where moebox knows what it means."""

    text: str
    meaning: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveView:
    """Everything the page of a run shows."""

    id: str
    live: bool
    state: str  # as the list of runs says it
    simulation: bool
    decision: Decision
    steps: tuple[StepView, ...]
    time_left: str  # how long it will still take
    rates: str  # a drawing of output tok/s by load, as measured so far
    sections: tuple[Section, ...]
    log: tuple[LogLine, ...]
    events: tuple[tuple[str, str, str], ...]


def live_view(run: Run) -> LiveView:
    """What there is to say right now."""
    told = label_runs([with_forecast(read_record(run))])
    document = run_document(run)
    engines, summary = state.live_run_folders(), summarize_run(run)
    serving = bool(state.engine_writing_to(engines, run.path))
    return LiveView(
        id=run.id,
        live=run.is_locked or serving,
        state=summary.state_text(live=state.is_run_active(run, engines, unfinished_step=summary.left_in)),
        simulation=told[0].simulation,
        decision=decide(told[0], serving=serving),
        steps=step_views(document, live=run.is_locked),
        time_left=time_left_text(run, document) if run.is_locked else "",
        rates=draw_sparkline([level.output_tok_s for level in told[0].loads if level.output_tok_s]),
        sections=tuple(make_sections(told, CHAPTERS)),
        log=tuple(log_lines(run)),
        events=tuple(newest_events(run)),
    )


def run_document(run: Run) -> Json:
    """The pipeline's own file; empty where the run is no pipeline."""
    try:
        return as_object(run.read_pipeline())
    except BadInput:
        return {}


def step_views(document: Json, *, live: bool) -> tuple[StepView, ...]:
    """Each step with its state and what came of it; what still runs while nobody works on it was interrupted."""
    unended = {} if live else {"running": "interrupted"}
    told = [(row, get_text(row, "state") or "waiting") for row in get_objects(document, "steps")]
    shown = [(row, display_state(unended.get(state, state), get_object(row, "figures"))) for row, state in told]
    return tuple(StepView(name=get_text(row, "name"), state=state, text=_came(row)) for row, state in shown)


def _came(row: Json) -> str:
    if row.get("state") in ("failed", "skipped"):
        return get_text(row, "why")
    took = get_number(row, "seconds") or 0.0
    pairs = ((name, value) for name, value in get_object(row, "figures").items() if name != "report")
    figures = [f"{name.replace('_', ' ')} {_shown(value)}" for name, value in pairs]
    return ", ".join([format_seconds(took), *figures] if took > 0 else figures)


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def time_left_text(run: Run, document: Json) -> str:
    """How long the rest takes, going by earlier runs; "" when nobody knows."""
    try:
        pipeline = codec.decode(Pipeline, document, where=PIPELINE)
    except BadInput:
        return ""
    begun = [entry.time for entry in run.read_journal().entries if isinstance(entry.event, StepRunning)]
    past_s = max(0.0, time.time() - begun[-1]) if begun else 0.0
    return pipelines.time_left_text(
        pipeline.steps, pipeline.request, pipelines.expected_step_seconds(run), past_s=past_s
    )


def log_lines(run: Run) -> list[LogLine]:
    """The last lines of the engine's log."""
    try:
        with plain.open_bytes(run.path / "engine.log") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL))
            text = file.read(TAIL).decode("utf-8", "replace")
    except OSError:
        return []
    lines = [line for line in text.splitlines() if line.strip()]
    return [LogLine(text=line[:400], meaning=explain_line(line)) for line in lines[-SHOWN_LOG:]]


def explain_line(line: str) -> str:
    """What moebox knows about a line of a log: cause and remedy, or ""."""
    cause = search_pieces([line.encode() + b"\n"]).cause
    return f"{cause.cause} {cause.remedy}".strip() if cause else ""


def newest_events(run: Run) -> list[tuple[str, str, str]]:
    """The newest events, newest first: moment, kind, what of the data fits in a line."""
    rows = run.read_journal().entries[-SHOWN_EVENTS:]
    return [(format_time(entry.time)[11:19], entry.kind, brief(entry.event.data)) for entry in reversed(rows)]


def brief(data: Json) -> str:
    """An event's data in one line, numbers as people write them."""
    plain = ((key, value) for key, value in data.items() if isinstance(value, str | int | float) and value != "")
    words = [f"{key} {_shown(value)}" for key, value in plain]
    return clip_text(", ".join(words), 160)


def folder_stamp(run: Run) -> tuple[int, ...]:
    """Changes whenever something was written: sizes and times of what the page shows."""
    names = ("events.jsonl", PIPELINE, PIPELINE_BEFORE, "engine.log")
    paths = [run.path / name for name in names]
    for folder in ("verdicts", "measurements"):
        paths += plain.list_entries(run.path / folder, "*.json")
    stats = [path.lstat() for path in paths if plain.is_plain_file(path)]
    return (run.is_locked, len(stats), *(number for stat in stats for number in (stat.st_size, stat.st_mtime_ns)))


async def watch_changes(run: Run, over: threading.Event) -> AsyncIterator[bool]:
    """True each time there is something new (and at first), False when only a sign of life is due; until `over`."""
    seen: tuple[int, ...] | None = None
    shown_at = time.monotonic()
    while not over.is_set():
        now = await asyncio.to_thread(folder_stamp, run)
        if now != seen:
            seen, shown_at = now, time.monotonic()
            yield True
        elif time.monotonic() - shown_at >= PING_S:
            shown_at = time.monotonic()
            yield False
        await asyncio.sleep(LOOK_S)
