"""Work without steps that can be counted: how long it has run, and how long it took the last time."""

import time
from types import TracebackType

from rich.live import Live
from rich.text import Text

from moebox.cli.output import stderr_console
from moebox.store import durations
from moebox.units import format_seconds


class TimeEstimate:
    """The time left by the last time, or by a limit; remembers this one when it ends well."""

    def __init__(self, key: str, *, limit_s: float | None = None) -> None:
        self.key = key
        self.limit_s = limit_s  # it never takes longer
        self.last_s = durations.last_duration(key)
        self.began = time.monotonic()

    @property
    def elapsed_s(self) -> float:
        """Seconds since it began."""
        return time.monotonic() - self.began

    def progress_text(self) -> str:
        """ "41 s, about 35 s left by the last time"."""
        past = format_seconds(self.elapsed_s)
        if self.last_s is None:
            return f"{past}{self._at_most()}"
        left = self.last_s - self.elapsed_s
        if left >= 1:
            return f"{past}, about {format_seconds(left)} left by the last time"
        return f"{past}, longer than last time{self._at_most()}"

    def _at_most(self) -> str:
        left = (self.limit_s or 0.0) - self.elapsed_s
        return f", at most {format_seconds(left)} left" if left >= 1 else ""

    def duration_text(self) -> str:
        """ ": about 3 min, as last time", for a log that is told once; "" when nobody knows."""
        if self.last_s:
            return f": about {format_seconds(self.last_s)}, as last time"
        return f": at most {format_seconds(self.limit_s)}" if self.limit_s else ""

    def remember(self) -> None:
        """It ended well."""
        durations.remember_duration(self.key, self.elapsed_s)


class WaitingLine:
    """A line that is redrawn on a terminal, one line elsewhere, while something runs that says nothing itself."""

    def __init__(self, what: str, key: str, *, limit_s: float | None = None) -> None:
        self.what = what
        self.estimate = TimeEstimate(key, limit_s=limit_s)
        self.live: Live | None = None

    def __enter__(self) -> "WaitingLine":
        if stderr_console().is_terminal:
            self.live = Live(self, console=stderr_console(), refresh_per_second=2, transient=True)
            self.live.__enter__()
        else:
            stderr_console().print(f"{self.what}{self.estimate.duration_text()}", markup=False)
        return self

    def __rich__(self) -> Text:
        return Text(f"{self.what}: {self.estimate.progress_text()}")

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.live:
            self.live.__exit__(kind, problem, trace)
        if problem is None:
            self.estimate.remember()
