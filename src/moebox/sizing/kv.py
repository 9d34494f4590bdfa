"""What one token of cache costs on one card.

MLA keeps one latent for all heads, so tensor parallelism cannot split it: eight ranks hold eight copies, which decode
context parallelism then divides by tokens. Grouped-query attention splits by KV head until each rank has one.
"""

from moebox.core.model import KV_BYTES, Model
from moebox.core.recipe import Recipe
from moebox.errors import BadInput, suggest

AUTO = {"vllm": "bf16", "sglang": "bf16", "llama.cpp": "f16", "ik_llama.cpp": "f16"}
# vLLM's fp8 form of a sparse-attention latent: 512 fp8, 64 bf16 and four fp32 scales (kv_cache_interface.py).
SPARSE_FP8 = 656
INDEX_SCALE = 4  # bytes beside an indexer key's fp8 elements (vLLM and SGLang alike)


def kv_type(recipe: Recipe) -> str:
    """The cache type a recipe means."""
    name = AUTO[recipe.engine] if recipe.kv in ("", "auto") else recipe.kv
    if name not in KV_BYTES:
        raise BadInput(f"unknown KV cache type {name!r}", hint=suggest(name, KV_BYTES))
    return name


def token_bytes(model: Model, recipe: Recipe, layers: int | None = None) -> int:
    """Bytes one token costs on one card, over `layers` (all of them unless said)."""
    here = model.layers if layers is None else layers
    return round(_full_layers(model, here) * layer_bytes(model, recipe) + _indexers(model, here) * _index_bytes(model))


def layer_bytes(model: Model, recipe: Recipe) -> float:
    """Bytes one token costs in one full-attention layer on one card."""
    kind = kv_type(recipe)
    if model.mla:
        if model.mla.indexer and kind == "fp8" and recipe.engine == "vllm":
            return SPARSE_FP8
        return _latent_columns(model, recipe) * KV_BYTES[kind]
    assert model.gqa is not None
    split = recipe.parallel.tp if recipe.engine in ("vllm", "sglang") else 1
    heads = max(1, -(-model.gqa.kv_heads // split))
    return 2 * heads * model.gqa.head_dim * KV_BYTES[kind]


def window_bytes(model: Model, recipe: Recipe, sequences: int) -> int:
    """Bytes that sliding-window layers keep for `sequences`, however long those are."""
    gqa = model.gqa
    if gqa is None or not gqa.window_layers:
        return 0
    return round(sequences * gqa.window * gqa.window_layers * layer_bytes(model, recipe))


def _full_layers(model: Model, layers: int) -> float:
    """Of `layers`, those that keep the whole context."""
    if model.gqa and model.gqa.window_layers:
        return layers * (model.layers - model.gqa.window_layers) / model.layers
    return layers


def _latent_columns(model: Model, recipe: Recipe) -> int:
    """Cached elements a layer under MLA; ik_llama.cpp's -mla 0 keeps every head's keys and values instead."""
    mla = model.mla
    assert mla is not None
    mode = recipe.hybrid.mla if recipe.hybrid and recipe.engine == "ik_llama.cpp" else None
    if mode == 0:
        return mla.heads * (mla.nope + mla.rope + mla.v)
    return mla.kv_width


def _indexers(model: Model, layers: int) -> float:
    indexer = model.mla.indexer if model.mla else None
    if indexer is None:
        return 0
    return layers * (indexer.layers or model.layers) / model.layers


def _index_bytes(model: Model) -> int:
    indexer = model.mla.indexer if model.mla else None
    return indexer.dim + INDEX_SCALE if indexer else 0
