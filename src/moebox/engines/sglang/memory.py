"""SGLang's memory: a fraction of what is free before loading holds weights and cache together.

    KV budget = free before loading × mem_fraction_static - weights

The rest serves activations, CUDA graphs and the table of requests. Left to itself SGLang picks the fraction from the
GPU's size and the prefill chunk, and lowers it by a tenth and more for models with a vision tower.
"""

import math
from dataclasses import dataclass

from moebox.core.box import Gpu
from moebox.core.deployment import Deployment
from moebox.core.model import Checkpoint, Component, Model
from moebox.core.plan import DeviceMemory, Memory
from moebox.core.recipe import Recipe
from moebox.engines.devices import budget_over_ranks, device_memory
from moebox.sizing import shards
from moebox.sizing.constants import GIB, MIB, memory_constant, memory_constant_bytes, reserved_bytes, visible_bytes
from moebox.sizing.drafts import draft_bytes, draft_token_bytes
from moebox.sizing.kv import token_bytes, window_bytes

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

    @property
    def loaded_bytes(self) -> int:
        """All that is loaded before the cache is made; a draft model comes after it, out of the rest."""
        return sum(self.weights.values()) + self.window


def memory_budget(deployment: Deployment) -> Memory:
    """Every GPU's bytes under SGLang, and the tokens the cache holds."""
    return budget_over_ranks(deployment, SglangRanks(deployment))


class SglangRanks:
    """The ranks of one deployment."""

    def __init__(self, deployment: Deployment) -> None:
        _, self.model, checkpoint, self.recipe = deployment.facts
        stages = range(self.recipe.parallel.pp)
        self.needs = [rank_needs(self.model, checkpoint, self.recipe, stage) for stage in stages]

    def cache_tokens(self, gpu: Gpu, stage: int) -> int:
        """Tokens that the cache of a GPU could hold."""
        return tokens_on_gpu(gpu, self.model, self.recipe, self.needs[stage])

    def missing_bytes(self, gpu: Gpu, stage: int) -> int:
        """Bytes it lacks for the context."""
        return _missing(gpu, self.model, self.recipe, self.needs[stage])

    def device_budget(self, gpu: Gpu, stage: int, tokens: int) -> DeviceMemory:
        """Its budget."""
        return _device(gpu, self.model, self.recipe, self.needs[stage], tokens)


def rank_needs(model: Model, checkpoint: Checkpoint, recipe: Recipe, stage: int) -> SglangNeeds:
    """What a rank of `stage` takes; the vision tower is loaded whole on every rank, asked for or not."""
    weights = shards.weights_per_gpu(model, checkpoint, recipe.parallel, stage, vision_share=1.0)
    weights["norms"] = weights.get("norms", 0) + memory_constant_bytes("load", "slack")
    if checkpoint.quant == "nvfp4" and "routed_experts" in weights:
        scales = 0.5 / 4.5  # of an NVFP4 weight's 4.5 bits, the block scale's half bit
        copies = memory_constant("load", "sglang_nvfp4_scale_copies")
        weights["routed_experts"] += round(weights["routed_experts"] * scales * copies)
    last = stage == recipe.parallel.pp - 1
    layers = shards.stage_layers(model.layers, recipe.parallel.pp)[stage]
    return SglangNeeds(
        weights=weights,
        draft=draft_bytes(model, checkpoint, recipe) if last else 0,
        token=token_bytes(model, recipe, layers) + (draft_token_bytes(model, recipe) if last else 0),
        window=window_bytes(model, recipe, recipe.max_seqs or 64),
    )


def free_before_loading(gpu: Gpu) -> int:
    """Bytes SGLang finds free once its process group stands."""
    return visible_bytes(gpu) - reserved_bytes(gpu) - memory_constant_bytes("sglang", "context")


def chunk_and_batch(gpu: Gpu, recipe: Recipe) -> tuple[int, int]:
    """Prefill chunk in tokens and largest CUDA-graph batch that SGLang takes for this GPU."""
    gib = gpu.memory / GIB
    tier = next(((c, small, large) for below, c, small, large in TIERS if gib < below), LARGEST_TIER)
    return recipe.batched_tokens or tier[0], tier[2] if recipe.parallel.tp >= 4 else tier[1]


def static_fraction(gpu: Gpu, model: Model, recipe: Recipe) -> float:
    """mem_fraction_static: as given, or as SGLang chooses."""
    return recipe.memory_utilization or automatic_fraction(gpu, model, recipe)


def automatic_fraction(gpu: Gpu, model: Model, recipe: Recipe) -> float:
    """The fraction SGLang picks when it is not told."""
    tokens, batch = chunk_and_batch(gpu, recipe)
    total = gpu.memory / MIB
    reserve = memory_constant("sglang", "reserve_base") + max(tokens, 2048) * memory_constant(
        "sglang", "reserve_per_prefill_token"
    )
    reserve += batch * memory_constant("sglang", "reserve_per_graph_batch")
    reserve += recipe.parallel.tp * recipe.parallel.pp * memory_constant("sglang", "reserve_per_gpu")
    if total > 60 * 1024:
        reserve = max(reserve, memory_constant("sglang", "reserve_least"))
    if recipe.speculate:
        reserve += memory_constant("sglang", "reserve_speculative")
    return float(round((total - reserve) / total, 3)) * vision_factor(model)


def vision_factor(model: Model) -> float:
    """What a vision tower multiplies the automatic fraction by."""
    if not model.vision:
        return 1.0
    dynamic = 1.0 - 0.1 * (memory_constant("sglang", "vision_tower") - 1.0)
    return float(memory_constant("sglang", "vision_factor") * max(0.8, min(1.05, dynamic)))


def kv_budget(gpu: Gpu, model: Model, recipe: Recipe, needs: SglangNeeds) -> int:
    """Bytes left for the cache."""
    return math.floor(free_before_loading(gpu) * static_fraction(gpu, model, recipe)) - needs.loaded_bytes


def tokens_on_gpu(gpu: Gpu, model: Model, recipe: Recipe, needs: SglangNeeds) -> int:
    """Tokens the cache holds on one GPU, times the data-parallel ranks."""
    return max(0, kv_budget(gpu, model, recipe, needs)) // needs.token * recipe.parallel.dp


def request_table_bytes(model: Model, recipe: Recipe, tokens: int) -> int:
    """Bytes of the table from requests to cache slots: one int32 a request and position of the context."""
    most, least = memory_constant("sglang", "requests_most"), memory_constant("sglang", "requests_least")
    requests = recipe.max_seqs or min(max(tokens * 512 // max(recipe.context, 1), least), most)
    return int(requests * (recipe.context + 4) * 4)


def _missing(gpu: Gpu, model: Model, recipe: Recipe, needs: SglangNeeds) -> int:
    one = recipe.context * needs.token
    inside = one - kv_budget(gpu, model, recipe, needs)
    rest = free_before_loading(gpu) * (1 - static_fraction(gpu, model, recipe))
    return max(inside, round(step_bytes(gpu, model, recipe) + needs.draft - rest))


def step_bytes(gpu: Gpu, model: Model, recipe: Recipe) -> int:
    """Bytes a step and its table need outside the fraction."""
    tokens, _ = chunk_and_batch(gpu, recipe)
    step = tokens * model.hidden * 2 * (model.experts_used + memory_constant("load", "live_copies"))
    draft = memory_constant_bytes("sglang", "draft_activations") if recipe.speculate else 0
    return int(step + draft + request_table_bytes(model, recipe, recipe.context))


def _device(gpu: Gpu, model: Model, recipe: Recipe, needs: SglangNeeds, tokens: int) -> DeviceMemory:
    kv = tokens // recipe.parallel.dp * needs.token + needs.window
    activations = step_bytes(gpu, model, recipe)
    outside = free_before_loading(gpu) - math.floor(free_before_loading(gpu) * static_fraction(gpu, model, recipe))
    overhead = gpu.memory - free_before_loading(gpu) + max(0, outside - activations - needs.draft)
    return device_memory(
        "gpu", gpu.memory, needs.weights, draft=needs.draft, kv=kv, activations=activations, overhead=overhead
    )
