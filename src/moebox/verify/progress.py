"""How far a ladder is: what runs now, how many requests, how long it may still take."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from moebox.verify.ask import Asker
from moebox.verify.rung import Rung


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """A moment of a ladder."""

    rung: str
    probe: str
    trial: int  # of the present series; 0 where it has none
    trials: int
    requests: int
    seconds: float
    left_s: float | None  # None before there is anything to go by


Watcher = Callable[[Progress], None]


class Meter:
    """Follows a ladder and tells a watcher about it."""

    def __init__(self, ask: Asker, rungs: Sequence[Rung], watch: Watcher | None) -> None:
        self.ask, self.watch = ask, watch
        self.began = time.monotonic()
        self.total = sum(rung.cost for rung in rungs)
        self.done = 0.0
        self.rung = self.probe = ""
        self.part = 0.0  # cost of the present probe
        if watch:
            ask.watching = self.tell

    def enter(self, rung: Rung, probe: str) -> None:
        """A probe begins."""
        self.done += self.part
        self.rung, self.probe, self.part = rung.name, probe, rung.cost / len(rung.probes)
        self.ask.trial = (0, 0)
        self.tell()

    def tell(self) -> None:
        """Say where it stands."""
        if not self.watch:
            return
        trial, trials = self.ask.trial
        seconds = time.monotonic() - self.began
        done = self.done + (self.part * min(1.0, trial / trials) if trials else 0.0)
        left = seconds * (self.total - done) / done if done > 0 else None
        self.watch(
            Progress(
                rung=self.rung,
                probe=self.probe,
                trial=trial,
                trials=trials,
                requests=self.ask.requests,
                seconds=seconds,
                left_s=None if left is None else max(0.0, min(left, self.ask.left_s)),
            )
        )
