"""vLLM's memory: a share of the GPU is claimed, what weights and the profiled peak leave of it becomes cache.

    KV budget = utilization × visible - weights - draft - peak activations - non-torch [- CUDA graphs, where estimated]

Outside the claim, after the profiling, come the Triton MLA workspace and graphs that were not estimated.
"""

import math
from dataclasses import dataclass

from moebox.core import gpu_list
from moebox.core.box import Gpu
from moebox.core.deployment import Deployment
from moebox.core.model import Checkpoint, Component, Model
from moebox.core.plan import DeviceMemory, Memory
from moebox.core.recipe import Recipe
from moebox.engines.devices import budget_over_ranks, device_memory
from moebox.sizing import shards
from moebox.sizing.constants import (
    GIB,
    VllmBuild,
    memory_constant,
    memory_constant_bytes,
    reserved_bytes,
    reserves_graph_memory,
    visible_bytes,
    vllm_build,
)
from moebox.sizing.drafts import draft_bytes, draft_token_bytes
from moebox.sizing.kv import token_bytes, window_bytes

LARGE, LARGEST = 70 * GIB, 160 * GIB  # vLLM's defaults change there (engine/arg_utils.py)


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmNeeds:
    """What one rank of one stage takes, in bytes, before any cache."""

    weights: dict[Component, int]
    draft: int
    activations: int
    non_torch: int
    graphs: int  # taken off the KV budget
    after_profiling: int  # allocated after profiling, outside the claim
    token: int  # bytes of cache a token
    window: int  # bytes of cache that do not grow with the context

    @property
    def inside_bytes(self) -> int:
        """All that must fit in the claim before cache."""
        return sum(self.weights.values()) + self.draft + self.activations + self.non_torch + self.graphs + self.window


def memory_budget(deployment: Deployment) -> Memory:
    """Every GPU's bytes under vLLM, and the tokens the cache holds."""
    return budget_over_ranks(deployment, VllmRanks(deployment))


class VllmRanks:
    """The ranks of one deployment."""

    def __init__(self, deployment: Deployment) -> None:
        box, model, checkpoint, self.recipe = deployment.facts
        self.utilization = self.recipe.memory_utilization or memory_constant("vllm", "utilization")
        gpus, used = gpu_list.all_gpus(box), gpu_list.used_gpus(box, self.recipe)
        stages = sorted(set(gpu_list.pipeline_stages(used, self.recipe).values()))
        self.needs = [rank_needs(gpus[used[0]], model, checkpoint, self.recipe, stage) for stage in stages]

    def utilized_bytes(self, gpu: Gpu) -> int:
        """Bytes of a GPU that are its own."""
        return math.floor(self.utilization * visible_bytes(gpu))

    def cache_tokens(self, gpu: Gpu, stage: int) -> int:
        """Tokens that the cache of a GPU could hold."""
        needs = self.needs[stage]
        return tokens_in_bytes(self.utilized_bytes(gpu) - needs.inside_bytes, needs, self.recipe)

    def missing_bytes(self, gpu: Gpu, stage: int) -> int:
        """Bytes it lacks for the context."""
        return _missing(gpu, self.utilized_bytes(gpu), self.needs[stage], self.recipe)

    def device_budget(self, gpu: Gpu, stage: int, tokens: int) -> DeviceMemory:
        """Its budget."""
        return _device(gpu, self.utilized_bytes(gpu), self.needs[stage], tokens, self.recipe)


def rank_needs(gpu: Gpu, model: Model, checkpoint: Checkpoint, recipe: Recipe, stage: int) -> VllmNeeds:
    """What a rank of `stage` takes."""
    generation = vllm_build(recipe)
    weights = shards.weights_per_gpu(model, checkpoint, recipe.parallel, stage, vision_share=vision_share(recipe))
    weights["norms"] = weights.get("norms", 0) + round(slack_gib(recipe) * GIB)
    last = stage == recipe.parallel.pp - 1
    layers = shards.stage_layers(model.layers, recipe.parallel.pp)[stage]
    graphs, counted = graph_bytes(model, recipe), reserves_graph_memory(recipe)
    token = token_bytes(model, recipe, layers) + (draft_token_bytes(model, recipe) if last else 0)
    return VllmNeeds(
        weights=weights,
        draft=draft_bytes(model, checkpoint, recipe) if last else 0,
        activations=activation_bytes(gpu, model, recipe, generation),
        non_torch=round(non_torch_gib(recipe) * GIB),
        graphs=graphs if counted else 0,
        after_profiling=workspace_bytes(gpu, model, recipe) + (0 if counted else graphs),
        token=token,
        window=window_bytes(model, recipe, max_seqs(gpu, recipe)),
    )


def vision_share(recipe: Recipe) -> float:
    """How much of the vision tower a GPU holds: our launches copy it to every GPU, the patched image's slice it."""
    if not recipe.vision:
        return 0.0
    default = "weights" if recipe.runtime.preset == "community" else "data"
    mode = recipe.flags.get("mm-encoder-tp-mode", default)
    return 1.0 if mode == "data" else 1 / recipe.parallel.tp


def tokens_in_bytes(available: int, needs: VllmNeeds, recipe: Recipe) -> int:
    """Tokens the cache holds, in whole blocks, over all ranks that divide it."""
    block = memory_constant("vllm", "block")
    blocks = max(0, available) // (needs.token * block)
    return int(blocks * block * recipe.parallel.dcp * recipe.parallel.dp)


def max_seqs(gpu: Gpu, recipe: Recipe) -> int:
    """Sequences a step may hold."""
    default = memory_constant("vllm", "max_seqs" if gpu.memory >= LARGE else "max_seqs_small")
    return int(recipe.max_seqs or default)


def step_tokens(gpu: Gpu, recipe: Recipe) -> int:
    """Tokens a step may prefill."""
    name = "batched_tokens_small"
    if gpu.memory >= LARGE:
        name = "batched_tokens_largest" if gpu.memory >= LARGEST else "batched_tokens"
    return int(recipe.batched_tokens or memory_constant("vllm", name))


def activation_bytes(gpu: Gpu, model: Model, recipe: Recipe, generation: VllmBuild) -> int:
    """The peak the profiling run sees: a full prefill step or the sampler, and what drafts add."""
    tokens = step_tokens(gpu, recipe)
    seqs = max_seqs(gpu, recipe)
    peak = tokens * 2 * live_elements(model, recipe, model.experts_used)
    peak = max(peak, seqs * model.vocab * memory_constant("vllm", "sampler_bytes"))
    if model.mla and model.mla.indexer:
        peak += memory_constant_bytes("vllm", "sparse_indexer_patched" if recipe.runtime.preset else "sparse_indexer")
    if recipe.speculate:
        tokens_a_step = 1 + recipe.speculate.tokens
        peak += round(
            seqs * tokens_a_step * model.vocab * 4 * memory_constant("vllm", "draft_logits") * generation.rejection
        )
        peak += round(generation.speculative * GIB)
    return int(peak)


def live_elements(model: Model, recipe: Recipe, used: int) -> float:
    """Elements of one prompt token that are in memory together at the peak of a step."""
    if model.mla is None:
        return float(model.hidden * (used + memory_constant("load", "live_copies")))
    of_heads = model.mla.heads / recipe.parallel.tp * memory_constant("vllm", "latent_head_elements")
    return float(model.hidden * (used + memory_constant("vllm", "latent_copies")) + of_heads)


def is_single_gpu(recipe: Recipe) -> bool:
    """One GPU by itself: no NCCL, no communication in its graphs."""
    return recipe.parallel.gpu_count == 1


def slack_gib(recipe: Recipe) -> float:
    """What weights take beyond their tensors' bytes."""
    return float(memory_constant("vllm", "alone_slack") if is_single_gpu(recipe) else memory_constant("load", "slack"))


def non_torch_gib(recipe: Recipe) -> float:
    """CUDA's context and NCCL, which PyTorch does not count."""
    return float(memory_constant("vllm", "alone_non_torch")) if is_single_gpu(recipe) else vllm_build(recipe).non_torch


def graph_bytes(model: Model, recipe: Recipe) -> int:
    """Room for captured CUDA graphs as vLLM estimates it."""
    if recipe.flags.get("enforce-eager"):
        return 0
    if is_single_gpu(recipe) and not recipe.speculate:
        layers = model.layers * float(memory_constant("vllm", "alone_graph_layer"))
        return round((float(memory_constant("vllm", "alone_graph_base")) + layers) * GIB)
    tokens_a_step = 1 + recipe.draft_tokens
    size = (
        memory_constant("vllm", "graph_base")
        + memory_constant("vllm", "graph_per_dcp_token") * recipe.parallel.dcp * tokens_a_step
    )
    size += memory_constant("vllm", "graph_speculative") if recipe.speculate else 0
    return round(float(size) * vllm_build(recipe).graphs * GIB)


def workspace_bytes(gpu: Gpu, model: Model, recipe: Recipe) -> int:
    """Triton MLA's partial results: sequences × local heads × splits × 513 floats, taken after profiling."""
    if not model.mla or model.mla.indexer or not uses_triton_mla(gpu, recipe):
        return 0
    heads = model.mla.heads // recipe.parallel.tp * recipe.parallel.dcp
    return int(
        max_seqs(gpu, recipe) * heads * mla_splits(gpu, recipe) * memory_constant("vllm", "mla_split_columns") * 4
    )


def mla_splits(gpu: Gpu, recipe: Recipe) -> int:
    """Parts that a sequence's cache is cut in while decoding: by the context, up to two for each multiprocessor."""
    fixed = vllm_build(recipe).splits
    wanted = max(1, math.ceil(recipe.context / memory_constant("vllm", "mla_split_tokens")))
    return fixed or min(1 << (wanted - 1).bit_length(), 2 * gpu.sms)


def uses_triton_mla(gpu: Gpu, recipe: Recipe) -> bool:
    """Whether decode runs on the Triton MLA kernel: the only dense one on SM120 and below Hopper."""
    named = str(recipe.flags.get("attention-backend", ""))
    if named:
        return named == "TRITON_MLA"
    return gpu.generation not in ("hopper", "blackwell", "cdna")


def _missing(gpu: Gpu, claim: int, needs: VllmNeeds, recipe: Recipe) -> int:
    """Bytes short of starting and serving one sequence of the asked length."""
    one = math.ceil(recipe.context / (recipe.parallel.dcp * recipe.parallel.dp)) * needs.token
    inside = needs.inside_bytes + one - claim
    outside = (
        claim
        + needs.after_profiling
        + memory_constant_bytes("load", "margin")
        + reserved_bytes(gpu)
        - visible_bytes(gpu)
    )
    return max(inside, outside)


def _device(gpu: Gpu, claim: int, needs: VllmNeeds, tokens: int, recipe: Recipe) -> DeviceMemory:
    kv = tokens // (recipe.parallel.dcp * recipe.parallel.dp) * needs.token + needs.window
    activations = needs.activations + needs.graphs + needs.after_profiling
    # What the claim leaves out of the GPU is overhead, less what later comes from it.
    outside = gpu.memory - claim - needs.after_profiling
    overhead = needs.non_torch + max(outside, gpu.memory - visible_bytes(gpu) + reserved_bytes(gpu))
    return device_memory(
        "gpu", gpu.memory, needs.weights, draft=needs.draft, kv=kv, activations=activations, overhead=overhead
    )
