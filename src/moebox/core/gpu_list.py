"""Which GPUs of a box a recipe uses, and the budget of each as core's DeviceMemory."""

from moebox.core.box import Box, Gpu
from moebox.core.plan import DeviceMemory
from moebox.core.recipe import Recipe

VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"


def all_gpus(box: Box) -> tuple[Gpu, ...]:
    """Every GPU of every node, in order."""
    return box.gpus * box.nodes


def used_gpus(box: Box, recipe: Recipe) -> tuple[int, ...]:
    """Indices of the GPUs a recipe runs on: CUDA_VISIBLE_DEVICES where set, else the first ones."""
    listed = recipe.env.get(VISIBLE_DEVICES)
    picked = _listed(box, listed) if listed else tuple(range(len(all_gpus(box))))
    return picked if recipe.hybrid else picked[: recipe.parallel.gpu_count]


def _listed(box: Box, text: str) -> tuple[int, ...]:
    """The GPUs of a list of their numbers; all of them where it lists none, or names them otherwise."""
    every = range(len(all_gpus(box)))
    numbers = list(filter(None, text.replace(" ", "").split(",")))
    if not all(number.isdigit() for number in numbers):
        return tuple(every)
    places = dict(zip(map(str, box.gpu_numbers or every), every, strict=False))
    return tuple(places[number] for number in numbers if number in places)


def visible_devices_env(box: Box, used: tuple[int, ...]) -> dict[str, str]:
    """The environment in which a program sees these GPUs alone; nothing where they are its first ones anyway."""
    numbers = tuple(box.gpu_numbers[place] for place in used) if box.gpu_numbers else used
    return {} if numbers == tuple(range(len(numbers))) else {VISIBLE_DEVICES: ",".join(map(str, numbers))}


def pipeline_stages(used: tuple[int, ...], recipe: Recipe) -> dict[int, int]:
    """The pipeline stage of each GPU used."""
    per_stage = recipe.parallel.tp * recipe.parallel.dp
    return {index: min(rank // per_stage, recipe.parallel.pp - 1) for rank, index in enumerate(used)}


def largest_gpus(box: Box, count: int) -> tuple[int, ...]:
    """The `count` GPUs with the most memory, in order: what a tensor-parallel group should be made of."""
    gpus = all_gpus(box)
    order = sorted(range(len(gpus)), key=lambda i: (-gpus[i].memory, -gpus[i].bandwidth, i))
    return tuple(sorted(order[:count]))


def idle_device_memory(index: int, gpu: Gpu, bytes_held: int) -> DeviceMemory:
    """A GPU the recipe does not use; `held` bytes are other programs'."""
    return DeviceMemory(
        device=f"gpu{index}", total=gpu.memory, weights={}, overhead=bytes_held, free=gpu.memory - bytes_held
    )
