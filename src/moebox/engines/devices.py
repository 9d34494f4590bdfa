"""What the memory budgets of all engines share: a device's sum, idle GPUs among those used, what RAM holds anyway."""

from collections.abc import Mapping, Sequence

from moebox.core.box import Box, Gpu
from moebox.core.model import Component
from moebox.core.plan import DeviceMemory
from moebox.core.recipe import Recipe
from moebox.sizing import gpu_list
from moebox.sizing.constants import gibibytes, taken


def device(
    name: str, total: int, weights: dict[Component, int], *, kv: int = 0, activations: int = 0, overhead: int
) -> DeviceMemory:
    """A device with what is left free on it."""
    free = total - sum(weights.values()) - kv - activations - overhead
    return DeviceMemory(
        device=name, total=total, weights=weights, kv=kv, activations=activations, overhead=overhead, free=free
    )


def every_gpu(gpus: Sequence[Gpu], used: Mapping[int, DeviceMemory]) -> tuple[DeviceMemory, ...]:
    """All GPUs in their order; one that is not used holds what other programs hold of it."""
    return tuple(
        used[index] if index in used else gpu_list.idle(index, gpu, taken(gpu)) for index, gpu in enumerate(gpus)
    )


def first_gpu(box: Box, recipe: Recipe) -> Gpu | None:
    """The first GPU that a recipe runs on: what is said of an engine's memory is said of this one."""
    used = gpu_list.used_gpus(box, recipe)
    return gpu_list.all_gpus(box)[used[0]] if used else None


def ram_overhead(box: Box) -> int:
    """RAM that is not the engine's to fill: what is held now, at least a system's own, and the process itself."""
    held = 0 if box.ram_free is None else max(0, box.ram - box.ram_free)
    return max(held, gibibytes("llama", "os")) + gibibytes("llama", "host")
