"""llama.cpp's memory over several nodes: whole layers by device, experts and cache with them, by its RPC backend.

llama.cpp takes the RPC servers' devices first and its own after them (src/llama.cpp, "to minimize network transfers"),
so the output, which counts as one layer more, lies on the first node's last GPU. Nodes without GPUs offer their RAM:
the first node keeps the first layers, and -ngl gives the others and the output to the servers. The token embedding
stays in the first node's RAM.
"""

from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

from moebox.core.box import Box
from moebox.core.deployment import Deployment
from moebox.core.model import Checkpoint, Component, Model
from moebox.core.plan import DeviceMemory, Memory
from moebox.core.recipe import Recipe
from moebox.engines.devices import add_host_memory, device_memory, ram_overhead
from moebox.engines.ggml import memory as rules
from moebox.sizing.constants import MIB, memory_constant_bytes
from moebox.sizing.kv import layer_bytes, token_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerDevice:
    """A device that holds whole layers: a GPU of a node, or a node's RAM."""

    node: int
    gpu: int | None = None  # of its node; None is RAM

    def name(self, box: Box) -> str:
        """As the budget calls it; the first node's RAM is plain ram."""
        if self.gpu is not None:
            return f"gpu{self.node * len(box.gpus) + self.gpu}"
        return f"ram{self.node}" if self.node else "ram"


def spans_nodes(recipe: Recipe) -> bool:
    """Whether whole layers lie on several nodes."""
    return recipe.parallel.nodes > 1 and bool(recipe.hybrid and recipe.hybrid.split)


def layer_devices(box: Box, nodes: int) -> tuple[LayerDevice, ...]:
    """Every device in the order of its layers."""
    servers = range(1, nodes)
    if box.gpus:
        return tuple(LayerDevice(node=node, gpu=gpu) for node in (*servers, 0) for gpu in range(len(box.gpus)))
    return tuple(LayerDevice(node=node) for node in (0, *servers))


def layers_by_device(box: Box, model: Model, recipe: Recipe) -> tuple[range, ...]:
    """The layers of each place; `split` counts those of devices, the output among the last one's."""
    assert recipe.hybrid is not None
    split = recipe.hybrid.split
    counts = split if box.gpus else (model.layers + 1 - sum(split), *split)
    edges = [min(edge, model.layers) for edge in accumulate(counts, initial=0)]
    return tuple(range(first, after) for first, after in pairwise(edges))


def multi_node_budget(deployment: Deployment) -> Memory:
    """Every device's bytes on every node; the first node's RAM comes last."""
    box, model, checkpoint, recipe = deployment.facts
    parts = layers_by_device(box, model, recipe)
    held = [
        device_budget(place, box, model, checkpoint, recipe, layers, last=number == len(parts) - 1)
        for number, (place, layers) in enumerate(zip(layer_devices(box, recipe.parallel.nodes), parts, strict=False))
    ]
    held.sort(key=lambda one: (one.device == "ram", len(one.device), one.device))
    if box.gpus:
        held = list(
            add_host_memory(box, held, rules.ram_budget(box, model, checkpoint, _all_on_devices(model, recipe)))
        )
    short = max(-one.free for one in held)
    return Memory(
        devices=tuple(held),
        kv_tokens=rules.cache_tokens(recipe),
        kv_bytes_per_token=token_bytes(model, recipe),
        fits=short <= 0,
        shortfall=max(0, short),
    )


def layer_room(
    place: LayerDevice, box: Box, model: Model, checkpoint: Checkpoint, recipe: Recipe, *, last: bool
) -> int:
    """Whole layers that a device has room for, beside its buffers and a margin."""
    empty = device_budget(place, box, model, checkpoint, recipe, range(0), last=last)
    dense = sum(rules.dense_weights(model, checkpoint, [model.layers - 1], last=False).values())
    cache = round(rules.cache_tokens(recipe) * layer_bytes(model, recipe))
    each = checkpoint.expert_layer_bytes + dense + cache
    beside = 0 if place.gpu is None else rules.unified_cpu_bytes(box.gpus[place.gpu], model, checkpoint, recipe)
    return max(0, empty.free - beside - memory_constant_bytes("llama", "margin")) // max(each, 1)


def device_budget(
    place: LayerDevice, box: Box, model: Model, checkpoint: Checkpoint, recipe: Recipe, layers: range, *, last: bool
) -> DeviceMemory:
    """One device's bytes with these layers on it."""
    if place.gpu is None:
        return _ram(place, box, model, checkpoint, recipe, layers, last=last)
    whole = _all_on_devices(model, recipe)
    bare = rules.gpu_budget(
        int(place.name(box)[3:]),
        box.gpus[place.gpu],
        model,
        checkpoint,
        whole,
        list(layers),
        1,  # the experts are counted here, by layer
        last=last,
    )
    experts = _expert_bytes(model, checkpoint, layers)
    weights: dict[Component, int] = {**bare.weights, **({"routed_experts": experts} if experts else {})}
    return replace(bare, weights=weights, free=bare.free - experts)


def _ram(
    place: LayerDevice, box: Box, model: Model, checkpoint: Checkpoint, recipe: Recipe, layers: range, *, last: bool
) -> DeviceMemory:
    """A node's RAM: its layers, their cache, and what the machine itself needs."""
    weights: dict[Component, int] = dict(rules.dense_weights(model, checkpoint, list(layers), last=last))
    if experts := _expert_bytes(model, checkpoint, layers):
        weights["routed_experts"] = experts
    if not place.node:
        weights["embed"] = checkpoint.bytes_by_component.get("embed", 0)
    kv = round(rules.cache_tokens(recipe) * layer_bytes(model, recipe) * len(layers))
    activations = rules.hybrid_settings(recipe).ubatch * MIB // 2
    return device_memory(place.name(box), box.ram, weights, kv=kv, activations=activations, overhead=ram_overhead(box))


def _expert_bytes(model: Model, checkpoint: Checkpoint, layers: range) -> int:
    with_experts = sum(layer >= model.dense_layers for layer in layers) if model.moe else 0
    return with_experts * checkpoint.expert_layer_bytes


def _all_on_devices(model: Model, recipe: Recipe) -> Recipe:
    """The recipe as the rules of one node read it when no expert stays in RAM."""
    assert recipe.hybrid is not None
    every = (tuple(range(model.dense_layers, model.layers)),) if model.moe else ()
    return replace(recipe, hybrid=replace(recipe.hybrid, experts=every))
