"""Every recipe worth weighing for a model on a box, within what a person has pinned.

Recipes come in tiers. Tier 0 is what one starts with: native weights, no draft, bf16 cache, plain tensor parallelism.
Higher tiers add decode context parallelism, an fp8 cache, expert parallelism, the patched image and drafts.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from moebox.core import families, registry, support
from moebox.core.box import Box
from moebox.core.deployment import Deployment
from moebox.core.model import Checkpoint, Model
from moebox.core.recipe import EngineName, Hybrid, Parallel, Recipe, Runtime, Speculate
from moebox.engines import rooms
from moebox.errors import BadInput
from moebox.planner import over_nodes, place
from moebox.planner.pins import Pins, sharing, with_hybrid, with_preset
from moebox.planner.pins import serving as serving_engines
from moebox.sizing import gpu_list, shards
from moebox.sizing.constants import GRAPHS_COUNTED, gibibytes, taken, visible

START_CONTEXT = 65536  # where every first recipe starts ("Blackwell Shenanigans 001", the practical test ladder)
SHORTER = (196608, 131072, 98304, 65536, 49152, 32768, 16384, 8192, 4096, 2048)
START_UTILIZATION = 0.90
BOLD_UTILIZATION = 0.94  # rtx6kpro wiki: 0.94 plain, 0.90 with a draft
DRAFT_UTILIZATION = 0.88  # the same: with a draft under DCP, 0.90 ran out of memory at the first long request
SEQUENCES, BOLD_SEQUENCES = 64, 128  # the Triton MLA workspace grows with it: 1 GiB at 64 with TP8, DCP8 and 65,536
UBATCHES = (512, 2048, 4096, 8192)
# Quantisation groups along an expert's width that a rank must hold whole; mxfp4 kernels pad instead (vLLM mxfp4.py).
GROUP = {"int4-g32": 32, "nvfp4": 16, "fp8-block": 128}
# Below this a quantisation is chosen only when nothing larger fits: perplexity leaves the original's (makers' cards).
LEAST_BITS = 3.5
UNPROVEN = 4  # tiers: engines that few have measured come after those that many have


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A recipe and how far it is from the plainest one."""

    recipe: Recipe
    checkpoint: Checkpoint
    tier: int


def candidates(
    box: Box, model: Model, checkpoints: tuple[Checkpoint, ...], pins: Pins, engines: tuple[EngineName, ...]
) -> Iterator[Candidate]:
    """All of them for `engines`, the plainest first."""
    for engine in engines:
        if not pins.engine and cannot_run(engine, box, model):
            continue
        for checkpoint in forms(checkpoints, engine, pins):
            if registry.traits(engine).serves:
                yield from serving(box, model, checkpoint, engine, pins)
            elif "gpu_experts" in registry.traits(engine).hybrid:
                yield from sliced(box, model, checkpoint, engine, pins)
            else:
                yield from placed(box, model, checkpoint, engine, pins)


def cannot_run(engine: EngineName, box: Box, model: Model) -> str:
    """Why an engine is not weighed at all: no kernels for these GPUs, or not for the model's architecture."""
    traits = registry.traits(engine)
    return traits.excluded(box, model) or support.refusal(engine, traits.title, model)[0]


def engines_for(box: Box, pins: Pins) -> tuple[tuple[EngineName, ...], ...]:
    """Engines that can be meant, in groups: a later group is looked at when nothing of an earlier one fits."""
    if pins.engine:
        return ((pins.engine,),)
    if pins.sharing or pins.kv in ("q8_0", "q4_0", "f16"):
        return (with_hybrid(*_hybrid_pins(pins)),)
    if pins.image not in (None, "stock"):
        return (with_preset(pins.image),)
    if (pins.dcp or 1) > 1:
        return (serving_engines()[:1],)
    if pins.serving or pins.tp or pins.pp or pins.dp or pins.ep or pins.dcp or pins.image or pins.kv:
        return (serving_engines(),)
    return (serving_engines(), sharing()) if box.gpus else (sharing(),)


def _hybrid_pins(pins: Pins) -> tuple[str, ...]:
    """Fields of [hybrid] that are pinned."""
    given = {
        "mla": pins.mla is not None,
        "experts": pins.experts is not None or bool(pins.kv),
        "ubatch": pins.ubatch is not None,
        "threads": pins.threads is not None,
    }
    return tuple(field for field, pinned in given.items() if pinned)


def forms(checkpoints: tuple[Checkpoint, ...], engine: EngineName, pins: Pins) -> tuple[Checkpoint, ...]:
    """Checkpoints the engine reads; without a pin those that keep quality, where there are any."""
    formats = registry.traits(engine).formats
    known = [one for one in checkpoints if one.format in formats and (not one.engines or engine in one.engines)]
    if pins.checkpoint:
        return tuple(one for one in known if pins.checkpoint.lower() in (one.name.lower(), one.repo.lower(), one.path))
    if registry.traits(engine).names_files:
        known = [one for one in known if one.file or one.path]
    return tuple(one for one in known if not one.unverified)


def serving(box: Box, model: Model, checkpoint: Checkpoint, engine: EngineName, pins: Pins) -> Iterator[Candidate]:
    """Recipes of an engine that serves from GPUs alone."""
    for parallel in layouts(box, model, checkpoint, engine, pins):
        for preset in presets(box, model, engine, pins):
            for kv in caches(engine, preset, pins):
                for draft in drafts(model, preset, pins):
                    recipe = served(box, model, checkpoint, engine, pins, parallel, kv, draft, preset)
                    tier = tier_of(recipe, checkpoint, pins, gpus=len(box.gpus), nodes=box.nodes)
                    yield Candidate(recipe=recipe, checkpoint=checkpoint, tier=tier)


def tier_of(recipe: Recipe, checkpoint: Checkpoint, pins: Pins, *, gpus: int, nodes: int) -> int:
    """How far a recipe is from the plainest; what a person pinned does not count."""
    parallel, preset = recipe.parallel, recipe.runtime.preset
    usual = "fp8" if preset == "community" else "bf16"
    steps = {
        1: (
            parallel.dcp > 1 and not pins.dcp,
            ((parallel.pp > 1 and parallel.tp < gpus) or parallel.gpus < gpus * nodes) and not pins.tp,
            not checkpoint.native and not pins.checkpoint,
        ),
        2: (parallel.ep and not pins.ep, recipe.kv != usual and not pins.kv),
        3: (recipe.speculate is not None and not pins.speculate, bool(preset) and not pins.image),
    }
    return sum(weight * sum(taken) for weight, taken in steps.items())


def served(
    box: Box,
    model: Model,
    checkpoint: Checkpoint,
    engine: EngineName,
    pins: Pins,
    parallel: Parallel,
    kv: str,
    draft: Speculate | None,
    preset: str,
) -> Recipe:
    """One recipe for vLLM or SGLang."""
    used = gpu_list.fastest_alike(box, parallel.gpus)
    env = {} if used == tuple(range(len(used))) else {"CUDA_VISIBLE_DEVICES": ",".join(map(str, used))}
    if preset:  # as the image's own launches have it: graphs come out of what the claim leaves, not off the cache
        env |= {GRAPHS_COUNTED: "0"}
    runtime = Runtime(kind="docker", preset=preset) if preset else Runtime()
    share = BOLD_UTILIZATION if pins.bold and draft is None else START_UTILIZATION
    if preset and draft and parallel.dcp > 1:
        share = DRAFT_UTILIZATION
    return replace(
        plain(model, checkpoint, engine, pins),
        name=f"{model.name}-{engine}-{_spread_name(parallel)}",
        max_seqs=sequences(pins),
        kv=kv,
        memory_utilization=pins.memory_utilization or utilization(box, used, share),
        parallel=parallel,
        speculate=draft,
        runtime=runtime,
        env=env,
    )


def _spread_name(parallel: Parallel) -> str:
    sizes = {"tp": parallel.tp, "pp": parallel.pp, "dp": parallel.dp}
    return "-".join(f"{name}{size}" for name, size in sizes.items() if size > 1 or name == "tp")


def plain(model: Model, checkpoint: Checkpoint, engine: EngineName, pins: Pins) -> Recipe:
    """What every recipe of a model shares."""
    gguf = checkpoint.format == "gguf"
    traits = registry.traits(engine)
    tools, thoughts = model.tool_parser, model.reasoning_parser
    tools, thoughts = traits.tool_parsers.get(tools, tools), traits.reasoning_parsers.get(thoughts, thoughts)
    wanted = (traits.hide_tools_flag if tools else "", traits.cached_tokens_flag)
    return Recipe(
        name=f"{model.name}-{engine}",
        engine=engine,
        model=model.name,
        checkpoint=checkpoint.path or checkpoint.name,
        served_name=(model.repo or model.name).rpartition("/")[2],
        context=pins.context or min(START_CONTEXT, model.context),
        tool_parser=tools if traits.takes_parsers else "",
        reasoning_parser=thoughts if traits.takes_parsers else "",
        trust_remote_code=model.trust_remote_code and not gguf,
        flags={flag: True for flag in wanted if flag},
    )


def sequences(pins: Pins) -> int:
    """Sequences a step may hold: what is asked for, and never the engine's thousand."""
    return max(pins.concurrency or 0, BOLD_SEQUENCES if pins.bold else SEQUENCES)


def utilization(box: Box, used: tuple[int, ...], share: float) -> float:
    """The share of each GPU to claim: `share`, less where other programs hold a part of it."""
    gpus, least = gpu_list.all_gpus(box), share
    for index in used:
        free = visible(gpus[index]) - taken(gpus[index]) - gibibytes("load", "margin")
        least = min(least, math.floor(100 * free / visible(gpus[index])) / 100)
    return max(least, 0.01)


def layouts(box: Box, model: Model, checkpoint: Checkpoint, engine: EngineName, pins: Pins) -> Iterator[Parallel]:
    """Ways to cut the model over the GPUs that its heads, experts and layers allow."""
    group, every = GROUP.get(checkpoint.quant, 1), len(all_gpus) if (all_gpus := gpu_list.all_gpus(box)) else 0
    largest = max((gpu.memory for gpu in all_gpus), default=0)
    dp = pins.dp or 1
    for tp, pp in shapes(box, pins):
        if tp * pp < every and checkpoint.bytes / (tp * pp) > largest and not pins.tp and dp == 1:
            continue  # hopeless on fewer GPUs; the layouts over all of them say by how much
        for ep in expert_parallel(model, pins, tp * dp):
            for dcp in (pins.dcp,) if pins.dcp else depths(model, tp, engine) if not ep or pins.ep else (1,):
                used = tp * pp * dp
                nodes = max(1, min(box.nodes, -(-used // max(len(box.gpus), 1))))
                parallel = Parallel(tp=tp, pp=pp, dp=dp, dcp=dcp, ep=ep, nodes=nodes)
                if not shards.why_not(model, parallel, group) and used % nodes == 0 and (used <= every or pins.tp):
                    yield parallel


def expert_parallel(model: Model, pins: Pins, ranks: int) -> tuple[bool, ...]:
    """Whether experts lie whole on `ranks`: over all ranks of the tensor- and data-parallel groups, or sliced."""
    if pins.ep and pins.ep > 1:
        return (True,) if model.moe and pins.ep == ranks > 1 else ()
    able = bool(model.moe) and ranks > 1
    return (False,) if pins.ep or not able else (False, True)


def shapes(box: Box, pins: Pins) -> list[tuple[int, int]]:
    """Pairs of tensor and pipeline sizes: all GPUs, or fewer where that is better."""
    every, here = len(box.gpus) * box.nodes, len(box.gpus)
    if pins.tp and pins.pp:
        return [(pins.tp, pins.pp)]
    # A larger box weighs what a smaller one does: the numbers that boxes come in, and whole nodes.
    counts = {every} | {size for size in (1, 2, 3, 4, 6, 8, 16, 32, 64, 128, 256) if size <= every}
    counts |= {here * nodes for nodes in range(1, box.nodes + 1)}
    if box.mixed:
        largest = max(gpu.memory for gpu in box.gpus)
        counts.add(sum(gpu.memory == largest for gpu in box.gpus) * box.nodes)
    found: set[tuple[int, int]] = set()
    for gpus_used in counts:
        found |= {(tp, gpus_used // tp) for tp in range(1, gpus_used + 1) if gpus_used % tp == 0 and tp <= here}
    if pins.tp:
        found = {(tp, pp) for tp, pp in found if tp == pins.tp} | {(pins.tp, 1)}
    if pins.pp:
        found = {(tp, pp) for tp, pp in found if pp == pins.pp} or {(1, pins.pp)}
    return sorted(found, key=lambda pair: (-pair[0] * pair[1], pair[1]))


def depths(model: Model, tp: int, engine: EngineName) -> tuple[int, ...]:
    """Sizes of decode context parallelism to weigh: powers of two that divide the ranks."""
    if not registry.traits(engine).weighs_dcp or model.mla is None:
        return (1,)
    return tuple(size for size in (1, 2, 4, 8) if size <= tp and tp % size == 0)


def presets(box: Box, model: Model, engine: EngineName, pins: Pins) -> tuple[str, ...]:
    """Images to weigh: the stock one, and on RTX Blackwell the patched one that was built for Kimi there."""
    if pins.image:
        return (pins.image,) if pins.image in registry.traits(engine).presets else ("",)
    gpu = box.gpu
    if gpu is None or gpu.generation != "blackwell-rtx":
        return ("",)
    return ("", *(preset for preset in registry.traits(engine).presets if families.made_for(model, preset)))


def caches(engine: EngineName, preset: str, pins: Pins) -> tuple[str, ...]:
    """Cache types to weigh."""
    if pins.kv:
        return (pins.kv,)
    return ("fp8", "bf16") if preset == "community" else ("bf16", "fp8")


def drafts(model: Model, preset: str, pins: Pins) -> tuple[Speculate | None, ...]:
    """Drafts to weigh: none first."""
    if pins.speculate == "none":
        return (None,)
    method = pins.speculate or ("eagle3" if model.drafts else "mtp" if model.mtp_layers else "")
    if not method:
        return (None,)
    if method == "eagle3" and not model.drafts:
        own = "--speculate mtp: the model brings its own" if model.mtp_layers else "--speculate none"
        raise BadInput(f"no EAGLE3 draft of {model.title} is known", hint=own)
    if method == "mtp" and not model.mtp_layers:
        raise BadInput(f"{model.title} has no prediction layer (MTP) to draft with", hint="--speculate none")
    names = sorted(model.drafts, key=lambda name: ("mla" in name) != (preset == "community"))
    draft = names[0].split(" ")[0] if method == "eagle3" and names else ""
    guess = Speculate(method=method, draft=draft, tokens=3 if method == "eagle3" else 1)
    return (guess,) if pins.speculate else (None, guess)


def placed(box: Box, model: Model, checkpoint: Checkpoint, engine: EngineName, pins: Pins) -> Iterator[Candidate]:
    """Recipes of llama.cpp and ik_llama.cpp: every micro-batch with as many expert layers on the GPUs as fit."""
    fields = registry.traits(engine).hybrid
    # Too few bits come last, and of those the most bits first: quality falls faster than speed rises.
    missing = max(0.0, LEAST_BITS - checkpoint.bits_per_weight(model))
    tier = 5 + round(10 * missing) if missing else 0
    for ubatch in (pins.ubatch,) if pins.ubatch else UBATCHES:
        hybrid = Hybrid(
            gpu_layers=999 if box.gpus else 0,
            threads=pins.threads or (max(1, box.cpu.cores - 1) if box.cpu.cores else None),
            threads_batch=box.cpu.threads or None,
            batch=max(2048, ubatch),
            ubatch=ubatch,
            mla=pins.mla if pins.mla is not None else (3 if "mla" in fields and model.mla else None),
            attention_buffer=512 if "attention_buffer" in fields and model.mla else None,
        )
        recipe = replace(
            plain(model, checkpoint, engine, pins),
            name=f"{model.name}-{checkpoint.quant.lower()}-{engine}",
            max_seqs=pins.concurrency or 1,
            kv=pins.kv or "f16",
            hybrid=hybrid,
        )
        counts = pins.experts
        if counts is None:
            counts = place.counts_that_fit(box, model, checkpoint, recipe)
            for spread in over_nodes.recipes(box, model, checkpoint, recipe):
                yield Candidate(recipe=spread, checkpoint=checkpoint, tier=tier + 1)
        yield Candidate(recipe=place.placed(box, model, recipe, counts), checkpoint=checkpoint, tier=tier)


def sliced(box: Box, model: Model, checkpoint: Checkpoint, engine: EngineName, pins: Pins) -> Iterator[Candidate]:
    """Recipes of engines that keep some experts of every layer on the GPUs: as many as fit, over all GPUs or one."""
    if not box.gpus or not model.moe:
        return
    tier = 0 if registry.traits(engine).proven or pins.engine == engine else UNPROVEN
    for tp in sorted({pins.tp} if pins.tp else {1, 1 << (len(box.gpus).bit_length() - 1)}):
        parallel = Parallel(tp=tp)
        if tp > len(box.gpus) or shards.why_not(model, parallel, GROUP.get(checkpoint.quant, 1)):
            continue
        threads = pins.threads or (max(1, box.cpu.cores - 1) if box.cpu.cores else None)
        recipe = replace(
            plain(model, checkpoint, engine, pins),
            name=f"{model.name}-{engine}-tp{tp}",
            max_seqs=pins.concurrency or 1,
            kv=pins.kv or "bf16",
            memory_utilization=pins.memory_utilization or BOLD_UTILIZATION,
            parallel=parallel,
            hybrid=Hybrid(threads=threads, pools=max(box.cpu.sockets, 1), gpu_experts=0),
        )
        recipe = replace(recipe, batched_tokens=rooms.schedule(engine).step_tokens(recipe))
        most = rooms.memory(engine).most_gpu_experts(Deployment.of(recipe, model, checkpoint, box))
        hybrid = Hybrid(threads=threads, pools=max(box.cpu.sockets, 1), gpu_experts=most)
        yield Candidate(recipe=replace(recipe, hybrid=hybrid), checkpoint=checkpoint, tier=tier)
