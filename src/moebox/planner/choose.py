"""Facts and pins to a plan: weigh every candidate, drop what does not fit or start, keep the best and say why."""

from dataclasses import replace

from moebox.core.box import Box
from moebox.core.model import Checkpoint, Model
from moebox.core.plan import Plan
from moebox.core.recipe import Climb
from moebox.errors import UnknownName, refuse_if
from moebox.planner import drafting, nofit, prefer, reasons, warnings
from moebox.planner.candidates import SHORTER_CONTEXTS, make_candidates, possible_engines
from moebox.planner.constraints import Constraints
from moebox.planner.rate import RatedCandidate, forecast_rows, raise_utilization, rate_candidates
from moebox.planner.why import arithmetic_lines


def choose_plan(box: Box, model: Model, checkpoints: tuple[Checkpoint, ...], constraints: Constraints) -> Plan:
    """The plan for `model` on `box` within `pins`; DoesNotFit when nothing holds it."""
    _refuse_unknown(model, checkpoints, constraints)
    tried, fitting = search_candidates(box, model, checkpoints, constraints)
    if not fitting:
        raise nofit.no_fit_error(box, model, checkpoints, constraints, tried)
    best, *others = rank_by_worth(fitting)
    climb = viable_climb(best)
    return Plan(
        recipe=replace(best.recipe, climb=climb),
        box=box.name,
        goal=constraints.goal,
        memory=best.memory,
        forecast=forecast_rows(best),
        reasons=reasons.explain_choice(best, others, tried, constraints, climb),
        warnings=(
            *best.known_issues,
            *warnings.budget_warnings(best.deployment, best.memory, constraints.concurrency or 1),
            *reasons.image_warnings(best, others, constraints),
            *reasons.thread_limit_warnings(best),
        ),
        alternatives=reasons.list_alternatives(best, others),
        refused=reasons.list_rejected(best, tried),
        why=arithmetic_lines(best),
        answer_tok_s=round(best.score, 2),
        measured=best.speed.calibration_text,
        basis=best.speed.range_basis,
    )


def _refuse_unknown(model: Model, checkpoints: tuple[Checkpoint, ...], pins: Constraints) -> None:
    """BadInput for a form or a context that the model does not have."""
    if pins.checkpoint and not any(form.matches_name(pins.checkpoint) for form in checkpoints):
        raise UnknownName(f"{model.title} checkpoint", pins.checkpoint, [form.name for form in checkpoints])
    refuse_if(
        (pins.context or 0) > model.context,
        f"--context {pins.context}: {model.name} has {model.context:,}",
        hint="for more, plan a folder whose config.json stretches it (rope_scaling): engines refuse it otherwise",
    )


def viable_climb(chosen: RatedCandidate) -> Climb:
    """What a climb from there tries: what fits, and nothing over several nodes, where it starts no engine."""
    recipe = chosen.recipe
    first, *longer = recipe.climb.contexts
    if recipe.parallel.nodes > 1:
        return Climb(contexts=(first,), speculate=())
    drafts = recipe.climb.speculate if all(_able_by(chosen, method) for method in recipe.climb.speculate) else ()
    contexts = (first, *(length for length in longer if _fits_at(chosen, length)))
    return replace(recipe.climb, contexts=contexts, speculate=drafts)


def _able_by(chosen: RatedCandidate, method: str) -> bool:
    """Whether the same recipe fits and starts when it drafts by `method`."""
    recipe = chosen.recipe
    if method in ("none", recipe.speculate and recipe.speculate.method):
        return True
    drafted = replace(recipe, speculate=drafting.make_draft(chosen.model, method, recipe.runtime.preset))
    candidate = replace(chosen.candidate, recipe=drafted)
    return replace(chosen, candidate=candidate, memory=chosen.memory_with(candidate)).is_viable


def _fits_at(chosen: RatedCandidate, context: int) -> bool:
    longer = replace(chosen.candidate, recipe=replace(chosen.recipe, context=context))
    return chosen.memory_with(longer).fits


def search_candidates(
    box: Box, model: Model, checkpoints: tuple[Checkpoint, ...], constraints: Constraints
) -> tuple[list[RatedCandidate], list[RatedCandidate]]:
    """All candidates of the longest context that something fits, and those that fit."""
    first, *shorter = contexts_to_try(model, constraints)
    tried, fitting = candidates_at_context(box, model, checkpoints, constraints, first)
    if fitting or not shorter:
        return tried, fitting
    least = candidates_at_context(box, model, checkpoints, constraints, shorter[-1])
    if not least[1]:  # no context is short enough
        return least
    for context in shorter[:-1]:
        tried, fitting = candidates_at_context(box, model, checkpoints, constraints, context)
        if fitting:
            return tried, fitting
    return least


def candidates_at_context(
    box: Box, model: Model, checkpoints: tuple[Checkpoint, ...], pins: Constraints, context: int
) -> tuple[list[RatedCandidate], list[RatedCandidate]]:
    """All candidates for one context, of every engine, and those that fit and start."""
    found = make_candidates(box, model, checkpoints, replace(pins, context=context), possible_engines(box, pins))
    tried = [raise_utilization(one) for one in rate_candidates(box, model, found, pins)]
    return tried, [one for one in tried if one.is_viable]


def contexts_to_try(model: Model, pins: Constraints) -> tuple[int, ...]:
    """Contexts to try, longest first: the pinned one alone; the model's own when context is the goal."""
    if pins.context:
        return (pins.context,)
    longest = model.context if pins.goal == "context" else min(65536, model.context)
    return (longest, *(size for size in SHORTER_CONTEXTS if size < longest))


def rank_by_worth(fitting: list[RatedCandidate]) -> list[RatedCandidate]:
    """What is worth most by the goal first."""
    return sorted(fitting, key=lambda weighed: (prefer.discounted_figure(weighed), weighed.score), reverse=True)
