"""Facts and pins to a plan: weigh every candidate, drop what does not fit or start, keep the best and say why."""

from dataclasses import replace

from moebox.core import registry
from moebox.core.box import Box
from moebox.core.model import Checkpoint, Model
from moebox.core.plan import Plan
from moebox.errors import UnknownName
from moebox.planner import nofit, reasons, warnings
from moebox.planner.candidates import SHORTER, Candidate, candidates, engines_for
from moebox.planner.pins import Pins
from moebox.planner.weigh import Weighed, forecast, weigh, with_utilization
from moebox.planner.why import why

HIGHER = (0.92, 0.94, 0.95)  # claims to try when 0.90 does not hold the model
# A plainer engine is kept unless another is forecast this much better: the forecast's own error is about as large.
TOLERANCE = 0.85


def choose(box: Box, model: Model, checkpoints: tuple[Checkpoint, ...], pins: Pins) -> Plan:
    """The plan for `model` on `box` within `pins`; DoesNotFit when nothing holds it."""
    if pins.checkpoint and not any(pins.checkpoint.lower() in _names(one) for one in checkpoints):
        raise UnknownName(f"checkpoint of {model.name}", pins.checkpoint, [one.name for one in checkpoints])
    tried, fitting = search(box, model, checkpoints, pins)
    if not fitting:
        raise nofit.problem(box, model, checkpoints, pins, tried)
    best = pick(fitting, pins)
    others = [one for one in fitting if one is not best]
    return Plan(
        recipe=best.recipe,
        box=box.name,
        goal=pins.goal,
        memory=best.memory,
        forecast=forecast(best),
        reasons=reasons.reasons(best, others, tried, pins),
        warnings=(
            *best.troubles,
            *warnings.from_numbers(best.recipe, box, model, best.memory, pins.concurrency or 1),
            *reasons.warned(best, others, pins),
        ),
        alternatives=reasons.alternatives(best, others, pins),
        refused=reasons.refused(best, tried),
        why=why(best),
        measured=best.speed.measured.text if best.speed.measured else "",
    )


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
    """All candidates for one context, group by group of engines until something fits, and those that fit."""
    tried: list[Weighed] = []
    for engines in engines_for(box, pins):
        found = list(candidates(box, model, checkpoints, replace(pins, context=context), engines))
        weighed = weigh(box, model, found, pins)
        tried += weighed
        fitting = [one for one in weighed if one.memory.fits]
        if not fitting and pins.memory_utilization is None:
            fitting = _claiming_more(box, model, found, pins)
        if fitting:
            return tried, fitting
    return tried, []


def contexts(model: Model, pins: Pins) -> tuple[int, ...]:
    """Contexts to try, longest first: the pinned one alone; the model's own when context is the goal."""
    if pins.context:
        return (pins.context,)
    longest = model.context if pins.goal == "context" else min(65536, model.context)
    return (longest, *(size for size in SHORTER if size < longest))


def _claiming_more(box: Box, model: Model, found: list[Candidate], pins: Pins) -> list[Weighed]:
    for share in HIGHER:
        fitting = [one for one in weigh(box, model, with_utilization(found, share), pins) if one.memory.fits]
        if fitting:
            return fitting
    return []


def pick(fitting: list[Weighed], pins: Pins) -> Weighed:
    """The best of those that start; when pins leave only what is known to crash, the best of that."""
    usable = [one for one in fitting if not one.refused] or fitting
    served = [one for one in usable if one.recipe.hybrid is None]
    usable = served or usable
    if pins.goal == "context":
        plain = [one for one in usable if pins.bold or one.candidate.tier < 3] or usable
        most = max(one.memory.kv_tokens for one in plain)
        large = [one for one in plain if one.memory.kv_tokens >= TOLERANCE * most]
        return min(large, key=lambda one: (one.recipe.parallel.pp, -one.memory.kv_tokens, -one.score))
    if pins.bold:
        return max(usable, key=lambda one: one.score)
    enough = [one for one in usable if one.memory.kv_tokens >= _wanted(one, pins)] or usable
    tier = min(one.candidate.tier for one in enough)
    plainest = [one for one in enough if one.candidate.tier == tier]
    best = max(one.score for one in plainest)
    good = [one for one in plainest if one.score >= TOLERANCE * best]
    engine = min((one.recipe.engine for one in good), key=registry.names().index)
    if served:
        good = [one for one in good if one.recipe.engine == engine]
    return max(good, key=lambda one: one.score)


def _wanted(one: Weighed, pins: Pins) -> int:
    """Tokens of cache that what was asked for needs."""
    return one.recipe.context * (pins.concurrency or 1)


def _names(one: Checkpoint) -> tuple[str, ...]:
    return one.name.lower(), one.repo.lower(), one.path.lower(), one.quant.lower()
