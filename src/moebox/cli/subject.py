"""What a forecast or a twin is of: a recipe on a box, read from a file or chosen for a model within pins."""

from dataclasses import dataclass, replace
from pathlib import Path

from moebox import codec
from moebox.checkpoint import resolve
from moebox.core.box import Box
from moebox.core.model import Checkpoint, Model
from moebox.core.plan import Caution, Memory
from moebox.core.recipe import Recipe
from moebox.errors import BadInput, DoesNotFit
from moebox.planner.choose import choose, search
from moebox.planner.memory import budget
from moebox.planner.pins import Pins
from moebox.planner.speed import Speed
from moebox.planner.warnings import known_troubles
from moebox.units import gb

EAGER = {"vllm": "enforce-eager", "sglang": "disable-cuda-graph"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A recipe with the facts around it."""

    box: Box
    model: Model
    checkpoint: Checkpoint
    recipe: Recipe
    memory: Memory
    warnings: tuple[Caution, ...] = ()

    @property
    def speed(self) -> Speed:
        """Its speed model."""
        return Speed.of(self.box, self.model, self.checkpoint, self.recipe)


def is_recipe(target: str) -> bool:
    """Whether `target` names a recipe file."""
    return target.endswith(".toml")


def from_recipe(path: Path, box: Box) -> Subject:
    """The recipe in a file, on `box`."""
    recipe = codec.read_toml(Recipe, path)
    local = Path(recipe.checkpoint).expanduser()
    model, forms = resolve(str(local) if local.exists() else recipe.model)
    wanted = recipe.checkpoint.lower()
    form = next((one for one in forms if wanted in (one.name.lower(), one.repo.lower())), None)
    if form is None and local.exists() and forms:
        form = forms[0]
    if form is None:
        names = ", ".join(one.name for one in forms)
        raise BadInput(f"{path}: no form of {model.name} is called {recipe.checkpoint!r}", hint=f"known: {names}")
    return _subject(box, model, form, recipe)


def chosen(name: str, box: Box, pins: Pins) -> Subject:
    """The recipe that `plan` would choose within `pins`; what is pinned is forecast even where it does not fit."""
    model, forms = resolve(name)
    try:
        plan = choose(box, model, forms, pins)
    except DoesNotFit as problem:
        if not _layout_pinned(pins):
            raise
        return _as_if(box, model, forms, pins, problem)
    form = next(
        one for one in forms if plan.recipe.checkpoint.lower() in (one.name.lower(), one.repo.lower(), one.path.lower())
    )
    return Subject(
        box=box, model=model, checkpoint=form, recipe=plan.recipe, memory=plan.memory, warnings=plan.warnings
    )


def eager(subject: Subject) -> Subject:
    """The same without CUDA graphs."""
    flag = EAGER.get(subject.recipe.engine)
    if flag is None:
        raise BadInput(f"--eager means CUDA graphs off; {subject.recipe.engine} has no such switch")
    return replace(subject, recipe=replace(subject.recipe, flags={**subject.recipe.flags, flag: True}))


def _layout_pinned(pins: Pins) -> bool:
    return pins.checkpoint is not None and (pins.tp is not None or pins.experts is not None)


def _as_if(box: Box, model: Model, forms: tuple[Checkpoint, ...], pins: Pins, problem: DoesNotFit) -> Subject:
    tried, _ = search(box, model, forms, pins)
    if not tried:
        raise problem
    nearest = tried[0]  # the plainest recipe that has everything pinned
    text = f"does not fit by {gb(nearest.memory.shortfall)} on the fullest device: the speed is as if it did"
    short = Caution(symptom="", text=text, severity="fatal")
    return Subject(
        box=box,
        model=model,
        checkpoint=nearest.checkpoint,
        recipe=nearest.recipe,
        memory=nearest.memory,
        warnings=(short, *nearest.troubles),
    )


def _subject(box: Box, model: Model, form: Checkpoint, recipe: Recipe) -> Subject:
    return Subject(
        box=box,
        model=model,
        checkpoint=form,
        recipe=recipe,
        memory=budget(box, model, form, recipe),
        warnings=known_troubles(recipe, box, model),
    )
