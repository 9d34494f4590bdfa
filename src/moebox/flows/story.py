"""The story of one `moebox run`: what was asked, how far it came, and how it is taken up again.

RUN/story.json holds both; it is written whole after every step, so that a story killed at any moment goes on from the
last step that was done.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from errno import ENOSPC
from os import strerror
from typing import Any, Literal

from moebox import codec
from moebox.errors import BadInput, Outside, UnknownName
from moebox.store import FULL, Run

Name = Literal["plan", "doctor", "rehearse", "up", "verify", "climb", "bench", "task", "report"]
STEPS: tuple[Name, ...] = ("plan", "doctor", "rehearse", "up", "verify", "climb", "bench", "task", "report")
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
    hint: str = ""  # how to go on after a failure
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


class NoRoom(Outside):
    """The disk is full; nothing is half-written, and the story can go on from where it was."""


@contextmanager
def room(run: Run) -> Iterator[None]:
    """NoRoom for what a full disk refused in the block."""
    try:
        yield
        if run.lost:
            raise OSError(ENOSPC, strerror(ENOSPC))
    except (OSError, Outside) as problem:
        refused = problem.__cause__ if isinstance(problem, Outside) else problem
        if not isinstance(refused, OSError) or refused.errno not in FULL:
            raise
        hint = f"free some space, then `moebox run --resume {run.id}`; what was measured is kept"
        raise NoRoom(f"{run.path} cannot be written: {refused.strerror}", hint=hint) from problem


def begin(request: Request, run: Run) -> Story:
    """A new story in a new run."""
    run.strict = True
    story = Story(request=request, simulated=request.twin)
    run.event("story.begin", sync=True, simulation=request.twin, **codec.plain(request))
    return save(story, run)


def take_up(run: Run, *, until: Name | None = None) -> Story:
    """The story in a run folder, to go on `until` a step; what was cut off or failed is to be done again."""
    run.strict = True
    run.tidy()
    document = run.read_json(FILE)
    if document is None:
        raise BadInput(f"{run.path} was not made by `moebox run`", hint="only such runs can be resumed")
    story = codec.decode(Story, document, where=str(run.path / FILE))
    story = replace(story, request=replace(story.request, until=until or story.request.until))
    there = {step.name: step for step in story.steps}
    known = [there.get(name, Step(name=name)) for name in STEPS]  # a run of an earlier moebox has fewer steps
    steps = tuple(Step(name=step.name) if step.state in ("running", "failed") else step for step in known)
    if any(step.state == "waiting" for step in steps[:-1]):  # a report of what was there is not one of what will be
        steps = (*steps[:-1], Step(name=STEPS[-1]) if steps[-1].state == "done" else steps[-1])
    run.event("story.resumed", done=[step.name for step in steps if step.state == "done"])
    return save(replace(story, steps=steps), run)


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
