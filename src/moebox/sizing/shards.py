"""What lies on which GPU under tensor, pipeline and expert parallelism: facts of the architecture, no engine's room.

Tensor parallelism slices projections by head and experts by width. It cannot slice what every head needs whole: the
latent down-projections of MLA, the router, the norms, an indexer; those are copied to every rank.
"""

from collections.abc import Mapping

from moebox.core.model import Checkpoint, Component, Model, Moe
from moebox.core.recipe import Parallel


def stage_layers(layers: int, pp: int) -> tuple[int, ...]:
    """Layers of each stage; what does not divide goes to the later ones but the last (vLLM's get_pp_indices)."""
    sizes = [layers // pp] * pp
    for extra in range(layers % pp):
        sizes[-2 - extra if pp > 1 else 0] += 1
    return tuple(sizes)


def layers_in_stage(model: Model, pp: int, stage: int) -> tuple[int, int]:
    """Layers of one stage without experts, and with them."""
    counts = stage_layers(model.layers, pp)
    here, first = counts[stage], sum(counts[:stage])
    dense = max(0, min(first + here, model.layers - model.moe_layers) - first)
    return dense, here - dense


def replicated_share(model: Model, tp: int) -> float:
    """The part of the attention weights that every rank of `tp` holds whole."""
    hidden, total, whole = model.hidden, 0, 0.0
    for layers in model.stack:
        total += layers.count * layers.kind.parameters(hidden)
        whole += layers.count * layers.kind.replicated_parameters(hidden, tp)
    return whole / total


def dense_per_rank(model: Model, sizes: Mapping[Component, int], tp: int) -> float:
    """Of `sizes` (bytes or parameters of a component), what a rank of `tp` goes through for every token.

    All layers; routed experts, the embedding, a vision tower and prediction layers are not part of it.
    """
    whole = replicated_share(model, tp)
    attention = sizes.get("attention", 0)
    head = sizes.get("lm_head", 0) or (sizes.get("embed", 0) if model.tied else 0)
    cut = attention * (1 - whole) + sizes.get("shared_experts", 0) + sizes.get("dense_ffn", 0) + head
    return cut / tp + attention * whole + sizes.get("router", 0) + sizes.get("norms", 0)


def absorbed_kv_bytes(model: Model, tp: int, layers: int) -> int:
    """Bytes of the second copy of kv_b that the absorbed form of MLA decodes with, in bf16."""
    mla = model.mla
    if mla is None:
        return 0
    latent = sum(each.count for each in model.stack if each.mla) / model.layers
    return round(layers * latent * mla.kv_lora * mla.heads * (mla.nope + mla.v) * 2 / tp)


def weights_per_gpu(
    model: Model, checkpoint: Checkpoint, parallel: Parallel, stage: int, *, vision_share: float
) -> dict[Component, int]:
    """Bytes of each component on one rank of a stage; `vision` is the share of the tower it holds."""
    sizes, tp = checkpoint.bytes_by_component, parallel.tp
    dense, with_experts = layers_in_stage(model, parallel.pp, stage)
    here = dense + with_experts
    part = here / model.layers
    whole = replicated_share(model, tp)
    out: dict[Component, float] = {
        "attention": sizes.get("attention", 0) * part * (whole + (1 - whole) / tp) + absorbed_kv_bytes(model, tp, here),
        "router": sizes.get("router", 0) * part,
        "norms": sizes.get("norms", 0) * part,
        "embed": sizes.get("embed", 0) / tp if stage == 0 or (model.tied and stage == parallel.pp - 1) else 0,
        "lm_head": sizes.get("lm_head", 0) / tp if stage == parallel.pp - 1 else 0,
        "vision": sizes.get("vision", 0) * vision_share if stage == 0 else 0,
    }
    out["dense_ffn"] = sizes.get("dense_ffn", 0) * dense / max(model.layers - model.moe_layers, 1) / tp
    if model.moe:
        share = with_experts / model.moe_layers
        out["routed_experts"] = sizes.get("routed_experts", 0) * share * expert_share(model, parallel)
        out["shared_experts"] = sizes.get("shared_experts", 0) * share / tp
    return {name: round(size) for name, size in out.items() if size}


def expert_share(model: Model, parallel: Parallel) -> float:
    """The part of a layer's routed experts on one rank: a slice of each, or whole ones under expert parallelism."""
    ranks = parallel.tp * parallel.dp
    assert model.moe is not None
    return -(-model.moe.experts // ranks) / model.moe.experts if parallel.ep else 1 / ranks


def invalid_layout(model: Model, parallel: Parallel, group: int = 1) -> str:
    """Why the model cannot be cut this way, or ""; `group` is the quantisation's group along an expert's width."""
    tp, heads = parallel.tp, model.attention.heads
    if heads % tp:
        return f"{heads} attention heads do not divide by TP{tp}"
    if model.gqa and model.gqa.kv_heads % tp and tp % model.gqa.kv_heads:
        return f"{model.gqa.kv_heads} KV heads and TP{tp} do not divide each other"
    if parallel.pp > model.layers:
        return f"{model.layers} layers do not fill {parallel.pp} stages"
    uncut = _experts_why_not(model.moe, parallel, group) if model.moe else ""
    return uncut or invalid_dcp(model, parallel)


def _experts_why_not(moe: Moe, parallel: Parallel, group: int) -> str:
    """Why a layer's experts cannot be divided over the ranks, whole ones or slices of each, or ""."""
    ranks = parallel.tp * parallel.dp
    if parallel.ep:
        return f"{moe.experts} experts do not divide by EP{ranks}" if moe.experts % ranks else ""
    if moe.intermediate % (ranks * group) == 0:
        return ""
    name = f"TP{parallel.tp}" if parallel.dp == 1 else f"TP{parallel.tp}×DP{parallel.dp}"
    return f"an expert's width of {moe.intermediate} does not divide by {name} in groups of {group}"


def invalid_dcp(model: Model, parallel: Parallel) -> str:
    """Why decode context parallelism of this size cannot be, or ""."""
    dcp, tp = parallel.dcp, parallel.tp
    if dcp == 1:
        return ""
    if tp % dcp:
        return f"DCP{dcp} does not divide TP{tp}"
    copies = tp if model.attention.shared_cache else tp // min(tp, model.gqa.kv_heads if model.gqa else tp)
    return "" if dcp <= copies else f"DCP{dcp} needs that many copies of the cache; TP{tp} holds {copies}"
