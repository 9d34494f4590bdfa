"""Work without steps that can be counted: how long it has run, and how long it took the last time."""

import time
from types import TracebackType

from rich.live import Live
from rich.text import Text

from moebox.cli.output import talk
from moebox.store import durations
from moebox.units import seconds


class Estimate:
    """The time left by the last time; remembers this one when it ends well."""

    def __init__(self, key: str) -> None:
        self.key = key
        self.last_s = durations.last(key)
        self.began = time.monotonic()

    @property
    def past_s(self) -> float:
        """Seconds since it began."""
        return time.monotonic() - self.began

    def text(self) -> str:
        """ "41 s, about 35 s left by the last time"."""
        past = seconds(self.past_s)
        if self.last_s is None:
            return past
        left = self.last_s - self.past_s
        return f"{past}, about {seconds(left)} left by the last time" if left >= 1 else f"{past}, longer than last time"

    def done(self) -> None:
        """It ended well."""
        durations.remember(self.key, self.past_s)


class Waiting:
    """A line that is redrawn on a terminal, one line elsewhere, while something runs that says nothing itself."""

    def __init__(self, what: str, key: str, *, quiet: bool = False) -> None:
        self.what, self.quiet = what, quiet
        self.estimate = Estimate(key)
        self.live: Live | None = None

    def __enter__(self) -> "Waiting":
        if talk().is_terminal and not self.quiet:
            self.live = Live(self, console=talk(), refresh_per_second=2, transient=True)
            self.live.__enter__()
        else:
            last = self.estimate.last_s
            talk().print(f"{self.what}{f': about {seconds(last)}, as last time' if last else ''}", markup=False)
        return self

    def __rich__(self) -> Text:
        return Text(f"{self.what}: {self.estimate.text()}")

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.live:
            self.live.__exit__(kind, problem, trace)
        if problem is None:
            self.estimate.done()
