"""Depths of calibration boots, and the recipe of each: dummy weights, even routing and fewer layers."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from moebox.checkpoint import deploy, gguf
from moebox.core import registry
from moebox.core.box import Box
from moebox.core.calibration import gpu_expert_layers
from moebox.core.deployment import Deployment
from moebox.core.model import Checkpoint, Model
from moebox.core.recipe import Recipe
from moebox.detect import host, nvml
from moebox.engines.engine import load_engine
from moebox.errors import BadInput, refuse_if
from moebox.serve import preflight
from moebox.serve.dummy import cut_model, ggml_type, write_gguf
from moebox.serve.faults import LaunchFailed
from moebox.units import format_gib

FEW = 3  # repeated layers of the shallow boot
MOST = 24  # layers of the deep boot: more only load longer
SHARE = 0.5  # of memory for weights; the rest is for the cache, the graphs and the host
SMALL = 4 * 2**30  # bytes of weights that are read within seconds, so that all layers are booted
OUTSIDE_LAYERS = ("embed", "lm_head", "vision", "mtp", "ngram")
FALLBACK = "q4_0"
NARROW = 12  # bits of a weight, between the 8.5 of Q8_0 and the 16 of F16
BUSY = 0.25  # of the cores, used by other programs before the engine starts


@dataclass(frozen=True, slots=True, kw_only=True)
class BootDepth:
    """Layers of a boot, and how many of them have their experts on GPUs while others are in RAM."""

    layers: int
    gpu_experts: int = 0

    @property
    def text(self) -> str:
        return f"{self.layers} layers" + (f" ({self.gpu_experts} with experts on GPUs)" if self.gpu_experts else "")


def choose_depths(
    recipe: Recipe, model: Model, checkpoint: Checkpoint, box: Box, layers: tuple[int, ...] = ()
) -> tuple[BootDepth, ...]:
    """Few and more layers, each with all kinds of layers; a third boot if experts are on GPUs and in RAM.

    A small model is booted once, with all its layers.
    """
    split = gpu_expert_layers(recipe) if box.gpus else 0
    if not layers and not split and checkpoint.total_bytes <= SMALL:
        return (BootDepth(layers=model.layers),)
    least = model.dense_layers + max(1, recipe.parallel.pp)
    if layers:
        if len(layers) != 2 or not least <= layers[0] < layers[1] <= model.layers:
            text = ",".join(map(str, layers))
            raise BadInput(
                f"--layers {text}: --measure takes two depths, such as --layers {least + 2},{least + 6}",
                hint=f"{model.title} has {model.layers} layers; {least} are the fewest that have every kind",
            )
        few, more = layers
    else:
        few = min(max(model.dense_layers + FEW, least), model.layers)
        more = min(max(layers_that_fit(recipe, model, checkpoint, box), few + 1), MOST, model.layers)
        few = min(few, more - 1)
    refuse_if(few < least, f"{model.title} has {model.layers} layers: too few to measure with two depths")
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


def layers_that_fit(recipe: Recipe, model: Model, checkpoint: Checkpoint, box: Box) -> int:
    """Number of layers whose weights take half of the free memory."""
    size = checkpoint.bytes_by_component
    outside = sum(size.get(name, 0) for name in OUTSIDE_LAYERS)  # type: ignore[call-overload]
    layer = (checkpoint.total_bytes - outside) / model.layers
    if recipe.hybrid is not None or not box.gpus:
        free = float(box.ram_free or box.ram)
    else:
        smallest = min(gpu.memory_free or gpu.memory for gpu in box.gpus)
        free = smallest * recipe.parallel.gpu_count * (recipe.memory_utilization or 0.9)
    return int((SHARE * free - outside) // max(layer, 1))


def shallower_depth(depth: BootDepth, *, above: int) -> BootDepth | None:
    """Half way down to the depth measured before, or None if nothing lies between."""
    layers = (depth.layers + above) // 2
    if layers <= above or layers < 1:
        return None
    return replace(depth, layers=layers, gpu_experts=min(depth.gpu_experts, layers - 1))


def is_out_of_memory(problem: LaunchFailed) -> bool:
    """Whether a launch failed because memory ran out."""
    known = problem.finding is not None and problem.finding.symptom.startswith("oom")
    return known or "SIGKILL" in problem.message  # the kernel's OOM killer leaves nothing in the engine's log


def recipe_at_depth(recipe: Recipe, model: Model, form: Checkpoint, depth: BootDepth, dummy: Path) -> Recipe:
    """The recipe to start; `dummy` is the generated file for GGUF engines."""
    small = replace(recipe.with_port(0), speculate=None)
    if reads_gguf(recipe):
        quant = form.quant if ggml_type(form.quant) is not None else FALLBACK
        dense, types = dense_type(form, model), tensor_types(form)
        write_gguf(dummy, model, layers=depth.layers, quant=quant, dense=dense, types=types, even_routing=True)
        hybrid = recipe.hybrid
        if hybrid is not None:  # the same GPUs with as many expert layers as this depth puts there
            count = max(len(hybrid.experts), 1)
            layers = range(model.dense_layers, model.dense_layers + depth.gpu_experts)
            hybrid = replace(hybrid, experts=tuple(tuple(layers[gpu::count]) for gpu in range(count)))
        return replace(small, checkpoint=str(dummy), hybrid=hybrid)
    engine, deployment = load_engine(recipe.engine), Deployment.from_parts(recipe, model, form)
    flags = {**recipe.flags, **engine.dummy_weight_flags(deployment, depth.layers)}
    weights = cut_model(deployment, depth.layers) or small.checkpoint
    return replace(small, checkpoint=weights, flags=flags, env={**recipe.env, **engine.even_routing})


def reads_gguf(recipe: Recipe) -> bool:
    """Whether the recipe's engine reads GGUF, so that a file is generated for it."""
    return "gguf" in registry.engine_traits(recipe.engine).formats


def tensor_types(form: Checkpoint) -> dict[str, str]:
    """The type of every weight of a local GGUF; {} for other checkpoints."""
    if form.format != "gguf" or not form.path:
        return {}
    headers = map(gguf.read_header, gguf.split_files(Path(form.path)))
    return {tensor.name: tensor.type for header in headers for tensor in header.tensors}


def dense_type(form: Checkpoint, model: Model) -> str:
    """The type of the generated attention and shared weights, by the bits of the checkpoint's own."""
    parameters = model.parameters_by_component.get("attention", 0)
    bits = 8 * form.bytes_by_component.get("attention", 0) / max(parameters, 1)
    return "q8_0" if 0 < bits < NARROW else "f16"


def list_disturbances(recipe: Recipe, box: Box) -> Iterator[str]:
    """Other programs that use the machine now, one line each."""
    if reads_gguf(recipe):
        used = host.cpu_busy_share()
        if used > BUSY:
            yield f"the machine was busy: other programs used {used:.0%} of its cores"
    yield from new_gpu_processes(recipe, box, {})


def new_gpu_processes(recipe: Recipe, box: Box, before: Mapping[tuple[int, int], int]) -> Iterator[str]:
    """Processes on the engine's GPUs that are not in `before`, one line each."""
    for (gpu, pid), size in gpu_processes(recipe, box).items():
        if (gpu, pid) not in before:
            yield f"another process used GPU {gpu}: pid {pid}, {format_gib(size)}"


def gpu_processes(recipe: Recipe, box: Box) -> dict[tuple[int, int], int]:
    """Bytes by GPU and process, on the GPUs that the recipe uses."""
    driver = nvml.load_nvml() if box.gpus else None
    if driver is None:
        return {}
    used = preflight.recipe_gpus(deploy(recipe))
    return {(gpu, pid): size for gpu in used for pid, size in nvml.gpu_processes(driver, gpu)}


def missing_parts(recipe: Recipe, model: Model, form: Checkpoint) -> tuple[str, ...]:
    """Notes on how the generated weights differ from the real ones."""
    if not reads_gguf(recipe):
        return ()
    notes = []
    if ggml_type(form.quant) is None:
        notes.append(f"experts were {FALLBACK}: {form.quant} is a mix that cannot be generated")
    if not model.mla and model.moe and model.moe.shared:
        notes.append("shared experts were left out: the generated GGUF has none beside grouped-query attention")
    return tuple(notes)
