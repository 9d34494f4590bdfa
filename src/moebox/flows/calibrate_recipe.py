"""A recipe cut down to a depth: the same flags with dummy weights, even routing and fewer layers."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from moebox import checkpoint
from moebox.checkpoint import gguf
from moebox.core import registry
from moebox.core.box import Box
from moebox.core.deployment import Deployment
from moebox.core.model import Checkpoint, Model
from moebox.core.recipe import Hybrid, Recipe
from moebox.detect import host, nvml
from moebox.engines.engine import load_engine
from moebox.flows.calibrate_depths import BootDepth
from moebox.serve import preflight
from moebox.serve.dummy import ggml_type, write_gguf
from moebox.units import format_gib

FALLBACK = "q4_0"
NARROW = 12  # bits of a weight, between the 8.5 of Q8_0 and the 16 that are generated otherwise
BUSY = 0.25  # of the cores, used by others before the engine starts


def recipe_at_depth(recipe: Recipe, model: Model, form: Checkpoint, depth: BootDepth, dummy: Path) -> Recipe:
    """What is really started; `dummy` is the file that GGUF engines get."""
    small = replace(recipe.with_port(0), speculate=None)
    if reads_gguf(recipe):
        quant, dense, types = expert_quant(form), dense_type(form, model), tensor_types(form)
        write_gguf(dummy, model, layers=depth.layers, quant=quant, dense=dense, types=types, even_routing=True)
        return replace(small, checkpoint=str(dummy), hybrid=place_experts(recipe.hybrid, model, depth))
    engine = load_engine(recipe.engine)
    flags = {**recipe.flags, **engine.dummy_weight_flags(Deployment.from_parts(recipe, model, form), depth.layers)}
    return replace(small, flags=flags, env={**recipe.env, **engine.even_routing})


def reads_gguf(recipe: Recipe) -> bool:
    """Whether its engine gets a file that is generated."""
    return "gguf" in registry.engine_traits(recipe.engine).formats


def expert_quant(form: Checkpoint) -> str:
    """The type of the generated experts: the checkpoint's own where ggml has it."""
    return form.quant if ggml_type(form.quant) is not None else FALLBACK


def tensor_types(form: Checkpoint) -> dict[str, str]:
    """The type of every weight of a GGUF that is here; elsewhere they are not known one by one."""
    if form.format != "gguf" or not form.path:
        return {}
    headers = map(gguf.read_header, gguf.split_files(Path(form.path)))
    return {tensor.name: tensor.type for header in headers for tensor in header.tensors}


def dense_type(form: Checkpoint, model: Model) -> str:
    """The type of the generated attention and shared weights, by the bits that the checkpoint's own have."""
    parameters = model.parameters_by_component.get("attention", 0)
    bits = 8 * form.bytes_by_component.get("attention", 0) / max(parameters, 1)
    return "q8_0" if 0 < bits < NARROW else "f16"


def place_experts(hybrid: Hybrid | None, model: Model, depth: BootDepth) -> Hybrid | None:
    """The same GPUs with as many expert layers as this depth puts there."""
    if hybrid is None:
        return None
    count = max(len(hybrid.experts), 1)
    layers = range(model.dense_layers, model.dense_layers + depth.gpu_experts)
    return replace(hybrid, experts=tuple(tuple(layers[gpu::count]) for gpu in range(count)))


def list_disturbances(recipe: Recipe, box: Box) -> Iterator[str]:
    """What else uses the machine just now, in a line each."""
    if reads_gguf(recipe):
        used = host.cpu_busy_share()
        if used > BUSY:
            yield f"the machine was busy: other programs used {used:.0%} of its cores"
    yield from (named(pid, gpu, size) for (gpu, pid), size in gpu_processes(recipe, box).items())


def new_gpu_processes(recipe: Recipe, box: Box, before: Mapping[tuple[int, int], int]) -> Iterator[str]:
    """Processes that came to the engine's GPUs after `before` was seen, in a line each."""
    for (gpu, pid), size in gpu_processes(recipe, box).items():
        if (gpu, pid) not in before:
            yield named(pid, gpu, size)


def gpu_processes(recipe: Recipe, box: Box) -> dict[tuple[int, int], int]:
    """Bytes by GPU and process, on the GPUs that the recipe takes."""
    driver = nvml.load_nvml() if box.gpus else None
    if driver is None:
        return {}
    taken = preflight.recipe_gpus(checkpoint.deploy(recipe))
    return {(gpu, pid): size for gpu in taken for pid, size in nvml.gpu_processes(driver, gpu)}


def named(pid: int, gpu: int, size: int) -> str:
    """A process that may have disturbed the timing."""
    return f"another process used GPU {gpu}: pid {pid}, {format_gib(size)}"


def missing_parts(recipe: Recipe, model: Model, form: Checkpoint) -> tuple[str, ...]:
    """What the generated weights do not have of the real ones."""
    if not reads_gguf(recipe):
        return ()
    notes = []
    if ggml_type(form.quant) is None:
        notes.append(f"experts were {FALLBACK}: {form.quant} is a mix that cannot be generated")
    if not model.mla and model.moe and model.moe.shared:
        notes.append("shared experts were left out: the generated GGUF has none beside grouped-query attention")
    return tuple(notes)
