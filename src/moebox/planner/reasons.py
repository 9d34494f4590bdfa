"""Why the chosen recipe, what its rivals lose or gain, and what was dropped: sentences from numbers."""

from collections.abc import Callable, Iterator
from dataclasses import fields, replace

from moebox.core import families
from moebox.core.box import Box
from moebox.core.gpu_list import all_gpus
from moebox.core.plan import Alternative, DeviceMemory, Memory, PlanWarning
from moebox.core.recipe import Climb, Recipe, Runtime
from moebox.core.registry import engine_display_name
from moebox.engines import modules
from moebox.planner import climbing, prefer
from moebox.planner.candidates import START_CONTEXT, START_UTILIZATION
from moebox.planner.constraints import Constraints
from moebox.planner.rate import HIGHER_UTILIZATIONS, PROMPT_TOKENS, RatedCandidate
from moebox.planner.speed.links import describe_network
from moebox.units import format_count, format_gb, format_gib, format_seconds, plural

MOST = 5  # runners-up shown
MOST_REFUSED = 8
SETTINGS = {field.name for field in fields(Recipe)} - {"name", "memory_utilization", "env"}  # a choice, each
IMAGE_SOURCE = "https://github.com/local-inference-lab/rtx6kpro"
COMPARED = {  # by cache or by speed: more, less, the same
    False: ("faster", "slower", "as fast"),
    True: ("larger in cache", "smaller in cache", "as large in cache"),
}


def explain_choice(
    best: RatedCandidate, others: list[RatedCandidate], tried: list[RatedCandidate], pins: Constraints, climb: Climb
) -> tuple[str, ...]:
    """Sentences for the choice, most important first; `others` are those that fit and start, the best first."""
    shared = (_placement(best), _engine(best, others, pins), _quant(best, others))
    served = (_engine(best, others, pins), _cache(best, tried))
    out = (
        _weights(best),
        _layout(best, others),
        *(shared if best.recipe.hybrid else served),
        *modules.lines_module(best.recipe.engine).setting_reasons(best.deployment, best.memory),
        _claim(best, pins),
        _caution(best, pins, climb),
        describe_network(best.box) if best.recipe.parallel.nodes > 1 else "",
        _context(best, pins),
        f"speed {best.speed.measured.text}" if best.speed.measured else "",
    )
    return tuple(filter(None, out))


def _weights(best: RatedCandidate) -> str:
    form = best.checkpoint
    kind = "as its makers published it" if form.native else "requantised"
    bits = f"{form.bits_per_weight(best.model):.2f} bits a weight"
    return f"{best.model.title} in {form.label}, {kind}: {format_gb(form.total_bytes)}, {bits}"


def _layout(best: RatedCandidate, others: list[RatedCandidate]) -> str:
    parallel, every = best.recipe.parallel, len(all_gpus(best.box))
    if best.recipe.hybrid:
        return ""
    text = f"{parallel.text} leaves {_held(best.memory)} of weights on each GPU"
    rival = _best(others, lambda one: _same_but(one, best, "parallel") and one.recipe.parallel.text != parallel.text)
    if rival:
        text += f"; {rival.recipe.parallel.text} is {compare_figures(rival, best)}"
    if parallel.gpu_count < every:
        text += f"; {every - parallel.gpu_count} of {every} GPUs stay free"
    return text


def _held(memory: Memory) -> str:
    """Weights of a GPU; stages are not equally large."""
    sizes = {format_gib(device.weights_total) for device in memory.devices if device.weights}
    most = format_gib(max(device.weights_total for device in memory.devices))
    return most if len(sizes) == 1 else f"up to {most}"


def _engine(best: RatedCandidate, others: list[RatedCandidate], pins: Constraints) -> str:
    if pins.engine:
        return f"{engine_display_name(pins.engine)} was asked for"
    rival = _best(others, lambda one: one.recipe.engine != best.recipe.engine and one.recipe.hybrid is None)
    if rival is None:
        return ""
    names = f"{engine_display_name(best.recipe.engine)} over {engine_display_name(rival.recipe.engine)}"
    return f"{names}, which is {compare_and_explain(rival, best)}"


def _cache(best: RatedCandidate, tried: list[RatedCandidate]) -> str:
    if best.recipe.kv == "fp8":
        return _rounded_cache(best)
    rounded = (one for one in tried if one.recipe.kv == "fp8" and _same_but(one, best, "kv"))
    why = next(filter(None, (one.fatal_issue for one in rounded)), "")
    return f"a {best.recipe.kv} cache, not fp8: {why}" if why else ""


def _rounded_cache(best: RatedCandidate) -> str:
    """Why an fp8 cache: the plain one is refused, or holds less."""
    plain = replace(best.candidate, recipe=replace(best.recipe, kv="bf16"))
    if needed := replace(best, candidate=plain).fatal_issue:
        return f"an fp8 cache: {needed}"
    more = best.memory_with(plain).kv_bytes_per_token / best.memory.kv_bytes_per_token
    return f"an fp8 cache holds {more:.2g} times the tokens of bf16"


def _claim(best: RatedCandidate, pins: Constraints) -> str:
    claim = best.recipe.memory_utilization or 0
    if claim not in HIGHER_UTILIZATIONS or best.recipe.hybrid or pins.memory_utilization or pins.bold:
        return ""
    return f"{claim} of each GPU is claimed: {START_UTILIZATION} does not hold it"


def _placement(best: RatedCandidate) -> str:
    hybrid, ram = best.recipe.hybrid, best.memory.devices[-1]
    if hybrid is None or hybrid.gpu_experts is not None:
        return ""
    if hybrid.split:
        return _over_nodes(best)
    if not best.box.gpus:
        return f"no GPU: everything runs from RAM, {format_gib(ram.weights_total)} of {format_gib(ram.total)}"
    return _on_gpus([len(layers) for layers in hybrid.experts], best)


def _on_gpus(counts: list[int], best: RatedCandidate) -> str:
    """Expert layers by GPU, and where the others are."""
    placed, shown, total = sum(counts), "+".join(map(str, counts)), best.model.moe_layers
    if placed >= total:
        return f"all {total} expert layers fit on the GPUs ({shown})"
    where = f"{placed} of {total} expert layers lie on the GPUs ({shown}, head of the stack first, tail last)"
    none = f"none of {total} expert layers lies on the GPUs"
    return f"{where if placed else none}; {_left_to_cpu(best.box, best.memory.devices[-1])}"


def _left_to_cpu(box: Box, ram: DeviceMemory) -> str:
    if box.has_unified_memory:
        return "the CPU works on the others, out of the same memory"
    return f"{format_gib(ram.weights_total)} of weights stay in RAM, {format_gib(ram.free)} of RAM is left free"


def _over_nodes(best: RatedCandidate) -> str:
    """Whole layers over nodes, and what their weights cost at every start."""
    nodes, hops = best.recipe.parallel.nodes, best.speed.hybrid_step.hops if best.speed.hybrid_step else None
    assert hops is not None
    away = _away(best)
    where = "GPUs" if best.box.gpus else "RAM"
    return (
        f"whole layers on the {where} of {nodes} nodes over llama.cpp's RPC, {hops.layers} of them on other nodes; "
        f"{format_gib(away)} of weights go over the network at every start, {format_seconds(away / hops.rate)} at least"
    )


def _away(best: RatedCandidate) -> int:
    """Bytes of weights on nodes other than the first."""
    own = {f"gpu{number}" for number in range(len(best.box.gpus))} | {"ram"}
    return sum(device.weights_total for device in best.memory.devices if device.device not in own)


def _quant(best: RatedCandidate, others: list[RatedCandidate]) -> str:
    rival = _best(others, lambda one: one.recipe.engine == best.recipe.engine and one.checkpoint != best.checkpoint)
    if rival is None:
        return ""
    return f"{best.checkpoint.label} over {rival.checkpoint.label}, which is {compare_and_explain(rival, best)}"


def _caution(best: RatedCandidate, pins: Constraints, climb: Climb) -> str:
    if pins.bold:
        return "bold: speculative decoding and community images are allowed; a plain start is safer (leave --bold out)"
    return "; ".join(filter(None, (_careful(best.recipe), climbing.describe_climb(climb))))


def _careful(recipe: Recipe) -> str:
    """What a first recipe goes without."""
    only = "" if recipe.vision else "text only"
    if recipe.hybrid:
        slots = "one slot first" if (recipe.max_seqs or 1) == 1 else f"{recipe.max_seqs} slots"
        return " and ".join(filter(None, (only, slots)))
    plain = ", ".join(filter(None, (only, "" if recipe.speculate else "no draft")))
    return f"a careful start: {plain}" if plain else ""


def _context(best: RatedCandidate, pins: Constraints) -> str:
    wanted = min(START_CONTEXT, best.model.context)
    if not pins.context and best.recipe.context < wanted:
        return f"context {format_count(best.recipe.context)}: {format_count(wanted)} does not fit"
    return ""


def list_alternatives(best: RatedCandidate, others: list[RatedCandidate]) -> tuple[Alternative, ...]:
    """The best of each other kind that starts, and what taking it would change."""
    found = [_most(others, best), *(_best(others, kind) for kind in _kinds(best))]
    once = {id(one): one for one in found if one}
    return tuple(_alternative(one, best) for one in list(once.values())[:MOST])


def _most(others: list[RatedCandidate], best: RatedCandidate) -> RatedCandidate | None:
    """What has most of the goal's figure, where that is more than the choice has; drafts and images as the choice."""
    mine = best.recipe
    alike = [one for one in others if (one.recipe.runtime, one.recipe.speculate) == (mine.runtime, mine.speculate)]
    more = [one for one in alike if prefer.goal_figure(one) > 1.005 * prefer.goal_figure(best)]
    return max(more, key=prefer.goal_figure, default=None)


def _alternative(one: RatedCandidate, best: RatedCandidate) -> Alternative:
    return Alternative(
        title=candidate_title(one, best),
        recipe=one.recipe,
        decode_tok_s=round(one.speed.decode_tok_s(one.streams, min(PROMPT_TOKENS, one.recipe.context)), 2),
        answer_tok_s=round(one.score, 2),
        kv_tokens=one.memory.kv_tokens,
        loses=_loses(one, best),
    )


def _kinds(best: RatedCandidate) -> list[Callable[[RatedCandidate], bool]]:
    """What a runner-up may differ in, in the order they are worth hearing of."""
    recipe = best.recipe
    if recipe.hybrid:
        return [
            lambda one: one.checkpoint != best.checkpoint and one.recipe.engine == recipe.engine,
            lambda one: one.recipe.engine != recipe.engine and one.recipe.hybrid is not None,
            lambda one: one.recipe.hybrid is None,
            lambda one: one.checkpoint == best.checkpoint and one.recipe.engine == recipe.engine,
        ]
    return [
        lambda one: bool(one.recipe.runtime.preset) != bool(recipe.runtime.preset) and one.recipe.speculate is None,
        lambda one: one.recipe.speculate is not None and recipe.speculate is None,
        lambda one: one.recipe.engine != recipe.engine and one.recipe.hybrid is None,
        lambda one: one.recipe.parallel.dcp > recipe.parallel.dcp and _same_but(one, best, "parallel"),
        lambda one: _same_but(one, best, "parallel") and one.recipe.parallel.pp != recipe.parallel.pp,
        lambda one: one.checkpoint != best.checkpoint and one.recipe.engine == recipe.engine,
        lambda one: one.recipe.hybrid is not None and prefer.goal_figure(one) > prefer.goal_figure(best) / 2,
    ]


def candidate_title(one: RatedCandidate, best: RatedCandidate) -> str:
    """A runner-up in words: engine, layout, and what sets it apart."""
    recipe = one.recipe
    engine = [engine_display_name(recipe.engine), "patched community image" if recipe.runtime.preset else ""]
    if recipe.hybrid:
        parts = [one.checkpoint.label, _shared_out(recipe), f"-ub {recipe.hybrid.ubatch}"]
    else:
        form = one.checkpoint.label if one.checkpoint != best.checkpoint else ""
        draft = f"{recipe.speculate.method} draft" if recipe.speculate else ""
        parts = [" ".join(recipe.parallel.labels), f"{recipe.kv} cache", form, draft]
    return ", ".join(filter(None, engine + parts))


def _shared_out(recipe: Recipe) -> str:
    """Where the layers of a model lie that GPUs and RAM share, or several nodes."""
    assert recipe.hybrid is not None
    if recipe.hybrid.split:
        return f"{recipe.parallel.nodes} nodes"
    shown = "+".join(str(len(layers)) for layers in recipe.hybrid.experts) or "0"
    return f"{shown} expert layer" + "s" * (shown != "1")


def _loses(one: RatedCandidate, best: RatedCandidate) -> str:
    """Why it was not taken, and how its cache compares."""
    parts = [compare_and_explain(one, best)]
    share = f"{one.memory.kv_tokens / best.memory.kv_tokens:.2g}" if best.memory.kv_tokens else "0"
    if share not in ("0", "1") and best.constraints.goal != "context":
        parts.append(f"{share}× the cache")
    return "; ".join(parts)


def compare_and_explain(one: RatedCandidate, best: RatedCandidate) -> str:
    """How a runner-up compares, and what it would have had to make up for."""
    text = compare_figures(one, best)
    if text.endswith(("slower", "smaller in cache")):
        return text
    return ", but ".join(filter(None, (text, "; ".join(each.reason for each in prefer.deciding_discounts(one, best)))))


def compare_figures(one: RatedCandidate, best: RatedCandidate) -> str:
    """By the goal's yardstick: cache, or answer tokens a second while the requests of a comparison are served."""
    by_cache = best.constraints.goal == "context" and bool(best.memory.kv_tokens)
    share = one.memory.kv_tokens / best.memory.kv_tokens if by_cache else one.score / best.score
    more, less, same = COMPARED[by_cache]
    change = round(share - 1, 2)
    return f"{abs(change):.0%} {more if change > 0 else less}" if change else same


def list_rejected(best: RatedCandidate, tried: list[RatedCandidate]) -> dict[str, str]:
    """What was dropped, by kind: what does not start and what does not fit."""
    alike = [one for one in tried if _same_kind(one, best)]
    out = _not_starting(alike, best)
    for one in _lacking(alike):
        if len(out) < MOST_REFUSED:
            lack = f"lacks {format_gb(one.memory.shortfall)} for {format_count(one.recipe.context)} tokens"
            out.setdefault(candidate_title(one, best), lack)
    return out


def _not_starting(alike: list[RatedCandidate], best: RatedCandidate) -> dict[str, str]:
    """Every reason not to start once, with the first that has it."""
    out: dict[str, str] = {}
    for one in alike:
        if one.fatal_issue and one.fatal_issue not in out.values():
            out[candidate_title(one, best)] = one.fatal_issue
    return out


def _lacking(alike: list[RatedCandidate]) -> list[RatedCandidate]:
    """Those that would start and do not fit, the plainest first."""
    lacking = [one for one in alike if not one.memory.fits and not one.fatal_issue]
    return sorted(lacking, key=lambda one: one.candidate.tier)


def _same_kind(one: RatedCandidate, best: RatedCandidate) -> bool:
    """Both share the work with the CPU, or neither does and they take as many GPUs alike."""
    if one.recipe.hybrid or best.recipe.hybrid:
        return bool(one.recipe.hybrid and best.recipe.hybrid)
    mine, its = one.recipe.parallel, best.recipe.parallel
    return (mine.gpu_count, mine.ep) == (its.gpu_count, its.ep)


def image_warnings(best: RatedCandidate, others: list[RatedCandidate], pins: Constraints) -> Iterator[PlanWarning]:
    """What the patched image gains where the stock one cannot do what it does, or why it was taken."""
    if best.recipe.runtime.preset and pins.image:
        yield from _untried(best)
    elif best.recipe.runtime.preset:
        yield from _patched(best)
    elif best.deployment.engine.presets and not best.recipe.runtime.preset:
        yield from _gained(best, others)


def _untried(best: RatedCandidate) -> Iterator[PlanWarning]:
    """A patched image that was asked for beyond what it was built for."""
    preset, gpu = best.recipe.runtime.preset, best.deployment.smallest_gpu
    if gpu is None or (gpu.generation == "blackwell-rtx" and families.has_preset(best.model, preset)):
        return
    text = (
        f"the patched image was built for Kimi on RTX Blackwell; with {best.model.title} on {gpu.title} it is untried"
    )
    yield PlanWarning(symptom="", text=text, remedy="leave --image out for the stock image", source=IMAGE_SOURCE)


def _patched(best: RatedCandidate) -> Iterator[PlanWarning]:
    stock = replace(best.candidate, recipe=replace(best.recipe, runtime=Runtime()))
    trouble = replace(best, candidate=stock).fatal_issue
    if trouble:
        stock_name = f"stock {engine_display_name(best.recipe.engine)}"
        text = f"the patched community image was taken, because {stock_name} does not start with this: {trouble}"
        yield PlanWarning(symptom="", text=text, remedy='kv = "bf16" for the stock image')


def _gained(best: RatedCandidate, others: list[RatedCandidate]) -> Iterator[PlanWarning]:
    patched = _best(others, lambda one: _same_but(one, best, "kv", "runtime") and bool(one.recipe.runtime.preset))
    if patched and patched.recipe.kv == "fp8":
        text = (
            "the patched community image runs an fp8 cache on these GPUs: "
            f"{format_count(patched.memory.kv_tokens)} tokens instead of {format_count(best.memory.kv_tokens)}, "
            f"{compare_figures(patched, best)} {_streams(patched, best)}"
        )
        yield PlanWarning(symptom="", text=text, remedy="--image community", severity="note", source=IMAGE_SOURCE)


def _streams(one: RatedCandidate, best: RatedCandidate) -> str:
    """The streams at which two candidates were compared."""
    theirs = "" if one.streams == best.streams else f" against {best.streams}"
    return f"at {plural(one.streams, 'stream')}{theirs}"


def thread_limit_warnings(best: RatedCandidate) -> Iterator[PlanWarning]:
    """Where threads, not RAM, are what limits decoding: more of the one does not help without the other."""
    shared, paper = best.speed.hybrid_step, best.box.ram_rate
    if not shared or not paper or not shared.is_thread_bound:
        return
    threads = best.recipe.hybrid.threads if best.recipe.hybrid else None
    text = (
        f"{threads or shared.cores} threads unpack at most {shared.ram_rate / 1e9:,.0f} GB/s of experts; "
        f"RAM of {paper / 1e9:,.0f} GB/s would give more"
    )
    yield PlanWarning(symptom="", text=text, remedy="more threads, on more cores", severity="note")


def _best(found: list[RatedCandidate], kind: Callable[[RatedCandidate], bool]) -> RatedCandidate | None:
    """What is worth most of a kind: they come in that order."""
    return next(filter(kind, found), None)


def _same_but(one: RatedCandidate, best: RatedCandidate, *settings: str) -> bool:
    """Whether two recipes differ in nothing but these settings (and their names)."""
    return all(getattr(one.recipe, name) == getattr(best.recipe, name) for name in SETTINGS.difference(settings))
