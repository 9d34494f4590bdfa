"""llama.cpp's memory: the rules both servers share, and over several nodes whole layers by device (RPC backend).

llama.cpp takes the RPC servers' devices first and its own after them (src/llama.cpp, "to minimize network transfers"),
so the output, which counts as one layer more, is on the first node's last GPU. Nodes without GPUs offer their RAM: the
first node keeps the first layers, and -ngl gives the others and the output to the servers. The token embedding stays in
the first node's RAM.
"""

from dataclasses import dataclass, replace
from itertools import accumulate, pairwise, starmap

from moebox.core.box import Box
from moebox.core.deployment import Deployment
from moebox.core.model import Checkpoint, Component, Model
from moebox.core.plan import DeviceMemory, Memory
from moebox.core.recipe import Recipe
from moebox.engines.budget import add_host_memory, device_memory, ram_overhead
from moebox.engines.ggml import memory as ggml
from moebox.sizing.constants import MIB, memory_constant_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerDevice:
    """A device that holds whole layers: a GPU of a node, or a node's RAM."""

    node: int
    gpu: int | None = None  # of its node; None is RAM

    def name(self, box: Box) -> str:
        """Its name in the budget; the first node's RAM is plain ram."""
        if self.gpu is not None:
            return f"gpu{self.node * len(box.gpus) + self.gpu}"
        return f"ram{self.node}" if self.node else "ram"


def memory_budget(deployment: Deployment) -> Memory:
    """Every device's bytes, and the tokens that the cache holds; over nodes the first node's RAM comes last."""
    box, model, checkpoint, recipe = deployment.facts
    if recipe.parallel.nodes == 1 or not (recipe.hybrid and recipe.hybrid.split):
        return ggml.memory_budget(deployment)
    parts = layers_by_device(box, model, recipe)
    last = len(parts) - 1
    devices = [
        device_budget(device, box, model, checkpoint, recipe, layers, last=number == last)
        for number, (device, layers) in enumerate(zip(layer_devices(box, recipe.parallel.nodes), parts, strict=False))
    ]
    devices.sort(key=lambda device: (device.device == "ram", len(device.device), device.device))
    if box.gpus:
        ram = ggml.ram_budget(box, model, checkpoint, _with_all_experts_on_gpus(model, recipe))
        devices = list(add_host_memory(box, devices, ram))
    return ggml.memory_of_devices(model, recipe, tuple(devices))


def layer_devices(box: Box, nodes: int) -> tuple[LayerDevice, ...]:
    servers = range(1, nodes)
    if box.gpus:
        return tuple(LayerDevice(node=node, gpu=gpu) for node in (*servers, 0) for gpu in range(len(box.gpus)))
    return tuple(LayerDevice(node=node) for node in (0, *servers))


def layers_by_device(box: Box, model: Model, recipe: Recipe) -> tuple[range, ...]:
    """The layers of each device; `split` counts the output among those of the last device."""
    assert recipe.hybrid is not None
    split = recipe.hybrid.split
    counts = split if box.gpus else (model.layers + 1 - sum(split), *split)
    edges = [min(edge, model.layers) for edge in accumulate(counts, initial=0)]
    return tuple(starmap(range, pairwise(edges)))


def layer_room(
    device: LayerDevice, box: Box, model: Model, checkpoint: Checkpoint, recipe: Recipe, *, last: bool
) -> int:
    """Whole layers that a device has room for, beside its buffers and a margin."""
    free = device_budget(device, box, model, checkpoint, recipe, range(0), last=last).free
    if device.gpu is not None and box.gpus[device.gpu].unified:  # the CPU's part shares this memory
        free -= checkpoint.bytes_by_component.get("embed", 0) + ggml.cpu_compute_bytes(model, recipe, alone=False)
    dense = sum(ggml.dense_weights(model, checkpoint, [model.layers - 1], last=False).values())
    each = checkpoint.expert_layer_bytes + dense + ggml.layer_cache_bytes(model, recipe, 1)
    return max(0, free - memory_constant_bytes("llama", "margin")) // max(each, 1)


def device_budget(
    device: LayerDevice, box: Box, model: Model, checkpoint: Checkpoint, recipe: Recipe, layers: range, *, last: bool
) -> DeviceMemory:
    """One device's bytes with these layers on it."""
    with_experts = sum(layer >= model.dense_layers for layer in layers) if model.moe else 0
    experts: dict[Component, int] = {}
    if with_experts and checkpoint.expert_layer_bytes:
        experts["routed_experts"] = with_experts * checkpoint.expert_layer_bytes
    name = device.name(box)
    if device.gpu is not None:
        whole, gpu = _with_all_experts_on_gpus(model, recipe), box.gpus[device.gpu]
        # Slot 1 has no experts of its own here: they are added by layer.
        bare = ggml.gpu_budget(gpu, model, checkpoint, whole, list(layers), 1, last=last)
        return replace(bare, device=name, weights=bare.weights | experts, free=bare.free - sum(experts.values()))
    weights = {**ggml.dense_weights(model, checkpoint, list(layers), last=last), **experts}
    if not device.node:
        weights["embed"] = checkpoint.bytes_by_component.get("embed", 0)
    return device_memory(
        name,
        box.ram,
        weights,
        kv=ggml.layer_cache_bytes(model, recipe, len(layers)),
        activations=recipe.placement.ubatch * MIB // 2,
        overhead=ram_overhead(box),
    )


def _with_all_experts_on_gpus(model: Model, recipe: Recipe) -> Recipe:
    """Return the recipe as the rules of one node read it if no expert stays in RAM."""
    assert recipe.hybrid is not None
    every = (tuple(range(model.dense_layers, model.layers)),) if model.moe else ()
    return replace(recipe, hybrid=replace(recipe.hybrid, experts=every))
