"""What a quantisation costs: bytes of each component under a checkpoint row's rules."""

from dataclasses import dataclass

from moebox.core.model import Checkpoint, Component, Model
from moebox.core.traits import WeightsFormat


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRow:
    """A published form of models, as data/checkpoints.toml lists it; a component's own bits a weight, else `other`."""

    name: str
    models: tuple[str, ...]
    repo: str = ""
    format: WeightsFormat
    quant: str
    other: float
    embed: float | None = None
    lm_head: float | None = None
    attention: float | None = None
    dense_ffn: float | None = None
    shared_experts: float | None = None
    routed_experts: float | None = None
    router: float | None = None
    norms: float | None = None
    vision: float | None = None
    per_expert: int = 0  # bytes beside an expert's weights
    bytes: int = 0  # the published total
    shards: int = 0
    file: str = ""
    engines: tuple[str, ...] = ()
    native: bool = False
    kv_scales: bool = False
    unverified: bool = False
    note: str = ""
    source: str = ""

    def component_bits(self, component: Component) -> float:
        """Bits of one of its weights."""
        own: float | None = getattr(self, component, None)
        return self.other if own is None else own


def checkpoint_from_row(model: Model, row: CheckpointRow) -> Checkpoint:
    """The catalogue row `row` as a checkpoint of `model`."""
    parts = component_bytes(model, row)
    if row.bytes:  # a published total: the experts are what is left of it
        parts["routed_experts"] = row.bytes - sum(size for name, size in parts.items() if name != "routed_experts")
    return Checkpoint(
        name=row.name,
        model=model.name,
        repo=row.repo,
        format=row.format,
        quant=row.quant,
        bytes_by_component=parts,
        expert_layer_bytes=parts.get("routed_experts", 0) // max(model.moe_layers, 1),
        shards=row.shards,
        file=row.file,
        engines=row.engines,
        native=row.native,
        kv_scales=row.kv_scales,
        unverified=row.unverified,
        note=row.note,
        source=row.source,
        how="published" if row.bytes else "computed",
    )


def component_bytes(model: Model, row: CheckpointRow) -> dict[Component, int]:
    """Each component's parameters times its bits a weight, and the side records of the experts."""
    sizes = {
        name: round(parameters * row.component_bits(name) / 8)
        for name, parameters in model.parameters_by_component.items()
    }
    if model.moe and "routed_experts" in sizes:
        sizes["routed_experts"] += row.per_expert * model.moe_layers * model.moe.experts
    return {name: size for name, size in sizes.items() if size}
