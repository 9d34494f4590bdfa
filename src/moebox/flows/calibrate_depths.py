"""With how many layers an engine is booted, and what is tried when that is too many."""

from dataclasses import dataclass, replace

from moebox.core.box import Box
from moebox.core.calibration import gpu_expert_layers
from moebox.core.model import Checkpoint, Model
from moebox.core.recipe import Recipe
from moebox.errors import BadInput
from moebox.serve.faults import LaunchFailed

FEW = 3  # repeated layers of the shallow boot
MOST = 24  # layers of the deep one: more would load for longer than it tells
SHARE = 0.5  # of the memory that weights may take; the rest is the cache's, the graphs' and the host's
SMALL = 4 * 2**30  # bytes of weights that are read within seconds: nothing is won by taking fewer layers
OUTSIDE_LAYERS = ("embed", "lm_head", "vision", "mtp")


@dataclass(frozen=True, slots=True, kw_only=True)
class BootDepth:
    """Layers of a boot, and of these how many have their experts on GPUs while others' are in RAM."""

    layers: int
    gpu_experts: int = 0

    @property
    def text(self) -> str:
        """In words."""
        return f"{self.layers} layers" + (f" ({self.gpu_experts} with experts on GPUs)" if self.gpu_experts else "")


def choose_depths(
    recipe: Recipe, model: Model, checkpoint: Checkpoint, box: Box, layers: tuple[int, ...] = ()
) -> tuple[BootDepth, ...]:
    """Few and more layers, each with all kinds; a third boot where experts are on GPUs and in RAM.

    A small model is booted once, with all its layers.
    """
    split = gpu_expert_layers(recipe) if box.gpus else 0
    if not layers and not split and checkpoint.total_bytes <= SMALL:
        return (BootDepth(layers=model.layers),)
    least = model.dense_layers + max(1, recipe.parallel.pp)
    room = layers_that_fit(recipe, model, checkpoint, box)
    few, more = requested_depths(layers, least, model) if layers else default_depths(least, model, room)
    if few < least:
        raise BadInput(f"{model.title} has {model.layers} layers: too few to measure with two depths")
    if not split:
        return BootDepth(layers=few), BootDepth(layers=more)
    if split >= model.moe_layers:
        dense = model.dense_layers
        return BootDepth(layers=few, gpu_experts=few - dense), BootDepth(layers=more, gpu_experts=more - dense)
    return (
        BootDepth(layers=few),
        BootDepth(layers=more),
        BootDepth(layers=more, gpu_experts=max(1, (more - least) // 2)),
    )


def default_depths(least: int, model: Model, room: int) -> tuple[int, int]:
    """Few layers with all kinds among them, and more where `room` has them."""
    few = min(max(model.dense_layers + FEW, least), model.layers)
    more = min(max(room, few + 1), MOST, model.layers)
    return min(few, more - 1), more


def requested_depths(layers: tuple[int, ...], least: int, model: Model) -> tuple[int, int]:
    """Depths that were asked for."""
    if len(layers) != 2 or not least <= layers[0] < layers[1] <= model.layers:
        text = ",".join(map(str, layers))
        raise BadInput(
            f"--layers {text}: --measure takes two depths, such as --layers {least + 2},{least + 6}",
            hint=f"{model.title} has {model.layers} layers; {least} are the fewest that have every kind",
        )
    return layers[0], layers[1]


def layers_that_fit(recipe: Recipe, model: Model, checkpoint: Checkpoint, box: Box) -> int:
    """Layers whose weights take half of the memory they go to."""
    size = checkpoint.bytes_by_component
    outside = sum(size.get(name, 0) for name in OUTSIDE_LAYERS)  # type: ignore[call-overload]
    layer = (checkpoint.total_bytes - outside) / model.layers
    return int((SHARE * free_memory(recipe, box) - outside) // max(layer, 1))


def free_memory(recipe: Recipe, box: Box) -> int:
    """Bytes free where the layers go: on the GPUs, or in RAM."""
    if recipe.hybrid is not None or not box.gpus:
        return box.ram_free or box.ram
    smallest = min(gpu.memory_free or gpu.memory for gpu in box.gpus)
    return round(smallest * recipe.parallel.gpu_count * (recipe.memory_utilization or 0.9))


def shallower_depth(depth: BootDepth, *, above: int) -> BootDepth | None:
    """Half way down to what was measured already; None where nothing lies between."""
    layers = (depth.layers + above) // 2
    if layers <= above or layers < 1:
        return None
    return replace(depth, layers=layers, gpu_experts=min(depth.gpu_experts, layers - 1))


def is_out_of_memory(problem: LaunchFailed) -> bool:
    """Whether a launch failed for want of memory."""
    known = problem.finding is not None and problem.finding.symptom.startswith("oom")
    return known or "SIGKILL" in problem.message  # the kernel's killer leaves nothing in the engine's log
