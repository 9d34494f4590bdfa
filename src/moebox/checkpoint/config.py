"""config.json as a Model.

Only architectures whose every weight we can count are read; the others are refused by name, because a
parameter total that is quietly wrong would spoil everything planned on it.
"""

from math import prod
from typing import Any

from moebox.core.model import Gqa, Indexer, Licence, Mla, Model, Moe
from moebox.errors import BadInput, Unsupported

Config = dict[str, Any]
LARGEST_NUMBER = 2**40  # no field of a config is larger

_MLA = (
    "DeepseekV2ForCausalLM",
    "DeepseekV3ForCausalLM",
    "DeepseekV32ForCausalLM",
    "GlmMoeDsaForCausalLM",
    "KimiK2ForCausalLM",
    "KimiK25ForConditionalGeneration",
)
_GQA = ("Qwen3MoeForCausalLM", "Glm4MoeForCausalLM", "MiniMaxM2ForCausalLM", "GptOssForCausalLM")
SUPPORTED = (*_MLA, *_GQA)


class Fields:
    """A config's fields, each checked as it is read; errors name the file and the field."""

    def __init__(self, values: Config, where: str) -> None:
        self.values = values
        self.where = where

    def whole(self, *names: str, default: int | None = None, least: int = 0) -> int:
        """The first of `names` that is there, as a whole number not below `least`."""
        for name in names:
            value = self.values.get(name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or not least <= value < LARGEST_NUMBER:
                raise BadInput(
                    f"{self.where}: {name} is {str(value)[:60]!r}; it must be a whole number of at least {least}"
                )
            return value
        if default is None:
            raise BadInput(f"{self.where}: {names[0]} is missing")
        return default

    def yes(self, name: str, *, default: bool = False) -> bool:
        """A field that is true or false."""
        return bool(self.values.get(name, default))


def model_of(config: Any, *, name: str, where: str) -> Model:
    """The model that a config.json describes."""
    if not isinstance(config, dict):
        raise BadInput(f"{where}: must be a JSON object")
    architectures = config.get("architectures")
    if not isinstance(architectures, list) or not architectures or not isinstance(architectures[0], str):
        raise BadInput(f"{where}: architectures is missing", hint="give the model's config.json or its folder")
    architecture = architectures[0]
    text = config.get("text_config", config)
    if architecture not in SUPPORTED or not isinstance(text, dict):
        raise Unsupported(
            f"{where}: architecture {architecture} is not supported{_because(config)}",
            hint=f"supported: {', '.join(SUPPORTED)}",
        )
    fields = Fields(text, where)
    shape = _mla if architecture in _MLA else _gqa
    return shape(fields, architecture, name, _vision(config, where))


def _because(config: Config) -> str:
    """Why such an architecture cannot be counted, where one can tell."""
    text = config.get("text_config", config)
    kinds = text.get("layer_types") if isinstance(text, dict) else None
    if isinstance(text, dict) and ("linear_attn_config" in text or "linear_num_key_heads" in text):
        return ": it mixes linear and full attention"
    if isinstance(kinds, list) and len({str(kind) for kind in kinds}) > 1:
        return ": it mixes attention kinds over its layers"
    return ""


def _mla(fields: Fields, architecture: str, name: str, vision: int) -> Model:
    indexer = None
    if fields.values.get("index_n_heads") is not None:
        indexer = Indexer(
            heads=fields.whole("index_n_heads", least=1),
            dim=fields.whole("index_head_dim", least=1),
            topk=fields.whole("index_topk", default=0),
        )
    attention = Mla(
        heads=fields.whole("num_attention_heads", least=1),
        q_lora=fields.whole("q_lora_rank", default=0),
        kv_lora=fields.whole("kv_lora_rank", least=1),
        nope=fields.whole("qk_nope_head_dim", least=1),
        rope=fields.whole("qk_rope_head_dim", least=1),
        v=fields.whole("v_head_dim", least=1),
        indexer=indexer,
    )
    moe = Moe(
        experts=fields.whole("n_routed_experts", "num_experts", least=1),
        used=fields.whole("num_experts_per_tok", least=1),
        intermediate=fields.whole("moe_intermediate_size", least=1),
        shared=fields.whole("n_shared_experts", default=0),
        router_bias=fields.values.get("topk_method", "noaux_tc") == "noaux_tc",
    )
    return _model(fields, architecture, name, vision, mla=attention, moe=moe)


def _gqa(fields: Fields, architecture: str, name: str, vision: int) -> Model:
    hidden = fields.whole("hidden_size", least=1)
    heads = fields.whole("num_attention_heads", least=1)
    head_dim = fields.whole("head_dim", default=hidden // heads, least=1)
    kv_heads = fields.whole("num_key_value_heads", default=heads, least=1)
    oss = architecture == "GptOssForCausalLM"
    kinds = fields.values.get("layer_types") or []
    attention = Gqa(
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        bias=fields.yes("attention_bias"),
        output_bias=oss,
        sinks=oss,
        head_norm=_head_norm(fields, architecture, heads, kv_heads, head_dim),
        window=fields.whole("sliding_window", default=0) if oss else 0,
        window_layers=sum(kind == "sliding_attention" for kind in kinds),
    )
    moe = Moe(
        experts=fields.whole("num_local_experts", "num_experts", "n_routed_experts", least=1),
        used=fields.whole("num_experts_per_tok", "experts_per_token", least=1),
        intermediate=fields.whole("moe_intermediate_size", "intermediate_size", least=1),
        shared=fields.whole("n_shared_experts", default=0),
        bias=oss,
        router_bias=architecture in ("Glm4MoeForCausalLM", "MiniMaxM2ForCausalLM"),
    )
    return _model(fields, architecture, name, vision, gqa=attention, moe=moe)


def _head_norm(fields: Fields, architecture: str, heads: int, kv_heads: int, head_dim: int) -> int:
    """Elements of the norms on q and k: per head in Qwen3 and GLM, over all heads in MiniMax."""
    if architecture == "MiniMaxM2ForCausalLM":
        return (heads + kv_heads) * head_dim if fields.yes("use_qk_norm") else 0
    if architecture == "Qwen3MoeForCausalLM" or fields.yes("use_qk_norm"):
        return 2 * head_dim
    return 0


def _model(
    fields: Fields,
    architecture: str,
    name: str,
    vision: int,
    *,
    moe: Moe,
    mla: Mla | None = None,
    gqa: Gqa | None = None,
) -> Model:
    layers = fields.whole("num_hidden_layers", least=1)
    dense = fields.whole("first_k_dense_replace", default=0)
    if dense > layers:
        raise BadInput(f"{fields.where}: first_k_dense_replace is {dense}, but there are only {layers} layers")
    if moe.used > moe.experts:
        raise BadInput(f"{fields.where}: num_experts_per_tok is {moe.used}, but there are only {moe.experts} experts")
    return Model(
        name=name,
        title=name,
        architecture=architecture,
        hidden=fields.whole("hidden_size", least=1),
        layers=layers,
        dense_layers=dense,
        dense_intermediate=fields.whole("intermediate_size", default=0) if dense else 0,
        vocab=fields.whole("vocab_size", least=1),
        tied=fields.yes("tie_word_embeddings"),
        context=fields.whole("max_position_embeddings", least=1),
        mla=mla,
        gqa=gqa,
        moe=moe,
        vision=vision,
        mtp_layers=fields.whole("num_nextn_predict_layers", "num_mtp_modules", default=0),
        licence=Licence(name="see the model's own files"),
        source=fields.where,
    )


def _vision(config: Config, where: str) -> int:
    """Parameters of Kimi's MoonViT tower and patch-merging projector, from vision_config."""
    vision = config.get("vision_config")
    if not isinstance(vision, dict):
        return 0
    fields = Fields(vision, f"{where}: vision_config")
    hidden, mlp = fields.whole("vt_hidden_size", least=1), fields.whole("vt_intermediate_size", least=1)
    layers, patch = fields.whole("vt_num_hidden_layers", least=1), fields.whole("patch_size", least=1)
    text = fields.whole("text_hidden_size", least=1)
    kernel = vision.get("merge_kernel_size") or [2, 2]
    if not isinstance(kernel, list) or not all(isinstance(side, int) and 0 < side < 100 for side in kernel):
        raise BadInput(f"{fields.where}: merge_kernel_size must be a list of small whole numbers")
    merged = hidden * prod(kernel)
    block = 4 * hidden * hidden + 4 * hidden + 2 * hidden * mlp + hidden + mlp + 4 * hidden
    position = fields.whole("init_pos_emb_height", default=64) * fields.whole("init_pos_emb_width", default=64) * hidden
    tower = layers * block + position + 3 * patch * patch * hidden + hidden + 2 * hidden
    projector = merged * merged + merged + merged * text + text + 2 * hidden
    return tower + projector
