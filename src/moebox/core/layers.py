"""Kinds of attention layer. A model's stack is a list of them, so a hybrid model is not a special case.

Every kind answers the same questions: how many weights it has and which of them tensor parallelism must copy, what it
keeps of a context, what one query reads of that, and what the reading costs in operations. An *entry* is what a layer
caches for one token, or for several where it compresses.
"""

from dataclasses import dataclass

from moebox.core.layer_kind import Indexer, LayerKind


class LayerBase:
    """What most kinds answer; each says where it differs."""

    __slots__ = ()
    indexer: Indexer | None = None

    @property
    def entries_per_token(self) -> float:
        """Every token is kept."""
        return 1.0

    @property
    def shared_cache(self) -> bool:
        """Each group of heads has its own."""
        return False

    @property
    def index_width(self) -> float:
        """The selector's key, where there is one."""
        return self.indexer.key_width if self.indexer else 0

    def window_entries(self) -> int:
        """No window."""
        return 0

    def state_bytes(self, tp: int) -> int:
        """No state."""
        return 0

    def entries_read(self, context: float) -> float:
        """All of it, or what the selector chooses."""
        return self.entries_selected(context)

    def entries_selected(self, entries: float) -> float:
        """Entries that are read of so many."""
        return min(entries, self.indexer.topk) if self.indexer and self.indexer.topk else entries

    def index_flops(self, context: float) -> float:
        """Every entry's key against the selector's heads."""
        return self.indexer.query_flops(context) if self.indexer else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Mla(LayerBase):
    """Multi-head latent attention: one compressed latent per token, shared by all heads."""

    heads: int
    q_lora: int  # 0: queries are not compressed
    kv_lora: int
    nope: int
    rope: int
    v: int
    output_gate: bool = False  # Kimi K3: a gate as wide as the output, from the hidden state
    indexer: Indexer | None = None
    whole_heads: bool = False  # a GGUF with keys and values in one matrix: llama.cpp caches every head's of them

    @property
    def heads_width(self) -> int:
        """Elements of a token's keys and values in all heads: what the latent stands for."""
        return self.heads * (self.nope + self.rope + self.v)

    @property
    def kv_width(self) -> int:
        """Cached elements per token and layer."""
        return self.kv_lora + self.rope

    @property
    def shared_cache(self) -> bool:
        """One latent for all heads."""
        return True

    def parameters(self, hidden: int) -> int:
        """Weights of one layer, its two inner norms included."""
        qk = self.nope + self.rope
        query = hidden * self.q_lora + self.q_lora + self.q_lora * self.heads * qk
        if not self.q_lora:
            query = hidden * self.heads * qk
        latent = hidden * self.kv_width + self.kv_lora + self.kv_lora * self.heads * (self.nope + self.v)
        gate = hidden * self.heads * self.v * self.output_gate
        return query + latent + gate + self.heads * self.v * hidden + self._indexer(hidden)

    def replicated_parameters(self, hidden: int, tp: int) -> float:
        """The down projections and the indexer are whole on every rank."""
        return hidden * (self.q_lora + self.kv_width) + self.q_lora + self.kv_lora + self._indexer(hidden)

    def _indexer(self, hidden: int) -> int:
        ix = self.indexer
        if ix is None or ix.shared:
            return 0
        return self.q_lora * ix.heads * ix.dim + hidden * ix.dim + hidden * ix.heads + 2 * ix.dim

    def entry_width(self, tp: int) -> float:
        """The latent, the same on every rank."""
        return self.kv_width

    def pair_flops(self, heads: float, *, prompt: bool) -> float:
        """Against the cache MLA works on the latent itself; a prompt is expanded to ordinary heads first."""
        width = self.nope + self.rope + self.v if prompt else self.kv_width + self.kv_lora
        return 2.0 * heads * width


@dataclass(frozen=True, slots=True, kw_only=True)
class Gqa(LayerBase):
    """Grouped-query attention: keys and values per group of heads; with `window` it sees only the last tokens."""

    heads: int
    kv_heads: int
    head_dim: int
    v_dim: int = 0  # of a value, where it differs from a key
    bias: bool = False  # on q, k and v
    output_bias: bool = False
    output_gate: bool = False  # a gate as wide as the queries, from the hidden state (Qwen3.5)
    head_gate: bool = False  # one gate a head (Step 3.5 and later)
    sinks: bool = False
    head_norm: int = 0  # elements of the q and k norms together, where there are any
    window: int = 0  # tokens seen; 0: all
    indexer: Indexer | None = None  # chooses blocks of tokens (MiniMax M3)

    @property
    def norms_all_heads(self) -> bool:
        """Whether the norms of q and k go over all heads, so that ranks of tensor parallelism add up their parts."""
        return self.head_norm > 2 * self.head_dim

    @property
    def value_dim(self) -> int:
        """Elements of a head's value."""
        return self.v_dim or self.head_dim

    @property
    def kv_width(self) -> int:
        """Cached elements per token and layer, all heads."""
        return self.kv_heads * (self.head_dim + self.value_dim)

    @property
    def entries_per_token(self) -> float:
        """Every token is kept, unless there is a window."""
        return 0.0 if self.window else 1.0

    def parameters(self, hidden: int) -> int:
        """Weights of one layer, its norms of q and k included."""
        q, k, v = self.heads * self.head_dim, self.kv_heads * self.head_dim, self.kv_heads * self.value_dim
        out = self.heads * self.value_dim
        total = hidden * (q + k + v) + out * hidden + self.head_norm
        total += (q + k + v) * self.bias + hidden * self.output_bias + self.heads * self.sinks
        total += hidden * q * self.output_gate + hidden * self.heads * self.head_gate
        return total + self._indexer(hidden)

    def replicated_parameters(self, hidden: int, tp: int) -> float:
        """Ranks beyond the KV heads hold copies: each has one whole head where an even cut would give less."""
        whole = float(self._indexer(hidden))
        if tp <= self.kv_heads:
            return whole
        cut = hidden * self.kv_width
        return whole + cut * (1 / self.kv_heads - 1 / tp) / (1 - 1 / tp)

    def _indexer(self, hidden: int) -> int:
        ix = self.indexer
        return hidden * ix.dim * (ix.heads + 1) + 2 * ix.dim if ix and not ix.shared else 0

    def entry_width(self, tp: int) -> float:
        """Keys and values of the rank's heads: at least one."""
        return max(1, -(-self.kv_heads // tp)) * (self.head_dim + self.value_dim)

    def window_entries(self) -> int:
        """The window."""
        return self.window

    def entries_read(self, context: float) -> float:
        """All, the window, or the blocks the selector chooses."""
        return min(context, self.window) if self.window else self.entries_selected(context)

    def pair_flops(self, heads: float, *, prompt: bool) -> float:
        """One product with the key, one with the value."""
        return 2.0 * heads * (self.head_dim + self.value_dim)


@dataclass(frozen=True, slots=True, kw_only=True)
class Linear(LayerBase):
    """Linear attention with a recurrent state: gated delta net (Qwen3.5), or Kimi's with `channel_decay`.

    Sources: Qwen3-Next and Kimi-Linear modelling code; the state is kept in float32 (`mamba_ssm_dtype`).
    """

    heads: int  # value heads
    key_heads: int
    key_dim: int
    value_dim: int
    conv: int = 4  # taps of the short convolution
    channel_decay: bool = False  # a decay for each channel, from a low-rank projection
    full_gate: bool = True  # the output gate is a full projection, not a low-rank one

    @property
    def entries_per_token(self) -> float:
        """Nothing grows."""
        return 0.0

    @property
    def _mixed(self) -> int:
        """Channels through the convolution: queries, keys and values."""
        return 2 * self.key_heads * self.key_dim + self.heads * self.value_dim

    def parameters(self, hidden: int) -> int:
        """Projections, convolution, decay, gate, norm and output."""
        values = self.heads * self.value_dim
        total = hidden * self._mixed + self.conv * self._mixed + self.value_dim + values * hidden
        total += hidden * values if self.full_gate else hidden * self.value_dim + self.value_dim * values
        if self.channel_decay:
            channels = self.heads * self.key_dim
            return total + hidden * self.key_dim + self.key_dim * channels + hidden * self.heads + channels + self.heads
        return total + 2 * hidden * self.heads + 2 * self.heads

    def replicated_parameters(self, hidden: int, tp: int) -> float:
        """Only the low-rank halves of decay and gate."""
        decay = hidden * self.key_dim if self.channel_decay else 0
        return decay + (0 if self.full_gate else hidden * self.value_dim)

    def entry_width(self, tp: int) -> float:
        """No entries."""
        return 0

    def state_bytes(self, tp: int) -> int:
        """The state in float32 and the convolution's last inputs in bf16."""
        state = self.heads * self.key_dim * self.value_dim * 4
        return (state + (self.conv - 1) * self._mixed * 2) // tp

    def entries_read(self, context: float) -> float:
        """One step of the recurrence, whatever the context."""
        return 1.0

    def pair_flops(self, heads: float, *, prompt: bool) -> float:
        """Decay, update and read of a key × value state."""
        return 6.0 * heads * self.key_dim * self.value_dim


@dataclass(frozen=True, slots=True, kw_only=True)
class Compressed(LayerBase):
    """DeepSeek V4: a window of whole entries and, with `ratio`, one entry for that many tokens before it.

    Keys and values are one vector shared by all heads. Source: DeepSeek-V4's inference code and config.json.
    """

    heads: int
    head_dim: int
    q_lora: int
    o_lora: int
    o_groups: int
    window: int
    ratio: int = 0  # tokens an entry stands for; 0: the window is all there is
    indexer: Indexer | None = None  # chooses among the compressed entries

    @property
    def entries_per_token(self) -> float:
        """One entry for `ratio` tokens."""
        return 1 / self.ratio if self.ratio else 0.0

    @property
    def shared_cache(self) -> bool:
        """One vector for all heads."""
        return True

    def parameters(self, hidden: int) -> int:
        """Low-rank queries, the shared vector, grouped low-rank output, sinks, compressor and selector."""
        wide = self.heads * self.head_dim
        query = hidden * self.q_lora + self.q_lora + self.q_lora * wide
        out = wide * self.o_lora + self.o_groups * self.o_lora * hidden
        return query + hidden * self.head_dim + self.head_dim + out + self.heads + self._compressing(hidden)

    def _compressing(self, hidden: int) -> int:
        """The compressor (twice as wide where entries overlap, at ratio 4) and the indexer with its own."""
        if not self.ratio:
            return 0
        overlap = 2 if self.ratio == 4 else 1
        total = (2 * hidden + self.ratio) * overlap * self.head_dim + self.head_dim
        if self.indexer:
            ix = self.indexer
            total += self.q_lora * ix.heads * ix.dim + hidden * ix.heads
            total += (2 * hidden + self.ratio) * overlap * ix.dim + ix.dim
        return total

    def replicated_parameters(self, hidden: int, tp: int) -> float:
        """Down projections, compressor and selector."""
        return hidden * (self.q_lora + self.head_dim) + self._compressing(hidden)

    def entry_width(self, tp: int) -> float:
        """The shared vector."""
        return self.head_dim

    def window_entries(self) -> int:
        """The window."""
        return self.window

    def entries_read(self, context: float) -> float:
        """The window and the compressed entries, or those the selector chooses."""
        return min(context, self.window) + self.entries_selected(self._entries(context))

    def pair_flops(self, heads: float, *, prompt: bool) -> float:
        """The shared vector is key and value."""
        return 4.0 * heads * self.head_dim

    def index_flops(self, context: float) -> float:
        """Every compressed entry's key."""
        return LayerBase.index_flops(self, self._entries(context))

    def _entries(self, context: float) -> float:
        return context / self.ratio if self.ratio else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Layers:
    """So many layers of one kind."""

    count: int
    mla: Mla | None = None
    gqa: Gqa | None = None
    linear: Linear | None = None
    compressed: Compressed | None = None

    @property
    def kind(self) -> LayerKind:
        """Whichever it is."""
        kind = self.mla or self.gqa or self.linear or self.compressed
        assert kind is not None, "layers without a kind"
        return kind
