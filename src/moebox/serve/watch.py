"""A starting engine, watched: its log read for phases, facts and symptoms, its port asked until it answers.

The deadline moves with progress: a new phase, one more shard, a kind of line not seen before. What repeats
itself is no progress, so an engine that stands still at 99% is found out however much it prints.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from moebox.core.symptom import Finding
from moebox.doctor.logs import DIGITS, LogSearch
from moebox.engines import modules
from moebox.engines.events import LogEvent
from moebox.serve.tail import LogTail

SHAPES = 5_000  # kinds of lines remembered when looking for progress; a start prints some hundreds
LONGEST = 4_096  # bytes of a line that are looked at


@dataclass
class LogSummary:
    """What the log has told so far."""

    phase: str = "starting"
    done: int | None = None
    total: int | None = None
    ready: bool = False  # the log says so; whether it answers is asked
    facts: dict[str, float] = field(default_factory=dict)
    devices: dict[str, dict[str, float]] = field(default_factory=dict)
    phases: list[tuple[str, float]] = field(default_factory=list)  # name and seconds since the start

    @property
    def phase_text(self) -> str:
        """The phase with its progress: "loading weights (61 of 62)"."""
        return f"{self.phase} ({self.done} of {self.total})" if self.total else self.phase

    def add_event(self, event: LogEvent) -> None:
        """The facts of an event, of a device or of the whole engine; and whether it is the one that says ready."""
        place = self.devices.setdefault(event.device, {}) if event.device and event.facts else self.facts
        place.update(event.facts)
        self.ready = self.ready or event.kind == "ready"


LogListener = Callable[[LogEvent | Finding], None]
Notify = Callable[[str], None]  # takes a line of news


class LogWatch:
    """Reads the log of one engine."""

    def __init__(self, log: Path, engine: str, *, start: int = 0, listener: LogListener | None = None) -> None:
        self.tail = LogTail(log, start=start)
        self.engine = engine
        self.search = LogSearch(engine=engine)
        self.search.lines = lines_before(log, start)
        self.summary = LogSummary()
        self.started = self.progressed = time.monotonic()
        self.has_output = False  # it has printed anything at all
        self._listener = listener
        self._rest = b""
        self._shapes: dict[bytes, bool] = {}  # kinds of lines: whether they tell anything

    def read_new_lines(self) -> bool:
        """Read what is new; True when there was anything."""
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
            if self._shapes.get(shape, True):
                self._read_line(line, shape[:LONGEST])
        return True

    @property
    def idle_s(self) -> float:
        """Seconds since the last progress."""
        return time.monotonic() - self.progressed

    def note_progress(self) -> None:
        """Something went forward."""
        self.progressed = time.monotonic()

    def _read_line(self, line: bytes, shape: bytes) -> None:
        """A line, unless one alike but for its digits was read before and told nothing."""
        event = modules.parse_log_line(self.engine, line[:LONGEST].decode("utf-8", "replace"))
        if shape not in self._shapes and len(self._shapes) < SHAPES:  # a flood of new kinds is no progress either
            self._shapes[shape] = event is not None
            self.note_progress()
        if event:
            self._add_event(event)

    def _add_event(self, event: LogEvent) -> None:
        before = (self.summary.phase, self.summary.done)
        self.summary.add_event(event)
        if event.phase and event.kind in ("phase", "progress", "ready"):
            self._phase(event)
        moved = (self.summary.phase, self.summary.done) != before
        if moved or event.kind != "progress":
            self._notify(event)
        if moved:
            self.note_progress()

    def _phase(self, event: LogEvent) -> None:
        if event.phase != self.summary.phase:
            self.summary.phase = str(event.phase)
            self.summary.done = self.summary.total = None
            self.summary.phases.append((self.summary.phase, time.monotonic() - self.started))
        if event.total:
            self.summary.done, self.summary.total = event.done, event.total

    def _notify(self, news: LogEvent | Finding) -> None:
        if self._listener:
            self._listener(news)


def lines_before(log: Path, start: int) -> int:
    """Lines that earlier attempts of the same run wrote to the log."""
    if not start:
        return 0
    with open(log, "rb") as file:
        return file.read(start).count(b"\n")
