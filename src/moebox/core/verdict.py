"""What came of asking a server to prove itself: slips, probes, rungs, the ladder, and the evidence for each."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

Mark = Literal["pass", "warn", "fail", "skip"]
Attribution = Literal["server", "model"]

Z95 = 1.959963984540054  # the normal quantile that leaves 2.5% on either side
_WORST: tuple[Mark, ...] = ("fail", "warn", "pass", "skip")


def worst_mark(marks: Iterable[Mark]) -> Mark:
    """fail before warn before pass before skip; nothing at all is a skip."""
    given = set(marks)
    return next((mark for mark in _WORST if mark in given), "skip")


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """How many of how many went well, with the interval in which the true share lies (95%, Wilson)."""

    passed: int
    trials: int
    low: float
    high: float

    @property
    def share(self) -> float:
        """The share that went well; 0 when nothing was tried."""
        return self.passed / self.trials if self.trials else 0.0


def wilson_score(passed: int, trials: int) -> Score:
    """Wilson's score interval: honest for few trials and for shares near 0 or 1."""
    if trials == 0:
        return Score(passed=0, trials=0, low=0.0, high=1.0)
    share, z = passed / trials, Z95
    weight = 1 + z * z / trials
    middle = (share + z * z / (2 * trials)) / weight
    reach = z / weight * math.sqrt(share * (1 - share) / trials + z * z / (4 * trials * trials))
    return Score(passed=passed, trials=trials, low=max(0.0, middle - reach), high=min(1.0, middle + reach))


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A kind of fault: how often it was seen, of how many chances, and the interval of its rate (95%, Wilson)."""

    kind: str
    seen: int
    of: int
    low: float
    high: float
    verdict: Mark = "pass"
    whose: Attribution = "server"
    example: str = ""  # what was wrong the first time
    also: tuple[str, ...] = ()  # what else was, where it was not always the same

    @property
    def rate(self) -> float:
        """The share of chances in which it was seen."""
        return self.seen / self.of if self.of else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpExchange:
    """One request and its reply, as they went over the wire; the key is in neither."""

    method: str
    url: str
    request: Any = None
    status: int = 0  # 0 when no reply came
    headers: dict[str, str] = field(default_factory=dict)
    response: str = ""  # the body; of a stream, the raw events
    seconds: float = 0.0
    first_s: float = 0.0  # until the first byte of the body
    error: str = ""  # why there is no whole reply: refused, TLS, timeout, too large, broken off


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """One question put to the server, and the judgement."""

    name: str
    verdict: Mark
    reason: str = ""
    seconds: float = 0.0
    requests: int = 0
    score: Score | None = None
    slips: tuple[Failure, ...] = ()
    evidence: tuple[HttpExchange, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckVerdict:
    """One rung: what its probes add up to."""

    name: str
    verdict: Mark
    reason: str = ""
    seconds: float = 0.0
    score: Score | None = None
    slips: tuple[Failure, ...] = ()
    probes: tuple[Probe, ...] = ()
    habits: tuple[str, ...] = ()  # known habits of this engine that it shows, and what they mean for a client
    evidence: str = ""  # the file that holds every exchange of this rung


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResults:
    """Every rung in order, and the slips summed over all of them."""

    url: str
    model: str
    engine: str = ""
    rungs: tuple[CheckVerdict, ...] = ()
    slips: tuple[Failure, ...] = ()
    notes: tuple[str, ...] = ()  # what was not tried, and how to
    stopped: str = ""  # why the later rungs were not tried
    sandbox: str = ""  # which walls the model's code ran behind
    requests: int = 0
    seconds: float = 0.0

    @property
    def verdict(self) -> Mark:
        """The worst of the rungs and of the summed slips; a ladder that was cut short is never green."""
        mark = worst_mark([*(rung.verdict for rung in self.rungs), *(slip.verdict for slip in self.slips)])
        return "warn" if self.stopped and mark == "pass" else mark

    @property
    def has_passed(self) -> bool:
        """Something passed and nothing failed: green or yellow."""
        return self.verdict in ("pass", "warn")

    def checks_with(self, mark: Mark) -> tuple[CheckVerdict, ...]:
        """The rungs that ended so."""
        return tuple(rung for rung in self.rungs if rung.verdict == mark)

    def find_check(self, name: str) -> CheckVerdict | None:
        """The rung of that name, if it was climbed."""
        return next((rung for rung in self.rungs if rung.name == name), None)
