"""What a quantisation costs: bytes of each component under a checkpoint row's rules."""

from typing import Any

from moebox.core.model import Checkpoint, Component, Model


def checkpoint_of(model: Model, row: dict[str, Any]) -> Checkpoint:
    """The catalogue row `row` as a checkpoint of `model`."""
    parts = bytes_by_component(model, row)
    if "bytes" in row:  # a published total: the experts are what is left of it
        parts["routed_experts"] = row["bytes"] - sum(size for name, size in parts.items() if name != "routed_experts")
    return Checkpoint(
        name=row["name"],
        model=model.name,
        repo=row.get("repo", ""),
        format=row["format"],
        quant=row["quant"],
        bytes_by_component=parts,
        expert_layer_bytes=parts.get("routed_experts", 0) // max(model.moe_layers, 1),
        shards=row.get("shards", 0),
        file=row.get("file", ""),
        engines=tuple(row.get("engines", ())),
        native=row.get("native", False),
        kv_scales=row.get("kv_scales", False),
        unverified=row.get("unverified", False),
        note=row.get("note", ""),
        source=row.get("source", ""),
        how="published" if "bytes" in row else "computed",
    )


def bytes_by_component(model: Model, row: dict[str, Any]) -> dict[Component, int]:
    """Each component's parameters times its bits a weight, and the side records of the experts."""
    sizes: dict[Component, int] = {}
    for name, parameters in model.by_component.items():
        size = round(parameters * row.get(name, row["other"]) / 8)
        if name == "routed_experts" and model.moe:
            size += row.get("per_expert", 0) * model.moe_layers * model.moe.experts
        if size:
            sizes[name] = size
    return sizes
