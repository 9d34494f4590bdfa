"""Which expert layers go to which GPU when not all of them do.

The head of the stack goes to the first GPU and the tail to the last; each GPU takes layers it owns first, because the
cache and the attention of those lie there already.
"""

from dataclasses import replace

from moebox.core.box import Box
from moebox.core.model import Checkpoint, Model
from moebox.core.recipe import Hybrid, Recipe
from moebox.engines.ggml import memory as llama
from moebox.errors import BadInput
from moebox.sizing.constants import memory_constant_bytes


def place_expert_layers(box: Box, model: Model, counts: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """The layers that `counts` by GPU mean."""
    if sum(counts) > model.moe_layers:
        raise BadInput(f"{sum(counts)} expert layers were asked for; {model.name} has {model.moe_layers}")
    owned = llama.owned_layers(model, list(box.gpus))
    free = set(range(model.dense_layers, model.layers)) if model.moe else set()
    chosen = []
    for slot, count in enumerate(counts):
        layers = sorted(free, reverse=0 < slot == len(box.gpus) - 1)  # the last GPU takes the stack's tail
        own_first = sorted(layers, key=lambda layer: layer not in owned[slot])
        chosen.append(tuple(sorted(own_first[:count])))
        free.difference_update(chosen[-1])
    return tuple(chosen)


def expert_counts_that_fit(box: Box, model: Model, checkpoint: Checkpoint, recipe: Recipe) -> tuple[int, ...]:
    """As many expert layers on each GPU as its memory holds after cache, buffers and a margin; all, if they fit."""
    if not (model.moe and checkpoint.expert_layer_bytes and box.gpus):
        return ()
    if (
        box.has_unified_memory
    ):  # what a GPU leaves to the CPU takes the same memory: whether all of it fits, the budget says
        return divide_evenly([model.moe_layers] * len(box.gpus), model.moe_layers)
    whole = _room(box, model, checkpoint, recipe, all_placed=True)
    if sum(whole) >= model.moe_layers:
        return divide_evenly(whole, model.moe_layers)
    return tuple(_room(box, model, checkpoint, recipe, all_placed=False))


def with_expert_layers(box: Box, model: Model, recipe: Recipe, counts: tuple[int, ...]) -> Recipe:
    """`recipe` with so many expert layers on each GPU."""
    if len(counts) > len(box.gpus) and any(counts):
        raise BadInput(f"expert layers for {len(counts)} GPUs were asked for; {box.name} has {len(box.gpus)}")
    hybrid = recipe.hybrid or Hybrid()
    return replace(
        recipe, hybrid=replace(hybrid, experts=place_expert_layers(box, model, counts) if any(counts) else ())
    )


def _room(box: Box, model: Model, checkpoint: Checkpoint, recipe: Recipe, *, all_placed: bool) -> list[int]:
    """Expert layers each GPU has room for; without staging when every expert lies on a GPU."""
    owners = llama.owned_layers(model, list(box.gpus))
    staging = llama.staging_bytes(model, checkpoint, with_expert_layers(box, model, recipe, ())) if all_placed else 0
    bare = with_expert_layers(box, model, recipe, ())
    room: list[int] = []
    for slot, gpu in enumerate(box.gpus):
        last = slot == len(box.gpus) - 1
        device = llama.gpu_budget(slot, gpu, model, checkpoint, bare, owners[slot], slot, last=last)
        free = device.free + staging - memory_constant_bytes("llama", "margin")
        room.append(max(0, free // checkpoint.expert_layer_bytes))
    return room


def divide_evenly(room: list[int], wanted: int) -> tuple[int, ...]:
    """`wanted` layers over GPUs with that much room, as evenly as it goes."""
    counts = [0] * len(room)
    while sum(counts) < wanted:
        slot = min((i for i in range(len(room)) if counts[i] < room[i]), key=lambda i: (counts[i], i))
        counts[slot] += 1
    return tuple(counts)
