"""Which layers go to which device if experts are shared between GPUs and RAM, or layers between nodes.

The head of the stack goes to the first GPU and the tail to the last. Each GPU takes layers it owns first, because their
cache and attention are there already. llama.cpp over several nodes puts whole layers on every node's GPUs or RAM.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from moebox.core import registry
from moebox.core.box import Box
from moebox.core.model import Checkpoint, Model
from moebox.core.recipe import Parallel, Recipe
from moebox.engines.ggml import memory as ggml
from moebox.engines.llama_cpp.memory import layer_devices, layer_room
from moebox.errors import refuse_if
from moebox.sizing.constants import memory_constant_bytes


def expert_counts_that_fit(box: Box, model: Model, checkpoint: Checkpoint, recipe: Recipe) -> tuple[int, ...]:
    """Expert layers that each GPU holds after cache, buffers and a margin; all of them evenly if they fit."""
    total = model.moe_layers
    if not (model.moe and checkpoint.expert_layer_bytes and box.gpus):
        return ()
    if box.has_unified_memory:  # the CPU's layers take the same memory: the budget decides whether all of it fits
        return divide_evenly([total] * len(box.gpus), total)
    bare = with_expert_layers(box, model, recipe, ())
    owners = ggml.owned_layers(model, list(box.gpus))
    last = len(box.gpus) - 1
    free = [
        ggml.gpu_budget(slot, gpu, model, checkpoint, bare, owners[slot], slot, last=slot == last).free
        - memory_constant_bytes("llama", "margin")
        for slot, gpu in enumerate(box.gpus)
    ]
    # Without experts in RAM no GPU needs the buffer that stages them.
    staging = ggml.staging_bytes(model, checkpoint, bare)
    unstaged = [max(0, (size + staging) // checkpoint.expert_layer_bytes) for size in free]
    if sum(unstaged) >= total:
        return divide_evenly(unstaged, total)
    return tuple(max(0, size // checkpoint.expert_layer_bytes) for size in free)


def with_expert_layers(box: Box, model: Model, recipe: Recipe, counts: tuple[int, ...]) -> Recipe:
    """Return `recipe` with that many expert layers on each GPU."""
    text = f"expert layers are given for {len(counts)} GPUs; {box.name} has {len(box.gpus)}"
    refuse_if(len(counts) > len(box.gpus) and any(counts), text)
    text = f"{sum(counts)} expert layers are given; {model.name} has {model.moe_layers}"
    refuse_if(sum(counts) > model.moe_layers, text)
    placed: list[tuple[int, ...]] = []
    if any(counts):
        owned = ggml.owned_layers(model, list(box.gpus))
        free = set(range(model.dense_layers, model.layers)) if model.moe else set()
        for slot, count in enumerate(counts):
            layers = sorted(free, reverse=0 < slot == len(box.gpus) - 1)  # the last GPU takes the stack's tail
            own_first = sorted(layers, key=lambda layer: layer not in owned[slot])
            placed.append(tuple(sorted(own_first[:count])))
            free.difference_update(placed[-1])
    return replace(recipe, hybrid=replace(recipe.placement, experts=tuple(placed)))


def divide_evenly(room: list[int], wanted: int) -> tuple[int, ...]:
    """Divide `wanted` layers over devices with that much room, as evenly as possible."""
    turns = sorted((turn, slot) for slot, most in enumerate(room) for turn in range(min(most, wanted)))[:wanted]
    counts = Counter(slot for _, slot in turns)
    return tuple(counts[slot] for slot in range(len(room)))


def multi_node_recipes(box: Box, model: Model, checkpoint: Checkpoint, recipe: Recipe) -> Iterator[Recipe]:
    """Yield `recipe` over two nodes and more, up to those of the box, if the engine has worker programs."""
    if not registry.engine_traits(recipe.engine).worker_programs or not (box.gpus or box.ram):
        return
    for nodes in range(2, box.nodes + 1):
        assert recipe.hybrid is not None
        devices = layer_devices(box, nodes)
        last = len(devices) - 1
        room = [
            layer_room(device, box, model, checkpoint, recipe, last=number == last)
            for number, device in enumerate(devices)
        ]
        if sum(room) < model.layers:  # too little: the budget shows how much is missing
            room = [model.layers] * len(devices)
        counts = list(divide_evenly(room, model.layers))
        counts[-1] += 1  # the output
        split = tuple(counts) if box.gpus else tuple(counts[1:])
        layers = recipe.hybrid.gpu_layers if box.gpus else sum(split)
        hybrid = replace(recipe.hybrid, experts=(), split=split, gpu_layers=layers)
        yield replace(recipe, name=f"{recipe.name}-{nodes}-nodes", parallel=Parallel(nodes=nodes), hybrid=hybrid)
