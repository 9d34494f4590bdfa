"""What a draft model takes beside the target: its weights on a GPU and its own cache a token."""

from moebox.core import catalogue
from moebox.core.model import KV_BYTES, Checkpoint, Model
from moebox.core.recipe import Recipe
from moebox.sizing.kv import kv_type, layer_bytes

# A Llama-style EAGLE3 draft of Kimi keeps 64 KV heads of 128 (vLLM's own message: "total num kv heads 64").
LLAMA_STYLE_WIDTH = 2 * 64 * 128
NATIVE_METHODS = ("mtp", "nextn", "deepseek_mtp")


def draft_name(model: Model, recipe: Recipe) -> str:
    """The draft a recipe means: the one named, else the catalogue's first for the model."""
    assert recipe.speculate is not None
    return recipe.speculate.draft or (model.drafts[0] if model.drafts else "")


def draft_bytes(model: Model, checkpoint: Checkpoint, recipe: Recipe) -> int:
    """Bytes of the draft on one rank: cut by TP, its embedding shared with the target."""
    if recipe.speculate is None or recipe.speculate.method == "ngram":
        return 0
    if recipe.speculate.method in NATIVE_METHODS:
        return _one_layer(model, checkpoint) // recipe.parallel.tp
    table = catalogue.load_table("memory")["draft"]
    size = table.get(draft_name(model, recipe), table["default"])
    shared = model.vocab * model.hidden * 2 if table["shared_embedding"] else 0
    return int(max(size - shared, size // 4) // recipe.parallel.tp)


def draft_token_bytes(model: Model, recipe: Recipe) -> int:
    """Bytes of the draft's own cache a token on one rank; a Llama-style draft is not divided by DCP."""
    if recipe.speculate is None or recipe.speculate.method == "ngram":
        return 0
    if model.mla is None or recipe.speculate.method in NATIVE_METHODS or "mla" in draft_name(model, recipe):
        return round(layer_bytes(model, recipe))
    width = LLAMA_STYLE_WIDTH * KV_BYTES[kv_type(recipe)] / recipe.parallel.tp
    return round(width * recipe.parallel.dcp)


def _one_layer(model: Model, checkpoint: Checkpoint) -> int:
    """A prediction layer is one more MoE layer, in the checkpoint's own types."""
    sizes = checkpoint.bytes_by_component
    if sizes.get("mtp"):
        return sizes["mtp"]
    layer = sizes.get("attention", 0) / model.layers
    if model.moe:
        layer += (sizes.get("routed_experts", 0) + sizes.get("shared_experts", 0)) / max(model.moe_layers, 1)
    return round(layer)
