"""Events of checks, measurements, jobs, rehearsals and calibrations."""

import msgspec

from moebox.core.event.base import Event
from moebox.core.verdict import Mark


class VerifyBegan(Event, tag="verify.begin", frozen=True):
    """The ladder begins."""

    url: str = ""
    model: str = ""
    checks: tuple[str, ...] = ()  # to be made; empty in journals up to 0.1
    of: int = 0  # that there are


class CheckDone(Event, tag="verify.rung", frozen=True):
    """One rung's verdict."""

    name: str = ""
    verdict: Mark = "skip"
    reason: str = ""


class VerifyEnded(Event, tag="verify.end", frozen=True):
    """The ladder's verdict."""

    verdict: Mark = "skip"
    stopped: str = ""


class LoadBegan(Event, tag="bench.begin", frozen=True):
    """A level of concurrency is measured."""

    concurrency: int = 0


class LoadDone(Event, tag="bench.level", frozen=True):
    """A level is measured and written."""

    concurrency: int = 0
    output_tok_s: float = 0.0


class LoadSlept(Event, tag="bench.slept", frozen=True):
    """The machine slept during a level."""

    concurrency: int = 0
    away_s: float = 0.0


class ServerMeasured(Event, tag="bench.server", frozen=True):
    """A server that nothing else is known of is measured."""

    url: str = ""
    model: str = ""


class MeasurementDamaged(Event, tag="bench.damaged", frozen=True):
    """An earlier measurement cannot be used."""

    file: str = ""
    why: str = ""


class TaskBegan(Event, tag="task.begin", frozen=True):
    """An agent begins a job."""

    job: str = ""


class TaskEnded(Event, tag="task.end", frozen=True):
    """How the job ended."""

    job: str = ""
    solved: bool = False
    end: str = ""
    wrong: str = ""


class RehearsalStep(msgspec.Struct, frozen=True):
    """One thing that worked."""

    name: str = ""
    detail: str = ""
    seconds: float = 0.0


class RehearseStarted(Event, tag="rehearse.started", frozen=True):
    """The engine is booted small."""

    recipe: str = ""
    layers: int = 0
    phantom: bool = False


class RehearseFinished(Event, tag="rehearse.finished", frozen=True):
    """What worked, and what a rehearsal cannot show."""

    steps: tuple[RehearsalStep, ...] = ()
    not_rehearsed: tuple[str, ...] = ()


class CalibrateStarted(Event, tag="calibrate.started", frozen=True):
    """Boots of these depths are timed."""

    recipe: str = ""
    depths: tuple[int, ...] = ()


class CalibrateNote(Event, tag="calibrate.note", frozen=True):
    """What a reader of the calibration must know."""

    text: str = ""


class CalibrateFinished(Event, tag="calibrate.finished", frozen=True):
    """The calibration is in the store."""

    id: str = ""
    depths: tuple[int, ...] = ()


class KernelsChecked(Event, tag="kernels.judged", frozen=True):
    """Kernels of a release were compiled or looked up."""

    engine: str = ""
    version: str = ""
    arch: str = ""
    model: str = ""
    tp: int = 1
    kv: str = ""
    by: str = ""
    launches: int = 0
    bad: int = 0
