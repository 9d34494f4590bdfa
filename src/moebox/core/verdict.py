"""What came of asking a server to prove itself: probes, rungs, the ladder, and the evidence for each."""

from dataclasses import dataclass, field
from typing import Any, Literal

Mark = Literal["pass", "fail", "skip"]


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """One request and what came back, as it went over the wire; the key is in neither."""

    method: str
    url: str
    request: Any = None
    status: int = 0  # 0 when no answer came
    headers: dict[str, str] = field(default_factory=dict)
    response: str = ""  # the body; of a stream, the raw events
    seconds: float = 0.0
    error: str = ""  # why there is no whole answer: refused, TLS, too late, too large, broken off


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """One question put to the server, and the judgement."""

    name: str
    verdict: Mark
    reason: str = ""
    caution: bool = False  # passed, and `reason` is something that people should know all the same
    seconds: float = 0.0
    requests: int = 0
    score: Score | None = None
    evidence: tuple[Exchange, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """One rung: what its probes add up to."""

    name: str
    verdict: Mark
    reason: str = ""
    seconds: float = 0.0
    score: Score | None = None
    probes: tuple[Probe, ...] = ()
    evidence: str = ""  # the file that holds every exchange of this rung


@dataclass(frozen=True, slots=True, kw_only=True)
class Ladder:
    """Every rung in order. Green means that at least one passed and none failed."""

    url: str
    model: str
    engine: str = ""
    rungs: tuple[Verdict, ...] = ()
    stopped: str = ""  # why the later rungs were not tried
    sandbox: str = ""  # which walls the model's code ran behind

    @property
    def verdict(self) -> Mark:
        """The sum of the rungs."""
        marks = {rung.verdict for rung in self.rungs}
        return "fail" if "fail" in marks else "pass" if "pass" in marks else "skip"

    def rung(self, name: str) -> Verdict | None:
        """The rung of that name, if it was climbed."""
        return next((rung for rung in self.rungs if rung.name == name), None)
