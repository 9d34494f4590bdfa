"""vLLM's memory: a share of the GPU is used; what weights and the profiled peak leave of it becomes cache.

    KV budget = utilization × visible - weights - draft - peak activations - non-torch [- CUDA graphs, if estimated]

Outside that share, after the profiling, come the Triton MLA workspace and graphs that were not estimated.
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
    norms_formula,
    stage_note,
    token_line,
    weight_lines,
)
from moebox.engines.vllm.pages import CachePages, block_tokens, find_cache_pages
from moebox.sizing import shards
from moebox.sizing.constants import (
    GIB,
    GRAPH_ESTIMATE_ENV,
    memory_constant,
    memory_constant_bytes,
    reserved_bytes,
    reserves_graph_memory,
    visible_bytes,
    vllm_build,
)
from moebox.sizing.kv import sequence_bytes, token_bytes
from moebox.sizing.shards import draft_bytes, draft_token_bytes
from moebox.units import format_gib

LARGE, LARGEST = 70 * GIB, 160 * GIB  # vLLM's defaults change there (engine/arg_utils.py)
TABLE = "data/memory.toml [vllm]"


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmNeeds:
    """What one rank of one stage takes, in bytes, before any cache."""

    weights: dict[Component, int]
    draft: int
    activations: int
    non_torch: int
    graphs: int  # subtracted from the KV budget
    after_profiling: int  # allocated after profiling, outside the utilization
    token: int  # bytes of cache per token
    window: int  # bytes of cache that do not grow with the context
    pages: CachePages | None  # how unlike layers share the pool

    @property
    def inside_bytes(self) -> int:
        """All that must fit in the utilization before cache."""
        return sum(self.weights.values()) + self.draft + self.activations + self.non_torch + self.graphs + self.window


def memory_budget(deployment: Deployment) -> Memory:
    ranks = VllmRanks(deployment)
    memory, pages = budget_over_ranks(deployment, ranks), ranks.needs[0].pages if ranks.needs else None
    if pages is None:
        return memory
    dcp, block = deployment.recipe.parallel.dcp, pages.block_tokens / pages.context_blocks
    kept, counted = (round(blocks * block) * dcp for blocks in (pages.decoding_blocks, pages.sequence_blocks))
    return replace(memory, sequence_tokens=kept, counted_tokens=counted)


class VllmRanks:
    def __init__(self, deployment: Deployment) -> None:
        box, model, checkpoint, self.recipe = deployment.facts
        self.utilization = self.recipe.memory_utilization or memory_constant("vllm", "utilization")
        placed = self.recipe.pipeline_stages(box)
        facts = (model, checkpoint, self.recipe)
        gpus = [box.all_gpus[index] for index in placed]
        self.needs = [rank_needs(gpus[0], *facts, stage) for stage in sorted(set(placed.values()))]
        self.divided = self.recipe.parallel.dcp * self.recipe.parallel.dp  # ranks that divide the cache
        self.rank_context = math.ceil(self.recipe.context / self.recipe.parallel.dcp)

    def utilized_bytes(self, gpu: Gpu, stage: int) -> int:
        """Bytes of a GPU that vLLM uses: a share, or what it needs and a cache of the size that a flag sets."""
        cache = str(self.recipe.flags.get("kv-cache-memory-bytes") or "")
        share = math.floor(self.utilization * visible_bytes(gpu))
        return self.needs[stage].inside_bytes + int(cache) if cache.isdecimal() else share

    def cache_tokens(self, gpu: Gpu, stage: int) -> int:
        """Tokens that the cache of a GPU could hold, in whole blocks, over all ranks that divide it."""
        needs, block = self.needs[stage], block_tokens(self.recipe)
        left = max(0, self.utilized_bytes(gpu, stage) - needs.inside_bytes)
        if needs.pages:
            requests = left // needs.pages.block_bytes / needs.pages.request_blocks(self.rank_context)
            return int(requests * self.recipe.context) * self.recipe.parallel.dp
        return int(left // (needs.token * block) * block * self.divided)

    def request_bytes(self, stage: int) -> float:
        """Bytes of one request of the recipe's context on a rank that holds it."""
        needs = self.needs[stage]
        if needs.pages:
            return needs.pages.request_blocks(self.rank_context) * needs.pages.block_bytes
        return math.ceil(self.recipe.context / self.divided) * needs.token

    def missing_bytes(self, gpu: Gpu, stage: int) -> int:
        """Bytes missing to start and to serve one sequence of the recipe's context."""
        needs, utilized = self.needs[stage], self.utilized_bytes(gpu, stage)
        one = math.ceil(self.request_bytes(stage))
        margin = memory_constant_bytes("load", "margin")
        outside = utilized + needs.after_profiling + margin + reserved_bytes(gpu) - visible_bytes(gpu)
        return max(needs.inside_bytes + one - utilized, outside)

    def device_budget(self, gpu: Gpu, stage: int, tokens: int) -> DeviceMemory:
        """The budget of one GPU; what vLLM does not use of it is overhead, except what comes after profiling."""
        needs = self.needs[stage]
        outside = gpu.memory - self.utilized_bytes(gpu, stage) - needs.after_profiling
        overhead = needs.non_torch + max(outside, gpu.memory - visible_bytes(gpu) + reserved_bytes(gpu))
        kv = tokens // self.divided * needs.token + needs.window
        if needs.pages:
            kv = round(tokens / self.recipe.parallel.dp / self.recipe.context * self.request_bytes(stage))
        return device_memory(
            "gpu",
            gpu.memory,
            needs.weights,
            draft=needs.draft,
            kv=kv,
            activations=needs.activations + needs.graphs + needs.after_profiling,
            overhead=overhead,
        )


def rank_needs(gpu: Gpu, model: Model, checkpoint: Checkpoint, recipe: Recipe, stage: int) -> VllmNeeds:
    """Return what a rank of `stage` takes."""
    parallel, last = recipe.parallel, stage == recipe.parallel.pp - 1
    # Our launches copy the vision tower to every GPU, those of the patched image slice it.
    mode = recipe.flags.get("mm-encoder-tp-mode", "weights" if recipe.runtime.preset == "community" else "data")
    vision_share = (1.0 if mode == "data" else 1 / parallel.tp) if recipe.vision else 0.0
    weights = shards.weights_per_gpu(model, checkpoint, parallel, stage, vision_share=vision_share)
    weights["norms"] = weights.get("norms", 0) + round(slack_gib(recipe) * GIB)
    if "routed_experts" in weights:
        growth, _ = expert_growth("vllm", gpu, model, checkpoint, recipe)
        weights["routed_experts"] = round(weights["routed_experts"] * growth)
    layers = shards.stage_layers(model.layers, parallel.pp)[stage]
    single, build = is_single_gpu(recipe), vllm_build(recipe)
    non_torch = float(memory_constant("vllm", "alone_non_torch")) if single else build.non_torch
    graphs, counted = graph_bytes(model, recipe), reserves_graph_memory(recipe)
    pages = find_cache_pages(model, recipe, layers, step_tokens(gpu, recipe))
    return VllmNeeds(
        weights=weights,
        draft=draft_bytes(model, checkpoint, recipe) if last else 0,
        activations=activation_bytes(gpu, model, recipe),
        non_torch=round(non_torch * GIB),
        graphs=graphs if counted else 0,
        after_profiling=workspace_bytes(gpu, model, recipe) + (0 if counted else graphs),
        token=token_bytes(model, recipe, layers) + (draft_token_bytes(model, recipe) if last else 0),
        window=0 if pages else max_seqs(gpu, recipe) * sequence_bytes(model, recipe),
        pages=pages,
    )


def max_seqs(gpu: Gpu, recipe: Recipe) -> int:
    """Sequences that a step may hold."""
    default = memory_constant("vllm", "max_seqs" if gpu.memory >= LARGE else "max_seqs_small")
    return int(recipe.max_seqs or default)


def step_tokens(gpu: Gpu, recipe: Recipe) -> int:
    name = "batched_tokens_small"
    if gpu.memory >= LARGE:
        name = "batched_tokens_largest" if gpu.memory >= LARGEST else "batched_tokens"
    return int(recipe.batched_tokens or memory_constant("vllm", name))


def activation_bytes(gpu: Gpu, model: Model, recipe: Recipe) -> int:
    """The peak that the profiling run sees: a full prefill step or the sampler, and what drafts add."""
    seqs, mla, build = max_seqs(gpu, recipe), model.mla, vllm_build(recipe)
    # Elements of one prompt token that are in memory together at the peak of a step.
    if mla is None:
        live = float(model.hidden * (model.experts_used + memory_constant("load", "live_copies")))
    else:
        of_heads = mla.heads / recipe.parallel.tp * memory_constant("vllm", "latent_head_elements")
        live = float(model.hidden * (model.experts_used + memory_constant("vllm", "latent_copies")) + of_heads)
    peak = step_tokens(gpu, recipe) * 2 * live
    peak = max(peak, seqs * model.vocab * memory_constant("vllm", "sampler_bytes"))
    if mla and mla.indexer:
        name = "sparse_indexer_patched" if recipe.runtime.preset else "sparse_indexer"
        peak += memory_constant_bytes("vllm", name)
    if recipe.speculate:
        logits = seqs * (1 + recipe.speculate.tokens) * model.vocab * 4
        peak += round(logits * memory_constant("vllm", "draft_logits") * build.rejection)
        peak += round(build.speculative * GIB)
    return int(peak)


def is_single_gpu(recipe: Recipe) -> bool:
    """True for one GPU by itself: no NCCL, no communication in its graphs."""
    return recipe.parallel.gpu_count == 1


def slack_gib(recipe: Recipe) -> float:
    """What weights take beyond their tensors' bytes."""
    single = is_single_gpu(recipe)
    return float(memory_constant("vllm", "alone_slack") if single else memory_constant("load", "slack"))


def graph_bytes(model: Model, recipe: Recipe) -> int:
    """Memory of captured CUDA graphs as vLLM estimates it."""
    if recipe.flags.get("enforce-eager"):
        return 0
    if is_single_gpu(recipe) and not recipe.speculate:
        layers = model.layers * float(memory_constant("vllm", "alone_graph_layer"))
        return round((float(memory_constant("vllm", "alone_graph_base")) + layers) * GIB)
    per_token = memory_constant("vllm", "graph_per_dcp_token") * recipe.parallel.dcp
    size = memory_constant("vllm", "graph_base") + per_token * (1 + recipe.draft_tokens)
    size += memory_constant("vllm", "graph_speculative") if recipe.speculate else 0
    return round(float(size) * vllm_build(recipe).graphs * GIB)


def workspace_bytes(gpu: Gpu, model: Model, recipe: Recipe) -> int:
    """Triton MLA's partial results: sequences × local heads × splits × 513 floats, allocated after profiling."""
    if not model.mla or model.mla.indexer or not uses_triton_mla(gpu, recipe):
        return 0
    heads = model.mla.heads // recipe.parallel.tp * recipe.parallel.dcp
    columns = memory_constant("vllm", "mla_split_columns")
    return int(max_seqs(gpu, recipe) * heads * mla_splits(gpu, recipe) * columns * 4)


def mla_splits(gpu: Gpu, recipe: Recipe) -> int:
    """Parts that a sequence's cache is split into while decoding: by the context, up to two per multiprocessor."""
    wanted = max(1, math.ceil(recipe.context / memory_constant("vllm", "mla_split_tokens")))
    return vllm_build(recipe).splits or min(1 << (wanted - 1).bit_length(), 2 * gpu.sms)


def uses_triton_mla(gpu: Gpu, recipe: Recipe) -> bool:
    """True if decode runs on the Triton MLA kernel: the only dense one on SM120 and below Hopper."""
    backend = str(recipe.flags.get("attention-backend", ""))
    return backend == "TRITON_MLA" if backend else gpu.generation not in ("hopper", "blackwell", "cdna")


def memory_lines(deployment: Deployment, memory: Memory) -> tuple[ArithmeticLine, ...]:
    """Every step from the GPU's size to the tokens of cache, on the GPU that holds the fewest."""
    _, model, checkpoint, recipe = deployment.facts
    ranks = VllmRanks(deployment)
    fullest = fullest_gpu(deployment, ranks)
    if fullest is None:
        return ()
    gpu, stage = fullest
    needs, visible, utilized = ranks.needs[stage], visible_bytes(gpu), ranks.utilized_bytes(gpu, stage)
    single, seqs, dcp = is_single_gpu(recipe), max_seqs(gpu, recipe), recipe.parallel.dcp
    left, block = utilized - needs.inside_bytes, block_tokens(recipe)
    # One GPU alone has its own slack beside the norms.
    own = {"norms": norms_formula(checkpoint, slack_gib(recipe))} if single else {}
    own["routed_experts"] = expert_growth("vllm", gpu, model, checkpoint, recipe)[1]
    workspace = "not this kernel"
    if model.mla and not model.mla.indexer and uses_triton_mla(gpu, recipe):
        heads, splits = model.mla.heads // recipe.parallel.tp, mla_splits(gpu, recipe)
        workspace = f"{seqs} sequences × {heads} heads × DCP {dcp} × {splits} splits × 513 × 4"
    tokens_formula = f"floor({left:,} / ({needs.token:,} × {block})) × {block} × DCP {dcp}"
    if pages := needs.pages:
        one = f"{pages.request_blocks(ranks.rank_context):,g} blocks of a request"
        tokens_formula = f"floor({left:,} / {pages.block_bytes:,.0f} B a block) / {one} × {recipe.context:,}"
        tokens_formula += f"; {pages.sequence_blocks:g} of them for states and windows"
    lines = [
        bytes_line("memory CUDA sees", visible, f"{gpu.memory:,} - {gpu.memory - visible:,}", gpu.source),
        bytes_line("utilized", utilized, f"{ranks.utilization} × {visible:,}", "--gpu-memory-utilization"),
        *weight_lines(needs.weights, model, checkpoint, recipe, stage, **own),
    ]
    if needs.draft:
        lines.append(bytes_line("- draft", needs.draft, "(draft - shared embedding) / TP", "data/memory.toml [draft]"))
    source = "" if single else vllm_build(recipe).source
    lines += [
        bytes_line("- activations", needs.activations, _activation_formula(gpu, model, recipe), TABLE),
        bytes_line("- context and NCCL", needs.non_torch, "constant", source),
        bytes_line("- CUDA graphs", needs.graphs, _graph_formula(model, recipe), TABLE),
        bytes_line("= KV budget", left, f"{utilized:,} - {needs.inside_bytes:,}"),
        token_line(model, recipe, needs.token, stage),
        ArithmeticLine(
            what="KV tokens",
            formula=tokens_formula + stage_note(recipe, stage),
            value=ranks.cache_tokens(gpu, stage),
            unit="tokens",
            source="vLLM kv_cache_utils.py",
        ),
        bytes_line(
            "Triton MLA workspace",
            workspace_bytes(gpu, model, recipe),
            workspace,
            "vLLM 0.32 triton_mla.py; outside the utilization",
        ),
    ]
    return tuple(lines)


def _activation_formula(gpu: Gpu, model: Model, recipe: Recipe) -> str:
    seqs, used = max_seqs(gpu, recipe), model.experts_used
    each = f"{model.hidden:,} × ({used} + {memory_constant('load', 'live_copies')})"
    if model.mla:
        heads = model.mla.heads / recipe.parallel.tp
        each = f"({model.hidden:,} × ({used} + {memory_constant('vllm', 'latent_copies')})"
        each += f" + {heads:g} heads × {memory_constant('vllm', 'latent_head_elements'):,})"
    text = f"max({step_tokens(gpu, recipe):,} × 2 × {each}, {seqs} × {model.vocab:,} × 16)"
    if model.mla and model.mla.indexer:
        text += " + the indexer's logits"
    if recipe.speculate:
        text += f" + {seqs} × {1 + recipe.speculate.tokens} × {model.vocab:,} × 4 × 3 for draft tokens"
    return text


def _graph_formula(model: Model, recipe: Recipe) -> str:
    if not reserves_graph_memory(recipe):
        return f"{GRAPH_ESTIMATE_ENV}=0: not subtracted"
    if is_single_gpu(recipe) and not recipe.speculate:
        layers = f"{memory_constant('vllm', 'alone_graph_layer')} × {model.layers} layers"
        return f"{memory_constant('vllm', 'alone_graph_base')} + {layers} GiB"
    draft = f" + {memory_constant('vllm', 'graph_speculative')} with a draft" if recipe.speculate else ""
    per_token = memory_constant("vllm", "graph_per_dcp_token")
    each = f"{per_token} × DCP {recipe.parallel.dcp} × {1 + recipe.draft_tokens}"
    return f"{memory_constant('vllm', 'graph_base')} + {each}{draft} GiB"


def setting_reasons(deployment: Deployment, memory: Memory) -> list[str]:
    """Why max_seqs is set, if it makes the Triton MLA workspace smaller."""
    box, model, _, recipe = deployment.facts
    gpu = first_gpu(box, recipe)
    size = workspace_bytes(gpu, model, recipe) if gpu else 0
    default = workspace_bytes(gpu, model, replace(recipe, max_seqs=None)) if gpu and size else 0
    if default <= size:
        return []
    return [
        f"max_seqs {recipe.max_seqs}: Triton MLA's workspace is {format_gib(size)} a GPU; "
        f"at vLLM's default of 1,024 sequences it would be {format_gib(default)}, after memory was planned"
    ]
