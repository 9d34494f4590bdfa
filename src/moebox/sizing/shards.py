"""What is on which GPU under tensor, pipeline and expert parallelism: facts of the architecture, not of an engine.

Tensor parallelism slices projections by head and experts by width. It cannot slice what every head needs whole: the
latent down-projections of MLA, the router, the norms, an indexer. Those are replicated on every rank.
"""

from collections.abc import Mapping

from moebox.core import catalogue
from moebox.core.model import KV_BYTES, Checkpoint, Component, Model
from moebox.core.recipe import Parallel, Recipe
from moebox.sizing.kv import entry_bytes, kv_type

# A Llama-style EAGLE3 draft of Kimi keeps 64 KV heads of 128 (vLLM's own message: "total num kv heads 64").
LLAMA_STYLE_WIDTH = 2 * 64 * 128
# DSpark in a checkpoint: 19.85B parameters of DeepSeek V4 Flash 0731, whose layers have 6.6B (its shards 46 to 48).
DSPARK_LAYERS = 3
NATIVE_METHODS = ("mtp", "nextn", "deepseek_mtp")


def stage_layers(layers: int, pp: int) -> tuple[int, ...]:
    """Layers of each pipeline stage; a remainder goes to the later stages except the last (vLLM's get_pp_indices)."""
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
    """Share of the attention weights that every rank of `tp` holds whole."""
    total = sum(layers.count * layers.kind.parameters(model.hidden) for layers in model.stack)
    return sum(layers.count * layers.kind.replicated_parameters(model.hidden, tp) for layers in model.stack) / total


def dense_per_rank(model: Model, sizes: Mapping[Component, int], tp: int) -> float:
    """Bytes or parameters (`sizes` by component) that one rank of `tp` uses for every token, all layers.

    Routed experts, the embedding, a vision tower and prediction layers are not included.
    """
    whole = replicated_share(model, tp)
    attention = sizes.get("attention", 0)
    head = sizes.get("lm_head", 0) or (sizes.get("embed", 0) if model.tied else 0)
    cut = attention * (1 - whole) + sizes.get("shared_experts", 0) + sizes.get("dense_ffn", 0) + head
    return cut / tp + attention * whole + sizes.get("router", 0) + sizes.get("norms", 0)


def absorbed_kv_bytes(model: Model, tp: int, layers: int) -> int:
    """Bytes of the second copy of kv_b that absorbed MLA decodes with, in bf16."""
    mla = model.mla
    if mla is None:
        return 0
    latent = sum(each.count for each in model.stack if each.mla) / model.layers
    return round(layers * latent * mla.kv_lora * mla.heads * (mla.nope + mla.v) * 2 / tp)


def weights_per_gpu(
    model: Model, checkpoint: Checkpoint, parallel: Parallel, stage: int, *, vision_share: float
) -> dict[Component, int]:
    """Bytes of each component on one rank of a stage; `vision_share` is the part of the vision tower it holds."""
    sizes, tp, last = checkpoint.bytes_by_component, parallel.tp, stage == parallel.pp - 1
    dense, with_experts = layers_in_stage(model, parallel.pp, stage)
    here = dense + with_experts
    part = here / model.layers
    whole = replicated_share(model, tp)
    out: dict[Component, float] = {
        "attention": sizes.get("attention", 0) * part * (whole + (1 - whole) / tp) + absorbed_kv_bytes(model, tp, here),
        "router": sizes.get("router", 0) * part,
        "norms": sizes.get("norms", 0) * part,
        "embed": sizes.get("embed", 0) / tp if stage == 0 or (model.tied and last) else 0,
        "lm_head": sizes.get("lm_head", 0) / tp if last else 0,
        "vision": sizes.get("vision", 0) * vision_share if stage == 0 else 0,
        "dense_ffn": sizes.get("dense_ffn", 0) * dense / max(model.layers - model.moe_layers, 1) / tp,
    }
    if model.moe:
        share = with_experts / model.moe_layers
        out["routed_experts"] = sizes.get("routed_experts", 0) * share * expert_share(model, parallel)
        out["shared_experts"] = sizes.get("shared_experts", 0) * share / tp
    return {name: round(size) for name, size in out.items() if size}


def expert_share(model: Model, parallel: Parallel) -> float:
    """Share of a layer's routed experts on one rank: a slice of each, or whole ones under expert parallelism."""
    ranks = parallel.tp * parallel.dp
    return -(-model.experts // ranks) / model.experts if parallel.ep else 1 / ranks


def draft_bytes(model: Model, checkpoint: Checkpoint, recipe: Recipe) -> int:
    """Bytes of the draft on one rank: divided by TP, its embedding shared with the target."""
    draft, sizes, tp = recipe.speculate, checkpoint.bytes_by_component, recipe.parallel.tp
    if draft is None or draft.method == "ngram":
        return 0
    if draft.method in NATIVE_METHODS or (draft.method == "dspark" and not draft.draft):
        # A prediction layer is one more MoE layer, in the checkpoint's own types.
        layer = sizes.get("attention", 0) / model.layers
        if model.moe:
            layer += (sizes.get("routed_experts", 0) + sizes.get("shared_experts", 0)) / max(model.moe_layers, 1)
        layers = DSPARK_LAYERS if draft.method == "dspark" else 1
        return (sizes.get("mtp") or round(layer * layers)) // tp
    table = catalogue.load_table("memory")["draft"]
    size = table.get(draft.draft or next(iter(model.drafts), ""), table["default"])
    shared = model.vocab * model.hidden * 2 if table["shared_embedding"] else 0
    return int(max(size - shared, size // 4) // tp)


def draft_token_bytes(model: Model, recipe: Recipe) -> int:
    """Cache bytes of the draft per token on one rank; DCP does not divide a Llama-style draft's cache."""
    draft, parallel = recipe.speculate, recipe.parallel
    if draft is None or draft.method == "ngram":
        return 0
    name = draft.draft or next(iter(model.drafts), "")
    if model.mla is None or draft.method in ("dflash", "dspark") or draft.method in NATIVE_METHODS or "mla" in name:
        return round(entry_bytes(model.attention, recipe))
    return round(LLAMA_STYLE_WIDTH * KV_BYTES[kv_type(recipe)] / parallel.tp * parallel.dcp)
