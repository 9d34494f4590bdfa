"""What one rank holds and does, from the model's shape and the way it is spread: bytes and operations, no times."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from moebox.core.model import KV_BYTES, Checkpoint, Component, Gqa, Mla, Model
from moebox.core.recipe import Recipe


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank:
    """One rank's share of every layer; with pipeline stages, all of them one after another."""

    model: Model
    tp: int
    pp: int
    dp: int
    dcp: int
    expert_ranks: int  # ranks over which experts are divided, whole or sliced
    whole_experts: bool  # expert parallel: whole experts on ranks
    dense_bytes: float  # attention, shared experts, dense layers, router, lm_head, read every step
    dense_flops: float  # of one token in them
    expert_bytes: float  # one expert of one layer, all ranks together
    expert_flops: float  # of one token in the experts it uses, in one layer, all ranks together
    kv_bytes: float  # cache of one token over all layers, on this rank

    def distinct(self, tokens: float) -> float:
        """Expected distinct experts a batch wakes in one layer: E(1 - (1 - k/E)^B)."""
        moe = self.model.moe
        if not moe or tokens <= 0:
            return 0.0
        return moe.experts * (1 - float((1 - moe.used / moe.experts) ** tokens))

    def expert_read(self, tokens: float) -> float:
        """Expert bytes this rank reads in a step of `tokens`, all layers; the fullest rank when experts are whole."""
        moe = self.model.moe
        share = self.distinct(tokens) / self.expert_ranks
        if moe and self.whole_experts:
            # Whole experts land unevenly: the fullest of n ranks holds about sqrt(2 x ln n) more than the mean x.
            uneven = math.sqrt(2 * share * math.log(max(self.expert_ranks, 1)))
            share = min(share + uneven, moe.experts / self.expert_ranks)
        return share * self.expert_bytes * self.model.moe_layers

    def expert_work(self, tokens: float) -> float:
        """Expert operations of this rank in a step, all layers."""
        return tokens * self.expert_flops * self.model.moe_layers / self.expert_ranks


def rank_of(model: Model, checkpoint: Checkpoint, recipe: Recipe) -> Rank:
    """One rank's share under the recipe's spread."""
    spread = recipe.parallel
    size, parameters = checkpoint.bytes_by_component, model.by_component
    copied = copied_share(model)
    tp = max(spread.tp, 1)

    def held(table: Mapping[Component, int]) -> float:
        attention = table.get("attention", 0)
        sliced = attention * (1 - copied) + table.get("shared_experts", 0) + table.get("dense_ffn", 0)
        head = table.get("lm_head", 0) or (table.get("embed", 0) if model.tied else 0)
        whole = attention * copied + table.get("router", 0) + table.get("norms", 0)
        return (sliced + head) / tp + whole

    moe = model.moe
    experts = moe.experts * model.moe_layers if moe else 1
    return Rank(
        model=model,
        tp=tp,
        pp=max(spread.pp, 1),
        dp=max(spread.dp, 1),
        dcp=max(spread.dcp, 1),
        expert_ranks=tp * (max(spread.dp, 1) if spread.ep else 1),
        whole_experts=spread.ep,
        dense_bytes=held(size),
        dense_flops=2 * held(parameters),
        expert_bytes=size.get("routed_experts", 0) / experts,
        expert_flops=2 * model.expert_parameters * (moe.used if moe else 0),
        kv_bytes=cache_bytes(model, recipe.kv, tp),
    )


def copied_share(model: Model) -> float:
    """Share of the attention weights that tensor parallelism copies to every rank: MLA's down projections."""
    mla = model.mla
    if not mla:
        return 0.0
    return model.hidden * (mla.q_lora + mla.kv_width) / mla.parameters(model.hidden)


def cache_bytes(model: Model, kv: str, tp: int) -> float:
    """Cache of one token on one rank: MLA's latent is on every rank, GQA's heads are divided while they last."""
    per_token = model.layers * model.attention.kv_width * KV_BYTES.get(kv, 2.0)
    if isinstance(model.attention, Gqa):
        return per_token * max(1, model.attention.kv_heads / tp) / model.attention.kv_heads
    return per_token


def seen(model: Model, context: float) -> float:
    """Mean tokens a layer attends to at `context`: sliding windows and sparse selectors see fewer."""
    attention = model.attention
    if isinstance(attention, Gqa) and attention.window and attention.window_layers:
        part = attention.window_layers / model.layers
        return part * min(context, attention.window) + (1 - part) * context
    if isinstance(attention, Mla) and attention.indexer and attention.indexer.topk:
        ix = attention.indexer
        # The selector looks at every token with its own small heads; the real attention only at the chosen ones.
        small = ix.heads * ix.dim / (attention.heads * (attention.kv_width + attention.kv_lora))
        return min(context, ix.topk) + small * context
    return context


def pair_flops(model: Model, heads: float, *, prompt: bool) -> float:
    """Operations for one query token against one cached token, all layers, with `heads` query heads."""
    attention = model.attention
    if isinstance(attention, Mla):
        # Against the cache MLA works on the latent itself; a prompt is expanded to ordinary heads first.
        width = attention.nope + attention.rope + attention.v if prompt else attention.kv_width + attention.kv_lora
    else:
        width = 2 * attention.head_dim
    return 2.0 * heads * width * model.layers
