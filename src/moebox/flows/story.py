"""The story of one `moebox run`: what was asked, how far it came, and how it is taken up again.

RUN/story.json holds both; it is written whole after every step, so that a story killed at any moment goes on from the
last step that was done.
"""

import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from moebox import wire
from moebox.errors import BadInput, UnknownName
from moebox.store import Run

Name = Literal["plan", "doctor", "rehearse", "up", "verify", "climb", "bench", "report"]
STEPS: tuple[Name, ...] = ("plan", "doctor", "rehearse", "up", "verify", "climb", "bench", "report")
State = Literal["waiting", "running", "done", "failed", "skipped"]
FILE = "story.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What was asked for."""

    model: str = ""  # "" is the phantom
    recipe: str = ""  # a recipe file instead of a plan
    box: str = ""
    ram: str = ""
    ram_bandwidth: str = ""
    twin: bool = False
    until: Name = "report"
    skip: tuple[Name, ...] = ()
    concurrency: tuple[int, ...] = ()
    keep: bool = False
    port: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step and what came of it."""

    name: Name
    state: State = "waiting"
    why: str = ""
    seconds: float = 0.0
    figures: dict[str, Any] = field(default_factory=dict)  # what a person wants to see of it at a glance


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """The request and its steps."""

    request: Request
    steps: tuple[Step, ...] = tuple(Step(name=name) for name in STEPS)
    simulated: bool = False

    def step(self, name: Name) -> Step:
        """The step of that name."""
        return next(step for step in self.steps if step.name == name)

    def with_step(self, step: Step) -> "Story":
        """The story with one step changed."""
        return replace(self, steps=tuple(step if one.name == step.name else one for one in self.steps))

    @property
    def over(self) -> bool:
        """Nothing is left to do."""
        last = STEPS.index(self.request.until)
        return all(step.state in ("done", "skipped") for step in self.steps[: last + 1])


def check(names: Iterable[str]) -> None:
    """UnknownName for a step that does not exist."""
    for name in names:
        if name not in STEPS:
            raise UnknownName("step", name, STEPS)


def begin(request: Request, run: Run) -> Story:
    """A new story in a new run."""
    story = Story(request=request, simulated=request.twin)
    run.event("story.begin", sync=True, simulation=request.twin, **wire.plain(request))
    return save(story, run)


def take_up(run: Run) -> Story:
    """The story in a run folder; a step that was cut off is to be done again."""
    document = run.read_json(FILE)
    if document is None:
        raise BadInput(f"{run.path} holds no story", hint="only what `moebox run` began can be resumed")
    story = wire.decode(Story, document, where=str(run.path / FILE))
    steps = tuple(Step(name=step.name) if step.state in ("running", "failed") else step for step in story.steps)
    run.event("story.resumed", done=[step.name for step in steps if step.state == "done"])
    return replace(story, steps=steps)


def save(story: Story, run: Run) -> Story:
    """Write it down."""
    run.write_json(FILE, story)
    return story


def expected(run: Run, model: str) -> dict[str, float]:
    """Seconds each step took the last time such a story was told on this machine; empty when none was."""
    for folder in sorted(run.path.parent.iterdir(), reverse=True):
        document = _document(Run(folder)) if folder != run.path and (folder / FILE).is_file() else {}
        if document.get("request", {}).get("model") != model:
            continue
        steps = {one["name"]: float(one["seconds"]) for one in document.get("steps", []) if one.get("state") == "done"}
        if "bench" in steps:
            return steps
    return {}


def _document(run: Run) -> dict[str, Any]:
    try:
        found = run.read_json(FILE)
    except BadInput:
        return {}
    return found if isinstance(found, dict) else {}


class Clock:
    """How long a step takes, whatever the wall clock does meanwhile."""

    def __init__(self) -> None:
        self.began = time.monotonic()

    @property
    def seconds(self) -> float:
        """Since it was made."""
        return time.monotonic() - self.began
