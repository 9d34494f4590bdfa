"""What a forecast or a twin is of: a recipe on a box, read from a file or chosen for a model within pins."""

from dataclasses import dataclass, replace

from moebox.checkpoint import deploy, planned_checkpoint, resolve_model
from moebox.core.box import Box
from moebox.core.deployment import Deployment
from moebox.core.model import Checkpoint, Model
from moebox.core.plan import Memory, PlanWarning
from moebox.core.recipe import Recipe
from moebox.engines import check_recipe, memory_budget
from moebox.errors import DoesNotFit, refuse_if
from moebox.flows import boxes, recipes
from moebox.planner.choose import choose_plan, search_candidates
from moebox.planner.constraints import Constraints
from moebox.planner.speed import Speed
from moebox.planner.warnings import known_issues, short_cache_warnings
from moebox.units import format_count, format_gb


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastTarget:
    """A deployment with its memory and what is known to go wrong with it."""

    deployment: Deployment
    memory: Memory
    warnings: tuple[PlanWarning, ...] = ()
    accept: float | None = None  # share of draft tokens accepted, where somebody knows it

    @property
    def box(self) -> Box:
        """Where it runs."""
        return self.deployment.required_box

    @property
    def model(self) -> Model:
        """What it serves."""
        return self.deployment.model

    @property
    def checkpoint(self) -> Checkpoint:
        """In which form."""
        return self.deployment.checkpoint

    @property
    def recipe(self) -> Recipe:
        """With which settings."""
        return self.deployment.recipe

    @property
    def speed(self) -> Speed:
        """Its speed model."""
        speed = Speed.for_deployment(self.deployment)
        return speed if self.accept is None else speed.with_acceptance(self.accept)


def target_from_recipe(
    name: str, box: str | None, *, has_constraints: bool, ram: str = "", ram_bandwidth: str = ""
) -> ForecastTarget:
    """The recipe called `name`, on the box that is named or that it was planned for; nothing of it can be `pinned`."""
    refuse_if(
        has_constraints, "a recipe file has its settings already", hint="edit it, or name the model to pin settings"
    )
    recipe = recipes.load_recipe(name)
    deployment = deploy(recipe, boxes.box_for_recipe(recipe, box, ram=ram, ram_bandwidth=ram_bandwidth))
    check_recipe(deployment)
    return _subject(deployment.with_default_context())


def target_from_plan(name: str, box: Box, constraints: Constraints) -> ForecastTarget:
    """The recipe that `plan` would choose within `pins`; what is pinned is forecast even where it does not fit."""
    model, forms = resolve_model(name)
    try:
        plan = choose_plan(box, model, forms, constraints)
    except DoesNotFit as problem:
        if not _layout_pinned(constraints):
            raise
        return _as_if(box, model, forms, constraints, problem)
    deployment = Deployment.from_parts(plan.recipe, model, planned_checkpoint(plan.recipe, forms), box)
    return ForecastTarget(deployment=deployment, memory=plan.memory, warnings=plan.warnings)


def refuse_without_cache(kv_tokens: int) -> None:
    """BadInput where nothing can be served."""
    text = "there is no room for a cache, so nothing can be served"
    refuse_if(kv_tokens < 1, text, hint="`moebox plan` shows the memory")


def with_cache_warnings(
    subject: ForecastTarget, concurrency: int, length: int, kv_tokens: int | None = None
) -> ForecastTarget:
    """The same, warned of a short cache by the requests that will run instead of the longest that could.

    `kv_tokens`: the cache that is assumed instead of the planned one.
    """
    of_context = short_cache_warnings(subject.deployment, subject.memory, concurrency, subject.recipe.context)
    others = tuple(caution for caution in subject.warnings if caution not in of_context)
    memory = subject.memory if kv_tokens is None else replace(subject.memory, kv_tokens=kv_tokens)
    return replace(subject, warnings=(*others, *short_cache_warnings(subject.deployment, memory, concurrency, length)))


def with_context_warning(subject: ForecastTarget, length: int) -> ForecastTarget:
    """The same, warned where a row is of more tokens than the engine will take."""
    limit = subject.recipe.context
    if not 0 < limit < length:
        return subject
    text = (
        f"{format_count(length)} tokens are beyond the recipe's context of {format_count(limit)}: "
        "the speed is as if it took them"
    )
    caution = PlanWarning(symptom="", text=text, remedy=f"context = {length}")
    return replace(subject, warnings=(*subject.warnings, caution))


def with_acceptance(subject: ForecastTarget, share: float) -> ForecastTarget:
    """The same with a known acceptance of draft tokens."""
    refuse_if(not 0 <= share < 1, f"--accept {share:g} is not a share between 0 and 1")
    drafts = subject.recipe.speculate is not None
    refuse_if(not drafts, "--accept is for recipes with a draft", hint="--speculate eagle3")
    return replace(subject, accept=share)


def without_graphs(subject: ForecastTarget) -> ForecastTarget:
    """The same without CUDA graphs."""
    deployment = subject.deployment
    flag, title = deployment.engine.eager_flag, deployment.engine.title
    refuse_if(not flag, f"--eager means CUDA graphs off; {title} has no such switch")
    recipe = replace(deployment.recipe, flags={**deployment.recipe.flags, flag: True})
    return replace(subject, deployment=deployment.with_recipe(recipe))


def _layout_pinned(pins: Constraints) -> bool:
    return pins.checkpoint is not None and (pins.tp is not None or pins.experts is not None)


def _as_if(
    box: Box, model: Model, forms: tuple[Checkpoint, ...], pins: Constraints, problem: DoesNotFit
) -> ForecastTarget:
    tried, _ = search_candidates(box, model, forms, pins)
    if not tried:
        raise problem
    nearest = tried[0]  # the plainest recipe that has everything pinned
    warnings = (*_short(nearest.memory), *nearest.known_issues)
    return ForecastTarget(deployment=nearest.deployment, memory=nearest.memory, warnings=warnings)


def _subject(deployment: Deployment) -> ForecastTarget:
    memory = memory_budget(deployment)
    return ForecastTarget(deployment=deployment, memory=memory, warnings=(*_short(memory), *known_issues(deployment)))


def _short(memory: Memory) -> tuple[PlanWarning, ...]:
    """A warning where the recipe does not fit the box, so that its speed is not read as a promise."""
    if memory.shortfall <= 0:
        return ()
    text = f"does not fit by {format_gb(memory.shortfall)} on the fullest device: the speed is as if it did"
    return (PlanWarning(symptom="", text=text, severity="fatal"),)
