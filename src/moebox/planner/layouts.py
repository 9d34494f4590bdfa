"""Ways to divide a model over GPUs: tensor, pipeline, data, expert and decode context parallelism."""

from collections.abc import Iterator

from moebox.core import gpu_list, registry
from moebox.core.box import Box
from moebox.core.model import Checkpoint, Model
from moebox.core.recipe import EngineName, Parallel
from moebox.planner.constraints import Constraints
from moebox.sizing.shards import invalid_layout

GPU_COUNTS = (1, 2, 3, 4, 6, 8, 16, 32, 64, 128, 256)  # GPUs that boxes come with


def possible_layouts(
    box: Box, model: Model, checkpoint: Checkpoint, engine: EngineName, constraints: Constraints
) -> Iterator[Parallel]:
    """Yield the layouts that the model's heads, experts and layers allow on these GPUs."""
    per_node, gpus, dp = len(box.gpus), gpu_list.all_gpus(box), constraints.dp or 1
    largest = max((gpu.memory for gpu in gpus), default=0)
    for tp, pp in tp_pp_pairs(box, constraints):
        too_small = checkpoint.total_bytes / (tp * pp) > largest  # even for the largest GPU's part of the weights
        if too_small and tp * pp < len(gpus) and not constraints.tp and dp == 1:
            continue  # the layouts over all GPUs show how much is missing
        nodes = max(1, min(box.nodes, -(-tp * pp * dp // max(per_node, 1))))
        for ep in expert_parallel_options(model, constraints, tp * dp):
            for dcp in context_parallel_sizes(model, tp, engine, constraints, ep=ep):
                parallel = Parallel(tp=tp, pp=pp, dp=dp, dcp=dcp, ep=ep, nodes=nodes)
                enough = parallel.gpu_count <= len(gpus) or constraints.tp is not None
                if enough and parallel.gpu_count % nodes == 0 and not invalid_layout(model, checkpoint, parallel):
                    yield parallel


def expert_parallel_options(model: Model, constraints: Constraints, ranks: int) -> tuple[bool, ...]:
    """Whether to place whole experts on the `ranks` of the tensor- and data-parallel groups, or slices of each."""
    possible = model.moe is not None and ranks > 1
    if constraints.ep is None:
        return (False, True) if possible else (False,)
    if constraints.ep == 1:
        return (False,)
    return (True,) if possible and constraints.ep == ranks else ()


def context_parallel_sizes(
    model: Model, tp: int, engine: EngineName, constraints: Constraints, *, ep: bool
) -> tuple[int, ...]:
    """Sizes of decode context parallelism to try: powers of two that divide the ranks."""
    if constraints.dcp:
        return (constraints.dcp,)
    chosen_ep = ep and not constraints.ep  # change one thing at a time
    if chosen_ep or model.mla is None or not registry.engine_traits(engine).proposes_dcp:
        return (1,)
    return tuple(size for size in (1, 2, 4, 8) if tp % size == 0)


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
