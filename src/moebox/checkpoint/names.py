"""The component and layer that a tensor belongs to, by its name."""

import re

from moebox.core import catalogue
from moebox.core.model import Component

_RULES: dict[str, list[tuple[re.Pattern[str], Component]]] = {
    kind: [(re.compile(pattern), component) for pattern, component in catalogue.load_table("weights")[kind]]
    for kind in ("safetensors", "gguf")
}
_LAYER = re.compile(r"(?:^|\.)(?:layers|blk)\.(\d{1,6})\.")


def component_in_safetensors(name: str) -> Component:
    if ".mlp.experts." in name:  # nearly all of the 200,000 tensors of a large checkpoint
        return "routed_experts"
    # Tensors that no rule names are small: biases, scales, rope tables.
    return next((component for pattern, component in _RULES["safetensors"] if pattern.search(name)), "norms")


def component_in_gguf(name: str) -> Component:
    return next((component for pattern, component in _RULES["gguf"] if pattern.search(name)), "norms")


def layer_number(name: str) -> int | None:
    """The layer of a tensor, None if it is outside the layers."""
    match = _LAYER.search(name)
    return int(match.group(1)) if match else None
