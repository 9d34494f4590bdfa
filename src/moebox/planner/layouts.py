"""Ways to divide a model over GPUs: tensor, pipeline, data, expert and decode context parallelism."""

from collections.abc import Iterator

from moebox.core import registry
from moebox.core.box import Box
from moebox.core.model import Checkpoint, Model
from moebox.core.recipe import EngineName, Parallel
from moebox.core.traits import Traits
from moebox.planner.constraints import Constraints
from moebox.planner.rate import PlanQuery
from moebox.sizing.layout import indivisible_layout, unsupported_layout

GPU_COUNTS = (1, 2, 3, 4, 6, 8, 16, 32, 64, 128, 256)  # GPUs that boxes come with


def possible_layouts(query: PlanQuery, checkpoint: Checkpoint, engine: EngineName) -> Iterator[Parallel]:
    """Yield the layouts that the engine and the model's heads, experts and layers allow on these GPUs."""
    traits = registry.engine_traits(engine)
    largest = max((gpu.memory for gpu in query.box.gpus), default=0)
    possible = [
        parallel
        for parallel in wanted_layouts(query, traits)
        if not unsupported_layout(traits, parallel) and not indivisible_layout(parallel, query.model, checkpoint)
    ]
    most = max((parallel.gpu_count for parallel in possible), default=0)
    for parallel in possible:
        too_small = checkpoint.total_bytes / (parallel.tp * parallel.pp) > largest  # for a GPU's part of the weights
        if too_small and parallel.gpu_count < most and not query.constraints.tp and parallel.dp == 1:
            continue  # the layouts over the most GPUs show how much is missing
        yield parallel


def wanted_layouts(query: PlanQuery, engine: Traits) -> Iterator[Parallel]:
    """Yield the layouts that the constraints ask for, possible or not; the largest first."""
    box, model, constraints = query.box, query.model, query.constraints
    per_node, dp = len(box.gpus), constraints.dp or 1
    for tp, pp in tp_pp_pairs(box, constraints):
        nodes = max(1, min(box.nodes, -(-tp * pp * dp // max(per_node, 1))))
        for ep in expert_parallel_options(model, constraints, tp * dp):
            for dcp in context_parallel_sizes(model, tp, engine, constraints, ep=ep):
                parallel = Parallel(tp=tp, pp=pp, dp=dp, dcp=dcp, ep=ep, nodes=nodes)
                if parallel.gpu_count <= per_node * box.nodes or constraints.tp is not None:
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
    model: Model, tp: int, engine: Traits, constraints: Constraints, *, ep: bool
) -> tuple[int, ...]:
    """Sizes of decode context parallelism to try: powers of two that divide the ranks."""
    if constraints.dcp:
        return (constraints.dcp,)
    chosen_ep = ep and not constraints.ep  # change one thing at a time
    if chosen_ep or model.mla is None or not engine.proposes_dcp:
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
