"""Read config.json: the model, and the bits per weight that it states.

The model is read exactly if the architecture is known, else by the usual names of fields.
"""

import contextlib
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from moebox import codec, loose
from moebox.checkpoint.stacks import SUPPORTED, ConfigFields, attention_stack
from moebox.checkpoint.unknown import model_from_unknown_config, read_experts
from moebox.core import catalogue
from moebox.core.catalogue import checkpoint_from_row
from moebox.core.layers import Gqa, LayerKind, Linear, Mla
from moebox.core.model import Checkpoint, Licence, Model, Moe
from moebox.errors import BadInput, Unsupported, refuse_if

FP8_BLOCK = 8 + 32 / 16384  # bits: one float32 scale for each 128x128 block
_TABLE = catalogue.load_table("weights")
_EXAMPLES: dict[str, str] = _TABLE["module_examples"]
_PARTS: dict[str, str] = _TABLE["module_parts"]
_LISTED_BITS: dict[str, float] = _TABLE["listed_bits"]


def model_from_config(config: Any, *, name: str, where: str) -> Model:
    if not isinstance(config, dict):
        raise BadInput(f"{where}: must be a JSON object")
    names = loose.get_texts(config, "architectures") or [loose.get_text(config, "model_type")]
    refuse_if(not names[0], f"{where}: architectures is missing", hint="give the model's config.json or its folder")
    architecture = names[0]
    for pattern, kind, hint in _TABLE["unservable"]:
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
    moe = read_experts(fields, required=True)
    text = f"{fields.where}: num_experts_per_tok is {moe.used}, but there are only {moe.experts} experts"
    refuse_if(moe.used > moe.experts, text)
    qwen, oss = architecture.startswith("Qwen3"), architecture == "GptOssForCausalLM"
    corrected = fields.values.get("topk_method", "noaux_tc") == "noaux_tc"
    gated = qwen and moe.shared_intermediate > 0
    return replace(moe, shared_gate=gated, bias=oss, router_bias=not qwen and not oss and corrected)


def _vision_parameters(config: dict[str, Any], where: str) -> int:
    """Estimate the parameters of the vision tower by its blocks, positions and projector; 0 if there is none."""
    vision = loose.get_object(config, "vision_config")
    names: dict[str, list[str]] = _TABLE["vision_fields"]
    fields = ConfigFields(dict(vision), f"{where}: vision_config")
    size = {part: fields.integer(*each, default=0, least=1) for part, each in names.items()}
    hidden, merged = size["hidden"], size["hidden"] * max(size["merge"], 2) ** 2
    block = 4 * hidden * (hidden + 2) + 2 * hidden * size["mlp"] + hidden + size["mlp"]
    rows = (size["positions"] or size["height"] * size["width"]) + 3 * size["patch"] ** 2 * max(size["frames"], 1)
    projector = (merged * (merged + 1 + size["out"]) + size["out"]) * bool(hidden)
    return size["layers"] * block + hidden * (rows + 3) + projector


def checkpoint_from_config(model: Model, config: dict[str, Any], name: str, folder: Path) -> Checkpoint:
    """Compute the checkpoint that config.json, or hf_quant_config.json beside it, describes."""
    quant = dict(loose.get_object(config, "quantization_config", "text_config.quantization_config"))
    beside = folder / "hf_quant_config.json"
    if not quant and beside.is_file():
        stated = loose.get_object(codec.load_json(beside), "quantization")
        refuse_if(not stated, f"{beside}: quantization is missing")
        quant = {"quant_method": "modelopt", **stated}
    if not quant.get("quant_method") and loose.get_object(config, "quantization"):
        quant = {"quant_method": "mlx", **loose.get_object(config, "quantization")}
    bits, label = _scheme_bits(quant)
    row: dict[str, object] = {"name": name, "quant": label, "other": 16.0, "native": True}
    if bits >= 16:
        return checkpoint_from_row(model, row)
    is_excluded = _exclusion_rule(quant)
    own = {part: bits for part, example in _EXAMPLES.items() if not is_excluded(example)}
    # modelopt's mixed format has in fp8 what is not in nvfp4
    excluded_bits = FP8_BLOCK if quant.get("quant_method") == "fp8" else 16.0
    attention = _attention_bits(model, bits, excluded_bits, is_excluded)
    if model.moe and not own and attention == excluded_bits:
        own["routed_experts"] = bits  # what is quantised must be somewhere: experts outside mlp (Gemma 4)
    row |= {**own, "attention": attention, "per_expert": 24 if label in ("int4-g32", "nvfp4", "nvfp4-a16") else 0}
    # modelopt's mixed format may list every module with its type (nvidia/MiniMax-M3-NVFP4); the first one counts.
    listed: dict[str, float] = {}
    for module, settings in loose.get_object(quant, "quantized_layers").items():
        module_bits = _LISTED_BITS.get(loose.get_text(settings, "quant_algo"))
        part = next((part for mark, part in _PARTS.items() if mark in module), None)
        if module_bits and part:
            listed.setdefault(part, module_bits)
    row |= listed
    # fp8 with experts in mxfp4: DeepSeek V4 and MiMo-V2.6
    stored = (config.get("expert_dtype"), quant.get("expert_dtype"), quant.get("store_dtype"))
    if label == "fp8-block" and ("fp4" in stored or "mxfp4" in stored):
        row |= {"quant": "mxfp4", "routed_experts": 4.25}
    return checkpoint_from_row(model, row)


def _scheme_bits(quant: dict[str, Any]) -> tuple[float, str]:
    """Bits per weight, scales included, and the scheme's name."""
    method, text = str(quant.get("quant_method", "")), str(quant)[:20_000].lower()
    if method in ("awq", "gptq", "auto-round"):  # a 16-bit scale and a zero for each group
        number, group = map(quant.get, ("bits", "group_size"))
        wide, many = (number if number in (2, 3, 4, 8) else 4), (group if group in (32, 64, 128) else 128)
        return wide + (16 + wide) / many, f"int{wide}-g{many}"
    for row in _TABLE["scheme"]:
        if re.fullmatch(row["method"], method) and (found := re.search(row["text"], text)):
            many = int(found[1]) if found.groups() else 0  # weights of a group that has a 16-bit scale
            return row["bits"] + 16 / many if many else row["bits"], f"{row['label']}{many or ''}"
    stated = next((quant[name] for name in ("bits", "w_bit", "num_bits", "weight_bits") if name in quant), None)
    stated = 4 if stated is None and quant.get("load_in_4bit") else stated
    if method and isinstance(stated, int | float) and 1 <= stated < 16:
        return float(stated) + 0.5, f"{method} (unknown)"  # scales: as much as those of int4 with groups of 32
    return 16.0, f"{method} (unknown)" if method else "bf16"


def _attention_bits(model: Model, bits: float, excluded_bits: float, is_excluded: Callable[[str], bool]) -> float:
    """Mean bits of the attention's weights: rules often name single projections, and kinds of layer differ."""
    total = excluded = 0
    for layers in model.stack:
        for module, size in _projections(layers.kind, model.hidden).items():
            total += layers.count * size
            excluded += layers.count * size if is_excluded(f"model.layers.5.{module}") else 0
    return (excluded * excluded_bits + (total - excluded) * bits) / total


def _projections(kind: LayerKind, hidden: int) -> dict[str, int]:
    """Weights of each projection of a layer's attention."""
    if isinstance(kind, Mla):
        qk = kind.nope + kind.rope
        return {
            "self_attn.q_a_proj": hidden * kind.q_lora,
            "self_attn.q_b_proj": (kind.q_lora or hidden) * kind.heads * qk,
            "self_attn.kv_a_proj_with_mqa": hidden * kind.kv_width,
            "self_attn.kv_b_proj": kind.kv_lora * kind.heads * (kind.nope + kind.v),
            "self_attn.o_proj": kind.heads * kind.v * hidden,
        }
    if isinstance(kind, Gqa):
        q, kv = kind.heads * kind.head_dim * hidden, kind.kv_heads * kind.head_dim * hidden
        return {"self_attn.q_proj": q, "self_attn.k_proj": kv, "self_attn.v_proj": kv, "self_attn.o_proj": q}
    module = "linear_attn.in_proj_qkvz" if isinstance(kind, Linear) else "attn.wq_b"
    return {module: kind.parameters(hidden)}


def _exclusion_rule(quant: dict[str, Any]) -> Callable[[str], bool]:
    """Return a test for names of modules that are not quantised."""
    rules = quant.get("ignore") or quant.get("modules_to_not_convert") or quant.get("exclude_modules") or []
    patterns: list[re.Pattern[str]] = []
    for rule in rules if isinstance(rules, list) else []:
        if not isinstance(rule, str):
            continue
        # without the prefix of models with a vision tower
        plain = rule.removeprefix("language_model.").replace("model.language_model.", "model.")
        if not plain.startswith("re:"):
            plain = "re:.*?(^|\\.)" + re.escape(plain).replace(r"\*", ".*") + "(\\.|$)"
        with contextlib.suppress(re.error):
            patterns.append(re.compile(plain[3:]))
    return lambda name: any(pattern.match(name) for pattern in patterns)
