"""The GPUs of a box that a recipe uses."""

from moebox.core.box import Box, Gpu
from moebox.core.recipe import Recipe

VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"


def all_gpus(box: Box) -> tuple[Gpu, ...]:
    return box.gpus * box.nodes


def used_gpus(box: Box, recipe: Recipe) -> tuple[int, ...]:
    """Indices of the GPUs that a recipe runs on: by CUDA_VISIBLE_DEVICES if set, else the first ones."""
    every = range(len(all_gpus(box)))
    picked = tuple(every)
    numbers = [*filter(None, recipe.env.get(VISIBLE_DEVICES, "").replace(" ", "").split(","))]
    if recipe.env.get(VISIBLE_DEVICES) and all(map(str.isdigit, numbers)):  # UUIDs count as all GPUs
        places = dict(zip(map(str, box.gpu_numbers or every), every, strict=False))
        picked = tuple(places[number] for number in numbers if number in places)
    return picked if recipe.hybrid else picked[: recipe.parallel.gpu_count]


def visible_devices_env(box: Box, used: tuple[int, ...]) -> dict[str, str]:
    """The environment in which a program sees only these GPUs; empty if they are the first ones."""
    numbers = tuple(box.gpu_numbers[place] for place in used) if box.gpu_numbers else used
    return {} if numbers == tuple(range(len(numbers))) else {VISIBLE_DEVICES: ",".join(map(str, numbers))}


def pipeline_stages(used: tuple[int, ...], recipe: Recipe) -> dict[int, int]:
    per_stage = recipe.parallel.tp * recipe.parallel.dp
    return {index: min(rank // per_stage, recipe.parallel.pp - 1) for rank, index in enumerate(used)}


def largest_gpus(box: Box, count: int) -> tuple[int, ...]:
    """Indices of the `count` GPUs with the most memory, for a tensor-parallel group."""
    gpus = all_gpus(box)
    order = sorted(range(len(gpus)), key=lambda i: (-gpus[i].memory, -gpus[i].bandwidth, i))
    return tuple(sorted(order[:count]))
