"""What every kind of attention layer answers, and the selector that some of them carry."""

from dataclasses import dataclass
from typing import Protocol


class LayerKind(Protocol):
    """What memory and speed ask of a layer's attention."""

    @property
    def heads(self) -> int:
        """Query heads; tensor parallelism divides them."""

    @property
    def entries_per_token(self) -> float:
        """Cached entries one more token of context adds."""

    @property
    def shared_cache(self) -> bool:
        """Whether all heads share one entry, so that every rank of tensor parallelism holds a copy."""

    @property
    def index_width(self) -> float:
        """Elements of a selector's key for one entry; 0 without a selector of its own."""

    def parameters(self, hidden: int) -> int:
        """Weights of one layer, its inner norms included."""

    def replicated_parameters(self, hidden: int, tp: int) -> float:
        """Weights that each of `tp` ranks holds beyond its even share, as the part that is copied whole."""

    def entry_width(self, tp: int) -> float:
        """Elements of one entry on a rank of `tp`."""

    def window_entries(self) -> int:
        """Entries of a window, however long the context is."""

    def state_bytes(self, tp: int) -> int:
        """Bytes of recurrent state of one sequence on a rank of `tp`."""

    def entries_read(self, context: float) -> float:
        """Entries one query reads at `context`."""

    def pair_flops(self, heads: float, *, prompt: bool) -> float:
        """Operations of one query against one entry with `heads` query heads."""

    def index_flops(self, context: float) -> float:
        """Operations of one query in the selector."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Indexer:
    """A token selector: a small attention beside the real one (DeepSeek sparse attention and its relatives)."""

    heads: int
    dim: int
    topk: int = 0  # entries the real attention then reads
    layers: int = 0  # that have their own; 0: every layer
    shared: bool = False  # takes another layer's choice: neither weights nor keys of its own

    @property
    def key_width(self) -> int:
        """Elements of its key for one entry."""
        return 0 if self.shared else self.dim

    def query_flops(self, entries: float) -> float:
        """Operations of one query against `entries` keys."""
        return 0.0 if self.shared else 2.0 * self.heads * self.dim * entries
