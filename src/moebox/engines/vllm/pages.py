"""vLLM's pages for models whose layers cache unlike things: all draw blocks of equal bytes from one pool.

Layers are put into groups of one kind and equal size; a block holds one page of each layer of a group. The engine's
log reports blocks / (blocks of a request of max_model_len) × max_model_len as "GPU KV cache size", so states and
windows, which do not grow with the context, make the figure smaller the shorter the requests are.

Sources (vLLM 0.32.0, equal in 0.26.0): v1/core/kv_cache_utils.py:1195-1228 and :1292-1450 (groups, report),
v1/kv_cache_interface.py:850-900 and :1035-1100 (pages of a request), platforms/interface.py:950-1110 (block size).
"""

import math
from dataclasses import dataclass

from moebox.core.layers import Compressed
from moebox.core.model import Model
from moebox.core.recipe import Recipe
from moebox.core.support_matrix import in_versions
from moebox.sizing.drafts import NATIVE_METHODS
from moebox.sizing.kv import entry_bytes

BLOCK = 16  # tokens of a block if no state asks for more
MLA_ALIGNMENT = 128  # blocks of latent attention beside states are a multiple of it (platforms/interface.py:1075)
BATCHES_IN_FLIGHT = 2  # asynchronous scheduling, the default since 0.26, keeps two steps' tokens (config/vllm.py:578)


@dataclass(frozen=True, slots=True, kw_only=True)
class CachePages:
    """How one pipeline stage of a model divides vLLM's pool."""

    block_bytes: float  # one block: a page of each layer of a group
    block_tokens: int  # tokens of full attention in a block
    context_blocks: int  # blocks that `block_tokens` more tokens of context take
    sequence_blocks: float  # blocks of a sequence that do not grow: windows with the steps in flight, and states
    decoding_blocks: float  # of them, those that it keeps while it decodes

    def request_blocks(self, length: int) -> float:
        """Blocks of one request of `length` tokens."""
        return math.ceil(length / self.block_tokens) * self.context_blocks + self.sequence_blocks

    @property
    def sequence_tokens(self) -> int:
        """Tokens of context that take as much room as the fixed part of a sequence that decodes."""
        return round(self.decoding_blocks / self.context_blocks * self.block_tokens)


def find_cache_pages(model: Model, recipe: Recipe, stage_layers: int, step_tokens: int) -> CachePages | None:
    """Return the pages of a stage, or None if all layers cache the whole context or the model compresses its cache."""
    tp, drafts = recipe.parallel.tp, recipe.draft_tokens
    full: dict[float, float] = {}  # layers by bytes of a token
    windows: dict[tuple[float, int], float] = {}  # layers by bytes of a token and window
    states: dict[int, float] = {}  # layers by bytes of a state
    for each in model.stack:
        count = each.count * stage_layers / model.layers
        if isinstance(each.kind, Compressed):
            return None
        if state := each.kind.state_bytes(tp, drafts):
            states[state] = states.get(state, 0.0) + count
        elif window := each.kind.window_entries():
            size = entry_bytes(each.kind, recipe)
            windows[size, window] = windows.get((size, window), 0.0) + count
        elif each.kind.entries_per_token:
            size = entry_bytes(each.kind, recipe) + each.kind.index_bytes
            full[size] = full.get(size, 0.0) + count
    if not full or not (windows or states):
        return None
    if recipe.speculate and recipe.speculate.method in NATIVE_METHODS:
        full[max(full)] += 1  # the prediction layer caches as the others do
    # Prefix caching, the default for these models since 0.28, keeps the state at the last block's end as well.
    kept = 2 if not in_versions(recipe.engine_version or "0.32", "<0.28") else 1
    if recipe.flags.get("no-enable-prefix-caching"):
        kept = 1
    token, mla = max(full), model.mla
    alignment = MLA_ALIGNMENT if mla and states else BLOCK
    block = alignment * max(1, math.ceil(max(states, default=0) / (alignment * token)))
    if len(full) > 1 or (mla and mla.indexer):  # pages of several sizes are packed behind each other
        total = sum(size * count for size, count in full.items())
        state_bytes = sum(size * count for size, count in states.items()) * (kept + drafts)
        window_bytes = sum(
            size * count * _window_tokens(recipe, window, step_tokens) for (size, window), count in windows.items()
        )
        fixed = (state_bytes + window_bytes) / (block * total)
        return CachePages(
            block_bytes=block * total,
            block_tokens=block,
            context_blocks=1,
            sequence_blocks=fixed,
            decoding_blocks=fixed,
        )
    page = max(block * token, *(BLOCK * size for size, _ in windows), 0.0)
    block = int(page // token)
    counts = [*full.values(), *windows.values(), *states.values()]
    fewest, most = min(counts), max(counts)
    group = max(1.0, most if most < 1.5 * fewest else fewest)
    blocks = decoding = 0.0
    for (size, window), count in windows.items():
        tokens, held = int(page // size), _window_tokens(recipe, window, step_tokens)
        blocks += math.ceil(round(count / group, 3)) * (math.ceil(held / tokens) + 1)
        decoding += math.ceil(round(count / group, 3)) * (math.ceil(window / tokens) + 1)
    for count in states.values():
        blocks += math.ceil(round(count / group, 3)) * (kept + drafts)
        decoding += math.ceil(round(count / group, 3)) * (kept + drafts)
    groups = math.ceil(round(full[token] / group, 3))
    return CachePages(
        block_bytes=page * group,
        block_tokens=block,
        context_blocks=groups,
        sequence_blocks=blocks,
        decoding_blocks=decoding,
    )


def _window_tokens(recipe: Recipe, window: int, step_tokens: int) -> int:
    """Tokens that a window layer keeps of a request: the window and the steps in flight, at most the context."""
    batches = BATCHES_IN_FLIGHT if not in_versions(recipe.engine_version or "0.32", "<0.26") else 1
    return min(window - 1 + batches * step_tokens, recipe.context)
