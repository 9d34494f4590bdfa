"""The base of all kinds of layer, and the selector of tokens that some have.

Each kind knows its weights and which of them tensor parallelism must replicate, what it caches of a context, how much
of that one query reads, and the operations of reading it. An *entry* is what a layer caches for one token, or for
several tokens if it compresses.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Indexer:
    """A token selector: a small attention beside the real one (DeepSeek sparse attention and similar)."""

    heads: int
    dim: int
    topk: int = 0  # entries that the real attention then reads
    pool: int = 1  # tokens for which it keeps one key (GLM-5.3-Flash and Qwen3.8: 4)
    bf16: bool = False  # keys are kept in bf16 instead of fp8 with a scale
    layers: int = 0  # layers with an indexer of their own; 0: every layer
    shared: bool = False  # uses another layer's selection: no weights or keys of its own

    @property
    def key_bytes(self) -> float:
        """Bytes of keys for one entry of the cache: fp8 with a scale of 4 bytes (vLLM and SGLang), or bf16."""
        return 0.0 if self.shared else (self.dim * 2 if self.bf16 else self.dim + 4) / self.pool

    def query_flops(self, entries: float) -> float:
        """Operations of one query against the keys of `entries`."""
        return 0.0 if self.shared else 2.0 * self.heads * self.dim * entries / self.pool


class LayerKind(ABC):
    """Base of the kinds of layer: what memory and speed need to know, with the most common answers."""

    __slots__ = ()
    heads: int  # query heads, which tensor parallelism divides
    indexer: Indexer | None = None

    @property
    def entries_per_token(self) -> float:
        """Cached entries that one more token of context adds."""
        return 1.0

    @property
    def shared_cache(self) -> bool:
        """All heads share one entry, so that every rank of tensor parallelism holds a copy."""
        return False

    @property
    def index_bytes(self) -> float:
        """Bytes of indexer keys for one token; 0 without an indexer of its own."""
        return self.indexer.key_bytes * self.entries_per_token if self.indexer else 0.0

    @abstractmethod
    def parameters(self, hidden: int) -> int:
        """Weights of one layer, its inner norms included."""

    def replicated_parameters(self, hidden: int, tp: int) -> float:
        """Weights that each of `tp` ranks holds beyond its even share, as the part that is replicated whole."""
        return 0.0

    def entry_width(self, tp: int) -> float:
        """Elements of one entry on a rank of `tp`; 0 for layers that cache none."""
        return 0.0

    def window_entries(self) -> int:
        """Entries of the window; 0 without one."""
        return 0

    def state_bytes(self, tp: int, drafts: int = 0) -> int:
        """Bytes of recurrent state of one sequence on a rank of `tp`; its convolution keeps `drafts` more inputs."""
        return 0

    def entries_read(self, context: float) -> float:
        """Entries that one query reads at `context`."""
        return self.entries_selected(context)

    def entries_selected(self, entries: float) -> float:
        """Entries that are read of `entries`: those that the indexer selects, else all."""
        return min(entries, self.indexer.topk) if self.indexer and self.indexer.topk else entries

    @abstractmethod
    def pair_flops(self, heads: float, *, prompt: bool) -> float:
        """Operations of one query against one entry with `heads` query heads."""

    def index_flops(self, context: float) -> float:
        """Operations of one query in the indexer."""
        return self.indexer.query_flops(context) if self.indexer else 0.0
