"""What a draft model takes beside its target: weights on a GPU, and its own cache per token."""

from moebox.core import catalogue
from moebox.core.model import KV_BYTES, Checkpoint, Model
from moebox.core.recipe import Recipe
from moebox.sizing.kv import entry_bytes, kv_type

# A Llama-style EAGLE3 draft of Kimi keeps 64 KV heads of 128 (vLLM's own message: "total num kv heads 64").
LLAMA_STYLE_WIDTH = 2 * 64 * 128
# DSpark in a checkpoint: 19.85B parameters of DeepSeek V4 Flash 0731, whose layers have 6.6B (its shards 46 to 48).
DSPARK_LAYERS = 3
NATIVE_METHODS = ("mtp", "nextn", "deepseek_mtp")


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
