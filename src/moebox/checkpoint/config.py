"""Read config.json as a Model: exactly if the architecture is known, else by the usual names of fields."""

import re
from typing import Any

from moebox import codec, loose
from moebox.checkpoint.stacks import SUPPORTED, ConfigFields, attention_stack
from moebox.checkpoint.unknown import model_from_unknown_config
from moebox.core import catalogue
from moebox.core.model import Licence, Model, Moe
from moebox.errors import BadInput, Unsupported, refuse_if


def model_from_config(config: Any, *, name: str, where: str) -> Model:
    if not isinstance(config, dict):
        raise BadInput(f"{where}: must be a JSON object")
    names = loose.get_texts(config, "architectures") or [loose.get_text(config, "model_type")]
    refuse_if(not names[0], f"{where}: architectures is missing", hint="give the model's config.json or its folder")
    architecture = names[0]
    for pattern, kind, hint in catalogue.load_table("weights")["unservable"]:
        if re.search(pattern, architecture):
            raise Unsupported(f"{where}: {architecture} is {kind}", hint=hint)
    text = config.get("text_config", config)
    if architecture not in SUPPORTED or not isinstance(text, dict):
        try:
            return model_from_unknown_config(config, architecture, name=name, where=where)
        except BadInput as problem:  # it can be launched, but not planned
            hint = f"the architecture {architecture} is unknown, and its config lacks the usual fields"
            raise Unsupported(problem.message, hint=hint) from None
    fields = ConfigFields(text, where)
    stack = attention_stack(fields, architecture)
    vision = _vision_parameters(config, where)
    layers = fields.integer("num_hidden_layers", least=1)
    dense = fields.integer("first_k_dense_replace", default=0)  # layers without experts come first in every model here
    pattern = fields.values.get("moe_layer_freq")
    if not dense and isinstance(pattern, list):
        dense = sum(not entry for entry in pattern[:layers])
    refuse_if(dense > layers, f"{where}: first_k_dense_replace is {dense}, but there are only {layers} layers")
    wide = fields.integer("dense_intermediate_size", "intermediate_size", default=0)
    # Engines derive a longer context from YaRN (vLLM config/model.py).
    scaling = loose.get_object(text, "rope_scaling") or loose.get_object(text, "rope_parameters")
    stretched = 0
    if loose.get_text(scaling, "rope_type", "type") == "yarn":
        original = loose.get_number(scaling, "original_max_position_embeddings") or 0
        stretched = int(original * (loose.get_number(scaling, "factor") or 0))
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
        context=max(fields.integer("max_position_embeddings", least=1), stretched),
        **codec.shared_fields(stack, Model),
        moe=_read_moe(fields, architecture),
        vision=vision,
        mtp_layers=fields.integer("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules", default=0),
        licence=Licence(name="see the model's own files"),
        source=where,
    )


def _read_moe(fields: ConfigFields, architecture: str) -> Moe:
    experts = fields.integer("n_routed_experts", "num_local_experts", "num_experts", least=1)
    used = fields.integer("num_experts_per_tok", "num_experts_per_token", "experts_per_token", least=1)
    text = f"{fields.where}: num_experts_per_tok is {used}, but there are only {experts} experts"
    refuse_if(used > experts, text)
    qwen, oss = architecture.startswith("Qwen3"), architecture == "GptOssForCausalLM"
    shared_width = fields.integer("shared_expert_intermediate_size", "share_expert_dim", default=0)
    corrected = fields.values.get("topk_method", "noaux_tc") == "noaux_tc"
    return Moe(
        experts=experts,
        used=used,
        intermediate=fields.integer("moe_intermediate_size", "intermediate_size", least=1),
        shared=fields.integer("n_shared_experts", "num_shared_experts", default=1 if shared_width else 0),
        shared_intermediate=shared_width,
        latent=fields.integer("routed_expert_hidden_size", default=0),
        shared_gate=qwen and bool(shared_width),
        bias=oss,
        router_bias=not qwen and not oss and corrected,
    )


def _vision_parameters(config: dict[str, Any], where: str) -> int:
    """Estimate the parameters of the vision tower by its blocks, positions and projector; 0 if there is none."""
    vision = loose.get_object(config, "vision_config")
    names: dict[str, list[str]] = catalogue.load_table("weights")["vision_fields"]
    fields = ConfigFields(dict(vision), f"{where}: vision_config")
    size = {part: fields.integer(*each, default=0, least=1) for part, each in names.items()}
    hidden, merged = size["hidden"], size["hidden"] * max(size["merge"], 2) ** 2
    block = 4 * hidden * (hidden + 2) + 2 * hidden * size["mlp"] + hidden + size["mlp"]
    rows = (size["positions"] or size["height"] * size["width"]) + 3 * size["patch"] ** 2 * max(size["frames"], 1)
    projector = (merged * (merged + 1 + size["out"]) + size["out"]) * bool(hidden)
    return size["layers"] * block + hidden * (rows + 3) + projector
