"""A device's memory by part, as planned and as the engine reported it."""

from collections.abc import Mapping
from dataclasses import dataclass

from moebox.core.engine_facts import DeviceFacts
from moebox.core.plan import DeviceMemory

WEIGHT_PARTS = ("experts", "attention", "other weights", "vision", "draft", "weights")
# In drawing order: weights first, then what grows with use, then the rest.
PARTS = (*WEIGHT_PARTS, "in use", "KV cache", "activations", "overhead", "free")
COMPONENT_PARTS = {
    "routed_experts": "experts",
    "shared_experts": "experts",
    "attention": "attention",
    "vision": "vision",
    "mtp": "draft",
    "draft": "draft",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceParts:
    """One device's memory: bytes by part in drawing order; the parts need not fill `total`."""

    name: str
    total: float
    parts: dict[str, float]

    @property
    def on_host(self) -> bool:
        return self.name == "ram"

    @property
    def weight_bytes(self) -> float:
        return sum(self.parts.get(name, 0.0) for name in WEIGHT_PARTS)

    @property
    def used_bytes(self) -> float:
        return sum(size for name, size in self.parts.items() if name != "free")


def planned_parts(device: DeviceMemory) -> DeviceParts:
    """A planned device, its weights by component."""
    sizes: dict[str, float] = {"draft": device.draft, "KV cache": device.kv, "activations": device.activations}
    sizes |= {"overhead": device.overhead, "free": device.free}
    for component, size in device.weights.items():
        part = COMPONENT_PARTS.get(component, "other weights")
        sizes[part] = sizes.get(part, 0.0) + size
    return _device_parts(device.device, device.total, sizes)


def reported_parts(device: DeviceFacts) -> DeviceParts:
    """A device as its engine reported it; weights of a draft are among the weights."""
    sizes = {
        "weights": device.weights_bytes or 0.0,
        "in use": device.used_bytes or 0.0,
        "KV cache": device.kv_bytes or 0.0,
        "activations": (device.activation_bytes or 0.0) + (device.graph_bytes or 0.0),
        "overhead": device.overhead_bytes or 0.0,
        "free": device.free_bytes or 0.0,
    }
    return _device_parts(device.device, device.total_bytes or 0.0, sizes)


def _device_parts(name: str, total: float, sizes: Mapping[str, float]) -> DeviceParts:
    parts = {part: sizes[part] for part in PARTS if sizes.get(part, 0.0) > 0}
    return DeviceParts(name=name or "gpu", total=total or sum(parts.values()), parts=parts)
