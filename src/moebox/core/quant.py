"""What a quantisation costs: bytes of each component under a scheme's rules."""

from typing import Any

from moebox.core.model import Checkpoint, Component, Model


def checkpoint_of(model: Model, row: dict[str, Any]) -> Checkpoint:
    """The catalogue row `row` as a checkpoint of `model`."""
    parts: dict[Component, int] = {name: round(size * 2.0) for name, size in model.by_component.items()}
    return Checkpoint(name=row["name"], model=model.name, quant=row["quant"], bytes_by_component=parts)
