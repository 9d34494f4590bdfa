"""Events of an engine: a launch from its command to the first answered chat, what it says meanwhile, and its end."""

from typing import Literal

import msgspec
from msgspec import field

from moebox.core.engine_facts import EngineFacts
from moebox.core.event.base import Event
from moebox.core.recipe import Flag
from moebox.core.symptom import Finding

AttemptOutcome = Literal["", "success", "partial", "failed", "stopped"]


class AttemptStarted(Event, tag="attempt.started", frozen=True):
    """A launch begins; printing `argv` is enough to run it by hand."""

    id: str = ""
    model: str = ""
    engine: str = ""
    argv: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    port: int = 0
    gpus: tuple[int, ...] = ()
    aside: bool = False  # a rehearsal: not what the run is about


class AttemptReady(Event, tag="attempt.ready", frozen=True):
    """The engine answered a chat."""

    id: str = ""
    model: str = ""
    base_url: str = ""
    startup_s: float = 0.0
    facts: EngineFacts = EngineFacts()


class FailureEvent(Event, frozen=True):
    """An engine that does not serve, and the known cause where the log shows one."""

    id: str = ""
    fault: str = ""
    seconds: float = 0.0
    message: str = ""
    remedy: str | None = None
    finding: Finding | None = None


class AttemptFailed(FailureEvent, tag="attempt.failed", frozen=True):
    """It never served."""


class EngineDied(FailureEvent, tag="engine.died", frozen=True):
    """It had served."""


class StopEvent(Event, frozen=True):
    """An engine was stopped; what its guard wrote of its end."""

    id: str = ""
    code: int | None = None
    signals: tuple[str, ...] | None = ()
    oom: bool | None = False
    killed: int | None = 0  # processes that were left behind
    swept: int | None = 0  # processes that had lost their guard
    log_bytes: int | None = 0
    lost_bytes: int | None = 0


class AttemptStopped(StopEvent, tag="attempt.stopped", frozen=True):
    """It never served."""


class EngineStopped(StopEvent, tag="engine.stopped", frozen=True):
    """It had served."""


class AttemptEnded(Event, tag="attempt.ended", frozen=True):
    """An attempt that somebody else made and published."""

    number: int = 0
    outcome: AttemptOutcome = ""
    model: str = ""
    configuration: str = ""
    argv: tuple[str, ...] = ()
    why: str = ""
    remedy: str = ""
    source: str = ""
    undated: bool = False


class EngineFinding(Event, tag="engine.finding", omit_defaults=True, frozen=True):
    """A known symptom in its log, or a problem that somebody else published."""

    symptom: str = ""
    area: str = ""
    severity: str = ""
    line: int = 0
    text: str = ""
    cause: str = ""
    remedy: str = ""
    change: dict[str, Flag] = field(default_factory=dict)
    source: str = ""
    title: str = ""
    excerpt: str = ""
    mended: bool = False


class PublishedFacts(Event, tag="engine.facts", frozen=True):
    """What somebody else published of their engine."""

    facts: EngineFacts = EngineFacts()


class PhaseStarted(Event, tag="engine.started", frozen=True):
    """A phase of its start began."""

    phase: str = ""


class PhaseDone(Event, tag="engine.done", frozen=True):
    """A phase of its start is over."""

    phase: str = ""


class EngineDetached(Event, tag="engine.detached", frozen=True):
    """It goes on without moebox."""

    id: str = ""


class ProgramStarted(Event, tag="program.started", frozen=True):
    """A router or a twin under its own guard."""

    id: str = ""
    program: str = ""
    argv: tuple[str, ...] = ()
    port: int = 0


class NodeFacts(msgspec.Struct, frozen=True):
    """What a node says of itself."""

    rank: int = 0
    host: str = ""
    time: float = 0.0
    program: str = ""
    version: str = ""
    gpus: tuple[str, ...] = ()
    weights: bool = True
    rdma: int = 0  # bytes/s of its active RDMA ports together
    asked_at: float = 0.0  # our clock around its answer
    heard_at: float = 0.0


class NodesProbed(Event, tag="nodes.probed", frozen=True):
    """What every node of a launch is."""

    nodes: tuple[NodeFacts, ...] = ()


class NodesReached(Event, tag="nodes.reached", frozen=True):
    """The slowest way between the first node and another."""

    tcp_bytes_s: float = 0.0
    round_trip_us: float = 0.0
    rdma_bytes_s: int = 0


class RemedyApplied(Event, tag="remedy.applied", frozen=True):
    """A failed attempt is made again with the symptom's change."""

    symptom: str | None = None
    change: dict[str, Flag] = field(default_factory=dict)


class PlanRealityRow(msgspec.Struct, frozen=True):
    """One figure twice: what the plan promised, and what the engine reports."""

    what: str = ""
    device: str = ""
    planned: float | None = None
    real: float = 0.0
    unit: str = ""  # bytes or tokens

    @property
    def relative_error(self) -> float | None:
        """How far reality is from the plan, as a share of the plan."""
        return self.real / self.planned - 1 if self.planned else None


class PlanReality(Event, tag="plan.reality", frozen=True):
    """The plan against the live engine."""

    rows: tuple[PlanRealityRow, ...] = ()
