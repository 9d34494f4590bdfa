"""Events of an engine in a run's journal: its launch, its log, its nodes, its end."""

from typing import Literal

import msgspec
from msgspec import field

from moebox.core.engine_facts import EngineFacts
from moebox.core.event import Event
from moebox.core.recipe import Flag
from moebox.core.symptom import Finding
from moebox.units import format_gb, format_rate, format_seconds

AttemptOutcome = Literal["", "success", "partial", "failed", "stopped"]


class AttemptStarted(Event, tag="attempt.started", frozen=True):
    """A launch begins; `argv` can be run by hand."""

    id: str = ""
    model: str = ""
    engine: str = ""
    argv: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    port: int = 0
    gpus: tuple[int, ...] = ()
    aside: bool = False  # a rehearsal, not the run's main engine


class AttemptReady(Event, tag="attempt.ready", frozen=True):
    """The engine answered a chat request."""

    id: str = ""
    model: str = ""
    base_url: str = ""
    startup_s: float = 0.0
    facts: EngineFacts = EngineFacts()
    weights_bytes: int = 0  # on a local disk; 0 if they are few or not here
    disk_rate: float = 0.0  # bytes per second of that disk, measured before the start

    @property
    def load_text(self) -> str:
        """The time to load the weights beside its forecast; "" if the disk was not measured."""
        if not self.disk_rate:
            return ""
        took = f"loaded in {format_seconds(self.facts.load_s)}" if self.facts.load_s else ""
        took = took or f"loaded and ready after {format_seconds(self.startup_s)}"
        return f"{format_gb(self.weights_bytes)} of weights {took}; {read_forecast(self.weights_bytes, self.disk_rate)}"


def read_forecast(size: int, rate: float) -> str:
    """Forecast the time to read weights from disk. It has no range: the page cache may hold any part of them."""
    return f"forecast {format_seconds(size / rate)} at the disk's {format_rate(rate)}, less if cached"


class FailureEvent(Event, frozen=True):
    """An engine that does not serve, and the known cause if the log shows one."""

    id: str = ""
    fault: str = ""
    seconds: float = 0.0
    message: str = ""
    remedy: str | None = None
    finding: Finding | None = None


class AttemptFailed(FailureEvent, tag="attempt.failed", frozen=True):
    """The engine failed before it served."""


class EngineDied(FailureEvent, tag="engine.died", frozen=True):
    """The engine failed after it had served."""


class StopEvent(Event, frozen=True):
    """An engine was stopped; what its guard wrote about the end."""

    id: str = ""
    code: int | None = None
    signals: tuple[str, ...] | None = ()
    oom: bool | None = False
    killed: int | None = 0  # processes that were left behind
    swept: int | None = 0  # processes that had lost their guard
    log_bytes: int | None = 0
    lost_bytes: int | None = 0


class AttemptStopped(StopEvent, tag="attempt.stopped", frozen=True):
    """The engine was stopped before it served."""


class EngineStopped(StopEvent, tag="engine.stopped", frozen=True):
    """The engine was stopped after it had served."""


class AttemptEnded(Event, tag="attempt.ended", frozen=True):
    """An attempt that another party made and published."""

    number: int = 0
    outcome: AttemptOutcome = ""
    model: str = ""
    configuration: str = ""
    argv: tuple[str, ...] = ()
    why: str = ""
    remedy: str = ""
    source: str = ""
    undated: bool = False


class EngineFinding(Finding, Event, tag="engine.finding", omit_defaults=True, frozen=True):
    """A known symptom in an engine's log, or a problem that another party published."""

    title: str = ""
    excerpt: str = ""
    is_fixed: bool = field(default=False, name="mended")


class PublishedFacts(Event, tag="engine.facts", frozen=True):
    """Facts that another party published about its engine."""

    facts: EngineFacts = EngineFacts()


class PhaseStarted(Event, tag="engine.started", frozen=True):
    phase: str = ""  # of the engine's start


class PhaseDone(Event, tag="engine.done", frozen=True):
    phase: str = ""


class EngineDetached(Event, tag="engine.detached", frozen=True):
    """The engine keeps running without moebox."""

    id: str = ""


class SlotsKept(Event, tag="engine.slots", frozen=True):
    """Slots of llama.cpp were saved before a stop, or restored after a start."""

    text: str = ""


class ModelSwapped(Event, tag="model.swapped", frozen=True):
    """A model of several serves: how long it took, against its forecast, and what was put away for it."""

    model: str = ""
    put_away: tuple[str, ...] = ()
    seconds: float = 0.0
    forecast_s: float = 0.0  # 0: none
    low_s: float = 0.0
    high_s: float = 0.0


class ServiceRestarted(Event, tag="service.restarted", frozen=True):
    """A service restarts its engine; the evidence is in incidents/."""

    reason: str = ""
    number: int = 0


class ProgramStarted(Event, tag="program.started", frozen=True):
    """A router or a twin was started under its own guard."""

    id: str = ""
    program: str = ""
    argv: tuple[str, ...] = ()
    port: int = 0


class NodeFacts(msgspec.Struct, frozen=True):
    """What a node reports about itself."""

    rank: int = 0
    host: str = ""
    time: float = 0.0
    program: str = ""
    version: str = ""
    gpus: tuple[str, ...] = ()
    weights: bool = True
    rdma: int = 0  # bytes/s of all active RDMA ports
    asked_at: float = 0.0  # our clock when the node was asked …
    replied_at: float = field(default=0.0, name="heard_at")  # … and when its reply came


class NodesProbed(Event, tag="nodes.probed", frozen=True):
    nodes: tuple[NodeFacts, ...] = ()


class NodesReached(Event, tag="nodes.reached", frozen=True):
    """The slowest connection between the first node and another one."""

    tcp_bytes_s: float = 0.0
    round_trip_us: float = 0.0
    rdma_bytes_s: int = 0


class RemedyApplied(Event, tag="remedy.applied", frozen=True):
    """A failed attempt is repeated with the symptom's change."""

    symptom: str | None = None
    change: dict[str, Flag] = field(default_factory=dict)


class PlanRealityRow(msgspec.Struct, frozen=True):
    """A figure as the plan promised it, and as the engine reports it."""

    what: str = ""
    device: str = ""
    planned: float | None = None
    real: float = 0.0
    unit: str = ""  # bytes or tokens

    @property
    def relative_error(self) -> float | None:
        """Deviation from the plan, as a share of the plan."""
        return self.real / self.planned - 1 if self.planned else None


class PlanReality(Event, tag="plan.reality", frozen=True):
    rows: tuple[PlanRealityRow, ...] = ()
