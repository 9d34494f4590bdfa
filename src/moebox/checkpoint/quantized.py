"""What a config's quantisation means in bits a weight, when no weights are at hand to measure."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from moebox import codec
from moebox.core.model import Checkpoint, Mla, Model
from moebox.core.quant import checkpoint_of
from moebox.errors import BadInput

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
    row: dict[str, Any] = {"name": name, "format": "safetensors", "quant": label, "other": 16.0, "native": True}
    if bits < 16:
        kept = _ignored(quant)
        row |= {part: bits for part, example in _EXAMPLES.items() if not kept(example)}
        row["attention"] = _attention_bits(model, bits, kept)
        row["per_expert"] = 24 if label in ("int4-g32", "nvfp4") else 0
    return checkpoint_of(model, row)


def _settings(config: dict[str, Any], folder: Path) -> dict[str, Any]:
    text = config.get("text_config")
    nested = text.get("quantization_config") if isinstance(text, dict) else None
    quant = config.get("quantization_config") or nested
    beside = folder / "hf_quant_config.json"
    if not quant and beside.is_file():
        document = codec.load_json(beside)
        if not isinstance(document, dict) or not isinstance(document.get("quantization"), dict):
            raise BadInput(f"{beside}: quantization is missing")
        quant = {"quant_method": "modelopt", **document["quantization"]}
    return quant if isinstance(quant, dict) else {}


def _bits(quant: dict[str, Any]) -> tuple[float, str]:
    """Bits a weight, scales included, and the scheme's name."""
    method, text = str(quant.get("quant_method", "")), str(quant)[:20_000].lower()
    if method == "fp8":
        return 8 + 32 / 16384, "fp8-block"  # one float32 scale for each 128x128 block
    if method == "mxfp4":
        return 4.25, "mxfp4"  # one byte of scale for 32 weights
    if method == "modelopt" or "nvfp4" in text:
        return 4.5, "nvfp4"  # one fp8 scale for 16 weights
    if method == "compressed-tensors" and "'num_bits': 4" in text:
        return 4.5, "int4-g32"  # one bf16 scale for 32 weights
    return 16.0, "bf16"


def _attention_bits(model: Model, bits: float, kept: Callable[[str], bool]) -> float:
    """Mean bits of the attention's weights: rules often name single projections."""
    total = spared = 0
    for module, size in _projections(model).items():
        total += size
        spared += size if kept(f"model.layers.5.self_attn.{module}") else 0
    return (spared * 16 + (total - spared) * bits) / total


def _projections(model: Model) -> dict[str, int]:
    kind, hidden = model.attention, model.hidden
    if isinstance(kind, Mla):
        qk = kind.nope + kind.rope
        return {
            "q_a_proj": hidden * kind.q_lora,
            "q_b_proj": (kind.q_lora or hidden) * kind.heads * qk,
            "kv_a_proj_with_mqa": hidden * kind.kv_width,
            "kv_b_proj": kind.kv_lora * kind.heads * (kind.nope + kind.v),
            "o_proj": kind.heads * kind.v * hidden,
        }
    q, kv = kind.heads * kind.head_dim * hidden, kind.kv_heads * kind.head_dim * hidden
    return {"q_proj": q, "k_proj": kv, "v_proj": kv, "o_proj": q}


def _ignored(quant: dict[str, Any]) -> Callable[[str], bool]:
    """A test for module names that the rules leave alone."""
    rules = quant.get("ignore") or quant.get("modules_to_not_convert") or quant.get("exclude_modules") or []
    wanted = [str(rule) for rule in rules if isinstance(rule, str)] if isinstance(rules, list) else []

    def kept(name: str) -> bool:
        return any(_matches(rule.removeprefix("language_model."), name) for rule in wanted)

    return kept


def _matches(rule: str, name: str) -> bool:
    if rule.startswith("re:"):
        try:
            return re.match(rule[3:], name) is not None
        except re.error:
            return False
    star = re.escape(rule).replace(r"\*", ".*")
    return re.search(f"(^|\\.){star}(\\.|$)", name) is not None
