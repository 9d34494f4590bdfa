"""Kinds of layer. A model's stack is a list of them, so a hybrid model is not a special case.

Each kind knows its weights and which of them tensor parallelism must replicate, what it caches of a context, how much
of that one query reads, and the operations of reading it. An *entry* is what a layer caches for one token, or for
several tokens if it compresses.
"""

import functools
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar


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


class LayerKind(ABC):
    """Base of the kinds of layer: what memory and speed need to know, with the most common answers."""

    __slots__ = ()
    heads: int  # query heads, which tensor parallelism divides
    indexer: Indexer | None = None
    window: int = 0  # tokens of which entries are kept; 0: all
    shared_cache: ClassVar[bool] = False  # all heads share one entry: every rank of tensor parallelism holds a copy

    @property
    def entries_per_token(self) -> float:
        """Cached entries that one more token of context adds."""
        return 1.0

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
        """Operations of one query in the indexer, against the keys of the context."""
        ix = self.indexer
        return 2.0 * ix.heads * ix.dim * context / ix.pool if ix and not ix.shared else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Mla(LayerKind):
    """Multi-head latent attention: one compressed latent per token, shared by all heads."""

    heads: int
    q_lora: int  # 0: queries are not compressed
    kv_lora: int
    nope: int
    rope: int
    v: int
    output_gate: bool = False  # Kimi K3: a gate as wide as the output, from the hidden state
    indexer: Indexer | None = None
    whole_heads: bool = False  # a GGUF with keys and values in one matrix: llama.cpp caches those of every head
    shared_cache = True

    @property
    def heads_width(self) -> int:
        """Elements of a token's keys and values in all heads, which the latent replaces."""
        return self.heads * (self.nope + self.rope + self.v)

    @property
    def kv_width(self) -> int:
        """Cached elements per token and layer."""
        return self.kv_lora + self.rope

    def parameters(self, hidden: int) -> int:
        qk = self.nope + self.rope
        query = hidden * self.q_lora + self.q_lora + self.q_lora * self.heads * qk
        if not self.q_lora:
            query = hidden * self.heads * qk
        latent = hidden * self.kv_width + self.kv_lora + self.kv_lora * self.heads * (self.nope + self.v)
        gate = hidden * self.heads * self.v * self.output_gate
        return query + latent + gate + self.heads * self.v * hidden + self._indexer_parameters(hidden)

    def replicated_parameters(self, hidden: int, tp: int) -> float:
        """Every rank holds the down projections and the indexer whole."""
        return hidden * (self.q_lora + self.kv_width) + self.q_lora + self.kv_lora + self._indexer_parameters(hidden)

    def _indexer_parameters(self, hidden: int) -> int:
        ix = self.indexer
        if ix is None or ix.shared:
            return 0
        # Pooled keys have a gate and a position of each pooled token (GLM-5.3-Flash).
        pooling = ix.dim * (hidden + ix.pool) if ix.pool > 1 else 0
        return self.q_lora * ix.heads * ix.dim + hidden * ix.dim + hidden * ix.heads + 2 * ix.dim + pooling

    def entry_width(self, tp: int) -> float:
        return self.kv_width  # the same latent on every rank

    def pair_flops(self, heads: float, *, prompt: bool) -> float:
        """Decoding works on the latent itself; a prompt is expanded to ordinary heads first."""
        width = self.nope + self.rope + self.v if prompt else self.kv_width + self.kv_lora
        return 2.0 * heads * width


@dataclass(frozen=True, slots=True, kw_only=True)
class Gqa(LayerKind):
    """Grouped-query attention: keys and values per group of heads, with `window` only of the last tokens."""

    heads: int
    kv_heads: int
    head_dim: int
    v_dim: int = 0  # of a value, if it differs from a key
    bias: bool = False  # on q, k and v
    output_bias: bool = False
    output_gate: bool = False  # a gate as wide as the queries, from the hidden state (Qwen3.5)
    head_gate: bool = False  # one gate a head (Step 3.5 and later)
    sinks: bool = False
    head_norm: int = 0  # elements of the q and k norms together
    window: int = 0  # tokens; 0: all
    indexer: Indexer | None = None  # selects blocks of tokens (MiniMax M3)

    @property
    def norms_all_heads(self) -> bool:
        """The norms of q and k cover all heads, so that ranks of tensor parallelism must reduce them."""
        return self.head_norm > 2 * self.head_dim

    @property
    def value_dim(self) -> int:
        return self.v_dim or self.head_dim

    @property
    def kv_width(self) -> int:
        """Cached elements per token and layer, all heads."""
        return self.kv_heads * (self.head_dim + self.value_dim)

    @property
    def entries_per_token(self) -> float:
        return 0.0 if self.window else 1.0

    def parameters(self, hidden: int) -> int:
        q, k, v = self.heads * self.head_dim, self.kv_heads * self.head_dim, self.kv_heads * self.value_dim
        total = hidden * (q + k + v) + self.heads * self.value_dim * hidden + self.head_norm
        total += (q + k + v) * self.bias + hidden * self.output_bias + self.heads * self.sinks
        total += hidden * q * self.output_gate + hidden * self.heads * self.head_gate
        return total + self._indexer_parameters(hidden)

    def replicated_parameters(self, hidden: int, tp: int) -> float:
        """With more ranks than KV heads each rank holds one whole head, which is more than its even share."""
        whole = float(self._indexer_parameters(hidden))
        if tp <= self.kv_heads:
            return whole
        return whole + hidden * self.kv_width * (1 / self.kv_heads - 1 / tp) / (1 - 1 / tp)

    def _indexer_parameters(self, hidden: int) -> int:
        ix = self.indexer
        return hidden * ix.dim * (ix.heads + 1) + 2 * ix.dim if ix and not ix.shared else 0

    def entry_width(self, tp: int) -> float:
        """Keys and values of the rank's heads, at least one head."""
        return max(1, -(-self.kv_heads // tp)) * (self.head_dim + self.value_dim)

    def entries_read(self, context: float) -> float:
        return min(context, self.window) if self.window else self.entries_selected(context)

    def pair_flops(self, heads: float, *, prompt: bool) -> float:
        return 2.0 * heads * (self.head_dim + self.value_dim)


class RecurrentLayer(LayerKind):
    """Base of the layers that keep a state of fixed size instead of a cache."""

    __slots__ = ()

    @property
    def entries_per_token(self) -> float:
        return 0.0

    def entries_read(self, context: float) -> float:
        """One step of the recurrence, independent of the context."""
        return 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Linear(RecurrentLayer):
    """Linear attention with a recurrent state: gated delta net (Qwen3.5), or Kimi's with `channel_decay`.

    Sources: Qwen3-Next and Kimi-Linear modelling code; `mamba_ssm_dtype` of the configs is float32.
    """

    heads: int  # value heads
    key_heads: int
    key_dim: int
    value_dim: int
    conv: int = 4  # taps of the short convolution
    channel_decay: bool = False  # a decay for each channel, from a low-rank projection
    full_gate: bool = True  # the output gate is a full projection, not a low-rank one
    bf16_state: bool = False  # configs without `mamba_ssm_dtype` keep the model's type (Qwen3-Next)

    @property
    def _conv_channels(self) -> int:
        """Channels of the convolution: queries, keys and values."""
        return 2 * self.key_heads * self.key_dim + self.heads * self.value_dim

    def parameters(self, hidden: int) -> int:
        values = self.heads * self.value_dim
        total = hidden * self._conv_channels + self.conv * self._conv_channels + self.value_dim + values * hidden
        total += hidden * values if self.full_gate else hidden * self.value_dim + self.value_dim * values
        if self.channel_decay:
            channels = self.heads * self.key_dim
            return total + hidden * self.key_dim + self.key_dim * channels + hidden * self.heads + channels + self.heads
        return total + 2 * hidden * self.heads + 2 * self.heads

    def replicated_parameters(self, hidden: int, tp: int) -> float:
        decay = hidden * self.key_dim if self.channel_decay else 0
        return decay + (0 if self.full_gate else hidden * self.value_dim)

    def state_bytes(self, tp: int, drafts: int = 0) -> int:
        """The state, and the convolution's last inputs in bf16."""
        state = self.heads * self.key_dim * self.value_dim * (2 if self.bf16_state else 4)
        return (state + (self.conv - 1 + drafts) * self._conv_channels * 2) // tp

    def pair_flops(self, heads: float, *, prompt: bool) -> float:
        """Decay, update and read of a key × value state."""
        return 6.0 * heads * self.key_dim * self.value_dim


@dataclass(frozen=True, slots=True, kw_only=True)
class Mamba(RecurrentLayer):
    """Mamba 2: a state-space layer (Nemotron 3). Source: transformers' NemotronH; the state is kept in float32."""

    heads: int
    head_dim: int
    groups: int
    state: int
    conv: int = 4  # taps of the short convolution

    @property
    def _conv_channels(self) -> int:
        return self.heads * self.head_dim + 2 * self.groups * self.state

    def parameters(self, hidden: int) -> int:
        """Input and output projections, convolution with its bias, norm, and three numbers for each head."""
        inner, channels = self.heads * self.head_dim, self._conv_channels
        return hidden * (2 * inner + channels + self.heads) + channels * (self.conv + 1) + 3 * self.heads + inner

    def state_bytes(self, tp: int, drafts: int = 0) -> int:
        """The state in float32 and the convolution's last inputs in bf16."""
        state = self.heads * self.head_dim * self.state * 4
        return (state + (self.conv - 1 + drafts) * self._conv_channels * 2) // tp

    def pair_flops(self, heads: float, *, prompt: bool) -> float:
        return 6.0 * heads * self.head_dim * self.state


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedForward(RecurrentLayer):
    """A layer without attention or state, only with experts or a dense network (Nemotron 3)."""

    heads: int = 0

    def parameters(self, hidden: int) -> int:
        return 0

    def entries_read(self, context: float) -> float:
        return 0.0

    def pair_flops(self, heads: float, *, prompt: bool) -> float:
        return 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Compressed(LayerKind):
    """DeepSeek V4: a window of whole entries and, with `ratio`, compressed entries for the tokens before it.

    Keys and values are one vector shared by all heads. Source: DeepSeek-V4's inference code and config.json.
    """

    heads: int
    head_dim: int
    q_lora: int
    o_lora: int
    o_groups: int
    window: int
    ratio: int = 0  # tokens per compressed entry; 0: only the window
    borrowed: bool = False  # reads the compressed entries of a layer before it (DeepSeek V4.1)
    indexer: Indexer | None = None  # selects compressed entries
    shared_cache = True

    @property
    def entries_per_token(self) -> float:
        return 1 / self.ratio if self.ratio and not self.borrowed else 0.0

    def parameters(self, hidden: int) -> int:
        """Low-rank queries, the shared vector, grouped low-rank output, sinks, compressor and indexer."""
        wide = self.heads * self.head_dim
        query = hidden * self.q_lora + self.q_lora + self.q_lora * wide
        out = wide * self.o_lora + self.o_groups * self.o_lora * hidden
        return query + hidden * self.head_dim + self.head_dim + out + self.heads + self._compressor(hidden)

    def _compressor(self, hidden: int) -> int:
        """The compressor (twice as wide at ratio 4, where entries overlap) and the indexer with its own compressor."""
        if not self.ratio or self.borrowed:
            return 0
        overlap = 2 if self.ratio == 4 else 1
        total = (2 * hidden + self.ratio) * overlap * self.head_dim + self.head_dim
        if self.indexer:
            ix = self.indexer
            total += self.q_lora * ix.heads * ix.dim + hidden * ix.heads
            total += (2 * hidden + self.ratio) * overlap * ix.dim + ix.dim
        return total

    def replicated_parameters(self, hidden: int, tp: int) -> float:
        return hidden * (self.q_lora + self.head_dim) + self._compressor(hidden)

    def entry_width(self, tp: int) -> float:
        return self.head_dim

    def entries_read(self, context: float) -> float:
        """The window and the compressed entries, or those that the indexer selects."""
        return min(context, self.window) + self.entries_selected(self._compressed_entries(context))

    def pair_flops(self, heads: float, *, prompt: bool) -> float:
        return 4.0 * heads * self.head_dim  # the shared vector is key and value

    def index_flops(self, context: float) -> float:
        return LayerKind.index_flops(self, self._compressed_entries(context))

    def _compressed_entries(self, context: float) -> float:
        return context / self.ratio if self.ratio else 0.0


@dataclass(frozen=True, kw_only=True)
class Layers:
    """`count` layers of one kind."""

    count: int
    mla: Mla | None = None
    gqa: Gqa | None = None
    linear: Linear | None = None
    compressed: Compressed | None = None
    mamba: Mamba | None = None
    feed_forward: FeedForward | None = None

    @functools.cached_property
    def kind(self) -> LayerKind:
        kind = self.mla or self.gqa or self.linear or self.compressed or self.mamba or self.feed_forward
        assert kind is not None, "layers without a kind"
        return kind
