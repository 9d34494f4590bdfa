"""vLLM's pages for models whose layers cache unlike things: all draw blocks of equal bytes from one pool.

Layers are put into groups of one kind and equal size; a block holds one page of each layer of a group. The engine's
log reports blocks / (blocks of a request of max_model_len) × max_model_len as "GPU KV cache size", so states and
windows, which do not grow with the context, make the figure smaller the shorter the requests are.

Sources (vLLM 0.32.0, equal in 0.26.0): v1/core/kv_cache_utils.py:1195-1228 and :1292-1450 (groups, report),
v1/kv_cache_interface.py:850-900 and :1035-1100 (pages of a request), platforms/interface.py:950-1110 (block size).
"""

import math
from dataclasses import dataclass

from moebox.core.layers import Compressed, LayerKind, Linear, Mamba
from moebox.core.model import Model
from moebox.core.recipe import Recipe
from moebox.engines.flags import is_at_least
from moebox.sizing.kv import COMPRESSED_FP8_BYTES, entry_bytes
from moebox.sizing.shards import NATIVE_METHODS

BLOCK = 16  # tokens of a block if neither a flag nor a state asks for more; 64 on the FlashMLA path
MLA_ALIGNMENT = 128  # blocks of latent attention beside states are a multiple of it (platforms/interface.py:1075)
COMPRESSED_BLOCK = 256  # tokens of a block of DeepSeek V4, the only size that its kernels take


@dataclass(frozen=True, slots=True, kw_only=True)
class CachePages:
    """How one pipeline stage of a model divides vLLM's pool."""

    block_bytes: float  # one block: a page of each layer of a group
    block_tokens: int  # tokens of full attention in a block
    context_blocks: int  # blocks that `block_tokens` more tokens of context take
    sequence_blocks: float  # blocks of a sequence that do not grow: windows with the steps in flight, and states
    decoding_blocks: float  # of them, those that it keeps while it decodes

    def request_blocks(self, length: int) -> float:
        return math.ceil(length / self.block_tokens) * self.context_blocks + self.sequence_blocks


@dataclass(frozen=True, slots=True)
class FixedPages:
    """Layers of one kind whose part of a request does not grow with it."""

    page: float  # bytes of one layer's page
    layers: float
    blocks: float  # of a request in each group
    decoding: float  # of them, those that it keeps while it decodes


def block_tokens(recipe: Recipe) -> int:
    """Tokens of a cache block: by --block-size, or by default."""
    given = str(recipe.flags.get("block-size") or "")
    return int(given) if given.isdecimal() else BLOCK


def find_cache_pages(model: Model, recipe: Recipe, stage_layers: int, step_tokens: int) -> CachePages | None:
    """Return the pages of a stage, or None if all layers cache the whole context."""
    tp, drafts, share = recipe.parallel.tp, recipe.draft_tokens, stage_layers / model.layers
    if model.has_compressed_cache:
        return _compressed_pages(model, recipe, share, step_tokens)
    full: dict[float, float] = {}  # layers by bytes of a token
    windows: dict[tuple[float, int], float] = {}  # layers by bytes of a token and window
    states: dict[tuple[int, int], float] = {}  # layers by bytes of a state, and states of a request
    for each in model.stack:
        count, size = each.count * share, entry_bytes(each.kind, recipe) + each.kind.index_bytes
        if state := each.kind.state_bytes(tp, drafts):
            key = state, _kept_states(recipe, each.kind) + drafts
            states[key] = states.get(key, 0.0) + count
        elif window := each.kind.window:
            windows[size, window] = windows.get((size, window), 0.0) + count
        elif each.kind.entries_per_token:
            full[size] = full.get(size, 0.0) + count
    if not full or not (windows or states):
        return None
    if recipe.speculate and recipe.speculate.method in NATIVE_METHODS:
        full[max(full)] += 1  # the prediction layer caches as the others do
    token, mla, base = max(full), model.mla, block_tokens(recipe)
    packed = len(full) > 1 or (mla and mla.indexer)  # pages of several sizes lie behind each other in a block
    alignment = max(MLA_ALIGNMENT, base) if mla and states else base
    latent = entry_bytes(mla, recipe) if mla else token
    block = alignment * max(1, math.ceil(max((size for size, _ in states), default=0) / (alignment * latent)))
    page = max(block * latent, *(base * size for size, _ in windows), 0.0)
    block = int(page // latent)
    fixed = [FixedPages(page, count, kept, kept) for (_, kept), count in states.items()]
    for (size, window), count in windows.items():
        # A page that is not a multiple of a layer's own is padded, and holds no more tokens.
        tokens = int(page // size) if page % (base * size) == 0 else base
        fixed.append(_window_pages(recipe, page, count, window, tokens, step_tokens))
    if packed:
        return _pack_pages(sum(block * size * count for size, count in full.items()), block, fixed)
    counts = [full[token], *(each.layers for each in fixed)]
    group = max(1.0, max(counts) if max(counts) < 1.5 * min(counts) else min(counts))
    return _sum_pages(page * group, block, math.ceil(round(full[token] / group, 3)), fixed, [group] * len(fixed))


def _compressed_pages(model: Model, recipe: Recipe, share: float, step_tokens: int) -> CachePages:
    """DeepSeek V4: compressed entries and index keys; windows of whole entries; inputs of the open compression.

    vLLM 0.29.0 to 0.32.0: models/deepseek_v4/attention.py:865 and :911, compressor.py:155-192, sparse_swa.py:124.
    V4.1 (ratios 1 and 2) has one block of open inputs for each request (models/deepseek_v41/compressor.py:161).
    """
    growing, fixed, entry = 0.0, [], entry_bytes(model.attention, recipe)

    def page(size: float) -> int:
        alignment = 576 if entry == COMPRESSED_FP8_BYTES else 512
        return math.ceil(size / alignment) * alignment

    for kind, count in ((each.kind, each.count * share) for each in model.stack):
        assert isinstance(kind, Compressed)
        if not kind.ratio or kind.borrowed:
            continue
        overlap, tokens = (2, 4) if kind.ratio == 4 else (1, 8)
        growing += count * page(COMPRESSED_BLOCK // kind.ratio * entry)
        inputs = page(tokens * 2 * overlap * kind.head_dim * 4)
        if kind.indexer and not kind.indexer.shared:
            growing += count * page(COMPRESSED_BLOCK // kind.ratio * kind.indexer.key_bytes)
            inputs += page(tokens * 2 * overlap * kind.indexer.dim * 4)
        open_inputs = _window_pages(recipe, inputs, count, overlap * kind.ratio, tokens, step_tokens)
        fixed.append(open_inputs if kind.ratio >= 4 else FixedPages(inputs, count, 1, 1))
    window = max(each.kind.window for each in model.stack)
    fixed.append(_window_pages(recipe, page(64 * entry), model.layers * share, window, 64, step_tokens))
    return _pack_pages(growing, COMPRESSED_BLOCK, fixed)


def _pack_pages(growing: float, block_tokens: int, fixed: list[FixedPages]) -> CachePages:
    """Divide layers into groups of as many as a block of the `growing` pages holds."""
    sizes = [float(max(1, growing // each.page)) for each in fixed]
    return _sum_pages(max(growing, *(each.page for each in fixed)), block_tokens, 1, fixed, sizes)


def _sum_pages(size: float, tokens: int, context: int, fixed: list[FixedPages], sizes: list[float]) -> CachePages:
    """Sum up the blocks of `size` bytes; `sizes` are the layers of one group."""
    groups = [math.ceil(round(each.layers / layers, 3)) for each, layers in zip(fixed, sizes, strict=True)]
    return CachePages(
        block_bytes=size,
        block_tokens=tokens,
        context_blocks=context,
        sequence_blocks=sum(number * each.blocks for number, each in zip(groups, fixed, strict=True)),
        decoding_blocks=sum(number * each.decoding for number, each in zip(groups, fixed, strict=True)),
    )


def _window_pages(recipe: Recipe, page: float, layers: float, window: int, tokens: int, step: int) -> FixedPages:
    """A request keeps the window and the steps in flight: two with asynchronous scheduling (config/vllm.py:577)."""
    synchronous = recipe.flags.get("no-async-scheduling") or not is_at_least(recipe, "0.26")
    held = min(window - 1 + (recipe.parallel.pp + (not synchronous)) * step, recipe.context)
    return FixedPages(page, layers, math.ceil(held / tokens) + 1, math.ceil(window / tokens) + 1)


def _kept_states(recipe: Recipe, kind: LayerKind) -> int:
    """Count states of a layer: two with prefix caching, the default since 0.28; one of the prefill since 0.32."""
    if not is_at_least(recipe, "0.28") or recipe.flags.get("no-enable-prefix-caching"):
        return 1  # mamba_mixer2.py:1107, glm5next/common/kda.py:174
    exports = isinstance(kind, Mamba) or (isinstance(kind, Linear) and kind.channel_decay)
    return 3 if exports and is_at_least(recipe, "0.32") else 2
