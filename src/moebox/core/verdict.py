"""Results of checking a server: failures, probes, checks, and the evidence for each.

The fields `slips`, `rungs` and `whose` are named as keys of `verify --json` that other programs read.
"""

import math
import shlex
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from moebox.escape import one_line

Mark = Literal["pass", "warn", "fail", "skip"]
Attribution = Literal["server", "model"]

Z95 = 1.959963984540054  # the normal quantile that leaves 2.5% on either side
_WORST_FIRST: tuple[Mark, ...] = ("fail", "warn", "pass", "skip")


def worst_mark(marks: Iterable[Mark]) -> Mark:
    """Return the worst of the marks, "skip" if there are none."""
    given = set(marks)
    return next((mark for mark in _WORST_FIRST if mark in given), "skip")


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """How many trials passed, with the interval of the true share (95%, Wilson)."""

    passed: int
    trials: int
    low: float
    high: float

    @property
    def share(self) -> float:
        return self.passed / self.trials if self.trials else 0.0

    @property
    def text(self) -> str:
        """ "3 of 4 (30–95%)"."""
        interval = f"({self.low * 100:.0f}–{self.high * 100:.0f}%)"
        return f"{self.passed} of {self.trials} {interval}" if self.trials else "none tried"


def wilson_score(passed: int, trials: int) -> Score:
    """Wilson's score interval, which holds for few trials and for shares near 0 or 1."""
    if trials == 0:
        return Score(passed=0, trials=0, low=0.0, high=1.0)
    share, z = passed / trials, Z95
    weight = 1 + z * z / trials
    middle = (share + z * z / (2 * trials)) / weight
    reach = z / weight * math.sqrt(share * (1 - share) / trials + z * z / (4 * trials * trials))
    return Score(passed=passed, trials=trials, low=max(0.0, middle - reach), high=min(1.0, middle + reach))


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """A relative change with its 95% interval; 0.1 is ten per cent more."""

    share: float
    low: float
    high: float

    @property
    def is_significant(self) -> bool:
        """The interval does not contain zero."""
        return self.low > 0 or self.high < 0

    @property
    def interval(self) -> str:
        """ "-47.7% to +37.8%"."""
        return f"{self.low:+.1%} to {self.high:+.1%}"

    def __str__(self) -> str:
        return (
            f"{self.share:+.1%} ({self.interval})" if self.is_significant else f"no difference seen ({self.interval})"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A kind of failure: how often it was seen, of how many chances, and the interval of its rate (95%, Wilson)."""

    kind: str
    seen: int
    of: int
    low: float
    high: float
    verdict: Mark = "pass"
    whose: Attribution = "server"
    example: str = ""  # the first one
    also: tuple[str, ...] = ()  # others that differ from it

    @property
    def rate(self) -> float:
        return self.seen / self.of if self.of else 0.0

    @property
    def examples(self) -> tuple[str, ...]:
        return (self.example, *self.also)


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpExchange:
    """One request and its reply as they were sent, without the key."""

    method: str
    url: str
    request: Any = None
    status: int = 0  # 0 if there is no reply
    headers: dict[str, str] = field(default_factory=dict)
    response: str = ""  # the body; of a stream, the raw events
    seconds: float = 0.0
    first_s: float = 0.0  # until the first byte of the body
    gap_s: float = 0.0  # the longest time between two pieces of the body
    error: str = ""  # why the reply is missing or incomplete: refused, TLS, timeout, too large, broken off


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """One question to the server, and the verdict on its answer."""

    name: str
    verdict: Mark
    reason: str = ""
    seconds: float = 0.0
    requests: int = 0
    score: Score | None = None
    slips: tuple[Failure, ...] = ()
    evidence: tuple[HttpExchange, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultCause:
    """A part of the server that may be at fault: model, template, parser, scheduler, cache or kernel."""

    part: str
    share: float  # of the belief in all parts
    because: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reproduction:
    """The smallest request that was found to show a failure, and how often it did when it was sent again."""

    method: str
    url: str
    request: Any = None
    failed: int = 0
    times: int = 0
    reason: str = ""
    curl: str = ""
    file: str = ""  # in the run folder

    def command_line(self, folder: str = "", max_chars: int = 400) -> str:
        """The curl command; a request that is long, or that a terminal would change, is read from its file."""
        if not self.file or self.curl == one_line(self.curl, max_chars):
            return self.curl
        return f"{self.curl.partition(' -d ')[0]} --data-binary {shlex.quote(f'@{Path(folder, self.file)}')}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckVerdict:
    name: str
    verdict: Mark
    reason: str = ""
    seconds: float = 0.0
    score: Score | None = None
    slips: tuple[Failure, ...] = ()
    probes: tuple[Probe, ...] = ()
    quirks: tuple[str, ...] = ()  # known quirks of this engine that the check shows, with advice for clients
    evidence: str = ""  # the file that holds every exchange of this check
    causes: tuple[FaultCause, ...] = ()  # of a failed check, the likeliest first
    reproduction: Reproduction | None = None  # of a failed check


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResults:
    """All checks in order, and the failures summed over all of them."""

    url: str
    model: str
    engine: str = ""
    rungs: tuple[CheckVerdict, ...] = ()
    slips: tuple[Failure, ...] = ()
    notes: tuple[str, ...] = ()  # what was not checked, and how to check it
    stopped: str = ""  # why the later checks were not made
    sandbox: str = ""  # the isolation that the model's code ran in
    requests: int = 0
    seconds: float = 0.0

    @property
    def marks(self) -> dict[str, Mark]:
        """The verdict of each check by its name."""
        return {check.name: check.verdict for check in self.rungs}

    @property
    def verdict(self) -> Mark:
        """The worst of the checks and of the summed failures; at best "warn" if the checks were stopped."""
        mark = worst_mark([*(check.verdict for check in self.rungs), *(failure.verdict for failure in self.slips)])
        return "warn" if self.stopped and mark == "pass" else mark

    @property
    def has_passed(self) -> bool:
        """Something passed and nothing failed: green or yellow."""
        return self.verdict in ("pass", "warn")

    def checks_with(self, mark: Mark) -> tuple[CheckVerdict, ...]:
        return tuple(check for check in self.rungs if check.verdict == mark)
