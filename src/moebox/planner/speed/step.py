"""Seconds of one engine step on GPUs alone, part by part: decoding, a chunk of a prompt, or both."""

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from moebox.core.box import Gpu
from moebox.core.layers import Compressed, Gqa, LayerKind, Linear, Mamba, Mla
from moebox.planner.speed.attention import HEAD_DIM, UNKNOWN, AttentionBackend, AttentionKind, attention_kind
from moebox.planner.speed.constants import DraftCost, Efficiency, ExpertKernel, Overhead, kernel_counts
from moebox.planner.speed.links import Fabric
from moebox.sizing.rank import RankLayers, RankWork

# Pipeline stages wait for each other: the share of a step that each further stage costs. No published row; stages of
# 61 layers differ by one layer and the head, and engines schedule them less tightly.
STAGE_LOSS = 0.1
HALF = 2  # bytes of an activation between ranks (bf16)
FULL = 4  # bytes of a sum of squares (float32)
DRAFT_RANKS = 200  # of requests, over which acceptance is averaged
Parts = dict[str, float]  # seconds by part of a step


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuStep:
    """Everything that decides a step's time on GPUs."""

    rank: RankWork
    gpu: Gpu
    constants: Efficiency
    kernel: ExpertKernel
    fabric: Fabric
    draft: DraftCost | None = None
    draft_tokens: int = 0
    largest_graph: float = math.inf  # tokens that a step may decode to run in one
    captured_tokens: int = 0  # that a step with a prompt may have to run in graphs
    host_factor: float = 1.0  # host time of this CPU over that of the one the constants were fitted on
    fused_norms: bool = False  # all-reduces include the norms after them
    overhead: Overhead | None = None  # additional host time of this engine version
    attention: Mapping[AttentionKind, AttentionBackend] = field(default_factory=dict)

    def step_parts(self, batch: float, context: float, fresh: float = 0, past: float = 0, prompts: int = 1) -> Parts:
        """Seconds by part of a step that decodes `batch` sequences at `context` and reads `fresh` tokens of `prompts`
        with `past` tokens before them."""
        rank = self.rank
        # Pipeline stages and data-parallel groups work on their own share of the sequences at the same time.
        stage_loss = self.stage_loss(batch)
        batch, fresh = batch / (rank.pp * rank.dp), fresh / rank.dp
        if fresh and batch < 1:
            batch = 0.0
        batch = max(batch, 1.0) if batch else 0.0
        queries = batch * (1 + self.draft_tokens)
        tokens = queries + fresh
        dense = self.dense_seconds(tokens, queries + min(fresh, prompts))
        # Small kernels overlap with reading dense weights; expert kernels run alone, their least time is in their row.
        layer_us = max(self.constants.layer_us, self.constants.piecewise_us) if fresh else self.constants.layer_us
        small_kernels = math.hypot(self.kernel_layers * layer_us * 1e-6, dense) - dense
        # Under data parallelism the experts of all groups work on the tokens of all groups.
        experts = expert_kernel_seconds(rank, self.gpu, self.kernel, tokens * rank.dp, share=self.constants.experts)
        # Scheduling, sampling and output, once per step, for each sequence and for each token of a prompt.
        sequence_us = self.overhead.sequence_us if self.overhead else 0.0
        host_us = self.constants.step_us + sequence_us * batch + self.constants.token_us * fresh
        parts = {
            "host": host_us * self.host_factor * 1e-6,
            "small kernels": small_kernels,
            "dense weights": dense,
            "experts": experts,
            "attention": self.cached_attention(batch, context) + self.prompt_attention(fresh, past, prompts),
            "all-reduce": self.all_reduce_seconds(tokens),
            "context parallel": self.context_parallel_seconds(queries),
            "draft": self.draft_seconds(batch),
        }
        if stage_loss:  # micro-batches that decode wait for each other; a prompt's tokens are one of their own
            parts["waiting for stages"] = sum(parts.values()) * stage_loss * queries / tokens
        # Outside graphs the host launches kernels one by one while the GPU works: the longer of the two counts. Nothing
        # is launched when a prompt's step begins: if they are about even, layers wait for one or the other, a fifth
        # more together. Steps that decode are launched during the ones before.
        launching = self.launches * self.constants.prompt_us if fresh > 0 and tokens > self.captured_tokens else 0.0
        if not self.largest_graph or (queries > self.largest_graph and not fresh):
            launching = max(launching, self.kernel_layers * self.constants.eager_us)
        launching *= self.host_factor * 1e-6
        if launching:
            device = sum(parts.values())
            longer = max(launching, device)
            alternating = float((1 + (min(launching, device) / longer) ** 4) ** 0.25) if fresh else 1.0
            parts["waiting for launches"] = longer * alternating - device
        return {name: seconds for name, seconds in parts.items() if seconds}

    def stage_loss(self, batch: float) -> float:
        """Share of a step that stages lose by waiting: none with one sequence, all once each stage has one."""
        others = self.rank.pp - 1
        return STAGE_LOSS * others * min(max(batch / self.rank.dp - 1, 0.0) / others, 1.0) if others else 0.0

    @property
    def kernel_layers(self) -> float:
        """Layers, counted by kernels over a plain layer's; below 16 bits one more quantises each product's input."""
        counts, moe = kernel_counts(), self.rank.model.moe
        fused = self.fused_norms and self.rank.tp > 1 and self.rank.dp == 1
        others = (counts["shared_gate"] if moe and moe.shared_gate else 0.0) - fused * counts["norms"]
        total = sum(layers.count * (self.layer_kernels(layers.kind) + others) for layers in self.rank.layers)
        return total / counts["plain"]

    @property
    def launches(self) -> float:
        """Launches of a prompt's step outside graphs over a plain layer's: nothing fused, experts, all-reduces."""
        counts, rank, latent = kernel_counts(), self.rank, self.constants.latent
        unfused = bool(latent) * sum(layers.count for layers in rank.layers if isinstance(layers.kind, Mla))
        others = rank.model.moe_layers * counts.get(self.kernel.kernel, 0.0) + 2 * rank.model.layers * (rank.tp > 1)
        return self.kernel_layers + (unfused * (counts["latent"] - latent) + others) / counts["plain"]

    def layer_kernels(self, kind: LayerKind) -> float:
        """Kernels of a layer of one kind, without its experts and all-reduces."""
        counts, narrow = kernel_counts(), self.rank.narrow_attention
        if isinstance(kind, Gqa):
            kernels = counts["plain"] + narrow * counts["plain_narrow"]
            if kind.head_norm:
                kernels += counts["whole_norm"] if kind.norms_all_heads else counts["head_norm"]
            return kernels
        if isinstance(kind, Compressed):
            return counts["compressed"]
        if isinstance(kind, Mamba) or (isinstance(kind, Linear) and not kind.channel_decay):
            return counts["linear"] + narrow * counts["plain_narrow"]
        latent = (self.constants.latent or counts["latent"]) + narrow * counts["latent_narrow"]
        return latent + (self.overhead.latent if self.overhead else 0.0)

    def dense_seconds(self, tokens: float, sampled: float) -> float:
        """Reading attention, shared and dense weights, or multiplying by them; logits of `sampled` tokens alone."""
        read = self.rank.dense_bytes / (self.gpu.bandwidth * self.constants.dense_bw)
        flops = tokens * self.rank.dense_flops - (tokens - sampled) * self.rank.head_flops
        return math.hypot(read, flops / (self.gpu.bf16 * self.constants.gemm))

    def cached_attention(self, batch: float, context: float) -> float:
        """Attention of decoding: reads the cache, and computes on it for every query token."""
        if batch <= 0 or context <= 0:
            return 0.0
        return sum(layers.count * self.layer_attention(layers, batch, context) for layers in self.rank.layers)

    def attention_backend(self, kind: LayerKind) -> AttentionBackend:
        """Return the backend of a kind of layer; UNKNOWN if the engine's own shares apply."""
        name = attention_kind(kind)
        return self.attention.get(name, UNKNOWN) if name else UNKNOWN

    def layer_attention(self, layers: RankLayers, batch: float, context: float) -> float:
        """Seconds of decoding attention in one layer of a kind."""
        c, kind, backend = self.constants, layers.kind, self.attention_backend(layers.kind)
        queries = batch * (1 + self.draft_tokens)
        local = kind.entries_read(context) / self.rank.dcp
        reads = queries if kind.shared_cache and not c.joint_queries else batch
        moved = reads * (local * layers.entry_bytes + context * layers.index_bytes)
        moved += 2 * batch * layers.state_bytes  # read and written
        read = moved / (self.gpu.bandwidth * (backend.bandwidth or c.attention_bw))
        if isinstance(kind, Gqa):  # what one sequence takes even if the GPU has nothing else to do
            width = (kind.head_dim + kind.value_dim) / 2
            read = max(read, local * backend.stream_ns * 1e-9 * width / HEAD_DIM)
        selecting = queries * kind.index_flops(context) / (self.gpu.bf16 * c.gemm)
        if kind.indexer and not kind.indexer.shared:  # the layer's own token selector
            selecting += backend.index_us * 1e-6 + context * backend.index_ns * 1e-9
        if not kind.shared_cache:
            return read + selecting  # a group of heads shares each key: reading dominates
        # Joint queries: the heads of all draft tokens of a sequence share one tile, and each tile reads the cache.
        together, tiles = (1 + self.draft_tokens, batch) if c.joint_queries else (1, batch * (1 + self.draft_tokens))
        heads = layers.heads * self.rank.dcp * together
        tile = backend.padded_heads if backend.latent_decode else c.head_tile if heads <= c.head_tile else c.wide_tile
        share = backend.latent_decode or c.attention_flops
        padded = math.ceil(heads / tile) * tile
        filled = 1 - math.exp(-tiles * padded / c.head_tile / c.attention_fill)
        work = tiles * local * kind.pair_flops(padded, prompt=False) / (self.gpu.bf16 * share)
        return max(work, read) / filled + selecting

    def prompt_attention(self, fresh: float, past: float, prompts: int) -> float:
        """Attention of a prompt: fresh tokens against all before them, or on the latent if more than are selected."""
        seconds = 0.0
        for layers in self.rank.layers:
            kind, heads, backend = layers.kind, layers.heads, self.attention_backend(layers.kind)
            each = fresh / prompts if kind.indexer else fresh  # constants were fitted to prompts read as one
            before, share = past + each / 2, backend.prompt or self.constants.prefill_attention
            on_latent = kind.indexer and backend.padded_heads and past + each > kind.indexer.topk
            if on_latent:
                heads, share = max(heads, backend.padded_heads), backend.latent_prompt
            entries = kind.entries_read(before)
            if backend.whole_chunks:
                entries = max(entries, min(kind.entries_read(past) + fresh / prompts / 2, before))
            flops = entries * kind.pair_flops(heads, prompt=not on_latent) / share
            seconds += layers.count * (flops + kind.index_flops(before) / self.constants.gemm) / self.gpu.bf16
        return fresh * seconds

    def all_reduce_seconds(self, tokens: float) -> float:
        """Two all-reduces of the hidden state per layer, one more for norms over all heads; hops between stages."""
        rank, model, fabric = self.rank, self.rank.model, self.fabric
        size = tokens * model.hidden * HALF
        seconds = 2 * model.layers * fabric.all_reduce(rank.tp, size)
        seconds += self.norm_reduce_layers * fabric.all_reduce(rank.tp, 2 * FULL * tokens)
        if model.moe and rank.dp > 1:
            seconds += 2 * model.moe_layers * fabric.all_gather(rank.expert_ranks, size * rank.dp)
        return seconds + fabric.stage_transfer(rank.pp, size, rank.tp)

    @property
    def norm_reduce_layers(self) -> int:
        """Layers whose norms of q and k go over all heads, so that ranks add up squares (MiniMax M2)."""
        kinds = ((layers.count, layers.kind) for layers in self.rank.layers)
        return sum(count for count, kind in kinds if isinstance(kind, Gqa) and kind.norms_all_heads)

    def context_parallel_seconds(self, queries: float) -> float:
        """With a divided cache, every layer gathers the queries of the group and merges its outputs."""
        rank, mla = self.rank, self.rank.model.mla
        if rank.dcp < 2 or not queries:
            return 0.0
        kind = rank.model.attention
        heads = kind.heads / rank.tp * rank.dcp
        width = (mla.kv_width, mla.kv_lora) if mla else (kind.entry_width(kind.heads),) * 2
        there = self.fabric.all_gather(rank.dcp, queries * heads * width[0] * HALF)
        back = self.fabric.all_gather(rank.dcp, queries * heads * (width[1] * HALF + 4))
        return rank.model.layers * (there + back + self.constants.dcp_us * 1e-6)

    def draft_seconds(self, batch: float) -> float:
        """One pass of the draft for each draft token."""
        if not self.draft:
            return 0.0
        read = self.draft.bytes / self.rank.tp / (self.gpu.bandwidth * self.constants.dense_bw)
        reduce = 2 * self.fabric.all_reduce(self.rank.tp, max(batch, 1) * self.rank.model.hidden * HALF)
        return self.draft_tokens * (read + reduce + self.draft.pass_us * 1e-6)

    @property
    def tokens_per_step(self) -> float:
        return tokens_per_step(self.draft.accept, self.draft_tokens) if self.draft else 1.0

    def draft_slowdown(self, rank: float) -> float:
        """TPOT of the request at `rank` (0 to 1) over the mean: drafts suit some requests better than others."""
        return draft_slowdown(self.draft.accept, self.draft_tokens, rank) if self.draft else 1.0

    def with_acceptance(self, share: float) -> "GpuStep":
        """Return the step with `share` of all draft tokens accepted, as servers report it."""
        if self.draft is None:
            return self
        accept = acceptance_for_length(1 + share * self.draft_tokens, self.draft_tokens)
        return replace(self, draft=replace(self.draft, accept=accept, low=0.0, high=0.0))

    @property
    def draft_range(self) -> tuple[float, float]:
        """Factors on decode speed between which published acceptance lies; (1, 1) without a draft or if it is given."""
        if self.draft is None or not self.draft.high:
            return 1.0, 1.0
        low, high = (tokens_per_step(accept, self.draft_tokens) for accept in (self.draft.low, self.draft.high))
        return min(low / self.tokens_per_step, 1.0), max(high / self.tokens_per_step, 1.0)


def expert_kernel_seconds(rank: RankWork, gpu: Gpu, kernel: ExpertKernel, tokens: float, share: float = 1.0) -> float:
    """Expert kernels of all layers for `tokens`: a fixed time, moving rows, and reading or operations, the longer."""
    read = rank.expert_bytes_read(tokens) / (gpu.bandwidth * min(kernel.bandwidth * share, 1.0))
    work = rank.expert_step_flops(tokens) * kernel.padded_share(rank, tokens) / (gpu.bf16 * kernel.flops)
    moved = kernel.bytes_moved(rank, tokens) / gpu.bandwidth
    return rank.model.moe_layers * (kernel.least_us(rank, tokens) * 1e-6 + moved) + math.hypot(read, work)


def tokens_per_step(accept: float, draft_tokens: int) -> float:
    """Expected tokens that a sequence gains in a step: 1 + p + p² + … for each accepted draft token."""
    return sum(accept**place for place in range(draft_tokens + 1))


@functools.lru_cache(maxsize=4096)
def acceptance_for_length(length: float, draft_tokens: int) -> float:
    """Return the chance of each draft token, given that those before it were accepted, for a mean gain in a step."""
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if tokens_per_step(middle, draft_tokens) < length else (low, middle)
    return low


@functools.lru_cache(maxsize=4096)
def draft_slowdown(accept: float, draft_tokens: int, rank: float) -> float:
    """Steps per token at one rank over the mean of all ranks, if acceptance differs between requests.

    A request's own acceptance is rank^((1 - a) / a), the power law with the mean a: drafts suit most requests and a few
    hardly at all. It has no constant of its own; Lambda's P99 TPOT (40.2 ms at a mean of 21.1) is met within a few
    percent.
    """
    power = (1 - accept) / accept if accept else math.inf

    def steps(at: float) -> float:
        return 1 / tokens_per_step(float(at**power), draft_tokens)

    ranks = [(number + 0.5) / DRAFT_RANKS for number in range(DRAFT_RANKS)]
    return steps(rank) / (sum(map(steps, ranks)) / DRAFT_RANKS)
