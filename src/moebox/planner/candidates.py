"""Every recipe worth weighing for a model on a box, within what a person has pinned.

Recipes come in tiers. Tier 0 is what one starts with: native weights, no draft, bf16 cache, plain tensor parallelism.
Higher tiers add decode context parallelism, an fp8 cache, expert parallelism, the patched image and drafts.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from moebox.core import families, gpu_list, registry, support
from moebox.core.box import Box, Gpu
from moebox.core.deployment import Deployment
from moebox.core.model import Checkpoint, Model
from moebox.core.recipe import EngineName, Hybrid, Parallel, Recipe, Runtime, Speculate
from moebox.core.traits import Traits
from moebox.engines import modules
from moebox.planner import climbing, drafting, layouts, over_nodes, place
from moebox.planner.constraints import (
    HYBRID_FLAGS,
    Constraints,
    engines_with_hybrid,
    engines_with_preset,
    hybrid_engines,
)
from moebox.planner.constraints import gpu_only_engines as serving_engines
from moebox.sizing.constants import GRAPH_ESTIMATE_ENV, memory_constant_bytes, reserved_bytes, visible_bytes

START_CONTEXT = 65536  # where every first recipe starts ("Blackwell Shenanigans 001", the practical test ladder)
SHORTER_CONTEXTS = (196608, 131072, 98304, 65536, 49152, 32768, 16384, 8192, 4096, 2048)
START_UTILIZATION = 0.90
BOLD_UTILIZATION = 0.94  # rtx6kpro wiki: 0.94 plain, 0.90 with a draft
DRAFT_UTILIZATION = 0.88  # the same: with a draft under DCP, 0.90 ran out of memory at the first long request
SEQUENCES, BOLD_SEQUENCES = 64, 128  # the Triton MLA workspace grows with it: 1 GiB at 64 with TP8, DCP8 and 65,536
DEVICES = {"NVIDIA": "CUDA", "AMD": "ROCm"}  # what llama.cpp built for each calls it (ggml-cuda.h GGML_CUDA_NAME)
UBATCHES = (512, 2048, 4096, 8192)
# Below this a quantisation is chosen only when nothing larger fits: perplexity leaves the original's (makers' cards).
LEAST_BITS = 3.5
UNPROVEN_TIER = 4  # tiers: engines that few have measured come after those that many have


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A recipe and how far it is from the plainest one."""

    recipe: Recipe
    checkpoint: Checkpoint
    tier: int


Maker = Callable[[Box, Model, Checkpoint, EngineName, Constraints], Iterator[Candidate]]


def make_candidates(
    box: Box,
    model: Model,
    checkpoints: tuple[Checkpoint, ...],
    constraints: Constraints,
    engines: tuple[EngineName, ...],
) -> Iterator[Candidate]:
    """All of them for `engines`, the plainest first."""
    for engine in engines:
        if not constraints.engine and reason_to_skip(engine, box, model):
            continue
        recipes = _maker(registry.engine_traits(engine))
        for checkpoint in usable_checkpoints(checkpoints, engine, constraints):
            yield from recipes(box, model, checkpoint, engine, constraints)


def _maker(traits: Traits) -> Maker:
    """How recipes of an engine are made: by where it can keep experts."""
    if traits.is_gpu_only:
        return gpu_candidates
    return expert_split_candidates if "gpu_experts" in traits.hybrid_fields else ggml_candidates


def reason_to_skip(engine: EngineName, box: Box, model: Model) -> str:
    """Why an engine is not weighed at all: no kernels for these GPUs, or not for the model's architecture."""
    traits = registry.engine_traits(engine)
    kinds = {gpu.name: gpu for gpu in box.gpus}.values()
    excluded = [traits.hardware_problem((gpu,), model) for gpu in kinds] or [traits.hardware_problem((), model)]
    runs_on_some = not all(excluded)
    return support.unsupported_reason(engine, traits.title, model)[0] if runs_on_some else excluded[0]


def possible_engines(box: Box, pins: Constraints) -> tuple[EngineName, ...]:
    """Engines that can be meant, the preferred ones first; without a GPU those that share the work with the CPU."""
    pinned = _engines_pinned(pins)
    if pinned is not None:
        return pinned
    return (*serving_engines(), *hybrid_engines()) if box.gpus else hybrid_engines()


def _engines_pinned(pins: Constraints) -> tuple[EngineName, ...] | None:
    """Engines that take what is pinned; None where every engine does."""
    if pins.engine:
        return (pins.engine,)
    if pins.hybrid_flag or pins.kv in ("q8_0", "q4_0", "f16"):
        return engines_with_hybrid(*_hybrid_pins(pins))
    if pins.image not in (None, "stock"):
        return engines_with_preset(pins.image)
    if pins.parallel_sizes.get("--dcp", 1) > 1:
        return serving_engines()[:1]
    return serving_engines() if any((pins.gpu_only_flag, pins.parallel_sizes, pins.image, pins.kv)) else None


def _hybrid_pins(pins: Constraints) -> tuple[str, ...]:
    """Fields of [hybrid] that are pinned; caches of other types than bf16 and fp8 go with `experts`."""
    pinned = {field for field in HYBRID_FLAGS.values() if getattr(pins, field) is not None}
    return tuple(pinned | ({"experts"} if pins.kv else set()))


def usable_checkpoints(
    checkpoints: tuple[Checkpoint, ...], engine: EngineName, pins: Constraints
) -> tuple[Checkpoint, ...]:
    """Checkpoints the engine reads, as far as they may be meant."""
    traits = registry.engine_traits(engine)
    return tuple(form for form in checkpoints if _reads(traits, form, pins) and _meant(form, traits, pins))


def _reads(traits: Traits, form: Checkpoint, pins: Constraints) -> bool:
    """Whether an engine reads a form; one that reads folders, unasked, only what is there already."""
    if traits.local_weights_only and not pins.engine and not form.path:
        return False
    return form.format in traits.formats and form.supports_engine(traits.name)


def _meant(form: Checkpoint, traits: Traits, pins: Constraints) -> bool:
    """The pinned one; without a pin what was seen to exist, by the file's name where the engine wants that."""
    if pins.checkpoint:
        return form.matches_name(pins.checkpoint)
    named = form.file or form.path or not traits.needs_gguf_filename
    return bool(named) and not form.unverified


def gpu_candidates(
    box: Box, model: Model, checkpoint: Checkpoint, engine: EngineName, pins: Constraints
) -> Iterator[Candidate]:
    """Recipes of an engine that serves from GPUs alone."""
    common = base_recipe(model, checkpoint, engine, pins)
    for parallel in layouts.possible_layouts(box, model, checkpoint, engine, pins):
        generations = {gpu_list.all_gpus(box)[i].generation for i in gpu_list.largest_gpus(box, parallel.gpu_count)}
        for preset in image_presets(generations, model, engine, pins):
            for kv in cache_types(model, preset, pins):
                for draft in draft_options(model, preset, pins):
                    recipe = gpu_recipe(box, common, pins, parallel, kv, draft, preset)
                    tier = recipe_tier(recipe, checkpoint, pins, gpus=len(box.gpus), nodes=box.nodes)
                    yield Candidate(recipe=recipe, checkpoint=checkpoint, tier=tier)


def recipe_tier(recipe: Recipe, checkpoint: Checkpoint, pins: Constraints, *, gpus: int, nodes: int) -> int:
    """How far a recipe is from the plainest; what a person pinned does not count."""
    parallel, preset = recipe.parallel, recipe.runtime.preset
    usual = "fp8" if preset == "community" else "bf16"
    spread = parallel.gpu_count < gpus * nodes or (parallel.pp > 1 and parallel.tp < gpus)
    steps = (
        (1, parallel.dcp > 1, pins.dcp),
        (1, spread, pins.tp),
        (1, not checkpoint.native, pins.checkpoint),
        (2, parallel.ep, pins.ep),
        (2, recipe.kv != usual, pins.kv),
        (3, recipe.speculate, pins.speculate),
        (3, preset, pins.image),
    )
    return sum(weight for weight, less_plain, pinned in steps if less_plain and not pinned)


def gpu_recipe(
    box: Box, common: Recipe, pins: Constraints, parallel: Parallel, kv: str, draft: Speculate | None, preset: str
) -> Recipe:
    """One recipe for vLLM or SGLang, from what all of the model share."""
    used = gpu_list.largest_gpus(box, parallel.gpu_count)
    env = gpu_list.visible_devices_env(box, used)
    runtime = Runtime()
    if preset:  # as the image's own launches have it: graphs come out of what the claim leaves, not off the cache
        env |= {GRAPH_ESTIMATE_ENV: "0"}
        runtime = Runtime(kind="docker", preset=preset)
    share = pins.memory_utilization or limit_utilization(box, used, _first_share(pins, parallel, draft, preset))
    return replace(
        common,
        name=f"{common.name}-{parallel.text.replace('×', '-').lower()}",
        max_seqs=max_sequences(pins),
        kv=kv,
        memory_utilization=share,
        parallel=parallel,
        speculate=draft,
        runtime=runtime,
        env=env,
    )


def _first_share(pins: Constraints, parallel: Parallel, draft: Speculate | None, preset: str) -> float:
    """The share of each GPU that such a recipe starts with."""
    if draft is None:
        return BOLD_UTILIZATION if pins.bold else START_UTILIZATION
    return DRAFT_UTILIZATION if preset and parallel.dcp > 1 else START_UTILIZATION


def base_recipe(model: Model, checkpoint: Checkpoint, engine: EngineName, pins: Constraints) -> Recipe:
    """What every recipe of a model shares."""
    traits = registry.engine_traits(engine)
    tools, thoughts = model.tool_parser, model.reasoning_parser
    flags = (traits.hide_tools_flag if tools else "", traits.cached_tokens_flag)
    context = pins.context or min(START_CONTEXT, model.context)
    recipe = Recipe(
        name=f"{model.name}-{engine}",
        engine=engine,
        model=model.name,
        checkpoint=checkpoint.path or checkpoint.name,
        served_name=(model.repo or model.name).rpartition("/")[2],
        context=context,
        trust_remote_code=model.trust_remote_code and checkpoint.format != "gguf",
        flags=dict.fromkeys(filter(None, flags), True),
        climb=climbing.climb_table(model, context, traits, pins.speculate),
    )
    if not traits.needs_parser_flags:
        return recipe
    return replace(
        recipe,
        tool_parser=traits.tool_parsers.get(tools, tools),
        reasoning_parser=traits.reasoning_parsers.get(thoughts, thoughts),
    )


def max_sequences(pins: Constraints) -> int:
    """Sequences a step may hold: what is asked for, and never the engine's thousand."""
    return max(pins.concurrency or 0, BOLD_SEQUENCES if pins.bold else SEQUENCES)


def limit_utilization(box: Box, used: tuple[int, ...], share: float) -> float:
    """The share of each GPU to claim: `share`, less where other programs hold a part of it."""
    gpus = gpu_list.all_gpus(box)
    return max(min([share, *map(_free_share, {gpus[index] for index in used})]), 0.01)


def _free_share(gpu: Gpu) -> float:
    free = visible_bytes(gpu) - reserved_bytes(gpu) - memory_constant_bytes("load", "margin")
    return math.floor(100 * free / visible_bytes(gpu)) / 100


def image_presets(generations: set[str], model: Model, engine: EngineName, pins: Constraints) -> tuple[str, ...]:
    """Images to weigh: the stock one, and on RTX Blackwell the patched one that was built for Kimi there."""
    if pins.image:
        return (pins.image,) if pins.image in registry.engine_traits(engine).presets else ("",)
    if generations != {"blackwell-rtx"}:
        return ("",)
    return ("", *(preset for preset in registry.engine_traits(engine).presets if families.has_preset(model, preset)))


def cache_types(model: Model, preset: str, pins: Constraints) -> tuple[str, ...]:
    """Cache types to weigh, the plainest first; compressed entries come in fp8 alone, as the engines' refusals say."""
    if pins.kv or model.has_compressed_cache:
        return (pins.kv or "fp8",)
    return ("fp8", "bf16") if preset == "community" else ("bf16", "fp8")


def draft_options(model: Model, preset: str, pins: Constraints) -> tuple[Speculate | None, ...]:
    """Drafts to weigh: none first."""
    method = pins.speculate or drafting.default_draft_method(model)
    if method == "none":
        return (None,)
    guess = drafting.make_draft(model, method, preset)
    return (guess,) if pins.speculate else (None, guess)


def ggml_candidates(
    box: Box, model: Model, checkpoint: Checkpoint, engine: EngineName, pins: Constraints
) -> Iterator[Candidate]:
    """Recipes of llama.cpp and ik_llama.cpp: every micro-batch with as many expert layers on the GPUs as fit."""
    # Too few bits come last, and of those the most bits first: quality falls faster than speed rises.
    missing = max(0.0, LEAST_BITS - checkpoint.bits_per_weight(model))
    tier = 5 + round(10 * missing) if missing else 0
    for ubatch in (pins.ubatch,) if pins.ubatch else UBATCHES:
        recipe = _micro_batched(box, model, checkpoint, engine, pins, ubatch)
        counts = pins.experts
        if counts is None:
            counts = place.expert_counts_that_fit(box, model, checkpoint, recipe)
            for spread in over_nodes.multi_node_recipes(box, model, checkpoint, recipe):
                yield Candidate(recipe=spread, checkpoint=checkpoint, tier=tier + 1)
        yield Candidate(recipe=place.with_expert_layers(box, model, recipe, counts), checkpoint=checkpoint, tier=tier)


def _micro_batched(
    box: Box, model: Model, checkpoint: Checkpoint, engine: EngineName, pins: Constraints, ubatch: int
) -> Recipe:
    """One recipe for llama.cpp or its fork before experts are placed."""
    return replace(
        base_recipe(model, checkpoint, engine, pins),
        name=f"{model.name}-{checkpoint.quant.lower()}-{engine}",
        max_seqs=pins.concurrency or 1,
        kv=pins.kv or "f16",
        env=gpu_list.visible_devices_env(box, tuple(range(len(box.gpus)))),
        hybrid=_ggml(box, model, engine, pins, ubatch),
    )


def _ggml(box: Box, model: Model, engine: EngineName, pins: Constraints, ubatch: int) -> Hybrid:
    """What llama.cpp and its fork are given before experts are placed."""
    hybrid = Hybrid(
        device=DEVICES[box.gpus[0].vendor] if box.gpus else Hybrid().device,
        gpu_layers=999 if box.gpus else 0,
        threads=_threads(box, pins),
        threads_batch=box.cpu.threads or None,
        batch=max(2048, ubatch),
        ubatch=ubatch,
        mla=pins.mla,
    )
    if model.mla and "mla" in registry.engine_traits(engine).hybrid_fields:
        return replace(hybrid, mla=3 if pins.mla is None else pins.mla, attention_buffer=512)
    return hybrid


def _threads(box: Box, pins: Constraints) -> int | None:
    """Threads that decode: one core is left to the rest; None leaves it to the engine."""
    return pins.threads or (max(1, box.cpu.cores - 1) if box.cpu.cores else None)


def expert_split_candidates(
    box: Box, model: Model, checkpoint: Checkpoint, engine: EngineName, pins: Constraints
) -> Iterator[Candidate]:
    """Recipes of engines that keep some experts of every layer on the GPUs: as many as fit, over all GPUs or one."""
    if not box.gpus or not model.moe:
        return
    tier = 0 if registry.engine_traits(engine).is_proven or pins.engine == engine else UNPROVEN_TIER
    for tp in _ranks(len(box.gpus), pins):
        if not layouts.layout_problem(model, checkpoint, Parallel(tp=tp)):
            recipe = _filled(box, model, checkpoint, engine, pins, tp)
            yield Candidate(recipe=recipe, checkpoint=checkpoint, tier=tier)


def _filled(box: Box, model: Model, checkpoint: Checkpoint, engine: EngineName, pins: Constraints, tp: int) -> Recipe:
    """One recipe with as many experts of every layer on `tp` GPUs as they hold."""
    none = Hybrid(threads=_threads(box, pins), pools=max(box.cpu.sockets, 1), gpu_experts=0)
    recipe = replace(
        base_recipe(model, checkpoint, engine, pins),
        name=f"{model.name}-{engine}-tp{tp}",
        max_seqs=pins.concurrency or 1,
        kv=cache_types(model, "", pins)[0],
        memory_utilization=pins.memory_utilization or BOLD_UTILIZATION,
        parallel=Parallel(tp=tp),
        env=gpu_list.visible_devices_env(box, tuple(range(tp))),
        hybrid=none,
    )
    recipe = replace(recipe, batched_tokens=modules.schedule_module(engine).step_tokens(recipe))
    most = modules.memory_module(engine).max_gpu_experts(Deployment.from_parts(recipe, model, checkpoint, box))
    return replace(recipe, hybrid=replace(none, gpu_experts=most))


def _ranks(gpus: int, pins: Constraints) -> list[int]:
    """Tensor-parallel sizes: one GPU, and the largest power of two of them."""
    wanted = {pins.tp} if pins.tp else {1, 1 << (gpus.bit_length() - 1)}
    return sorted(size for size in wanted if size <= gpus)
