"""What a context costs in cache on one GPU: entries that grow with it, windows and states that do not.

MLA keeps one latent for all heads, so tensor parallelism cannot split it: eight ranks hold eight copies, which decode
context parallelism then divides by tokens. Grouped-query attention splits by KV head until each rank has one. The speed
model asks here too: what is held is what is read.
"""

from moebox.core import registry
from moebox.core.layer_kind import LayerKind
from moebox.core.layers import Compressed, Mla
from moebox.core.model import KV_BYTES, Model
from moebox.core.recipe import Recipe
from moebox.errors import BadInput, suggest_names

# vLLM's fp8 form of a sparse-attention latent: 512 fp8, 64 bf16 and four fp32 scales (kv_cache_interface.py).
SPARSE_FP8_BYTES = 656
# The fp8 form of a DeepSeek V4 entry: 448 fp8, 64 bf16 and eight scales of one byte (the same file; SGLang's
# deepseek_v4_memory_pool.py has the same).
COMPRESSED_FP8_BYTES = 584
INDEX_SCALE_BYTES = 4  # bytes beside an indexer key's fp8 elements (vLLM and SGLang alike)


def kv_type(recipe: Recipe) -> str:
    """The cache type a recipe means."""
    name = registry.engine_traits(recipe.engine).kv_auto if recipe.kv in ("", "auto") else recipe.kv
    if name not in KV_BYTES:
        raise BadInput(f"unknown KV cache type {name!r}", hint=suggest_names(name, KV_BYTES))
    return name


def entry_bytes(kind: LayerKind, recipe: Recipe) -> float:
    """Bytes of one cached entry of one layer on one rank."""
    name = kv_type(recipe)
    if name == "fp8" and isinstance(kind, Compressed):
        return COMPRESSED_FP8_BYTES
    if name == "fp8" and _packed(kind, recipe):
        return SPARSE_FP8_BYTES
    if isinstance(kind, Mla) and keeps_all_heads(kind, recipe):
        return kind.heads_width * KV_BYTES[name]
    tp = recipe.parallel.tp  # 1 for engines that cut no heads
    return kind.entry_width(tp) * KV_BYTES[name]


def _packed(kind: LayerKind, recipe: Recipe) -> bool:
    """Whether the engine has a form of its own for a latent that a selector chooses from."""
    return (
        registry.engine_traits(recipe.engine).packs_sparse_latent and isinstance(kind, Mla) and kind.indexer is not None
    )


def index_bytes(kind: LayerKind) -> float:
    """Bytes of selector keys that one token costs in one layer, the same on every rank."""
    return (kind.index_width + INDEX_SCALE_BYTES) * kind.entries_per_token if kind.index_width else 0.0


def token_bytes(model: Model, recipe: Recipe, layers: int | None = None) -> int:
    """Bytes one more token costs on one GPU that holds it, over `layers` of the stack (all of them unless said)."""
    total = sum(each.count * _growing(each.kind, recipe) for each in model.stack)
    return round(total * _part(model, layers))


def layer_bytes(model: Model, recipe: Recipe) -> float:
    """Bytes one token costs in one layer of the kind that keeps the whole context."""
    return entry_bytes(model.attention, recipe)


def sequence_bytes(model: Model, recipe: Recipe, layers: int | None = None) -> int:
    """Bytes of one sequence that do not grow with it: windows and recurrent states."""
    tp = recipe.parallel.tp
    total = 0.0
    for each in model.stack:
        kept = each.kind.window_entries() * entry_bytes(each.kind, recipe)
        total += each.count * (kept + each.kind.state_bytes(tp))
    return round(total * _part(model, layers))


def window_bytes(model: Model, recipe: Recipe, sequences: int, layers: int | None = None) -> int:
    """The same for `sequences` of them."""
    return sequences * sequence_bytes(model, recipe, layers)


def _growing(kind: LayerKind, recipe: Recipe) -> float:
    # Decode context parallelism divides the entries by tokens; a selector needs every token's key on every rank
    # (GLM-5.2 REAP at DCP4 holds 3.4 times the tokens of DCP1, not 4: hermia-ai/glm-5.2-sm120-stock-vllm).
    return kind.entries_per_token * entry_bytes(kind, recipe) + index_bytes(kind) * recipe.parallel.dcp


def _part(model: Model, layers: int | None) -> float:
    return 1.0 if layers is None else layers / model.layers


def keeps_all_heads(kind: Mla, recipe: Recipe) -> bool:
    """Whether every head's keys and values are kept instead of the latent.

    By ik_llama.cpp's -mla 0, and by llama.cpp where the file has them in one matrix, which ik_llama.cpp takes apart.
    """
    if "mla" in registry.engine_traits(recipe.engine).hybrid_fields:
        return recipe.hybrid is not None and recipe.hybrid.mla == 0
    return kind.whole_heads
