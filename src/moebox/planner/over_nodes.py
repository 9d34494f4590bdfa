"""llama.cpp's recipes over several nodes: whole layers on every node's GPUs, or in every node's RAM."""

from collections.abc import Iterator
from dataclasses import replace

from moebox.core import registry
from moebox.core.box import Box
from moebox.core.model import Checkpoint, Model
from moebox.core.recipe import Parallel, Recipe
from moebox.engines.llama_cpp import spread
from moebox.planner.place import divide_evenly


def multi_node_recipes(box: Box, model: Model, checkpoint: Checkpoint, recipe: Recipe) -> Iterator[Recipe]:
    """`recipe` over two nodes and more, as many as the box has; nothing for engines that have no workers."""
    if not registry.engine_traits(recipe.engine).worker_programs or not (box.gpus or box.ram):
        return
    for nodes in range(2, box.nodes + 1):
        yield _over(nodes, box, model, checkpoint, recipe)


def _over(nodes: int, box: Box, model: Model, checkpoint: Checkpoint, recipe: Recipe) -> Recipe:
    assert recipe.hybrid is not None
    places = spread.layer_devices(box, nodes)
    last = len(places) - 1
    rooms = [
        spread.layer_room(place, box, model, checkpoint, recipe, last=number == last)
        for number, place in enumerate(places)
    ]
    if sum(rooms) < model.layers:  # too little: the budget says by how much
        rooms = [model.layers] * len(places)
    counts = list(divide_evenly(rooms, model.layers))
    counts[-1] += 1  # the output
    split = tuple(counts) if box.gpus else tuple(counts[1:])
    layers = recipe.hybrid.gpu_layers if box.gpus else sum(split)
    hybrid = replace(recipe.hybrid, experts=(), split=split, gpu_layers=layers)
    return replace(recipe, name=f"{recipe.name}-{nodes}-nodes", parallel=Parallel(nodes=nodes), hybrid=hybrid)
