"""SGLang's memory: a fraction of what is free before loading holds weights and cache together.

    KV budget = free before loading × mem_fraction_static - weights

The rest serves activations, CUDA graphs and the table of requests. By default SGLang picks the fraction from the GPU's
size and the prefill chunk, and lowers it by a tenth and more for models with a vision tower.
"""

import math
from dataclasses import dataclass, replace

from moebox.core.box import Gpu
from moebox.core.deployment import Deployment
from moebox.core.model import Checkpoint, Component, Model
from moebox.core.plan import ArithmeticLine, DeviceMemory, Memory
from moebox.core.recipe import Recipe
from moebox.engines.budget import (
    budget_over_ranks,
    bytes_line,
    device_memory,
    expert_growth,
    first_gpu,
    fullest_gpu,
    stage_note,
    token_line,
    weight_lines,
)
from moebox.sizing import shards
from moebox.sizing.constants import GIB, MIB, memory_constant, memory_constant_bytes, reserved_bytes, visible_bytes
from moebox.sizing.kv import entry_bytes, sequence_bytes, token_bytes
from moebox.sizing.shards import draft_bytes, draft_token_bytes
from moebox.units import format_count

# Prefill chunk and largest graph batch by memory (server_args.py): GiB below which, chunk, batch for TP < 4, for more.
TIERS = ((20, 2048, 8, 8), (35, 2048, 24, 80), (60, 4096, 32, 160), (160, 8192, 256, 512))
LARGEST_TIER = (16384, 512, 512)


@dataclass(frozen=True, slots=True, kw_only=True)
class SglangNeeds:
    """What one rank of one stage takes, in bytes."""

    weights: dict[Component, int]
    draft: int
    token: int
    window: int
    state_share: float = 0.0  # of what is left for caches, the part of recurrent states

    @property
    def loaded_bytes(self) -> int:
        """All that is loaded before the cache is made; a draft model comes after it, out of the rest."""
        return sum(self.weights.values()) + self.window


def memory_budget(deployment: Deployment) -> Memory:
    return budget_over_ranks(deployment, SglangRanks(deployment))


class SglangRanks:
    def __init__(self, deployment: Deployment) -> None:
        box, self.model, checkpoint, self.recipe = deployment.facts
        gpu, stages = first_gpu(box, self.recipe), range(self.recipe.parallel.pp)
        self.needs = [rank_needs(gpu, self.model, checkpoint, self.recipe, stage) for stage in stages]

    def cache_tokens(self, gpu: Gpu, stage: int) -> int:
        """Tokens that the cache of a GPU could hold, times the data-parallel ranks."""
        needs = self.needs[stage]
        return max(0, kv_budget(gpu, self.model, self.recipe, needs)) // needs.token * self.recipe.parallel.dp

    def missing_bytes(self, gpu: Gpu, stage: int) -> int:
        """Bytes missing for one sequence of the recipe's context, or outside the fraction."""
        needs, model, recipe = self.needs[stage], self.model, self.recipe
        inside = recipe.context * needs.token - kv_budget(gpu, model, recipe, needs)
        rest = free_before_loading(gpu) * (1 - static_fraction(gpu, model, recipe))
        return max(inside, round(step_bytes(gpu, model, recipe) + needs.draft - rest))

    def device_budget(self, gpu: Gpu, stage: int, tokens: int) -> DeviceMemory:
        needs, free = self.needs[stage], free_before_loading(gpu)
        activations = step_bytes(gpu, self.model, self.recipe)
        outside = free - math.floor(free * static_fraction(gpu, self.model, self.recipe))
        return device_memory(
            "gpu",
            gpu.memory,
            needs.weights,
            draft=needs.draft,
            kv=round(tokens // self.recipe.parallel.dp * needs.token / (1 - needs.state_share)) + needs.window,
            activations=activations,
            overhead=gpu.memory - free + max(0, outside - activations - needs.draft),
        )


def rank_needs(gpu: Gpu | None, model: Model, checkpoint: Checkpoint, recipe: Recipe, stage: int) -> SglangNeeds:
    """Return what a rank of `stage` takes; the vision tower is always loaded whole on every rank."""
    weights = shards.weights_per_gpu(model, checkpoint, recipe.parallel, stage, vision_share=1.0)
    weights["norms"] = weights.get("norms", 0) + memory_constant_bytes("load", "slack")
    if "routed_experts" in weights and gpu:
        growth, _ = expert_growth("sglang", gpu, model, checkpoint, recipe)
        weights["routed_experts"] = round(weights["routed_experts"] * growth)
    last = stage == recipe.parallel.pp - 1
    layers = shards.stage_layers(model.layers, recipe.parallel.pp)[stage]
    window, state_share, own_token = 0, 0.0, 0.0
    if model.has_compressed_cache:
        window = (recipe.max_seqs or 64) * sequence_bytes(model, recipe)
    else:
        # SGLang divides what is left by fixed ratios instead of counting sequences
        # (model_executor/pool_configurator.py:785 and mem_cache/kv_cache_configurator.py:3335 of 0.5.23).
        ratio = float(recipe.flags.get("swa-full-tokens-ratio", memory_constant("sglang", "window_ratio")))
        windows = sum(each.count * entry_bytes(each.kind, recipe) for each in model.stack if each.kind.window)
        own_token = ratio * windows * layers / model.layers
        if any(each.kind.state_bytes(1) for each in model.stack):
            states = float(recipe.flags.get("mamba-full-memory-ratio", memory_constant("sglang", "state_ratio")))
            state_share = states / (1 + states)
    return SglangNeeds(
        weights=weights,
        draft=draft_bytes(model, checkpoint, recipe) if last else 0,
        token=token_bytes(model, recipe, layers) + round(own_token) + (draft_token_bytes(model, recipe) if last else 0),
        window=window,
        state_share=state_share,
    )


def free_before_loading(gpu: Gpu) -> int:
    """Bytes that SGLang finds free after its process group is set up."""
    return visible_bytes(gpu) - reserved_bytes(gpu) - memory_constant_bytes("sglang", "context")


def chunk_and_batch(gpu: Gpu, recipe: Recipe) -> tuple[int, int]:
    """Prefill chunk in tokens and largest CUDA-graph batch that SGLang uses on this GPU."""
    gib = gpu.memory / GIB
    tier = next(((chunk, small, large) for below, chunk, small, large in TIERS if gib < below), LARGEST_TIER)
    return recipe.batched_tokens or tier[0], tier[2] if recipe.parallel.tp >= 4 else tier[1]


def static_fraction(gpu: Gpu, model: Model, recipe: Recipe) -> float:
    """mem_fraction_static: as given, or as SGLang chooses."""
    return recipe.memory_utilization or automatic_fraction(gpu, model, recipe)


def automatic_fraction(gpu: Gpu, model: Model, recipe: Recipe) -> float:
    """The fraction that SGLang picks by itself; a vision tower lowers it."""
    tokens, batch = chunk_and_batch(gpu, recipe)
    total = gpu.memory / MIB
    per_token = memory_constant("sglang", "reserve_per_prefill_token")
    reserve = memory_constant("sglang", "reserve_base") + max(tokens, 2048) * per_token
    reserve += batch * memory_constant("sglang", "reserve_per_graph_batch")
    reserve += recipe.parallel.tp * recipe.parallel.pp * memory_constant("sglang", "reserve_per_gpu")
    if total > 60 * 1024:
        reserve = max(reserve, memory_constant("sglang", "reserve_least"))
    if recipe.speculate:
        reserve += memory_constant("sglang", "reserve_speculative")
    vision_factor = 1.0
    if model.vision:
        dynamic = 1.0 - 0.1 * (memory_constant("sglang", "vision_tower") - 1.0)
        vision_factor = float(memory_constant("sglang", "vision_factor") * max(0.8, min(1.05, dynamic)))
    return float(round((total - reserve) / total, 3)) * vision_factor


def kv_budget(gpu: Gpu, model: Model, recipe: Recipe, needs: SglangNeeds) -> int:
    """Bytes left for the cache."""
    left = math.floor(free_before_loading(gpu) * static_fraction(gpu, model, recipe)) - needs.loaded_bytes
    return math.floor(left * (1 - needs.state_share))


def step_bytes(gpu: Gpu, model: Model, recipe: Recipe) -> int:
    """Bytes outside the fraction: a step's activations, drafts, and the table from requests to cache slots.

    The table has one int32 per request and position of the context.
    """
    tokens, _ = chunk_and_batch(gpu, recipe)
    step = tokens * model.hidden * 2 * (model.experts_used + memory_constant("load", "live_copies"))
    draft = memory_constant_bytes("sglang", "draft_activations") if recipe.speculate else 0
    most, least = memory_constant("sglang", "requests_most"), memory_constant("sglang", "requests_least")
    requests = recipe.max_seqs or min(max(recipe.context * 512 // max(recipe.context, 1), least), most)
    return int(step + draft + int(requests * (recipe.context + 4) * 4))


def memory_lines(deployment: Deployment, memory: Memory) -> tuple[ArithmeticLine, ...]:
    """Every step from the GPU's size to the tokens of cache, on the GPU that holds the fewest."""
    _, model, checkpoint, recipe = deployment.facts
    ranks = SglangRanks(deployment)
    fullest = fullest_gpu(deployment, ranks)
    if fullest is None:
        return ()
    gpu, stage = fullest
    needs, free, share = ranks.needs[stage], free_before_loading(gpu), static_fraction(gpu, model, recipe)
    left = kv_budget(gpu, model, recipe, needs)
    own = {"vision": f"{checkpoint.bytes_by_component.get('vision', 0):,}, whole on every rank"}
    own["routed_experts"] = expert_growth("sglang", gpu, model, checkpoint, recipe)[1]
    table = "data/memory.toml [sglang]"
    states = f" × {1 - needs.state_share:.4f}, the rest for recurrent states" if needs.state_share else ""
    return (
        bytes_line("free before loading", free, f"{gpu.memory:,} - {gpu.memory - free:,}", table),
        ArithmeticLine(
            what="mem_fraction_static",
            formula="as given" if recipe.memory_utilization else "SGLang's own choice",
            value=share,
            unit="",
            source="SGLang server_args.py",
        ),
        *weight_lines(needs.weights, model, checkpoint, recipe, stage, **own),
        bytes_line("= KV budget", left, f"({free:,} × {share:.6g} - {needs.loaded_bytes:,}){states}"),
        token_line(model, recipe, needs.token, stage),
        ArithmeticLine(
            what="KV tokens",
            formula=f"floor({left:,} / {needs.token:,})" + stage_note(recipe, stage),
            value=ranks.cache_tokens(gpu, stage),
            unit="tokens",
            source="SGLang model_runner.py",
        ),
        bytes_line("left to a step", step_bytes(gpu, model, recipe), "activations, request table, drafts"),
    )


def setting_reasons(deployment: Deployment, memory: Memory) -> list[str]:
    """Why mem_fraction_static is set, if SGLang's own choice would hold another number of tokens."""
    box, model, _, recipe = deployment.facts
    gpu = first_gpu(box, recipe)
    if gpu is None:
        return []
    automatic = automatic_fraction(gpu, model, recipe)
    unset = memory_budget(deployment.with_recipe(replace(recipe, memory_utilization=None)))
    if unset.kv_tokens == memory.kv_tokens:
        return []
    return [
        f"mem_fraction_static {recipe.memory_utilization:g} is set: by default SGLang would use {automatic:.3f} "
        f"and hold {format_count(unset.kv_tokens)} tokens instead of {format_count(memory.kv_tokens)}"
    ]
