"""Facts and pins to a plan: weigh every candidate, drop what does not fit or start, keep the best and say why."""

from dataclasses import replace

from moebox.core.box import Box
from moebox.core.model import Checkpoint, Model
from moebox.core.plan import Plan
from moebox.core.recipe import Climb
from moebox.errors import UnknownName, refuse_if
from moebox.planner import drafting, nofit, prefer, reasons, warnings
from moebox.planner.candidates import SHORTER, candidates, engines_for
from moebox.planner.pins import Pins
from moebox.planner.weigh import Weighed, claiming_enough, forecast, weigh
from moebox.planner.why import why


def choose(box: Box, model: Model, checkpoints: tuple[Checkpoint, ...], pins: Pins) -> Plan:
    """The plan for `model` on `box` within `pins`; DoesNotFit when nothing holds it."""
    _refuse_unknown(model, checkpoints, pins)
    tried, fitting = search(box, model, checkpoints, pins)
    if not fitting:
        raise nofit.problem(box, model, checkpoints, pins, tried)
    best, *others = ranked(fitting)
    climb = climb_of(best)
    return Plan(
        recipe=replace(best.recipe, climb=climb),
        box=box.name,
        goal=pins.goal,
        memory=best.memory,
        forecast=forecast(best),
        reasons=reasons.reasons(best, others, tried, pins, climb),
        warnings=(
            *best.troubles,
            *warnings.from_numbers(best.deployment, best.memory, pins.concurrency or 1),
            *reasons.warned(best, others, pins),
            *reasons.limited(best),
        ),
        alternatives=reasons.alternatives(best, others),
        refused=reasons.refused(best, tried),
        why=why(best),
        answer_tok_s=round(best.score, 2),
        measured=best.speed.source,
        basis=best.speed.basis,
    )


def _refuse_unknown(model: Model, checkpoints: tuple[Checkpoint, ...], pins: Pins) -> None:
    """BadInput for a form or a context that the model does not have."""
    if pins.checkpoint and not any(form.called(pins.checkpoint) for form in checkpoints):
        raise UnknownName(f"{model.title} checkpoint", pins.checkpoint, [form.name for form in checkpoints])
    refuse_if(
        (pins.context or 0) > model.context,
        f"--context {pins.context}: {model.name} has {model.context:,}",
        hint="for more, plan a folder whose config.json stretches it (rope_scaling): engines refuse it otherwise",
    )


def climb_of(chosen: Weighed) -> Climb:
    """What a climb from there tries: what fits, and nothing over several nodes, where it starts no engine."""
    recipe = chosen.recipe
    first, *longer = recipe.climb.contexts
    if recipe.parallel.nodes > 1:
        return Climb(contexts=(first,), speculate=())
    drafts = recipe.climb.speculate if all(_able_by(chosen, method) for method in recipe.climb.speculate) else ()
    contexts = (first, *(length for length in longer if _fits_at(chosen, length)))
    return replace(recipe.climb, contexts=contexts, speculate=drafts)


def _able_by(chosen: Weighed, method: str) -> bool:
    """Whether the same recipe fits and starts when it drafts by `method`."""
    recipe = chosen.recipe
    if method in ("none", recipe.speculate and recipe.speculate.method):
        return True
    drafted = replace(recipe, speculate=drafting.draft(chosen.model, method, recipe.runtime.preset))
    candidate = replace(chosen.candidate, recipe=drafted)
    return replace(chosen, candidate=candidate, memory=chosen.memory_as(candidate)).able


def _fits_at(chosen: Weighed, context: int) -> bool:
    longer = replace(chosen.candidate, recipe=replace(chosen.recipe, context=context))
    return chosen.memory_as(longer).fits


def search(
    box: Box, model: Model, checkpoints: tuple[Checkpoint, ...], pins: Pins
) -> tuple[list[Weighed], list[Weighed]]:
    """All candidates of the longest context that something fits, and those that fit."""
    first, *shorter = contexts(model, pins)
    tried, fitting = at_context(box, model, checkpoints, pins, first)
    if fitting or not shorter:
        return tried, fitting
    least = at_context(box, model, checkpoints, pins, shorter[-1])
    if not least[1]:  # no context is short enough
        return least
    for context in shorter[:-1]:
        tried, fitting = at_context(box, model, checkpoints, pins, context)
        if fitting:
            return tried, fitting
    return least


def at_context(
    box: Box, model: Model, checkpoints: tuple[Checkpoint, ...], pins: Pins, context: int
) -> tuple[list[Weighed], list[Weighed]]:
    """All candidates for one context, of every engine, and those that fit and start."""
    found = candidates(box, model, checkpoints, replace(pins, context=context), engines_for(box, pins))
    tried = [claiming_enough(one) for one in weigh(box, model, found, pins)]
    return tried, [one for one in tried if one.able]


def contexts(model: Model, pins: Pins) -> tuple[int, ...]:
    """Contexts to try, longest first: the pinned one alone; the model's own when context is the goal."""
    if pins.context:
        return (pins.context,)
    longest = model.context if pins.goal == "context" else min(65536, model.context)
    return (longest, *(size for size in SHORTER if size < longest))


def ranked(fitting: list[Weighed]) -> list[Weighed]:
    """What is worth most by the goal first."""
    return sorted(fitting, key=lambda weighed: (prefer.worth(weighed), weighed.score), reverse=True)
