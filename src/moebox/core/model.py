"""A model: its shape and its parameters by component; and a checkpoint of it. Derived values are properties."""

import functools
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

from moebox.core.layers import Compressed, LayerKind
from moebox.core.layers import Gqa as Gqa
from moebox.core.layers import Indexer as Indexer
from moebox.core.layers import Layers as Layers
from moebox.core.layers import Mla as Mla

Idle = Literal["vision", "mtp", "ngram"]  # not used for a token of text, but for a few rows of a table
Used = Literal["embed", "lm_head", "attention", "dense_ffn", "routed_experts", "shared_experts", "router", "norms"]
Component = Literal[Used, Idle]
COMPONENTS: tuple[Component, ...] = get_args(Component)
IDLE: tuple[Component, ...] = get_args(Idle)

# Bytes per cached element. llama.cpp's block types carry a scale: q8_0 is 34 bytes for 32 elements,
# q4_0 is 18 for 32 (ggml-common.h).
KV_BYTES: dict[str, float] = {
    "fp8": 1.0,
    "bf16": 2.0,
    "f16": 2.0,
    "q8_0": 34 / 32,
    "q4_0": 18 / 32,
    "nvfp4": 9 / 16,  # packed e2m1 and an e4m3 scale for 16 of them (vLLM 0.32.0 utils/torch_utils.py:556)
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Moe:
    """Routed and shared experts."""

    experts: int
    used: int
    intermediate: int
    shared: int = 0
    shared_intermediate: int = 0  # of all shared experts together; 0: shared × intermediate
    latent: int = 0  # width of the routed experts, if it is not the hidden size (Kimi K3)
    shared_gate: bool = False  # the shared expert's output is gated (Qwen3.5)
    bias: bool = False  # experts and router have biases (gpt-oss)
    router_bias: bool = True  # e_score_correction_bias
    matrices: int = 3  # of an expert: gate, up and down; 2 without a gate (Nemotron 3)

    @property
    def shared_width(self) -> int:
        return self.shared_intermediate or self.shared * self.intermediate


@dataclass(frozen=True, slots=True, kw_only=True)
class Licence:
    name: str
    limits: str = ""


@dataclass(frozen=True, kw_only=True)
class Model:
    """An architecture with its sizes."""

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
    mla: Mla | None = None  # the kind of all layers that `others` does not count
    gqa: Gqa | None = None
    others: tuple[Layers, ...] = ()  # layers of other kinds; their order does not matter here
    moe: Moe | None = None
    vision: int = 0  # parameters of the vision tower and its projector
    extra: int = 0  # parameters of hyper-connections and the like, which every rank holds whole
    ngram: int = 0  # parameters of n-gram tables, which engines keep in RAM (Qwen3.8, DeepSeek V4.1)
    mtp_layers: int = 0  # extra prediction layers in a checkpoint; not counted in the total
    licence: Licence = Licence(name="unknown")
    released: str = ""
    repo: str = ""
    drafts: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    trust_remote_code: bool = False  # engines may run the model's own code
    tool_parser: str = ""
    reasoning_parser: str = ""
    source: str = ""
    assumed: str = ""  # how an unknown architecture was read; "" if the architecture is known
    # from headers, if read; takes precedence over the formula
    counted: dict[Component, int] = field(default_factory=dict)

    @property
    def attention(self) -> LayerKind:
        """The kind that caches the whole context, or the most frequent one."""
        if self.mla or self.gqa:
            return self.mla or self.gqa  # type: ignore[return-value]
        assert self.others, f"{self.name} has no attention"
        return max(self.others, key=lambda layers: (layers.kind.entries_per_token > 0, layers.count)).kind

    @functools.cached_property
    def stack(self) -> tuple[Layers, ...]:
        mla, gqa, rest = self.mla, self.gqa, self.layers - sum(each.count for each in self.others)
        if not (mla or gqa) or rest <= 0:
            return self.others
        indexer = mla.indexer if mla else None
        if mla is None or indexer is None or not 0 < indexer.layers < rest:
            return (Layers(count=rest, mla=mla, gqa=gqa), *self.others)
        # Some layers use the selection of the indexer before them.
        own = replace(mla, indexer=replace(indexer, layers=0))
        following = replace(mla, indexer=replace(indexer, layers=0, shared=True))
        return (Layers(count=indexer.layers, mla=own), Layers(count=rest - indexer.layers, mla=following), *self.others)

    @functools.cached_property
    def has_compressed_cache(self) -> bool:
        """Layers cache one entry for several tokens (DeepSeek V4), with their own kernels and cache format."""
        return any(isinstance(layers.kind, Compressed) for layers in self.stack)

    @property
    def moe_layers(self) -> int:
        return self.layers - self.dense_layers if self.moe else 0

    @property
    def experts(self) -> int:
        """Routed experts per layer."""
        return self.moe.experts if self.moe else 0

    @property
    def experts_used(self) -> int:
        """Routed experts per layer that a token uses."""
        return self.moe.used if self.moe else 0

    @property
    def expert_parameters(self) -> int:
        if not self.moe:
            return 0
        bias = 2 * self.moe.intermediate + self.hidden if self.moe.bias else 0
        return self.moe.matrices * (self.moe.latent or self.hidden) * self.moe.intermediate + bias

    @functools.cached_property
    def parameters_by_component(self) -> dict[Component, int]:
        if self.counted:
            return dict(self.counted)
        parts: dict[Component, int] = {
            "embed": self.vocab * self.hidden,
            "lm_head": self.vocab * self.hidden * (not self.tied),
            "attention": sum(layers.count * layers.kind.parameters(self.hidden) for layers in self.stack),
            "dense_ffn": (self.layers - self.moe_layers) * 3 * self.hidden * self.dense_intermediate,
            "norms": (2 * self.layers + 1) * self.hidden + self.extra,
            "vision": self.vision,
            "ngram": self.ngram,
        }
        if self.moe:
            moe, layers = self.moe, self.moe_layers
            bias = moe.experts if moe.router_bias or moe.bias else 0
            parts["routed_experts"] = layers * moe.experts * self.expert_parameters
            wide = moe.matrices * moe.shared_width + 2 * moe.latent + moe.shared_gate
            parts["shared_experts"] = layers * self.hidden * wide
            parts["router"] = layers * (self.hidden * moe.experts + bias)
        return {name: parts[name] for name in COMPONENTS if parts.get(name)}

    @property
    def total_parameters(self) -> int:
        return sum(self.parameters_by_component.values())

    @property
    def text_parameters(self) -> int:
        """All parameters but those of the vision tower."""
        return self.total_parameters - self.parameters_by_component.get("vision", 0)

    @property
    def active_parameters(self) -> int:
        """Parameters that one token uses: of the experts those used, lm_head included, embedding not."""
        parts = self.parameters_by_component
        idle = parts.get("embed", 0) * (not self.tied) + sum(parts.get(name, 0) for name in IDLE)
        if self.moe:
            idle += parts.get("routed_experts", 0) * (self.moe.experts - self.moe.used) // self.moe.experts
        return self.total_parameters - idle

    def kv_bytes_per_token(self, kv: str = "bf16") -> int:
        """Bytes of keys and values of one more token, all layers and heads.

        The architecture's figure: `sizing.kv` computes what an engine allocates (its own cache formats, an indexer's
        keys, division by tensor parallelism).
        """
        elements = sum(
            layers.count * layers.kind.entries_per_token * layers.kind.entry_width(1) for layers in self.stack
        )
        return round(elements * KV_BYTES[kv])


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """The weights of a model in one format, with their bytes by component."""

    name: str  # catalogue key or path
    model: str  # catalogue name of the model
    repo: str = ""
    revision: str = ""  # the commit of the repository, if a revision was asked for
    path: str = ""  # on disk, if it is there
    format: Literal["safetensors", "gguf"] = "safetensors"
    quant: str  # "int4-g32", "nvfp4", "nvfp4-a16", "fp8-block", "bf16", "mxfp4" or a GGUF type such as "IQ3_K"
    bytes_by_component: dict[Component, int]
    layer_bytes: tuple[int, ...] = ()  # per layer, if headers were read
    expert_layer_bytes: int = 0  # routed experts of one MoE layer (the mean)
    shards: int = 0
    file: str = ""  # of a GGUF in a repository: the path of its first part
    unverified: bool = False  # not confirmed to exist: chosen only on request
    engines: tuple[str, ...] = ()  # engines that load it; empty: all that read the format
    native: bool = False  # the format that the model's makers published
    kv_scales: bool = False
    note: str = ""
    source: str = ""
    how: Literal["computed", "published", "read"] = "computed"

    @property
    def total_bytes(self) -> int:
        return sum(self.bytes_by_component.values())

    @property
    def label(self) -> str:
        """A short name: the quantisation for a folder, whose own name does not show the format."""
        return self.quant if self.path and self.format == "safetensors" else self.name

    def matches_name(self, text: str) -> bool:
        """True if `text` is its name or the end of it, its repository, path or quantisation."""
        names = (self.name, self.name.rpartition(":")[2], self.repo, self.path, self.quant)
        return text.lower() in {*map(str.lower, names)}

    def supports_engine(self, engine: str) -> bool:
        """True if an engine that reads the format loads this checkpoint."""
        return not self.engines or engine in self.engines

    def bits_per_weight(self, model: Model) -> float:
        """Mean bits per parameter, over the components in this checkpoint."""
        carried = sum(n for name, n in model.parameters_by_component.items() if name in self.bytes_by_component)
        return self.total_bytes * 8 / max(carried, 1)


def format_names(*formats: str) -> str:
    """Formats of weights as text: "safetensors or GGUF"."""
    return " or ".join("GGUF" if name == "gguf" else name for name in dict.fromkeys(formats))
