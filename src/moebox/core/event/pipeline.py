"""Events of `moebox run`: its steps one after the other."""

from collections.abc import Mapping
from typing import Literal

from moebox.core.event.base import Event

StepState = Literal["waiting", "running", "done", "failed", "skipped"]


class PipelineBegan(Event, tag="pipeline.begin", frozen=True):
    """What was asked for."""

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
    """It was taken up again."""

    done: tuple[str, ...] = ()


class PipelineSlept(Event, tag="pipeline.slept", frozen=True):
    """The machine slept during a step."""

    step: str = ""
    seconds: float = 0.0


class EngineLost(Event, tag="pipeline.engine_lost", frozen=True):
    """The engine died under a step."""

    attempt: int = 0


class StepEvent(Event, frozen=True):
    """A step came to another state."""

    step: str = ""
    why: str = ""


class StepWaiting(StepEvent, tag="pipeline.waiting", frozen=True):
    """It is still to be done."""


class StepRunning(StepEvent, tag="pipeline.running", frozen=True):
    """It began."""


class StepDone(StepEvent, tag="pipeline.done", frozen=True):
    """It is over, and good."""


class StepFailed(StepEvent, tag="pipeline.failed", frozen=True):
    """It is over, and the answer is no."""


class StepSkipped(StepEvent, tag="pipeline.skipped", frozen=True):
    """It was left out."""


STEP_EVENTS: Mapping[StepState, type[StepEvent]] = {
    "waiting": StepWaiting,
    "running": StepRunning,
    "done": StepDone,
    "failed": StepFailed,
    "skipped": StepSkipped,
}
