"""The pipeline of one `moebox run`: the request and its steps, as RUN/pipeline.json keeps them."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from moebox.core.event import StepState

StepName = Literal["plan", "doctor", "rehearse", "up", "verify", "climb", "bench", "task", "report"]
StepFigures = dict[str, str | int | float | bool]  # by name
BAD = ("fail", "requests_failed")  # figures of a step that was done, and did not find everything good
STEPS: tuple[StepName, ...] = ("plan", "doctor", "rehearse", "up", "verify", "climb", "bench", "task", "report")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    model: str = ""  # "" is the phantom
    recipe: str = ""  # a recipe file instead of a plan
    box: str = ""
    ram: str = ""
    ram_bandwidth: str = ""
    twin: bool = False
    until: StepName = "report"
    skip: tuple[StepName, ...] = ()
    concurrency: tuple[int, ...] = ()
    keep: bool = False
    port: int | None = None
    quick: bool = False  # fewer trials, shorter prompts and measurements
    thorough: bool = False  # more trials of every check

    @property
    def wanted_steps(self) -> tuple[StepName, ...]:
        """The steps up to the one that was asked for."""
        return STEPS[: STEPS.index(self.until) + 1]

    @property
    def is_rehearsal(self) -> bool:
        """Whether it is the phantom's own run: nothing was named."""
        return not (self.model or self.recipe)

    @property
    def is_short(self) -> bool:
        """Whether checks and measurements are cut short: where that was asked for, and with the phantom."""
        return self.quick or self.is_rehearsal


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineStep:
    name: StepName
    state: StepState = "waiting"
    why: str = ""
    hint: str = ""  # how to go on after a failure
    seconds: float = 0.0
    figures: StepFigures = field(default_factory=dict)  # shown beside the step

    @property
    def is_over(self) -> bool:
        """It is not to be done any more."""
        return self.state in ("done", "skipped")

    @property
    def text(self) -> str:
        """Why it failed or was left out, else its figures."""
        if self.state in ("failed", "skipped"):
            return self.why
        shown = {name.replace("_", " "): value for name, value in self.figures.items() if name != "report"}
        return ", ".join(f"{name} {figure_text(value)}" for name, value in shown.items())


def figure_text(value: object) -> str:
    """A figure as users write it: "yes", "1,024", "0.1235"."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def display_state(state: str, figures: Mapping[str, object]) -> str:
    """How a step is shown: one that was done and found checks or requests that fail is not shown as good."""
    return "failed" if any(map(figures.get, BAD)) else state


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    request: RunRequest
    steps: tuple[PipelineStep, ...] = tuple(PipelineStep(name=name) for name in STEPS)
    simulated: bool = False

    def step(self, name: StepName) -> PipelineStep:
        return next(step for step in self.steps if step.name == name)

    def with_step(self, step: PipelineStep) -> "Pipeline":
        return replace(self, steps=tuple(step if step.name == known.name else known for known in self.steps))


NO_PIPELINE = Pipeline(request=RunRequest(), steps=())  # of a run that `moebox run` did not make
