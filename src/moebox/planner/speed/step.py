"""The time of one engine step on GPUs alone, part by part: decoding tokens, a piece of a prompt, or both."""

import math
from dataclasses import dataclass, replace

from moebox.core.box import Gpu
from moebox.core.layer_kind import LayerKind
from moebox.core.layers import Compressed, Gqa
from moebox.planner.speed.constants import DraftCost, Efficiency, ExpertKernel, Overhead, kernel_counts
from moebox.planner.speed.drafts import acceptance_per_token, draft_slowdown, tokens_per_step
from moebox.planner.speed.links import Fabric
from moebox.sizing.rank import RankLayers, RankWork

# Pipeline stages wait for each other: what each further stage costs of a step. No published row; stages of 61 layers
# differ by one layer and the head, and engines schedule them less tightly.
STAGE_LOSS = 0.1
HALF = 2  # bytes of an activation between ranks (bf16)
FULL = 4  # and of a sum of squares (float32)


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
    graphs: bool = True
    host_factor: float = 1.0  # host time of this CPU over that of the one the constants were fitted on
    fused_norms: bool = False  # all-reduces do the norms after them
    overhead: Overhead | None = None  # what this version of the engine needs more of the host

    def step_parts(self, batch: float, context: float, fresh: float = 0.0, past: float = 0.0) -> dict[str, float]:
        """Seconds by part of a step that decodes `batch` sequences at `context` and reads `fresh` prompt tokens
        that have `past` tokens before them."""
        # Pipeline stages and data-parallel groups work on their own share of the sequences at the same time.
        lost = self.stage_loss(batch)
        batch, fresh = batch / (self.rank.pp * self.rank.dp), fresh / self.rank.dp
        if fresh and batch < 1:
            batch = 0.0
        batch = max(batch, 1.0) if batch else 0.0
        queries = batch * (1 + self.draft_tokens)
        tokens = queries + fresh
        dense = self.dense_seconds(tokens)
        # Under data parallelism the experts of all groups work on the tokens of all groups.
        experts = self.expert_seconds(tokens * self.rank.dp)
        parts = {
            "host": self.host_seconds(batch),
            "small kernels": self.small_kernel_seconds(dense, fresh),
            "dense weights": dense,
            "experts": experts,
            "attention": self.cached_attention(batch, context) + self.prompt_attention(fresh, past),
            "all-reduce": self.all_reduce_seconds(tokens),
            "context parallel": self.context_parallel_seconds(queries),
            "draft": self.draft_seconds(batch, fresh),
        }
        if lost:  # micro-batches that decode wait for each other; a prompt's tokens are one micro-batch of their own
            parts["waiting for stages"] = sum(parts.values()) * lost * queries / tokens
        parts["waiting for launches"] = self.launch_wait(sum(parts.values()), prompt=fresh > 0)
        return {name: seconds for name, seconds in parts.items() if seconds}

    def launch_wait(self, device: float, *, prompt: bool) -> float:
        """What a step of `device` seconds on the GPU waits for its launches."""
        launching = self.launch_seconds(prompt=prompt)
        return overlap_seconds(launching, device) - device if launching else 0.0

    def stage_loss(self, batch: float) -> float:
        """What stages lose by waiting for each other, of a step: nothing with one sequence, all once each has one."""
        others = self.rank.pp - 1
        return STAGE_LOSS * others * min(max(batch / self.rank.dp - 1, 0.0) / others, 1.0) if others else 0.0

    def host_seconds(self, batch: float) -> float:
        """Scheduling, sampling and output, once a step and for each sequence."""
        micro = self.constants.step_us
        if self.overhead:
            micro += self.overhead.step_us + self.overhead.sequence_us * batch
        return micro * self.host_factor * 1e-6

    def small_kernel_seconds(self, dense: float, fresh: float) -> float:
        """What the kernels around the experts add to `dense`, the reading of their weights, which hides a part of it.

        Expert kernels hide nothing: they run alone, and their own least time is in their row.
        """
        each = max(self.constants.layer_us, self.constants.piecewise_us) if fresh else self.constants.layer_us
        return math.hypot(self.kernel_layers * each * 1e-6, dense) - dense

    @property
    def kernel_layers(self) -> float:
        """Layers, weighed by how many kernels each is beside one of plain attention and 16-bit weights."""
        counts, narrow = kernel_counts(), self.rank.narrow_attention
        less = counts["norms"] / counts["plain"] if self.fused_norms and self.rank.tp > 1 and self.rank.dp == 1 else 0.0
        each = ((layers.count, relative_kernels(layers.kind, counts, narrow=narrow)) for layers in self.rank.layers)
        return sum(count * (kernels - less) for count, kernels in each)

    def launch_seconds(self, *, prompt: bool) -> float:
        """Host time to launch a step outside graphs; 0 inside them."""
        each = self.constants.prompt_us if prompt else 0.0
        if not self.graphs:
            each = max(each, self.constants.eager_us)
        return self.kernel_layers * each * self.host_factor * 1e-6

    def dense_seconds(self, tokens: float) -> float:
        """Reading attention, shared and dense weights, or multiplying by them, whichever weighs more."""
        read = self.rank.dense_bytes / (self.gpu.bandwidth * self.constants.dense_bw)
        work = tokens * self.rank.dense_flops / (self.gpu.bf16 * self.constants.gemm)
        return math.hypot(read, work)

    def expert_seconds(self, tokens: float) -> float:
        """The expert kernels of all layers."""
        if not self.rank.model.moe:
            return 0.0
        return expert_kernel_seconds(self.rank, self.gpu, self.kernel, tokens, share=self.constants.experts)

    def cached_attention(self, batch: float, context: float) -> float:
        """Decoding attention: reads the cache, and works on it for every query token."""
        if batch <= 0 or context <= 0:
            return 0.0
        return sum(layers.count * self.layer_attention(layers, batch, context) for layers in self.rank.layers)

    def layer_attention(self, layers: RankLayers, batch: float, context: float) -> float:
        """Seconds of decoding attention in one layer of a kind."""
        c, kind = self.constants, layers.kind
        queries = batch * (1 + self.draft_tokens)
        local = kind.entries_read(context) / self.rank.dcp
        reads = queries if kind.shared_cache and not c.joint_queries else batch
        moved = reads * (local * layers.entry_bytes + context * layers.index_bytes)
        moved += 2 * batch * layers.state_bytes  # read and written
        read = moved / (self.gpu.bandwidth * c.attention_bw)
        choosing = queries * kind.index_flops(context) / (self.gpu.bf16 * c.gemm)
        if not kind.shared_cache:
            return read + choosing  # a group of heads shares each key: never enough work to matter beside the reading
        return self._over_shared_cache(layers, batch, local, read) + choosing

    def _over_shared_cache(self, layers: RankLayers, batch: float, local: float, read: float) -> float:
        """Seconds of all heads over `local` entries that they share; `read`: of reading those."""
        c = self.constants
        # Joint queries: the heads of all draft tokens of a sequence lie in one tile, and each tile goes over the cache.
        together, tiles = (1 + self.draft_tokens, batch) if c.joint_queries else (1, batch * (1 + self.draft_tokens))
        heads = layers.heads * self.rank.dcp * together
        tile = c.head_tile if heads <= c.head_tile else c.wide_tile
        padded = math.ceil(heads / tile) * tile
        filled = 1 - math.exp(-tiles * padded / c.head_tile / c.attention_fill)
        work = tiles * local * layers.kind.pair_flops(padded, prompt=False) / (self.gpu.bf16 * c.attention_flops)
        return max(work, read) / filled

    def prompt_attention(self, fresh: float, past: float) -> float:
        """Prompt attention: every fresh token against all before it."""
        if fresh <= 0:
            return 0.0
        before, seconds = past + fresh / 2, 0.0
        for layers in self.rank.layers:
            flops = layers.kind.entries_read(before) * layers.kind.pair_flops(layers.heads, prompt=True)
            seconds += layers.count * flops / (self.gpu.bf16 * self.constants.prefill_attention)
            seconds += layers.count * layers.kind.index_flops(before) / (self.gpu.bf16 * self.constants.gemm)
        return fresh * seconds

    def all_reduce_seconds(self, tokens: float) -> float:
        """Two all-reduces a layer of the hidden state, one more where norms go over all heads; hops between stages."""
        size = tokens * self.rank.model.hidden * HALF
        seconds = 2 * self.rank.model.layers * self.fabric.all_reduce(self.rank.tp, size)
        seconds += self.norm_reduce_layers * self.fabric.all_reduce(self.rank.tp, 2 * FULL * tokens)
        if self.rank.model.moe and self.rank.dp > 1:
            ranks = self.rank.expert_ranks
            seconds += 2 * self.rank.model.moe_layers * self.fabric.all_gather(ranks, size * self.rank.dp)
        return seconds + self.fabric.stage_transfer(self.rank.pp, size, self.rank.tp)

    @property
    def norm_reduce_layers(self) -> int:
        """Layers whose norms of q and k go over all heads: ranks add up their squares (MiniMax M2)."""
        return sum(
            layers.count for layers in self.rank.layers if isinstance(layers.kind, Gqa) and layers.kind.norms_all_heads
        )

    def context_parallel_seconds(self, queries: float) -> float:
        """With a divided cache every layer gathers the queries of the group and brings its outputs back together."""
        rank, mla = self.rank, self.rank.model.mla
        if rank.dcp < 2 or not queries:
            return 0.0
        kind = rank.model.attention
        heads = kind.heads / rank.tp * rank.dcp
        width = (mla.kv_width, mla.kv_lora) if mla else (kind.entry_width(rank.model.attention.heads),) * 2
        there = self.fabric.all_gather(rank.dcp, queries * heads * width[0] * HALF)
        back = self.fabric.all_gather(rank.dcp, queries * heads * (width[1] * HALF + 4))
        return rank.model.layers * (there + back + self.constants.dcp_us * 1e-6)

    def draft_seconds(self, batch: float, fresh: float) -> float:
        """Guessing ahead: one pass of the draft for each guess."""
        if not self.draft or not (batch or fresh):
            return 0.0
        read = self.draft.bytes / self.rank.tp / (self.gpu.bandwidth * self.constants.dense_bw)
        talk = 2 * self.fabric.all_reduce(self.rank.tp, max(batch, 1) * self.rank.model.hidden * HALF)
        return self.draft_tokens * (read + talk + self.draft.pass_us * 1e-6)

    @property
    def tokens_per_step(self) -> float:
        """Expected tokens a sequence gains in a step."""
        return tokens_per_step(self.draft.accept, self.draft_tokens) if self.draft else 1.0

    def draft_slowdown(self, rank: float) -> float:
        """TPOT of the request at `rank` (0 to 1) of all over the mean: drafts suit some requests better than others."""
        return draft_slowdown(self.draft.accept, self.draft_tokens, rank) if self.draft else 1.0

    def with_acceptance(self, share: float) -> "GpuStep":
        """The same where `share` of the draft tokens are accepted, over all of them as servers report it."""
        if self.draft is None:
            return self
        return replace(self, draft=replace(self.draft, accept=acceptance_per_token(share, self.draft_tokens)))


def expert_kernel_seconds(
    rank: RankWork, gpu: Gpu, kernel: ExpertKernel, tokens: float, *, share: float = 1.0
) -> float:
    """Expert kernels of all layers for `tokens`: a fixed time, and reading or operations, whichever weighs more."""
    read = rank.expert_bytes_read(tokens) / (gpu.bandwidth * min(kernel.bandwidth * share, 1.0))
    work = rank.expert_step_flops(tokens) / (gpu.bf16 * kernel.flops)
    return rank.model.moe_layers * kernel.fixed_us * 1e-6 + math.hypot(read, work)


def overlap_seconds(launching: float, device: float) -> float:
    """Seconds of a step whose kernels the host launches one by one while the GPU works: the longer of the two.

    Where they are about even some layers wait for the one and some for the other, a fifth more together.
    """
    most = max(launching, device)
    return float(most * (1 + (min(launching, device) / most) ** 4) ** 0.25) if most else 0.0


def relative_kernels(kind: LayerKind, counts: dict[str, float], *, narrow: bool) -> float:
    """Kernels of a layer without its experts and all-reduces, over those of the plainest layer.

    `narrow`: its weights have fewer than 16 bits, so what goes into each product is quantised by a kernel of its own.
    """
    if isinstance(kind, Gqa):
        here = counts["plain"] + narrow * counts["plain_narrow"]
        if kind.head_norm:
            here += counts["whole_norm"] if kind.norms_all_heads else counts["head_norm"]
    elif isinstance(kind, Compressed):
        here = counts["compressed"]
    else:
        here = counts["latent"] + narrow * counts["latent_narrow"]
    return here / counts["plain"]
