"""What a model is: its shape, its parameters by component, and the forms it comes in.

Everything derived is a property, computed from the shape; `parameters` of a Model never disagrees with it.
"""

from dataclasses import dataclass, field
from typing import Literal, get_args

Component = Literal[
    "embed",
    "lm_head",
    "attention",
    "dense_ffn",
    "routed_experts",
    "shared_experts",
    "router",
    "norms",
    "vision",
    "mtp",
]
COMPONENTS: tuple[Component, ...] = get_args(Component)
KvType = Literal["fp8", "bf16", "f16", "q8_0", "q4_0"]

# Bytes per cached element. llama.cpp's block types carry a scale: q8_0 is 34 bytes for 32 elements,
# q4_0 is 18 for 32 (ggml-common.h).
KV_BYTES: dict[str, float] = {"fp8": 1.0, "bf16": 2.0, "f16": 2.0, "q8_0": 34 / 32, "q4_0": 18 / 32}


@dataclass(frozen=True, slots=True, kw_only=True)
class Indexer:
    """DeepSeek sparse attention's token selector: a small attention beside the real one."""

    heads: int
    dim: int
    topk: int = 0
    layers: int = 0  # that have their own; 0: every layer


@dataclass(frozen=True, slots=True, kw_only=True)
class Mla:
    """Multi-head latent attention: one compressed latent per token, shared by all heads."""

    heads: int
    q_lora: int  # 0: queries are not compressed
    kv_lora: int
    nope: int
    rope: int
    v: int
    indexer: Indexer | None = None

    @property
    def kv_width(self) -> int:
        """Cached elements per token and layer."""
        return self.kv_lora + self.rope

    def parameters(self, hidden: int) -> int:
        """Weights of one layer, its two inner norms included."""
        qk = self.nope + self.rope
        query = hidden * self.q_lora + self.q_lora + self.q_lora * self.heads * qk
        if not self.q_lora:
            query = hidden * self.heads * qk
        latent = hidden * self.kv_width + self.kv_lora + self.kv_lora * self.heads * (self.nope + self.v)
        total = query + latent + self.heads * self.v * hidden
        if self.indexer:
            ix = self.indexer
            total += self.q_lora * ix.heads * ix.dim + hidden * ix.dim + hidden * ix.heads + 2 * ix.dim
        return total


@dataclass(frozen=True, slots=True, kw_only=True)
class Gqa:
    """Grouped-query attention: keys and values per group of heads."""

    heads: int
    kv_heads: int
    head_dim: int
    bias: bool = False  # on q, k and v
    output_bias: bool = False
    sinks: bool = False
    head_norm: int = 0  # elements of the q and k norms together, where there are any
    window: int = 0  # tokens seen by sliding-window layers
    window_layers: int = 0

    @property
    def kv_width(self) -> int:
        """Cached elements per token and layer (full-attention layers)."""
        return 2 * self.kv_heads * self.head_dim

    def parameters(self, hidden: int) -> int:
        """Weights of one layer, its norms of q and k included."""
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        total = hidden * (q + 2 * kv) + q * hidden + self.head_norm
        total += (q + 2 * kv) * self.bias + hidden * self.output_bias + self.heads * self.sinks
        return total


@dataclass(frozen=True, slots=True, kw_only=True)
class Moe:
    """The feed-forward side: routed and shared experts."""

    experts: int
    used: int
    intermediate: int
    shared: int = 0
    shared_intermediate: int = 0  # of all shared experts together; 0: shared × intermediate
    bias: bool = False  # experts and router carry biases (gpt-oss)
    router_bias: bool = True  # e_score_correction_bias

    @property
    def shared_width(self) -> int:
        """Intermediate size of the shared experts together."""
        return self.shared_intermediate or self.shared * self.intermediate


@dataclass(frozen=True, slots=True, kw_only=True)
class Licence:
    """What the weights may be used for."""

    name: str
    limits: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """An architecture with its numbers."""

    name: str
    title: str
    architecture: str  # as config.json names it
    hidden: int
    layers: int
    dense_layers: int = 0  # the first ones, without experts
    dense_intermediate: int = 0
    vocab: int
    tied: bool = False  # lm_head is the embedding
    context: int
    mla: Mla | None = None  # one of these two
    gqa: Gqa | None = None
    moe: Moe | None = None
    vision: int = 0  # parameters of the vision tower and its projector
    mtp_layers: int = 0  # extra prediction layers a checkpoint carries; not counted in `total`
    licence: Licence = Licence(name="unknown")
    released: str = ""
    repo: str = ""
    drafts: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    trust_remote_code: bool = False  # on the allow-list of models whose own code engines may run
    tool_parser: str = ""
    reasoning_parser: str = ""
    source: str = ""
    counted: dict[Component, int] = field(default_factory=dict)  # from real headers, where read; wins over the formula

    @property
    def attention(self) -> Mla | Gqa:
        """Whichever kind the model has."""
        kind = self.mla or self.gqa
        assert kind is not None, f"{self.name} has no attention"
        return kind

    @property
    def moe_layers(self) -> int:
        """Layers with experts."""
        return self.layers - self.dense_layers if self.moe else 0

    @property
    def expert_parameters(self) -> int:
        """Weights of one routed expert (gate, up, down)."""
        if not self.moe:
            return 0
        bias = 2 * self.moe.intermediate + self.hidden if self.moe.bias else 0
        return 3 * self.hidden * self.moe.intermediate + bias

    @property
    def by_component(self) -> dict[Component, int]:
        """Parameters of each component that the model has."""
        if self.counted:
            return dict(self.counted)
        moe, per_layer = self.moe, self.attention.parameters(self.hidden)
        dense = self.dense_layers if moe else self.layers
        parts: dict[Component, int] = {
            "embed": self.vocab * self.hidden,
            "lm_head": 0 if self.tied else self.vocab * self.hidden,
            "attention": self.layers * per_layer,
            "dense_ffn": dense * 3 * self.hidden * self.dense_intermediate,
            "norms": (2 * self.layers + 1) * self.hidden,
            "vision": self.vision,
        }
        if moe:
            parts["routed_experts"] = self.moe_layers * moe.experts * self.expert_parameters
            parts["shared_experts"] = self.moe_layers * 3 * self.hidden * moe.shared_width
            bias = moe.experts if moe.router_bias or moe.bias else 0
            parts["router"] = self.moe_layers * (self.hidden * moe.experts + bias)
        return {name: parts[name] for name in COMPONENTS if parts.get(name)}

    @property
    def total(self) -> int:
        """All parameters."""
        return sum(self.by_component.values())

    @property
    def text_total(self) -> int:
        """All parameters of the text core."""
        return self.total - self.by_component.get("vision", 0)

    @property
    def active(self) -> int:
        """Parameters one token passes through: the used experts, lm_head in, embedding out."""
        parts = self.by_component
        idle = parts.get("embed", 0) * (not self.tied) + parts.get("vision", 0) + parts.get("mtp", 0)
        if self.moe:
            idle += parts["routed_experts"] * (self.moe.experts - self.moe.used) // self.moe.experts
        return self.total - idle

    def kv_bytes_per_token(self, kv: str = "bf16") -> int:
        """Bytes of cache one token costs over all layers, on each holder of the cache."""
        return round(self.layers * self.attention.kv_width * KV_BYTES[kv])


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A model in a concrete form: what its bytes are, by component."""

    name: str  # catalogue key or path
    model: str  # catalogue name of the model
    repo: str = ""
    path: str = ""  # where it lies on disk, if it does
    format: Literal["safetensors", "gguf"] = "safetensors"
    quant: str  # "int4-g32", "nvfp4", "fp8-block", "bf16", "mxfp4" or a GGUF type such as "IQ3_K"
    bytes_by_component: dict[Component, int]
    layer_bytes: tuple[int, ...] = ()  # per layer, from headers where read
    expert_layer_bytes: int = 0  # routed experts of one MoE layer (the mean)
    shards: int = 0
    engines: tuple[str, ...] = ()  # engines that load it; empty: all that read the format
    native: bool = False  # the form the model's makers published
    kv_scales: bool = False
    note: str = ""
    source: str = ""
    how: Literal["computed", "published", "read"] = "computed"

    @property
    def bytes(self) -> int:
        """All of it."""
        return sum(self.bytes_by_component.values())

    def bits_per_weight(self, model: Model) -> float:
        """Mean bits per parameter, over the components that this form carries."""
        carried = sum(n for name, n in model.by_component.items() if name in self.bytes_by_component)
        return self.bytes * 8 / max(carried, 1)
