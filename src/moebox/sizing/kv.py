"""Cache bytes on one GPU: entries that grow with the context, windows and recurrent states that do not.

MLA keeps one latent for all heads, so tensor parallelism cannot split it: eight ranks hold eight copies, which decode
context parallelism then divides by tokens. Grouped-query attention splits by KV head until each rank has one. The speed
model uses the same figures: what is held is what is read.
"""

from moebox.core import registry
from moebox.core.layers import Compressed, LayerKind, Mla
from moebox.core.model import KV_BYTES, Model
from moebox.core.recipe import Recipe
from moebox.errors import BadInput, suggest_names

# vLLM's fp8 format of a sparse-attention latent: 512 fp8, 64 bf16 and four fp32 scales (kv_cache_interface.py).
SPARSE_FP8_BYTES = 656
# The fp8 format of a DeepSeek V4 entry: 448 fp8, 64 bf16 and eight scales of one byte (the same file; SGLang's
# deepseek_v4_memory_pool.py agrees).
COMPRESSED_FP8_BYTES = 584


def kv_type(recipe: Recipe) -> str:
    """Return the recipe's cache type, with "auto" resolved."""
    name = registry.engine_traits(recipe.engine).kv_auto if recipe.kv in ("", "auto") else recipe.kv
    if name not in KV_BYTES:
        raise BadInput(f"unknown KV cache type {name!r}", hint=suggest_names(name, KV_BYTES))
    return name


def entry_bytes(kind: LayerKind, recipe: Recipe) -> float:
    """Bytes of one cached entry of one layer on one rank."""
    name = kv_type(recipe)
    if name == "fp8" and isinstance(kind, Compressed):
        return COMPRESSED_FP8_BYTES
    if isinstance(kind, Mla):
        if name == "fp8" and kind.indexer and registry.engine_traits(recipe.engine).packs_sparse_latent:
            return SPARSE_FP8_BYTES
        if keeps_all_heads(kind, recipe):
            return kind.heads_width * KV_BYTES[name]
    return kind.entry_width(recipe.parallel.tp) * KV_BYTES[name]  # tp is 1 for engines that do not split heads


def token_bytes(model: Model, recipe: Recipe, layers: int | None = None) -> int:
    """Bytes of one more token on a GPU that holds it, over `layers` of the stack (default: all)."""
    # Decode context parallelism divides the entries by tokens; an indexer needs every token's key on every rank
    # (GLM-5.2 REAP at DCP4 holds 3.4 times the tokens of DCP1, not 4: hermia-ai/glm-5.2-sm120-stock-vllm).
    total = sum(
        each.count
        * (each.kind.entries_per_token * entry_bytes(each.kind, recipe) + each.kind.index_bytes * recipe.parallel.dcp)
        for each in model.stack
    )
    return round(total * (1.0 if layers is None else layers / model.layers))


def tier_token_bytes(model: Model, recipe: Recipe) -> int:
    """Bytes of one token of all ranks that hold it, as a tier in RAM or on disk keeps it."""
    return max(token_bytes(model, recipe) * max(recipe.parallel.tp // recipe.parallel.dcp, 1), 1)


def sequence_bytes(model: Model, recipe: Recipe) -> int:
    """Bytes of one sequence that do not grow with it: windows and recurrent states."""
    total = 0.0
    for each in model.stack:
        window = each.kind.window * entry_bytes(each.kind, recipe)
        total += each.count * (window + each.kind.state_bytes(recipe.parallel.tp))
    return round(total)


def keeps_all_heads(kind: Mla, recipe: Recipe) -> bool:
    """True if the cache holds the keys and values of every head instead of the latent.

    This is ik_llama.cpp's -mla 0, and llama.cpp if the file has them in one matrix, which ik_llama.cpp splits.
    """
    if registry.engine_traits(recipe.engine).mla_modes:
        return recipe.hybrid is not None and recipe.hybrid.mla == 0
    return kind.whole_heads
