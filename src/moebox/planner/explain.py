"""Why a recipe was chosen, how its rivals compare, and what was rejected: sentences from numbers."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields

from moebox.core import families
from moebox.core.plan import Alternative, PlanWarning
from moebox.core.recipe import Climb, Recipe, Runtime
from moebox.core.registry import engine_display_name
from moebox.core.symptom import changes_text
from moebox.engines.engine import load_engine
from moebox.engines.support import support_text
from moebox.planner import prefer
from moebox.planner.candidates import START_CONTEXT, START_UTILIZATION
from moebox.planner.rate import HIGHER_UTILIZATIONS, PROMPT_TOKENS, Candidate
from moebox.planner.speed.links import describe_network
from moebox.units import format_count, format_gb, format_gib, format_seconds, plural

MAX_ALTERNATIVES = 5
MAX_REJECTED = 8
NO_DIFFERENCE = "no difference that we can forecast"
SETTINGS = {field.name for field in fields(Recipe)} - {"name", "memory_utilization", "env"}  # each is a choice
IMAGE_SOURCE = "https://github.com/local-inference-lab/rtx6kpro"

Kind = Callable[[Candidate], bool]


def explain_choice(best: Candidate, others: list[Candidate], tried: list[Candidate], climb: Climb) -> tuple[str, ...]:
    """Return reasons for the choice, the most important first; `others` are viable, in order of worth."""
    recipe, constraints, checkpoint, engine = best.recipe, best.inputs.constraints, best.checkpoint, best.recipe.engine
    kind = "as its makers published it" if checkpoint.native else "requantised"
    bits = f"{checkpoint.bits_per_weight(best.inputs.model):.2f} bits a weight"
    reasons = [f"{best.inputs.model.title} in {checkpoint.label}, {kind}: {format_gb(checkpoint.total_bytes)}, {bits}"]
    rival = _first_of(others, lambda other: other.recipe.engine != engine and other.recipe.hybrid is None)
    engine_reason = ""
    if constraints.engine:
        engine_reason = f"{engine_display_name(constraints.engine)} was requested"
    elif rival:
        engine_reason = _explain_rival(rival, best, of=lambda each: engine_display_name(each.recipe.engine))
    if recipe.hybrid:
        reasons += [_explain_placement(best), engine_reason]
        rival = _first_of(others, lambda other: other.recipe.engine == engine and other.checkpoint != checkpoint)
        if rival:
            reasons.append(_explain_rival(rival, best, of=lambda each: each.checkpoint.label))
    else:
        reasons += [_explain_layout(best, others), engine_reason, _explain_cache(best, tried)]
    reasons += load_engine(engine).setting_reasons(best.deployment, best.memory)
    share = recipe.memory_utilization
    chosen_share = not (recipe.hybrid or constraints.memory_utilization or constraints.bold)
    if share in HIGHER_UTILIZATIONS and chosen_share:
        reasons.append(f"memory utilization {share}: it does not fit in {START_UTILIZATION} of each GPU")
    reasons.append(_explain_start(recipe, climb, bold=constraints.bold))
    if recipe.parallel.nodes > 1:
        reasons.append(describe_network(best.inputs.box))
    wanted = min(START_CONTEXT, best.inputs.model.context)
    if not constraints.context and recipe.context < wanted:
        reasons.append(f"context {format_count(recipe.context)}: {format_count(wanted)} does not fit")
    if best.speed.measured:
        reasons.append(f"speed {best.speed.measured.text}")
    reasons += [f"{changes_text(row.change)}: {row.text}" for row in best.needed]
    reasons.append(f"support: {support_text(best.deployment)}")
    return tuple(filter(None, reasons))


def _explain_rival(rival: Candidate, best: Candidate, of: Callable[[Candidate], str]) -> str:
    """Name what differs of the choice and its rival, and how they compare."""
    comparison = compare_and_explain(rival, best)
    link = ": " if comparison.startswith(NO_DIFFERENCE) else ", which is "
    return f"{of(best)} over {of(rival)}{link}{comparison}"


def _explain_layout(best: Candidate, others: list[Candidate]) -> str:
    """Weights per GPU, the best other layout, and GPUs that stay free."""
    parallel, total = best.recipe.parallel, len(best.inputs.box.all_gpus)
    sizes = {format_gib(device.weights_total) for device in best.memory.devices if device.weights}
    most = format_gib(max(device.weights_total for device in best.memory.devices))
    text = f"{parallel.text} leaves {most if len(sizes) == 1 else f'up to {most}'} of weights on each GPU"
    divided_otherwise = (other for other in others if other.recipe.parallel.text != parallel.text)
    rival = _first_of(divided_otherwise, lambda other: _differs_only_in(other, best, "parallel"))
    if rival:
        text += f"; {rival.recipe.parallel.text}: {compare_figures(rival, best)}"
    if parallel.gpu_count < total:
        text += f"; {total - parallel.gpu_count} of {total} GPUs stay free"
    return text


def _explain_cache(best: Candidate, tried: list[Candidate]) -> str:
    """Why the cache is fp8 (bf16 is refused or holds less), or why fp8 is refused; "" otherwise."""
    if best.recipe.kv != "fp8":
        rounded = (other for other in tried if other.recipe.kv == "fp8" and _differs_only_in(other, best, "kv"))
        problem = next(filter(None, (other.fatal_issue for other in rounded)), "")
        return f"a {best.recipe.kv} cache, not fp8: {problem}" if problem else ""
    bf16 = best.change_recipe(kv="bf16")
    if problem := bf16.fatal_issue:
        return f"an fp8 cache: {problem}"
    ratio = bf16.memory.kv_bytes_per_token / best.memory.kv_bytes_per_token
    return f"an fp8 cache holds {ratio:.2g} times the tokens of bf16"


def _explain_placement(best: Candidate) -> str:
    """Where the layers or experts of a CPU+GPU recipe are, and what is left in RAM."""
    box, hybrid, ram = best.inputs.box, best.recipe.hybrid, best.memory.devices[-1]
    if hybrid is None or hybrid.gpu_experts is not None:
        return ""
    if hybrid.split:  # whole layers over nodes: their weights cross the network at every start
        hops = best.speed.hybrid_step.hops if best.speed.hybrid_step else None
        assert hops is not None
        first_node = {f"gpu{number}" for number in range(len(box.gpus))} | {"ram"}
        remote = sum(device.weights_total for device in best.memory.devices if device.device not in first_node)
        return (
            f"whole layers on the {'GPUs' if box.gpus else 'RAM'} of {best.recipe.parallel.nodes} nodes over "
            f"llama.cpp's RPC, {hops.layers} of them on other nodes; {format_gib(remote)} of weights cross the network "
            f"at every start, {format_seconds(remote / hops.rate)} at least"
        )
    if not box.gpus:
        return f"no GPU: everything runs from RAM, {format_gib(ram.weights_total)} of {format_gib(ram.total)}"
    counts = [*map(len, hybrid.experts)]
    total, shown = best.inputs.model.moe_layers, "+".join(map(str, counts))
    if sum(counts) >= total:
        return f"all {total} expert layers fit on the GPUs ({shown})"
    placed = f"none of {total} expert layers is on the GPUs"
    if any(counts):
        placed = f"{sum(counts)} of {total} expert layers are on the GPUs ({shown}, head of the stack first, tail last)"
    if box.has_unified_memory:
        return f"{placed}; the CPU works on the others, from the same memory"
    left = f"{format_gib(ram.weights_total)} of weights stay in RAM, {format_gib(ram.free)} of RAM is left free"
    return f"{placed}; {left}"


def _explain_start(recipe: Recipe, climb: Climb, *, bold: bool) -> str:
    """What a first recipe omits, and what `moebox climb` tries next."""
    if bold:
        return "bold: speculative decoding and community images are allowed; a plain start is safer (omit --bold)"
    omitted = [] if recipe.vision else ["text only"]
    if recipe.hybrid:
        slots = "one slot first" if (recipe.max_seqs or 1) == 1 else f"{recipe.max_seqs} slots"
        start = " and ".join([*omitted, slots])
    else:
        omitted += [] if recipe.speculate else ["no draft"]
        start = f"a careful start: {', '.join(omitted)}" if omitted else ""
    contexts = "raises the context" if len(climb.contexts) > 1 else ""
    drafts = f"tries {climb.speculate[-1]} drafts" if climb.speculate else ""
    steps = " and then ".join(filter(None, (contexts, drafts)))
    return "; ".join(filter(None, (start, f"`moebox climb` {steps}" if steps else "")))


def list_alternatives(best: Candidate, others: list[Candidate]) -> tuple[Alternative, ...]:
    """Return the best of each other kind of recipe that starts, and what choosing it would change."""
    recipe, kinds = best.recipe, alternative_kinds(best)
    # First what has most of the goal's figure with the same image and drafts, if that is more than the choice has.
    start = (recipe.runtime, recipe.speculate)
    same = [other for other in others if (other.recipe.runtime, other.recipe.speculate) == start]
    higher = [other for other in same if prefer.goal_figure(other) > 1.005 * prefer.goal_figure(best)]
    highest = max(higher, key=prefer.goal_figure, default=None)
    found = [highest, *(_first_of(others, kind) for kind in kinds)]
    unique = list({id(other): other for other in found if other}.values())
    alternatives = []
    for other in unique[:MAX_ALTERNATIVES]:
        loses = compare_and_explain(other, best)
        share = f"{other.memory.kv_tokens / best.memory.kv_tokens:.2g}" if best.memory.kv_tokens else "0"
        if share not in ("0", "1") and best.inputs.constraints.goal != "context":
            loses += f"; {share}× the cache"
        alternative = Alternative(
            title=candidate_title(other, best),
            recipe=other.recipe,
            decode_tok_s=round(other.speed.decode_tok_s(other.streams, min(PROMPT_TOKENS, other.recipe.context)), 2),
            answer_tok_s=round(other.score, 2),
            kv_tokens=other.memory.kv_tokens,
            loses=loses,
        )
        alternatives.append(alternative)
    return tuple(alternatives)


def alternative_kinds(best: Candidate) -> list[Kind]:
    """Return the kinds of recipes that are shown beside the choice, in order of interest."""
    recipe, checkpoint = best.recipe, best.checkpoint
    if recipe.hybrid:
        return [
            lambda other: other.checkpoint != checkpoint and other.recipe.engine == recipe.engine,
            lambda other: other.recipe.engine != recipe.engine and other.recipe.hybrid is not None,
            lambda other: other.recipe.hybrid is None,
            lambda other: other.checkpoint == checkpoint and other.recipe.engine == recipe.engine,
        ]
    return [
        lambda other: (
            bool(other.recipe.runtime.preset) != bool(recipe.runtime.preset) and other.recipe.speculate is None
        ),
        lambda other: other.recipe.speculate is not None and recipe.speculate is None,
        lambda other: other.recipe.engine != recipe.engine and other.recipe.hybrid is None,
        lambda other: other.recipe.parallel.dcp > recipe.parallel.dcp and _differs_only_in(other, best, "parallel"),
        lambda other: _differs_only_in(other, best, "parallel") and other.recipe.parallel.pp != recipe.parallel.pp,
        lambda other: other.checkpoint != checkpoint and other.recipe.engine == recipe.engine,
        lambda other: other.recipe.hybrid is not None and prefer.goal_figure(other) > prefer.goal_figure(best) / 2,
    ]


def candidate_title(candidate: Candidate, best: Candidate) -> str:
    """Describe a candidate: engine, layout, and what differs from the choice."""
    recipe, checkpoint = candidate.recipe, candidate.checkpoint
    engine = [engine_display_name(recipe.engine), "patched community image" if recipe.runtime.preset else ""]
    if recipe.hybrid:
        shown = "+".join(str(len(layers)) for layers in recipe.hybrid.experts) or "0"
        placed = f"{shown} expert layer" + "s" * (shown != "1")
        if recipe.hybrid.split:
            placed = f"{recipe.parallel.nodes} nodes"
        parts = [checkpoint.label, placed, f"-ub {recipe.hybrid.ubatch}"]
    else:
        weights = checkpoint.label if checkpoint != best.checkpoint else ""
        draft = f"{recipe.speculate.method} draft" if recipe.speculate else ""
        parts = [" ".join(recipe.parallel.labels), f"{recipe.kv} cache", weights, draft]
    return ", ".join(filter(None, engine + parts))


def compare_and_explain(candidate: Candidate, best: Candidate) -> str:
    """Compare a candidate with the choice; if it is not worse, add why it was not chosen."""
    text = compare_figures(candidate, best)
    if text.endswith(("slower", "smaller in cache")):
        return text
    reasons = "; ".join(discount.reason for discount in prefer.deciding_discounts(candidate, best))
    link = "; " if text == NO_DIFFERENCE else ", but "
    return f"{text}{link}{reasons}" if reasons else text


def compare_figures(candidate: Candidate, best: Candidate) -> str:
    """Compare by the goal: cache tokens, or answer tokens per second unless their ranges hold the difference."""
    if best.inputs.constraints.goal == "context" and best.memory.kv_tokens:
        change = round(candidate.memory.kv_tokens / best.memory.kv_tokens - 1, 2)
        words = "larger" if change > 0 else "smaller"
        return f"{abs(change):.0%} {words} in cache" if change else "as large in cache"
    ratio = candidate.score / best.score
    (low, high), (other_low, other_high) = best.speed.decode_range, candidate.speed.decode_range
    if min(low, 1 / other_high) <= ratio <= max(high, 1 / other_low):
        return NO_DIFFERENCE
    return f"{abs(ratio - 1):.0%} {'faster' if ratio > 1 else 'slower'}"


def list_rejections(best: Candidate, tried: list[Candidate]) -> dict[str, str]:
    """Return rejected candidates similar to the choice by title, with the reason: does not start, or does not fit."""

    def kind(rated: Candidate) -> object:
        return "hybrid" if rated.recipe.hybrid else (rated.recipe.parallel.gpu_count, rated.recipe.parallel.ep)

    similar = [other for other in tried if kind(other) == kind(best)]
    rejected: dict[str, str] = {}
    for other in similar:
        if other.fatal_issue and other.fatal_issue not in rejected.values():  # each reason once
            rejected[candidate_title(other, best)] = other.fatal_issue
    too_large = [other for other in similar if not other.memory.fits and not other.fatal_issue]
    for other in sorted(too_large, key=lambda other: other.tier):
        if len(rejected) < MAX_REJECTED:
            context = format_count(other.recipe.context)
            missing = f"needs {format_gb(other.memory.shortfall)} more for {context} tokens"
            rejected.setdefault(candidate_title(other, best), missing)
    return rejected


def image_warnings(best: Candidate, others: list[Candidate]) -> Iterator[PlanWarning]:
    """Warn why a patched image was chosen or is untested, or note what it would gain."""
    recipe, preset, gpu = best.recipe, best.recipe.runtime.preset, best.deployment.smallest_gpu
    if preset and best.inputs.constraints.image:
        built_for = gpu and gpu.generation == "blackwell-rtx" and families.has_preset(best.inputs.model, preset)
        if gpu and not built_for:
            text = (
                f"the patched image was built for Kimi on RTX Blackwell; it is untested with {best.inputs.model.title} "
                f"on {gpu.title}"
            )
            yield PlanWarning(text=text, remedy="omit --image for the stock image", source=IMAGE_SOURCE)
    elif preset:
        if problem := best.change_recipe(runtime=Runtime()).fatal_issue:
            stock_engine = f"stock {engine_display_name(recipe.engine)}"
            text = f"the patched community image was chosen because {stock_engine} does not start with this: {problem}"
            yield PlanWarning(text=text, remedy='kv = "bf16" for the stock image')
    elif best.deployment.engine.presets:
        presets = (other for other in others if other.recipe.runtime.preset)
        patched = _first_of(presets, lambda other: _differs_only_in(other, best, "kv", "runtime"))
        if patched and patched.recipe.kv == "fp8":
            against = "" if patched.streams == best.streams else f" against {best.streams}"
            text = (
                f"the patched community image runs an fp8 cache on these GPUs: "
                f"{format_count(patched.memory.kv_tokens)} tokens instead of {format_count(best.memory.kv_tokens)}, "
                f"{compare_figures(patched, best)} at {plural(patched.streams, 'stream')}{against}"
            )
            yield PlanWarning(text=text, remedy="--image community", severity="note", source=IMAGE_SOURCE)


def thread_limit_warnings(best: Candidate) -> Iterator[PlanWarning]:
    """Note if CPU threads, not RAM bandwidth, limit decoding."""
    step, bandwidth = best.speed.hybrid_step, best.inputs.box.ram_rate
    if not step or not bandwidth or not step.layers_in_ram or step.memory_rate <= step.unpack_rate:
        return
    threads = best.recipe.hybrid.threads if best.recipe.hybrid else None
    text = (
        f"{threads or step.cores} threads unpack at most {step.ram_rate / 1e9:,.0f} GB/s of experts; "
        f"RAM of {bandwidth / 1e9:,.0f} GB/s would give more"
    )
    yield PlanWarning(text=text, remedy="more threads, on more cores", severity="note")


def _first_of(candidates: Iterable[Candidate], kind: Kind) -> Candidate | None:
    """Return the best candidate of a kind; they are in order of worth."""
    return next(filter(kind, candidates), None)


def _differs_only_in(candidate: Candidate, best: Candidate, *settings: str) -> bool:
    """True if two recipes differ in nothing but these settings (and their names)."""
    return all(getattr(candidate.recipe, name) == getattr(best.recipe, name) for name in SETTINGS.difference(settings))
