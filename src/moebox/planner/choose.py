"""Facts and constraints to a plan: rate every candidate, reject what does not fit or start, keep the best."""

from dataclasses import replace

from moebox.core.box import Box
from moebox.core.model import Checkpoint, Model
from moebox.core.plan import Plan
from moebox.core.recipe import Climb
from moebox.engines.engine import load_engine
from moebox.engines.support import deployment_support, support_text
from moebox.errors import UnknownName, refuse_if
from moebox.planner import explain, no_fit, prefer, warnings
from moebox.planner.candidates import SHORTER_CONTEXTS, START_CONTEXT, make_candidates, make_draft, possible_engines
from moebox.planner.constraints import Constraints
from moebox.planner.kv_tiers import describe_tiers
from moebox.planner.rate import USUAL_CONTEXT, Candidate, PlanInputs, complete_settings, forecast_rows


def choose_plan(box: Box, model: Model, checkpoints: tuple[Checkpoint, ...], constraints: Constraints) -> Plan:
    """Return the plan for `model` on `box` within `constraints`. Raise DoesNotFit if nothing holds it."""
    if constraints.checkpoint and not any(known.matches_name(constraints.checkpoint) for known in checkpoints):
        raise UnknownName(f"{model.title} checkpoint", constraints.checkpoint, [known.name for known in checkpoints])
    refuse_if(
        (constraints.context or 0) > model.context,
        f"--context {constraints.context}: {model.name} has {model.context:,}",
        hint="for more, plan a folder whose config.json stretches it (rope_scaling): engines refuse it otherwise",
    )
    tried, viable = search_candidates(box, model, checkpoints, constraints)
    if not viable:
        raise no_fit.no_fit_error(PlanInputs(box, model, checkpoints, constraints), tried)
    best, *others = prefer_installed(rank_by_worth(viable), box)
    climb, runtime = viable_climb(best), best.recipe.runtime
    if box.engine_runtime(best.recipe.engine) == "embedded":
        runtime = replace(runtime, kind="embedded")
    memory_lines = load_engine(best.recipe.engine).memory_lines(best.deployment, best.memory)
    return Plan(
        recipe=replace(best.recipe, climb=climb, runtime=runtime),
        box=box.name,
        goal=constraints.goal,
        memory=best.memory,
        forecast=tuple(forecast_rows(best)),
        reasons=explain.explain_choice(best, others, tried, climb),
        starts=support_text(best.deployment, brief=True),
        is_reported=all(each.state not in ("accepted", "unknown") for _, each in deployment_support(best.deployment)),
        warnings=(
            *best.known_issues,
            *warnings.socket_warnings(best.deployment),
            *warnings.budget_warnings(best.deployment, best.memory, constraints.concurrency or 1),
            *explain.image_warnings(best, others),
            *explain.thread_limit_warnings(best),
        ),
        alternatives=explain.list_alternatives(best, others),
        refused=explain.list_rejections(best, tried),
        why=(*memory_lines, *best.speed.explain_lines(1, min(USUAL_CONTEXT, best.recipe.context))),
        answer_tok_s=round(best.score, 2),
        measured=best.speed.calibration_text,
        basis=best.speed.basis_text(),
        tiers=describe_tiers(best.deployment, best.memory),
        prompt_basis=best.speed.basis_text("prompt"),
    )


def viable_climb(best: Candidate) -> Climb:
    """Return what `moebox climb` may try from here: only what fits, and nothing over several nodes."""
    recipe = best.recipe
    first, *longer = recipe.climb.contexts
    if recipe.parallel.nodes > 1:
        return Climb(contexts=(first,), speculate=())
    contexts = [first, *(context for context in longer if best.change_recipe(context=context).memory.fits)]
    methods, known = recipe.climb.speculate, ("none", recipe.speculate and recipe.speculate.method)
    drafts = (make_draft(best.inputs.model, each, recipe.runtime.preset) for each in methods if each not in known)
    fits = all(best.change_recipe(speculate=draft).is_viable for draft in drafts)
    return replace(recipe.climb, contexts=tuple(contexts), speculate=methods if fits else ())


def search_candidates(
    box: Box, model: Model, checkpoints: tuple[Checkpoint, ...], constraints: Constraints
) -> tuple[list[Candidate], list[Candidate]]:
    """Return all candidates of the longest context at which something is viable, and the viable ones."""
    inputs, engines = PlanInputs(box, model, checkpoints, constraints), possible_engines(box, constraints)

    def at_context(context: int) -> tuple[list[Candidate], list[Candidate]]:
        found = make_candidates(inputs.with_constraints(context=context), engines)
        tried = [complete_settings(replace(each, inputs=inputs)) for each in found]  # by the constraints as given
        return tried, [candidate for candidate in tried if candidate.is_viable]

    usual = model.context if constraints.goal == "context" else min(START_CONTEXT, model.context)
    longest = constraints.context or usual
    shorter = [size for size in SHORTER_CONTEXTS if size < longest and not constraints.context]
    tried, viable = at_context(longest)
    if viable or not shorter:
        return tried, viable
    shortest = at_context(shorter[-1])
    longer = map(at_context, shorter[:-1] if shortest[1] else ())  # else no context is short enough
    return next((found for found in longer if found[1]), shortest)


def rank_by_worth(viable: list[Candidate]) -> list[Candidate]:
    return sorted(viable, key=lambda each: (prefer.discounted_figure(each), each.score), reverse=True)


def prefer_installed(ranked: list[Candidate], box: Box) -> list[Candidate]:
    """Put the best candidate of an installed engine first if the forecast shows no difference from the best of all."""
    best = ranked[0]
    if best.inputs.constraints.engine or box.engine_runtime(best.recipe.engine):
        return ranked
    others = (other for other in ranked if box.engine_runtime(other.recipe.engine))
    same = (other for other in others if explain.compare_figures(other, best) == explain.NO_DIFFERENCE)
    chosen = next(same, best)
    return [chosen, *(other for other in ranked if other is not chosen)]
