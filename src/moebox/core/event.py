"""Events of a run's journal: one type for each kind, written and read back as the same type.

A line of events.jsonl is `{"time": …, "kind": "attempt.ready", "data": {…}}`; the kind is the type's tag. Every field
has a default, so that journals of other versions can be read (store/journal.py). Events of engines are in
engine_event.py.
"""

from collections.abc import Mapping
from typing import Literal, cast, get_args

import msgspec
from msgspec import defstruct, field

from moebox import codec
from moebox.core.recipe import Flag
from moebox.core.verdict import Gain, Mark
from moebox.loose import Json

StepState = Literal["waiting", "running", "done", "failed", "skipped"]


class Event(msgspec.Struct, frozen=True, tag_field="kind"):
    """Base of all events."""

    @property
    def kind(self) -> str:
        """The name of the event in the journal."""
        return str(self.__struct_config__.tag)

    @property
    def data(self) -> Json:
        """The fields as they are written to the journal."""
        fields: dict[str, object] = codec.to_plain(self)
        fields.pop("kind", None)
        return fields


class UnknownEvent(Event, frozen=True):
    """An event of another version or another program."""

    name: str
    fields: Json = field(default_factory=dict)

    @property
    def kind(self) -> str:
        return self.name

    @property
    def data(self) -> Json:
        return self.fields


class JournalLost(Event, tag="journal.lost", frozen=True):
    """Writes that failed because the disk was full, by file."""

    files: dict[str, int] = field(default_factory=dict)


class CommandEnded(Event, tag="command.ended", frozen=True):
    """A command ended early: it failed for the reason in `message`, or was interrupted if there is none."""

    step: str = ""  # the first word of the command
    command: str = ""  # all of them, without "moebox"
    message: str = ""
    hint: str = ""


# `moebox run`: its steps.


class PipelineBegan(Event, tag="pipeline.begin", frozen=True):
    """The request that a run was started with."""

    simulation: bool = False
    model: str = ""
    recipe: str = ""
    box: str = ""
    ram: str = ""
    ram_bandwidth: str = ""
    twin: bool = False
    until: str = ""
    skip: tuple[str, ...] = ()
    concurrency: tuple[int, ...] = ()
    keep: bool = False
    port: int | None = None


class PipelineResumed(Event, tag="pipeline.resumed", frozen=True):
    done: tuple[str, ...] = ()


class PipelineSlept(Event, tag="pipeline.slept", frozen=True):
    """The machine was suspended during a step."""

    step: str = ""
    seconds: float = 0.0


class EngineLost(Event, tag="pipeline.engine_lost", frozen=True):
    """The engine died during a step."""

    attempt: int = 0


class StepEvent(Event, frozen=True):
    """A step of the pipeline has a new state, which is the end of the event's name."""

    step: str = ""
    why: str = ""


STEP_EVENTS: Mapping[StepState, type[StepEvent]] = {
    state: cast("type[StepEvent]", defstruct("Step", (), bases=(StepEvent,), tag=f"pipeline.{state}", frozen=True))
    for state in get_args(StepState)
}
StepRunning = STEP_EVENTS["running"]


# Checks, measurements, jobs, rehearsals and calibrations.


class VerifyBegan(Event, tag="verify.begin", frozen=True):
    url: str = ""
    model: str = ""
    key_env: str = ""
    checks: tuple[str, ...] = ()  # to be made; empty in journals up to 0.1
    of: int = 0  # number of existing checks


class CheckDone(Event, tag="verify.rung", frozen=True):
    name: str = ""
    verdict: Mark = "skip"
    reason: str = ""


class VerifyEnded(Event, tag="verify.end", frozen=True):
    verdict: Mark = "skip"
    stopped: str = ""


class LoadBegan(Event, tag="bench.begin", frozen=True):
    concurrency: int = 0


class LoadDone(Event, tag="bench.level", frozen=True):
    concurrency: int = 0
    output_tok_s: float = 0.0


class LoadSlept(Event, tag="bench.slept", frozen=True):
    """The machine was suspended during a load."""

    concurrency: int = 0
    away_s: float = 0.0


class LoadRepeated(Event, tag="bench.repeated", frozen=True):
    """A load is measured again, because its figures cannot be trusted."""

    concurrency: int = 0
    reason: str = ""


class ServerMeasured(Event, tag="bench.server", frozen=True):
    """A server that moebox did not start is measured, or was: then `left` are bench's words for the missing loads."""

    url: str = ""
    model: str = ""
    key_env: str = ""  # the variable with its key
    connection: tuple[str, ...] = ()  # further flags of bench that reach it
    left: tuple[tuple[str, ...], ...] = ()


class MeasurementDamaged(Event, tag="bench.damaged", frozen=True):
    file: str = ""
    why: str = ""


class TaskBegan(Event, tag="task.begin", frozen=True):
    job: str = ""


class TaskEnded(Event, tag="task.end", frozen=True):
    job: str = ""
    solved: bool = False
    end: str = ""
    wrong: str = ""


class RehearsalStep(msgspec.Struct, frozen=True):
    name: str = ""
    detail: str = ""
    seconds: float = 0.0


class RehearseStarted(Event, tag="rehearse.started", frozen=True):
    recipe: str = ""
    layers: int = 0
    phantom: bool = False


class RehearseFinished(Event, tag="rehearse.finished", frozen=True):
    steps: tuple[RehearsalStep, ...] = ()
    not_rehearsed: tuple[str, ...] = ()


class CalibrateStarted(Event, tag="calibrate.started", frozen=True):
    recipe: str = ""
    depths: tuple[int, ...] = ()  # layers of each boot


class CalibrateNote(Event, tag="calibrate.note", frozen=True):
    text: str = ""


class CalibrateFinished(Event, tag="calibrate.finished", frozen=True):
    id: str = ""
    depths: tuple[int, ...] = ()


class KernelsChecked(Event, tag="kernels.judged", frozen=True):
    engine: str = ""
    version: str = ""
    arch: str = ""
    model: str = ""
    tp: int = 1
    kv: str = ""
    by: str = ""
    launches: int = 0
    bad: int = 0


# `moebox climb`.


class ClimbBegan(Event, tag="climb.begin", frozen=True):
    recipe: str = ""
    command: str = "climb"  # or "tune", which resumes it


class ClimbResumed(Event, tag="climb.resumed", frozen=True):
    steps: int = 0  # done before


class ClimbSkipped(Event, tag="climb.passed_over", frozen=True):
    change: str = ""
    why: str = ""


class ClimbTried(Event, tag="climb.try", frozen=True):
    """A step begins; `boot` identifies the machine's boot, to recognise a step that crashed the machine."""

    change: str = ""
    boot: str = ""


class ClimbRetried(Event, tag="climb.again", frozen=True):
    change: str = ""
    why: str = ""


class ClimbInconclusive(Event, tag="climb.unsure", frozen=True):
    """The effect of a step is not larger than the machine's own drift."""

    change: str = ""
    why: str = ""


class TuneScreened(Event, tag="tune.screened", frozen=True):
    """Settings were measured with few layers; `why` they failed, if they did."""

    change: str = ""
    layers: int = 0
    stage: int = 0
    tok_s: float = 0.0
    why: str = ""


class UpgradeStep(Event, tag="upgrade.step", frozen=True):
    """A step of `moebox upgrade` begins: `text` of the change `to` of a recipe."""

    recipe: str = ""
    to: str = ""
    text: str = ""
    command: str = ""  # its words, without "moebox"


class ClimbStep(Event, frozen=True):
    """A step's result: the columns of the climb's table."""

    number: int = 0
    change: str = ""
    path: str = ""
    value: Flag | None = None
    verdict: Mark = "skip"
    kept: bool = False
    why: str = ""
    output_tok_s: float = 0.0
    ttft_ms: float = 0.0
    kv_tokens: int = 0
    gain: Gain | None = None
    right: int = 0
    asked: int = 0
    same: int = 0
    acceptance: float | None = None
    rungs: dict[str, Mark] = field(default_factory=dict)
    seconds: float = 0.0
    folder: str = ""


class ClimbKept(ClimbStep, tag="climb.kept", frozen=True):
    pass


class ClimbDropped(ClimbStep, tag="climb.dropped", frozen=True):
    pass


def marks_simulation(event: Event) -> bool:
    """True if the event marks a run with a twin instead of an engine."""
    if isinstance(event, UnknownEvent):
        return True in (event.fields.get("simulation"), event.fields.get("simulated"))
    return isinstance(event, PipelineBegan) and event.simulation
