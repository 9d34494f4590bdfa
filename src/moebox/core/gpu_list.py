"""Which GPUs of a box a recipe uses, and the budget of each as core's DeviceMemory."""

from moebox.core.box import Box, Gpu
from moebox.core.plan import DeviceMemory
from moebox.core.recipe import Recipe

VISIBLE = "CUDA_VISIBLE_DEVICES"


def all_gpus(box: Box) -> tuple[Gpu, ...]:
    """Every GPU of every node, in order."""
    return box.gpus * box.nodes


def used_gpus(box: Box, recipe: Recipe) -> tuple[int, ...]:
    """Indices of the GPUs a recipe runs on: CUDA_VISIBLE_DEVICES where set, else the first ones."""
    listed = recipe.env.get(VISIBLE)
    picked = _listed(box, listed) if listed else tuple(range(len(all_gpus(box))))
    return picked if recipe.hybrid else picked[: recipe.parallel.gpus]


def _listed(box: Box, text: str) -> tuple[int, ...]:
    """The GPUs of a list of their numbers; all of them where it lists none, or names them otherwise."""
    every = range(len(all_gpus(box)))
    numbers = list(filter(None, text.replace(" ", "").split(",")))
    if not all(number.isdigit() for number in numbers):
        return tuple(every)
    places = dict(zip(map(str, box.gpu_numbers or every), every, strict=False))
    return tuple(places[number] for number in numbers if number in places)


def named(box: Box, used: tuple[int, ...]) -> dict[str, str]:
    """The environment in which a program sees these GPUs alone; nothing where they are its first ones anyway."""
    numbers = tuple(box.gpu_numbers[place] for place in used) if box.gpu_numbers else used
    return {} if numbers == tuple(range(len(numbers))) else {VISIBLE: ",".join(map(str, numbers))}


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
