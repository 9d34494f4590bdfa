"""KTransformers' memory: all routed experts in RAM, some of each layer's on the GPUs as well, the rest there whole.

Each GPU holds its slice of everything but experts, its slice of the experts kept there, the cache, a prefill chunk's
activations, and one whole layer of experts while a long prompt is read layer by layer ("9 GB and more" for Kimi K2).
With that the project's own table comes out: 0, 8, 30 and 80 experts of each layer on 1, 2, 4 and 8 GPUs of 48 GB.
"""

from dataclasses import replace

from moebox.core import gpu_list
from moebox.core.box import Box, Gpu
from moebox.core.deployment import Deployment
from moebox.core.model import Checkpoint, Component, Model
from moebox.core.plan import DeviceMemory, Memory
from moebox.core.recipe import Recipe
from moebox.engines.devices import add_host_memory, all_gpu_memory, device_memory, ram_overhead
from moebox.engines.ktransformers.schedule import step_tokens
from moebox.engines.sglang.traits import TRAITS as SGLANG
from moebox.sizing import shards
from moebox.sizing.constants import memory_constant, memory_constant_bytes, reserved_bytes, visible_bytes
from moebox.sizing.kv import token_bytes

UTILIZATION = 0.94  # --mem-fraction-static of the project's launches


def memory_budget(deployment: Deployment) -> Memory:
    """Every GPU's bytes and the RAM's."""
    box, model, checkpoint, recipe = deployment.facts
    used = gpu_list.used_gpus(box, replace(recipe, hybrid=None))
    gpus = gpu_list.all_gpus(box)
    token = token_bytes(model, recipe)
    left = [cache_room(gpus[index], model, checkpoint, recipe) for index in used]
    tokens = max(0, min(left, default=0)) // token
    wanted = recipe.context * recipe.slots
    devices = {index: gpu_budget(index, gpus[index], model, checkpoint, recipe, min(tokens, wanted)) for index in used}
    ram = ram_budget(box, checkpoint)
    short = max(recipe.context * token - min(left, default=0), -ram.free, 0)
    return Memory(
        devices=add_host_memory(box, all_gpu_memory(gpus, devices), ram),
        kv_tokens=min(tokens, wanted),
        kv_bytes_per_token=token,
        fits=not short and recipe.parallel.gpu_count <= len(used) and bool(used),
        shortfall=short,
    )


def cache_room(gpu: Gpu, model: Model, checkpoint: Checkpoint, recipe: Recipe) -> int:
    """Bytes left for the cache on one GPU."""
    return (
        utilized_bytes(gpu, recipe)
        - sum(gpu_weights(model, checkpoint, recipe).values())
        - step_bytes(model, checkpoint, recipe)
    )


def utilized_bytes(gpu: Gpu, recipe: Recipe) -> int:
    """Bytes of a GPU that the engine takes for itself."""
    return round((visible_bytes(gpu) - reserved_bytes(gpu)) * (recipe.memory_utilization or UTILIZATION))


def gpu_weights(model: Model, checkpoint: Checkpoint, recipe: Recipe) -> dict[Component, int]:
    """Bytes of each component on one GPU; the fork has no flag that leaves a vision tower out."""
    weights = shards.weights_per_gpu(model, checkpoint, recipe.parallel, 0, vision_share=1.0)
    kept = gpu_expert_count(recipe) / max(model.experts, 1)
    weights["routed_experts"] = round(weights.get("routed_experts", 0) * kept)
    return {name: size for name, size in weights.items() if size}


def gpu_expert_count(recipe: Recipe) -> int:
    """Experts of each layer that lie on the GPUs."""
    return (recipe.hybrid.gpu_experts or 0) if recipe.hybrid else 0


def step_bytes(model: Model, checkpoint: Checkpoint, recipe: Recipe) -> int:
    """Activations of one prefill chunk, and the layer of experts that is copied in for it."""
    activations = step_tokens(recipe) * model.hidden * 2 * (model.experts_used + memory_constant("load", "live_copies"))
    return int(activations) + checkpoint.expert_layer_bytes + memory_constant_bytes(SGLANG.name, "context")


def max_gpu_experts(deployment: Deployment) -> int:
    """As many experts of each layer on the GPUs as leave room for one sequence of the asked length."""
    box, model, checkpoint, recipe = deployment.facts
    if model.moe is None or not box.gpus:
        return 0
    least = min(cache_room(gpu, model, checkpoint, recipe) for gpu in box.gpus[: recipe.parallel.tp])
    free = least - recipe.context * token_bytes(model, recipe) * recipe.slots
    each = checkpoint.bytes_by_component.get("routed_experts", 0) / model.moe.experts / recipe.parallel.tp
    return max(0, min(model.moe.experts, int(free // max(each, 1))))


def gpu_budget(index: int, gpu: Gpu, model: Model, checkpoint: Checkpoint, recipe: Recipe, tokens: int) -> DeviceMemory:
    """One GPU's bytes."""
    return device_memory(
        f"gpu{index}",
        gpu.memory,
        gpu_weights(model, checkpoint, recipe),
        kv=tokens * token_bytes(model, recipe),
        activations=step_bytes(model, checkpoint, recipe),
        overhead=gpu.memory - utilized_bytes(gpu, recipe),
    )


def ram_budget(box: Box, checkpoint: Checkpoint) -> DeviceMemory:
    """All routed experts lie in RAM, those on the GPUs too."""
    experts = checkpoint.bytes_by_component.get("routed_experts", 0)
    return device_memory("ram", box.ram, {"routed_experts": experts}, overhead=ram_overhead(box))
