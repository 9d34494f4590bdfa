"""What a config's quantisation means in bits a weight, when no weights are at hand to measure."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from moebox import codec, loose
from moebox.core.layer_kind import LayerKind
from moebox.core.layers import Gqa, Linear, Mla
from moebox.core.model import Checkpoint, Model
from moebox.core.quant import CheckpointRow, checkpoint_from_row
from moebox.errors import refuse_if

FP8_BLOCK = 8 + 32 / 16384  # bits: one float32 scale for each 128x128 block
# A module of the middle of the stack that stands for each component in rules such as "re:.*self_attn.*".
_EXAMPLES = {
    "routed_experts": "model.layers.5.mlp.experts.7.down_proj",
    "shared_experts": "model.layers.5.mlp.shared_experts.down_proj",
    "dense_ffn": "model.layers.0.mlp.down_proj",
}


def checkpoint_from_config(model: Model, config: dict[str, Any], name: str, folder: Path) -> Checkpoint:
    """The checkpoint that config.json, or hf_quant_config.json beside it, promises; computed."""
    quant = _settings(config, folder)
    bits, label = _bits(quant)
    row = CheckpointRow(name=name, models=(model.name,), format="safetensors", quant=label, other=16.0, native=True)
    if bits >= 16:
        return checkpoint_from_row(model, row)
    kept = _ignored(quant)
    own = {part: None if kept(example) else bits for part, example in _EXAMPLES.items()}
    # modelopt's mixed form keeps in fp8 what is not nvfp4
    spared = FP8_BLOCK if quant.get("quant_method") == "fp8" else 16.0
    row = replace(
        row,
        routed_experts=own["routed_experts"],
        shared_experts=own["shared_experts"],
        dense_ffn=own["dense_ffn"],
        attention=_attention_bits(model, bits, spared, kept),
        per_expert=24 if label in ("int4-g32", "nvfp4") else 0,
    )
    row = replace(row, **_listed(quant))
    if label == "fp8-block" and str(config.get("expert_dtype", "")).lower() == "fp4":
        row = replace(row, quant="mxfp4", routed_experts=4.25)  # DeepSeek V4: fp8 with experts in mxfp4
    return checkpoint_from_row(model, row)


# Names of modules that tell the component, the more telling first.
PARTS = {
    "shared_experts": "shared_experts",
    ".experts.": "routed_experts",
    "self_attn": "attention",
    ".mlp.": "dense_ffn",
}
LISTED = {"NVFP4": 4.5, "MXFP8": 8.25, "FP8": 8.0}  # bits a weight; MXFP8 has one byte of scale for 32 weights


def _listed(quant: dict[str, Any]) -> dict[str, Any]:
    """Bits by component where modelopt's mixed form lists every module with what it is in (nvidia/MiniMax-M3-NVFP4)."""
    found: dict[str, float] = {}
    for name, settings in loose.get_object(quant, "quantized_layers").items():
        bits = LISTED.get(loose.get_text(settings, "quant_algo"))
        part = next((part for mark, part in PARTS.items() if mark in name), None)
        if bits and part:
            found.setdefault(part, bits)
    return found


def _settings(config: dict[str, Any], folder: Path) -> dict[str, Any]:
    quant = loose.get_object(config, "quantization_config", "text_config.quantization_config")
    beside = folder / "hf_quant_config.json"
    if quant or not beside.is_file():
        return dict(quant)
    stated = loose.get_object(codec.load_json(beside), "quantization")
    refuse_if(not stated, f"{beside}: quantization is missing")
    return {"quant_method": "modelopt", **stated}


MXFP4 = (4.25, "mxfp4")  # one byte of scale for 32 weights
NVFP4 = (4.5, "nvfp4")  # one fp8 scale for 16 weights


def _bits(quant: dict[str, Any]) -> tuple[float, str]:
    """Bits a weight, scales included, and the scheme's name."""
    method, text = str(quant.get("quant_method", "")), str(quant)[:20_000].lower()
    if method == "fp8":  # modelopt's mixed form is fp8 but for the experts
        mixed = str(quant.get("moe_quant_algo", "")).lower() == "nvfp4"
        return NVFP4 if mixed else (FP8_BLOCK, "fp8-block")
    if method == "mxfp4":
        return MXFP4
    if method == "modelopt" or "nvfp4" in text:
        return NVFP4
    return _compressed(text) if method == "compressed-tensors" else (16.0, "bf16")


def _compressed(text: str) -> tuple[float, str]:
    """compressed-tensors says in its groups what it is."""
    if "mxfp4" in text:
        return MXFP4
    return (4.5, "int4-g32") if "'num_bits': 4" in text else (16.0, "bf16")  # one bf16 scale for 32 weights


def _attention_bits(model: Model, bits: float, spared_bits: float, kept: Callable[[str], bool]) -> float:
    """Mean bits of the attention's weights: rules often name single projections, and kinds of layer differ."""
    total = spared = 0
    for layers in model.stack:
        for module, size in _projections(layers.kind, model.hidden).items():
            total += layers.count * size
            spared += layers.count * size if kept(f"model.layers.5.{module}") else 0
    return (spared * spared_bits + (total - spared) * bits) / total


def _projections(kind: LayerKind, hidden: int) -> dict[str, int]:
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


def _ignored(quant: dict[str, Any]) -> Callable[[str], bool]:
    """A test for module names that the rules leave alone."""
    rules = quant.get("ignore") or quant.get("modules_to_not_convert") or quant.get("exclude_modules") or []
    wanted = [str(rule) for rule in rules if isinstance(rule, str)] if isinstance(rules, list) else []

    def kept(name: str) -> bool:
        return any(_matches(_plain(rule), name) for rule in wanted)

    return kept


def _plain(rule: str) -> str:
    """A rule without the prefix of models that also see."""
    return rule.removeprefix("language_model.").replace("model.language_model.", "model.")


def _matches(rule: str, name: str) -> bool:
    if rule.startswith("re:"):
        try:
            return re.match(rule[3:], name) is not None
        except re.error:
            return False
    star = re.escape(rule).replace(r"\*", ".*")
    return re.search(f"(^|\\.){star}(\\.|$)", name) is not None
