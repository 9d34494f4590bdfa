"""config.json as a Model.

Only architectures whose every weight we can count are read; the others are refused by name, because a
parameter total that is quietly wrong would spoil everything planned on it.
"""

from typing import Any

from moebox import loose
from moebox.checkpoint import stacks
from moebox.checkpoint.fields import ConfigFields
from moebox.checkpoint.vision import vision_parameters
from moebox.core.model import Licence, Model, Moe
from moebox.errors import BadInput, Unsupported, refuse_if


def model_from_config(config: Any, *, name: str, where: str) -> Model:
    """The model that a config.json describes."""
    if not isinstance(config, dict):
        raise BadInput(f"{where}: must be a JSON object")
    names = loose.get_texts(config, "architectures")
    refuse_if(not names, f"{where}: architectures is missing", hint="give the model's config.json or its folder")
    architecture = names[0]
    text = config.get("text_config", config)
    if architecture not in stacks.SUPPORTED or not isinstance(text, dict):
        raise Unsupported(
            f"{where}: architecture {architecture} is not supported",
            hint=f"supported: {', '.join(stacks.SUPPORTED)}",
        )
    fields = ConfigFields(text, where)
    stack = stacks.attention_stack(fields, architecture)
    return _model(fields, architecture, name, vision_parameters(config, where), stack)


def _moe(fields: ConfigFields, architecture: str) -> Moe:
    experts = fields.integer("n_routed_experts", "num_local_experts", "num_experts", least=1)
    used = fields.integer("num_experts_per_tok", "num_experts_per_token", "experts_per_token", least=1)
    many = f"{fields.where}: num_experts_per_tok is {used}, but there are only {experts} experts"
    refuse_if(used > experts, many)
    qwen = architecture.startswith("Qwen3")
    shared_width = fields.integer("shared_expert_intermediate_size", "share_expert_dim", default=0)
    return Moe(
        experts=experts,
        used=used,
        intermediate=fields.integer("moe_intermediate_size", "intermediate_size", least=1),
        shared=fields.integer("n_shared_experts", "num_shared_experts", default=1 if shared_width else 0),
        shared_intermediate=shared_width,
        latent=fields.integer("routed_expert_hidden_size", default=0),
        shared_gate=qwen and bool(shared_width),
        bias=architecture == "GptOssForCausalLM",
        router_bias=not qwen
        and architecture != "GptOssForCausalLM"
        and fields.values.get("topk_method", "noaux_tc") == "noaux_tc",
    )


def _dense_layers(fields: ConfigFields, layers: int) -> int:
    """Layers without experts, which come first in every model here."""
    dense = fields.integer("first_k_dense_replace", default=0)
    pattern = fields.values.get("moe_layer_freq")
    if not dense and isinstance(pattern, list):
        dense = sum(not entry for entry in pattern[:layers])
    many = f"{fields.where}: first_k_dense_replace is {dense}, but there are only {layers} layers"
    refuse_if(dense > layers, many)
    return dense


def _stretched(fields: ConfigFields) -> int:
    """The context that YaRN stretches the original one to, as engines derive it; 0 without (vLLM config/model.py)."""
    scaling = loose.get_object(fields.values, "rope_scaling") or loose.get_object(fields.values, "rope_parameters")
    if loose.get_text(scaling, "rope_type", "type") != "yarn":
        return 0
    original, factor = (
        loose.get_number(scaling, "original_max_position_embeddings"),
        loose.get_number(scaling, "factor"),
    )
    return int((original or 0) * (factor or 0))


def _model(fields: ConfigFields, architecture: str, name: str, vision: int, stack: stacks.AttentionStack) -> Model:
    layers = fields.integer("num_hidden_layers", least=1)
    dense = _dense_layers(fields, layers)
    wide = fields.integer("dense_intermediate_size", "intermediate_size", default=0)
    return Model(
        name=name,
        title=name,
        architecture=architecture,
        hidden=fields.integer("hidden_size", least=1),
        layers=layers,
        dense_layers=dense,
        dense_intermediate=wide if dense else 0,
        vocab=fields.integer("vocab_size", least=1),
        tied=fields.is_true("tie_word_embeddings"),
        context=max(fields.integer("max_position_embeddings", least=1), _stretched(fields)),
        mla=stack.mla,
        gqa=stack.gqa,
        others=stack.others,
        moe=_moe(fields, architecture),
        vision=vision,
        mtp_layers=fields.integer("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules", default=0),
        licence=Licence(name="see the model's own files"),
        source=fields.where,
    )
