"""What one rank reads and computes in a step: bytes and operations, no times."""

import math
from dataclasses import dataclass
from statistics import NormalDist

from moebox.core.layers import LayerKind
from moebox.core.model import Checkpoint, Model
from moebox.core.recipe import Recipe
from moebox.sizing import kv, shards


@dataclass(frozen=True, slots=True, kw_only=True)
class RankLayers:
    """A rank's share of all layers of one kind."""

    kind: LayerKind
    count: int
    heads: float  # query heads of this rank
    entry_bytes: float  # one cached entry
    index_bytes: float  # indexer keys of one token
    state_bytes: float  # recurrent state of one sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class RankWork:
    """One rank's share of every layer; with pipeline stages, of all stages together."""

    model: Model
    tp: int
    pp: int
    dp: int
    dcp: int
    expert_ranks: int  # ranks over which experts are divided, whole or sliced, in all data-parallel groups
    whole_experts: bool  # expert parallel: whole experts on ranks
    dense_bytes: float  # attention, shared experts, dense layers, router, lm_head: read in every step
    dense_flops: float  # of one token in them
    head_flops: float  # of these, lm_head: prompts need it for their last token alone
    expert_bytes: float  # one expert of one layer, all ranks together
    expert_flops: float  # of one token in the experts it uses, in one layer, all ranks together
    layers: tuple[RankLayers, ...]
    narrow_attention: bool = False  # attention weights below 16 bits: inputs of a product are quantised first

    def distinct_experts(self, tokens: float) -> float:
        """Expected distinct experts that a batch activates in one layer: E(1 - (1 - k/E)^B)."""
        moe = self.model.moe
        if not moe:
            return 0.0
        return moe.experts * (1 - float((1 - moe.used / moe.experts) ** tokens))

    def expert_bytes_read(self, tokens: float) -> float:
        """Expert bytes this rank reads in a step of `tokens`, all layers; with whole experts, of the fullest rank."""
        moe = self.model.moe
        share = self.distinct_experts(tokens) / self.expert_ranks
        if moe and self.whole_experts:
            # Whole experts are placed unevenly: the fullest of n ranks holds sqrt(x) times the expected maximum of n
            # normal variates more than the mean x (Blom's approximation, within 5%: 5.2 of 8 experts on two ranks).
            ranks = self.expert_ranks
            most = NormalDist().inv_cdf((ranks - 0.375) / (ranks + 0.25)) if ranks > 1 else 0.0
            share = min(share + most * math.sqrt(share), moe.experts / ranks)
        return share * self.expert_bytes * self.model.moe_layers

    def expert_step_flops(self, tokens: float) -> float:
        """Expert operations of this rank in a step, all layers."""
        return tokens * self.expert_flops * self.model.moe_layers / self.expert_ranks

    def cache_bytes_read(self, context: float) -> float:
        """Cache bytes that one query reads on this rank at `context`, all layers, before division by DCP."""
        return sum(
            layers.count
            * (
                layers.kind.entries_read(context) * layers.entry_bytes
                + context * layers.index_bytes
                + 2 * layers.state_bytes  # read and written
            )
            for layers in self.layers
        )


def rank_work(model: Model, checkpoint: Checkpoint, recipe: Recipe) -> RankWork:
    """Return one rank's share under the recipe's parallelism."""
    parallel, sizes, parameters = recipe.parallel, checkpoint.bytes_by_component, model.parameters_by_component
    tp, dp = max(parallel.tp, 1), max(parallel.dp, 1)
    layers = tuple(
        RankLayers(
            kind=each.kind,
            count=each.count,
            heads=each.kind.heads / tp,
            entry_bytes=kv.entry_bytes(each.kind, recipe),
            index_bytes=each.kind.index_bytes,
            state_bytes=each.kind.state_bytes(tp),
        )
        for each in model.stack
    )
    return RankWork(
        model=model,
        tp=tp,
        pp=max(parallel.pp, 1),
        dp=dp,
        dcp=max(parallel.dcp, 1),
        expert_ranks=tp * dp,
        whole_experts=parallel.ep,
        dense_bytes=shards.dense_per_rank(model, sizes, tp),
        dense_flops=2 * shards.dense_per_rank(model, parameters, tp),
        head_flops=2 * model.vocab * model.hidden / tp,
        expert_bytes=sizes.get("routed_experts", 0) / max(model.experts * model.moe_layers, 1),
        expert_flops=2 * model.expert_parameters * model.experts_used,
        layers=layers,
        narrow_attention=sizes.get("attention", 0) < 1.5 * parameters.get("attention", 0),
    )
