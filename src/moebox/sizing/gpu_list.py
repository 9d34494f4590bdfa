"""Which GPUs of a box a recipe uses, and the budget of each as core's DeviceMemory."""

from moebox.core.box import Box, Gpu
from moebox.core.plan import DeviceMemory
from moebox.core.recipe import Recipe


def all_gpus(box: Box) -> tuple[Gpu, ...]:
    """Every GPU of every node, in order."""
    return box.gpus * box.nodes


def used_gpus(box: Box, recipe: Recipe) -> tuple[int, ...]:
    """Indices of the GPUs a recipe runs on: CUDA_VISIBLE_DEVICES where set, else the first ones."""
    named = recipe.env.get("CUDA_VISIBLE_DEVICES", "")
    parts = [part.strip() for part in named.split(",") if part.strip()]
    every = range(len(all_gpus(box)))
    if parts and all(part.isdigit() for part in parts):
        picked = tuple(int(part) for part in parts if int(part) in every)
    else:
        picked = tuple(every)
    return picked if recipe.hybrid else picked[: recipe.parallel.gpus]


def stages_of(used: tuple[int, ...], recipe: Recipe) -> dict[int, int]:
    """The pipeline stage of each GPU used."""
    per_stage = recipe.parallel.tp * recipe.parallel.dp
    return {index: min(rank // per_stage, recipe.parallel.pp - 1) for rank, index in enumerate(used)}


def fastest_alike(box: Box, count: int) -> tuple[int, ...]:
    """The `count` GPUs with the most memory, in order: what a tensor-parallel group should be made of."""
    gpus = all_gpus(box)
    order = sorted(range(len(gpus)), key=lambda i: (-gpus[i].memory, -gpus[i].bandwidth, i))
    return tuple(sorted(order[:count]))


def idle(index: int, gpu: Gpu, held: int) -> DeviceMemory:
    """A GPU the recipe does not use; `held` bytes are other programs'."""
    return DeviceMemory(device=f"gpu{index}", total=gpu.memory, weights={}, overhead=held, free=gpu.memory - held)
