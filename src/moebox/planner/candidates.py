"""Every recipe worth rating for a model on a box, within the user's constraints.

Recipes come in tiers. Tier 0 is the plainest start: native weights, no draft, bf16 cache, plain tensor parallelism.
Higher tiers add decode context parallelism, an fp8 cache, expert parallelism, the patched image and drafts.
"""

from collections.abc import Iterator
from dataclasses import replace

from moebox.core import families, registry
from moebox.core.box import Box
from moebox.core.deployment import Deployment
from moebox.core.model import Checkpoint, Model
from moebox.core.recipe import Climb, EngineName, Flag, Hybrid, Parallel, Recipe, Runtime, Speculate
from moebox.core.traits import Traits
from moebox.engines.engine import load_engine
from moebox.engines.flags import flag_catalogue
from moebox.errors import refuse_if
from moebox.planner import layouts
from moebox.planner.constraints import HYBRID_FLAGS, Constraints, engines_with_preset, gpu_only_engines, hybrid_engines
from moebox.planner.rate import Candidate, PlanInputs, limit_utilization
from moebox.sizing.constants import GRAPH_ESTIMATE_ENV
from moebox.sizing.layout import indivisible_layout

START_CONTEXT = 65536  # where every first recipe starts ("Blackwell Shenanigans 001", the practical test sequence)
SHORTER_CONTEXTS = (196608, 131072, 98304, 65536, 49152, 32768, 16384, 8192, 4096, 2048)
LONGER_CONTEXTS = (4096, 8192, 16384, 32768, 65536, 98304, 131072, 196608, 262144)  # that `moebox climb` may try
MAX_LONGER_CONTEXTS = 3  # each is a restart
START_UTILIZATION = 0.90
BOLD_UTILIZATION = 0.94  # rtx6kpro wiki: 0.94 plain, 0.90 with a draft
DRAFT_UTILIZATION = 0.88  # rtx6kpro wiki: with a draft under DCP, 0.90 ran out of memory at the first long request
SEQUENCES, BOLD_SEQUENCES = 64, 128  # the Triton MLA workspace grows with it: 1 GiB at 64 with TP8, DCP8 and 65,536
DEVICES = {"NVIDIA": "CUDA", "AMD": "ROCm"}  # device names in llama.cpp builds (ggml-cuda.h GGML_CUDA_NAME)
UBATCHES = (512, 2048, 4096, 8192)
# Below this a quantisation is chosen only if nothing larger fits: perplexity departs from the original's (published).
LEAST_BITS = 3.5
UNPROVEN_TIER = 4  # engines with few published measurements come after the others


def make_candidates(inputs: PlanInputs, engines: tuple[EngineName, ...]) -> Iterator[Candidate]:
    for engine in engines:
        if not inputs.constraints.engine and reason_to_skip(engine, inputs.box, inputs.model):
            continue
        traits = registry.engine_traits(engine)
        make_recipes = gpu_candidates
        if traits.offloads_experts:
            make_recipes = expert_split_candidates if traits.splits_layers else ggml_candidates
        for checkpoint in usable_checkpoints(inputs.checkpoints, engine, inputs.constraints):
            yield from make_recipes(inputs, checkpoint, engine)


def reason_to_skip(engine: EngineName, box: Box, model: Model) -> str:
    """Return why an engine is not considered: no kernels for any of these GPUs, or not for the architecture; or ""."""
    traits = registry.engine_traits(engine)
    kinds = {gpu.name: gpu for gpu in box.gpus}.values()
    problems = [traits.hardware_problem((gpu,), model) for gpu in kinds] or [traits.hardware_problem((), model)]
    return problems[0] if all(problems) else families.unsupported_reason(engine, traits.title, model)[0]


def possible_engines(box: Box, constraints: Constraints) -> tuple[EngineName, ...]:
    """Engines that have every constrained setting, the preferred ones first; without a GPU only CPU+GPU engines."""
    if constraints.engine:
        return (constraints.engine,)
    if constraints.hybrid_flag or constraints.kv in ("q8_0", "q4_0", "f16"):
        fields = {field for field in HYBRID_FLAGS.values() if getattr(constraints, field) is not None}
        if constraints.kv:
            fields.add("experts")  # engines that place experts have these cache types
        return hybrid_engines(*fields)
    if constraints.image not in (None, "stock"):
        return engines_with_preset(constraints.image)
    if constraints.parallel_sizes.get("--dcp", 1) > 1:
        return gpu_only_engines()[:1]
    if constraints.gpu_only_flag or constraints.parallel_sizes or constraints.image or constraints.kv:
        return gpu_only_engines()
    return (*gpu_only_engines(), *hybrid_engines()) if box.gpus else hybrid_engines()


def usable_checkpoints(
    checkpoints: tuple[Checkpoint, ...], engine: EngineName, constraints: Constraints
) -> tuple[Checkpoint, ...]:
    """Checkpoints that the engine reads: the constrained one, or all that are verified to exist.

    An engine that needs local weights considers, unless requested by name, only what is on this machine; one that needs
    a GGUF file's name only those whose name is known.
    """
    traits = registry.engine_traits(engine)

    def is_usable(checkpoint: Checkpoint) -> bool:
        absent = traits.local_weights_only and not constraints.engine and not checkpoint.path
        if absent or checkpoint.format not in traits.formats or not checkpoint.supports_engine(traits.name):
            return False
        if constraints.checkpoint:
            return checkpoint.matches_name(constraints.checkpoint)
        named = checkpoint.file or checkpoint.path or not traits.needs_gguf_filename
        return bool(named) and not checkpoint.unverified

    return tuple(filter(is_usable, checkpoints))


def gpu_candidates(inputs: PlanInputs, checkpoint: Checkpoint, engine: EngineName) -> Iterator[Candidate]:
    """Yield recipes of an engine that serves from GPUs alone."""
    box, model, constraints = inputs.box, inputs.model, inputs.constraints
    base, bold = base_recipe(model, checkpoint, engine, constraints), constraints.bold
    gpus, traits = box.all_gpus, registry.engine_traits(engine)
    for parallel in layouts.possible_layouts(inputs, checkpoint, engine):
        used = box.largest_gpus(parallel.gpu_count)
        generations = {gpus[index].generation for index in used}
        patched = (preset for preset in traits.presets if generations == {"blackwell-rtx"})
        presets = ["", *(preset for preset in patched if families.has_preset(model, preset))]
        if constraints.image:
            presets = [constraints.image if constraints.image in traits.presets else ""]
        for preset in presets:
            env, runtime = box.visible_devices_env(used), Runtime()
            if preset:  # as in the image's own launches: graphs use what the utilization leaves, not the cache
                env |= {GRAPH_ESTIMATE_ENV: "0"}
                runtime = Runtime(kind="docker", preset=preset)
            for kv in cache_types(model, traits, preset, constraints):
                for draft in draft_options(model, traits, preset, constraints):
                    share = BOLD_UTILIZATION if bold and draft is None else START_UTILIZATION
                    share = DRAFT_UTILIZATION if draft and preset and parallel.dcp > 1 else share
                    flags = base.flags
                    drafts_apart = (draft and draft.draft) or "eagle3" in base.climb.speculate
                    if model.mla and drafts_apart and len(generations) == 1:
                        flags = {**flags, **traits.draft_flags.get(min(generations), {})}
                    recipe = replace(
                        base,
                        name=f"{base.name}-{parallel.text.replace('×', '-').lower()}",
                        max_seqs=max(constraints.concurrency or 0, BOLD_SEQUENCES if bold else SEQUENCES),
                        kv=kv,
                        memory_utilization=constraints.memory_utilization or limit_utilization(box, used, share),
                        parallel=parallel,
                        speculate=draft,
                        runtime=runtime,
                        env=env,
                        flags=flags,
                    )
                    tier = recipe_tier(inputs, recipe, checkpoint)
                    yield Candidate(inputs=inputs, recipe=recipe, checkpoint=checkpoint, tier=tier)


def recipe_tier(inputs: PlanInputs, recipe: Recipe, checkpoint: Checkpoint) -> int:
    """Return how far a recipe is from the plainest; what the user constrained does not count."""
    parallel, preset, constraints = recipe.parallel, recipe.runtime.preset, inputs.constraints
    usual_kv, per_node = "fp8" if preset == "community" else "bf16", len(inputs.box.gpus)
    uneven = parallel.gpu_count < per_node * inputs.box.nodes or (parallel.pp > 1 and parallel.tp < per_node)
    steps = (
        (1, parallel.dcp > 1, constraints.dcp),
        (1, uneven, constraints.tp),
        (1, not checkpoint.native, constraints.checkpoint),
        (2, parallel.ep, constraints.ep),
        (2, recipe.kv != usual_kv, constraints.kv),
        (3, recipe.speculate, constraints.speculate),
        (3, preset, constraints.image),
    )
    return sum(tiers for tiers, less_plain, constrained in steps if less_plain and not constrained)


def base_recipe(model: Model, checkpoint: Checkpoint, engine: EngineName, constraints: Constraints) -> Recipe:
    """Return what every recipe of a model shares, with what `moebox climb` may try from there.

    Climbs try no draft beside experts in RAM, which is not proven, and none that the engine cannot use.
    """
    traits = registry.engine_traits(engine)
    tools, thoughts = model.tool_parser, model.reasoning_parser
    flags = (traits.hide_tools_flag if tools else "", traits.cached_tokens_flag)
    context = constraints.context or min(START_CONTEXT, model.context)
    settings: dict[str, Flag] = dict.fromkeys(filter(None, flags), True)
    if checkpoint.revision and flag_catalogue(engine, "").find_spec("--revision"):
        settings["revision"] = checkpoint.revision
    longer = [length for length in LONGER_CONTEXTS if context < length <= model.context][:MAX_LONGER_CONTEXTS]
    method = constraints.speculate or default_draft_method(model)
    drafts = ("none", method) if method in traits.draft_methods and not traits.offloads_experts else ()
    return Recipe(
        name=f"{model.name}-{engine}",
        engine=engine,
        model=model.name,
        checkpoint=checkpoint.path or checkpoint.name,
        served_name=(model.repo or model.name).rpartition("/")[2],
        context=context,
        trust_remote_code=model.trust_remote_code and checkpoint.format != "gguf",
        flags=settings,
        climb=Climb(contexts=(context, *longer), speculate=drafts),
        tool_parser=traits.tool_parsers.get(tools, tools) if traits.needs_parser_flags else "",
        reasoning_parser=traits.reasoning_parsers.get(thoughts, thoughts) if traits.needs_parser_flags else "",
    )


def cache_types(model: Model, engine: Traits, preset: str, constraints: Constraints) -> tuple[str, ...]:
    """Cache types to try, the plainest first; a compressed cache exists in fp8 alone (see the engines' refusals)."""
    if constraints.kv:
        unknown = preset and constraints.kv == "nvfp4"  # of the patched images
        return (constraints.kv,) if constraints.kv in engine.kv and not unknown else ()
    wanted = ["fp8", "bf16"] if preset == "community" else ["bf16", "fp8"]
    if model.has_compressed_cache:
        wanted = ["fp8"]
    return tuple(kv for kv in wanted if kv in engine.kv) or ("auto",)


def draft_options(model: Model, engine: Traits, preset: str, constraints: Constraints) -> tuple[Speculate | None, ...]:
    """Drafts to try that the engine has, none first."""
    method = constraints.speculate or default_draft_method(model)
    if method == "none":
        return (None,)
    if method not in engine.draft_methods:
        return () if constraints.speculate else (None,)
    draft = make_draft(model, method, preset)
    return (draft,) if constraints.speculate else (None, draft)


# Methods with a draft model: title, and tokens to draft. EAGLE3 as in the rtx6kpro wiki; a block of DFlash is 8, of
# DSpark 6, of which the first token is the verified one.
DRAFT_MODELS = {"eagle3": ("EAGLE3", 3), "dflash": ("DFlash", 7), "dspark": ("DSpark", 5)}


def default_draft_method(model: Model) -> str:
    """Return the best draft method for a model: one trained for it, its own prediction layers, or none."""
    kind = draft_kind(model.drafts[0]) if model.drafts else "none"
    own = model.mtp_layers and kind != "eagle3" and all("/" in name for name in model.drafts)
    return "mtp" if own else kind


def draft_kind(name: str) -> str:
    """Return the method of a published draft by its repository's name."""
    return next((kind for kind in ("dspark", "dflash") if kind in name.lower()), "eagle3")


def make_draft(model: Model, method: str, preset: str = "") -> Speculate:
    """Return the draft settings of a recipe. Raise BadInput if the model has no draft of that kind."""
    if method not in DRAFT_MODELS:  # needs no draft model; engines have more methods than moebox knows
        text = f"{model.title} has no prediction layer (MTP) to draft with"
        refuse_if(method == "mtp" and not model.mtp_layers, text, hint="--speculate none")
        return Speculate(method=method, tokens=1)
    title, length = DRAFT_MODELS[method]
    names = [name for name in model.drafts if draft_kind(name) == method]
    own = "--speculate mtp: the model has its own" if model.mtp_layers else "--speculate none"
    refuse_if(not names, f"no {title} draft of {model.title} is known", hint=own)
    latent = preset == "community"  # drafts with latent attention are for the patched image
    name = min(names, key=lambda name: ("mla" in name) != latent).split(" ")[0]
    inside = "/" not in name  # the draft is part of the model's own checkpoint
    return Speculate(method=method, draft="" if inside else name, tokens=length)


def recipe_draft(deployment: Deployment, method: str) -> Speculate | None:
    """Return the recipe's own settings for that draft method, else those known for its model; None for "none"."""
    recipe = deployment.recipe
    if method == "none":
        return None
    if recipe.speculate and recipe.speculate.method == method:
        return recipe.speculate
    if deployment.is_known:
        return make_draft(deployment.model, method, recipe.runtime.preset)
    refuse_if(method == "eagle3", "the recipe names no draft model", hint="[speculate] draft = …")
    return Speculate(method=method)


def ggml_candidates(inputs: PlanInputs, checkpoint: Checkpoint, engine: EngineName) -> Iterator[Candidate]:
    """Yield recipes of llama.cpp and ik_llama.cpp: every micro-batch with as many expert layers on GPUs as fit."""
    box, model, constraints = inputs.box, inputs.model, inputs.constraints
    # Too few bits come last, and of those the most bits first: quality falls faster than speed rises.
    missing_bits = max(0.0, LEAST_BITS - checkpoint.bits_per_weight(model))
    tier = 5 + round(10 * missing_bits) if missing_bits else 0
    uses_mla = model.mla is not None and registry.engine_traits(engine).mla_modes
    default_mla = 3 if uses_mla else None
    for ubatch in (constraints.ubatch,) if constraints.ubatch else UBATCHES:
        hybrid = Hybrid(
            device=DEVICES[box.gpus[0].vendor] if box.gpus else Hybrid().device,
            gpu_layers=999 if box.gpus else 0,
            threads=_decode_threads(box, constraints),
            threads_batch=box.cpu.threads or None,
            batch=max(2048, ubatch),
            ubatch=ubatch,
            mla=default_mla if constraints.mla is None else constraints.mla,
            attention_buffer=512 if uses_mla else None,
        )
        recipe = replace(
            base_recipe(model, checkpoint, engine, constraints),
            name=f"{model.name}-{checkpoint.quant.split()[0].lower()}-{engine}",
            max_seqs=constraints.concurrency or 1,
            kv=constraints.kv or "f16",
            env=box.visible_devices_env(tuple(range(len(box.gpus)))),
            hybrid=hybrid,
        )
        counts = constraints.experts
        if counts is None:
            counts = layouts.expert_counts_that_fit(box, model, checkpoint, recipe)
            for over_nodes in layouts.multi_node_recipes(box, model, checkpoint, recipe):
                yield Candidate(inputs=inputs, recipe=over_nodes, checkpoint=checkpoint, tier=tier + 1)
        placed = layouts.with_expert_layers(box, model, recipe, counts)
        yield Candidate(inputs=inputs, recipe=placed, checkpoint=checkpoint, tier=tier)


def _decode_threads(box: Box, constraints: Constraints) -> int | None:
    """Threads that decode, one core left to the rest of the system; None leaves it to the engine."""
    return constraints.threads or (max(1, box.cpu.cores - 1) if box.cpu.cores else None)


def expert_split_candidates(inputs: PlanInputs, checkpoint: Checkpoint, engine: EngineName) -> Iterator[Candidate]:
    """Yield recipes with as many experts of every layer on the GPUs as fit: over one GPU, or a power of two of them."""
    box, model, constraints = inputs.box, inputs.model, inputs.constraints
    if not box.gpus or not model.moe:
        return
    traits = registry.engine_traits(engine)
    is_proven = traits.is_proven or constraints.engine == engine
    most = 1 << (len(box.gpus).bit_length() - 1)
    for tp in sorted({constraints.tp} if constraints.tp else {1, most}):
        if tp > len(box.gpus) or indivisible_layout(Parallel(tp=tp), model, checkpoint):
            continue
        hybrid = Hybrid(threads=_decode_threads(box, constraints), pools=max(box.cpu.sockets, 1), gpu_experts=0)
        recipe = replace(
            base_recipe(model, checkpoint, engine, constraints),
            name=f"{model.name}-{engine}-tp{tp}",
            max_seqs=constraints.concurrency or 1,
            kv=cache_types(model, traits, "", constraints)[0],
            memory_utilization=constraints.memory_utilization or BOLD_UTILIZATION,
            parallel=Parallel(tp=tp),
            env=box.visible_devices_env(tuple(range(tp))),
            hybrid=hybrid,
        )
        recipe = replace(recipe, batched_tokens=load_engine(engine).step_tokens(recipe))
        tier = 0 if is_proven else UNPROVEN_TIER
        candidate = Candidate(inputs=inputs, recipe=recipe, checkpoint=checkpoint, tier=tier)
        gpu_experts = load_engine(engine).max_gpu_experts(candidate.deployment)
        yield candidate.change_recipe(hybrid=replace(hybrid, gpu_experts=gpu_experts))
