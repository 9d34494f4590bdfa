"""Ways to divide a model over GPUs: tensor, pipeline, data, expert and decode context parallelism; layers by device.

If experts are shared between GPUs and RAM, the head of the stack goes to the first GPU and the tail to the last. Each
GPU takes layers it owns first, because their cache and attention are there already. llama.cpp over several nodes puts
whole layers on every node's GPUs or RAM.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from moebox.core import registry
from moebox.core.box import Box
from moebox.core.model import Checkpoint, Model
from moebox.core.recipe import EngineName, Parallel, Recipe
from moebox.core.traits import Traits
from moebox.engines.ggml import memory as ggml
from moebox.engines.llama_cpp.memory import layer_devices, layer_room
from moebox.errors import refuse_if
from moebox.planner.constraints import Constraints
from moebox.planner.rate import PlanInputs
from moebox.sizing.constants import memory_constant_bytes
from moebox.sizing.layout import indivisible_layout, unsupported_layout

GPU_COUNTS = (1, 2, 3, 4, 6, 8, 16, 32, 64, 128, 256)  # GPUs that boxes come with


def possible_layouts(inputs: PlanInputs, checkpoint: Checkpoint, engine: EngineName) -> Iterator[Parallel]:
    """Yield the layouts that the engine and the model's heads, experts and layers allow on these GPUs."""
    traits = registry.engine_traits(engine)
    largest = max((gpu.memory for gpu in inputs.box.gpus), default=0)
    possible = [
        parallel
        for parallel in wanted_layouts(inputs, traits)
        if not unsupported_layout(traits, parallel) and not indivisible_layout(parallel, inputs.model, checkpoint)
    ]
    most = max((parallel.gpu_count for parallel in possible), default=0)
    for parallel in possible:
        too_small = checkpoint.total_bytes / (parallel.tp * parallel.pp) > largest  # for a GPU's part of the weights
        if too_small and parallel.gpu_count < most and not inputs.constraints.tp and parallel.dp == 1:
            continue  # the layouts over the most GPUs show how much is missing
        yield parallel


def wanted_layouts(inputs: PlanInputs, engine: Traits) -> Iterator[Parallel]:
    """Yield the layouts that the constraints ask for, possible or not; the largest first."""
    box, model, constraints = inputs.box, inputs.model, inputs.constraints
    per_node, dp = len(box.gpus), constraints.dp or 1
    for tp, pp in tp_pp_pairs(box, constraints):
        nodes = max(1, min(box.nodes, -(-tp * pp * dp // max(per_node, 1))))
        # Expert parallelism: whole experts on the ranks of the tensor- and data-parallel groups, not slices of each.
        whole = model.moe is not None and tp * dp > 1 and constraints.ep in (None, tp * dp)
        for ep in [False] * (constraints.ep in (None, 1)) + [True] * whole:
            sizes = [1]
            if constraints.dcp:
                sizes = [constraints.dcp]
            elif model.mla and engine.proposes_dcp and not (ep and not constraints.ep):  # change one thing at a time
                sizes = [size for size in (1, 2, 4, 8) if tp % size == 0]
            for dcp in sizes:
                parallel = Parallel(tp=tp, pp=pp, dp=dp, dcp=dcp, ep=ep, nodes=nodes)
                if parallel.gpu_count <= per_node * box.nodes or constraints.tp is not None:
                    yield parallel


def tp_pp_pairs(box: Box, constraints: Constraints) -> list[tuple[int, int]]:
    """Pairs of tensor and pipeline sizes to try, over all GPUs or fewer, the largest first.

    A larger box tries everything that a smaller one does, whole nodes, and the largest GPUs alone.
    """
    tp, pp = constraints.tp, constraints.pp
    if tp and pp:
        return [(tp, pp)]
    here = len(box.gpus)
    largest = max((gpu.memory for gpu in box.gpus), default=0)
    counts = {here * nodes for nodes in range(1, box.nodes + 1)}
    counts |= {size for size in GPU_COUNTS if size <= here * box.nodes}
    counts |= {sum(gpu.memory == largest for gpu in box.gpus) * box.nodes}
    pairs = {(size, gpus // size) for gpus in counts for size in range(1, gpus + 1) if gpus % size == 0}
    if tp:
        pairs = {pair for pair in pairs if pair[0] == tp} | {(tp, 1)}
    elif pp:
        pairs = {pair for pair in pairs if pair[1] == pp} or {(1, pp)}
    return sorted(pairs, key=lambda pair: (-pair[0] * pair[1], pair[1]))


def expert_counts_that_fit(box: Box, model: Model, checkpoint: Checkpoint, recipe: Recipe) -> tuple[int, ...]:
    """Expert layers that each GPU holds after cache, buffers and a margin; all of them evenly if they fit."""
    total = model.moe_layers
    if not (model.moe and checkpoint.expert_layer_bytes and box.gpus):
        return ()
    if box.has_unified_memory:  # the CPU's layers take the same memory: the budget decides whether all of it fits
        return divide_evenly([total] * len(box.gpus), total)
    bare, margin = with_expert_layers(box, model, recipe, ()), memory_constant_bytes("llama", "margin")
    owners, last = ggml.owned_layers(model, list(box.gpus)), len(box.gpus) - 1
    free = [
        ggml.gpu_budget(gpu, model, checkpoint, bare, owners[slot], slot, last=slot == last).free - margin
        for slot, gpu in enumerate(box.gpus)
    ]
    # Without experts in RAM no GPU needs the buffer that stages them.
    unstaged, staged = (
        [max(0, (size + more) // checkpoint.expert_layer_bytes) for size in free]
        for more in (ggml.staging_bytes(model, checkpoint, bare), 0)
    )
    return divide_evenly(unstaged, total) if sum(unstaged) >= total else tuple(staged)


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
