"""Ways to cut a model over GPUs: tensor, pipeline, data, expert and decode context parallelism."""

from collections.abc import Iterator

from moebox.core import gpu_list, registry
from moebox.core.box import Box
from moebox.core.model import Checkpoint, Model
from moebox.core.recipe import EngineName, Parallel
from moebox.planner.constraints import Constraints
from moebox.sizing import shards

GPU_COUNTS = (1, 2, 3, 4, 6, 8, 16, 32, 64, 128, 256)  # GPUs that boxes come with
# Quantisation groups along an expert's width that a rank must hold whole; mxfp4 kernels pad instead (vLLM mxfp4.py).
QUANT_GROUP = {"int4-g32": 32, "nvfp4": 16, "fp8-block": 128}


def possible_layouts(
    box: Box, model: Model, checkpoint: Checkpoint, engine: EngineName, constraints: Constraints
) -> Iterator[Parallel]:
    """Ways to cut the model over the GPUs that its heads, experts and layers allow."""
    for tp, pp in shapes(box, constraints):
        if _hopeless(tp * pp, box, checkpoint, constraints):
            continue  # the layouts over all GPUs say by how much
        for parallel in _depths(box, model, engine, constraints, tp, pp):
            if _lies_on(box, parallel, constraints) and not layout_problem(model, checkpoint, parallel):
                yield parallel


def layout_problem(model: Model, checkpoint: Checkpoint, parallel: Parallel) -> str:
    """Why these weights cannot be cut that way, or ""."""
    return shards.invalid_layout(model, parallel, QUANT_GROUP.get(checkpoint.quant, 1))


def _hopeless(gpus: int, box: Box, checkpoint: Checkpoint, pins: Constraints) -> bool:
    """Whether even the largest GPU is too small for its part of the weights, on fewer GPUs than there are."""
    every = gpu_list.all_gpus(box)
    free = not pins.tp and (pins.dp or 1) == 1
    return free and gpus < len(every) and checkpoint.total_bytes / gpus > max(gpu.memory for gpu in every)


def _depths(box: Box, model: Model, engine: EngineName, pins: Constraints, tp: int, pp: int) -> Iterator[Parallel]:
    """One shape with and without expert parallelism, and with every size of decode context parallelism."""
    dp = pins.dp or 1
    nodes = max(1, min(box.nodes, -(-tp * pp * dp // max(len(box.gpus), 1))))
    for ep in expert_parallel(model, pins, tp * dp):
        for dcp in context_parallel(model, tp, engine, pins, ep=ep):
            yield Parallel(tp=tp, pp=pp, dp=dp, dcp=dcp, ep=ep, nodes=nodes)


def _lies_on(box: Box, parallel: Parallel, pins: Constraints) -> bool:
    """Whether there are as many GPUs, evenly over the nodes; a pinned size is weighed however large."""
    enough = parallel.gpu_count <= len(box.gpus) * box.nodes or pins.tp is not None
    return enough and parallel.gpu_count % parallel.nodes == 0


def expert_parallel(model: Model, pins: Constraints, ranks: int) -> tuple[bool, ...]:
    """Whether experts lie whole on `ranks`: over all ranks of the tensor- and data-parallel groups, or sliced."""
    able = model.moe is not None and ranks > 1
    if pins.ep is None:
        return (False, True) if able else (False,)
    if pins.ep == 1:
        return (False,)
    return (True,) if able and pins.ep == ranks else ()


def context_parallel(model: Model, tp: int, engine: EngineName, pins: Constraints, *, ep: bool) -> tuple[int, ...]:
    """Sizes of decode context parallelism to weigh: powers of two that divide the ranks."""
    if pins.dcp:
        return (pins.dcp,)
    chosen_with_it = ep and not pins.ep  # one thing less plain at a time
    if chosen_with_it or model.mla is None or not registry.engine_traits(engine).proposes_dcp:
        return (1,)
    return tuple(size for size in (1, 2, 4, 8) if tp % size == 0)


def shapes(box: Box, pins: Constraints) -> list[tuple[int, int]]:
    """Pairs of tensor and pipeline sizes: all GPUs, or fewer where that is better."""
    if pins.tp and pins.pp:
        return [(pins.tp, pins.pp)]
    found = {pair for gpus in _counts(box) for pair in _pairs(gpus)}
    return sorted(_within(found, pins), key=lambda pair: (-pair[0] * pair[1], pair[1]))


def _within(found: set[tuple[int, int]], pins: Constraints) -> set[tuple[int, int]]:
    """The pairs that have the size which is pinned, or one with it where there are none."""
    if pins.tp:
        return _sized(found, 0, pins.tp) | {(pins.tp, 1)}
    if pins.pp:
        return _sized(found, 1, pins.pp) or {(1, pins.pp)}
    return found


def _sized(found: set[tuple[int, int]], place: int, size: int) -> set[tuple[int, int]]:
    return {pair for pair in found if pair[place] == size}


def _counts(box: Box) -> set[int]:
    """How many GPUs to weigh: a larger box weighs what a smaller one does, whole nodes, and the GPUs that are alike."""
    here = len(box.gpus)
    counts = {here * nodes for nodes in range(1, box.nodes + 1)}
    counts |= {size for size in GPU_COUNTS if size <= here * box.nodes}
    largest = max((gpu.memory for gpu in box.gpus), default=0)
    return counts | {sum(gpu.memory == largest for gpu in box.gpus) * box.nodes}


def _pairs(gpus: int) -> Iterator[tuple[int, int]]:
    """Sizes that make up `gpus`."""
    return ((tp, gpus // tp) for tp in range(1, gpus + 1) if gpus % tp == 0)
