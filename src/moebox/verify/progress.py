"""How far a ladder is: what runs now, how many requests, how long it may still take."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from moebox.verify.ask import CheckSession
from moebox.verify.rung import Check


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckProgress:
    """A moment of a ladder."""

    check: str
    probe: str
    trial: int  # of the present series; 0 where it has none
    trials: int
    requests: int
    seconds: float
    seconds_left: float | None  # None before there is anything to go by


OnProgress = Callable[[CheckProgress], None]


class ProgressMeter:
    """Follows a ladder and tells a watcher about it."""

    def __init__(self, session: CheckSession, rungs: Sequence[Check], watch: OnProgress | None) -> None:
        self.session, self.watch = session, watch
        self.began = time.monotonic()
        self.total = sum(rung.request_estimate for rung in rungs)
        self.done = 0.0
        self.rung = self.probe = ""
        self.part = 0.0  # cost of the present probe
        if watch:
            session.on_request = self.report

    def begin_probe(self, rung: Check, probe: str) -> None:
        """A probe begins."""
        self.done += self.part
        self.rung, self.probe, self.part = rung.name, probe, rung.request_estimate / len(rung.probes)
        self.session.trial_progress = (0, 0)
        self.report()

    def report(self) -> None:
        """Say where it stands."""
        if not self.watch:
            return
        trial, trials = self.session.trial_progress
        seconds = time.monotonic() - self.began
        done = self.done + (self.part * min(1.0, trial / trials) if trials else 0.0)
        left = seconds * (self.total - done) / done if done > 0 else None
        self.watch(
            CheckProgress(
                check=self.rung,
                probe=self.probe,
                trial=trial,
                trials=trials,
                requests=self.session.request_count,
                seconds=seconds,
                seconds_left=None if left is None else max(0.0, min(left, self.session.seconds_left)),
            )
        )
