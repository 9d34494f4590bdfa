"""Watch the log of a starting engine for phases, facts and symptoms.

The deadline moves with progress: a new phase, one more shard, a kind of line not seen before. Repeated lines are not
progress, so an engine that hangs at 99% is detected however much it prints.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from moebox.core.recipe import Recipe
from moebox.core.symptom import Finding
from moebox.doctor.logs import DIGITS, LogSearch
from moebox.engines.engine import load_engine
from moebox.engines.events import LogEvent
from moebox.serve.tail import LogTail

SHAPES = 5_000  # kinds of lines to remember; a start prints some hundreds
LONGEST = 4_096  # bytes of a line that are parsed


@dataclass
class LogSummary:
    phase: str = "starting"
    done: int | None = None
    total: int | None = None
    ready: bool = False  # according to the log
    facts: dict[str, float] = field(default_factory=dict)
    devices: dict[str, dict[str, float]] = field(default_factory=dict)
    phases: list[tuple[str, float]] = field(default_factory=list)  # name and seconds since the start

    @property
    def phase_text(self) -> str:
        """The phase with its progress: "loading weights (61 of 62)"."""
        return f"{self.phase} ({self.done} of {self.total})" if self.total else self.phase

    def add_event(self, event: LogEvent) -> None:
        """Add the facts of an event, for its device or the whole engine."""
        place = self.devices.setdefault(event.device, {}) if event.device and event.facts else self.facts
        place.update(event.facts)
        self.ready = self.ready or event.kind == "ready"


LogListener = Callable[[LogEvent | Finding], None]
Notify = Callable[[str], None]  # takes one line about progress


class LogWatch:
    """Reads the log of one engine and notes progress."""

    def __init__(
        self,
        log: Path,
        engine: str,
        *,
        recipe: Recipe | None = None,
        start: int = 0,
        listener: LogListener | None = None,
    ) -> None:
        self.tail = LogTail(log, start=start)
        self.engine = load_engine(engine)
        self.search = LogSearch(engine=engine, recipe=recipe)
        if start:  # count the lines of earlier attempts of the same run
            with open(log, "rb") as file:
                self.search.lines = file.read(start).count(b"\n")
        self.summary = LogSummary()
        self.started = self.progressed = time.monotonic()
        self.has_output = False
        self._listener = listener
        self._rest = b""
        self._shapes: dict[bytes, bool] = {}  # lines without digits -> whether they can be parsed

    def read_new_lines(self) -> bool:
        """Read what is new. Return False if there is nothing."""
        data = self.tail.read_new()
        if not data:
            return False
        self.has_output = True
        for finding in self.search.feed(data):
            self._notify(finding)
        data = self._rest + data.replace(b"\r", b"\n")
        cut = data.rfind(b"\n") + 1
        self._rest = data[cut:][-LONGEST:]
        shapes = data[:cut].translate(None, DIGITS).split(b"\n")
        for line, shape in zip(data[:cut].split(b"\n"), shapes, strict=True):
            if not self._shapes.get(shape, True):
                continue
            event, shape = self.engine.parse_log_line(line[:LONGEST].decode("utf-8", "replace")), shape[:LONGEST]
            if shape not in self._shapes and len(self._shapes) < SHAPES:  # more kinds of lines are not progress
                self._shapes[shape] = event is not None
                self.note_progress()
            if event is not None:
                self.add_event(event)
        return True

    @property
    def idle_s(self) -> float:
        return time.monotonic() - self.progressed

    def note_progress(self) -> None:
        self.progressed = time.monotonic()

    def add_event(self, event: LogEvent) -> None:
        """Add what a line reports, or what is seen of the engine without one."""
        summary = self.summary
        before = (summary.phase, summary.done)
        summary.add_event(event)
        if event.phase and event.kind in ("phase", "progress", "ready"):
            if event.phase != summary.phase:
                summary.phase = str(event.phase)
                summary.done = summary.total = None
                summary.phases.append((summary.phase, time.monotonic() - self.started))
            if event.total:
                summary.done, summary.total = event.done, event.total
        moved = (summary.phase, summary.done) != before
        if moved or event.kind != "progress":
            self._notify(event)
        if moved:
            self.note_progress()

    def _notify(self, news: LogEvent | Finding) -> None:
        if self._listener:
            self._listener(news)
