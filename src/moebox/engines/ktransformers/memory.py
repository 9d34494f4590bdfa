"""KTransformers' memory: all routed experts in RAM, some of each layer's also on the GPUs, the rest there whole.

Each GPU holds its slice of everything but experts, its slice of the experts kept there, the cache, a prefill chunk's
activations, and one whole layer of experts while a long prompt is read layer by layer ("9 GB and more" for Kimi K2).
With that the project's own table is reproduced: 0, 8, 30 and 80 experts of each layer on 1, 2, 4 and 8 GPUs of 48 GB.
"""

from dataclasses import replace

from moebox.core.box import Gpu
from moebox.core.deployment import Deployment
from moebox.core.model import Checkpoint, Component, Model
from moebox.core.plan import ArithmeticLine, Memory
from moebox.core.recipe import Recipe
from moebox.engines.budget import (
    add_host_memory,
    all_gpu_memory,
    bytes_line,
    device_memory,
    ram_overhead,
    token_line,
    weight_lines,
)
from moebox.engines.sglang.traits import TRAITS as SGLANG
from moebox.loose import drop_empty
from moebox.sizing import shards
from moebox.sizing.constants import memory_constant, memory_constant_bytes, reserved_bytes, visible_bytes
from moebox.sizing.kv import token_bytes
from moebox.units import format_count

UTILIZATION = 0.94  # --mem-fraction-static of the project's launches
CHUNK = 16384  # --chunked-prefill-size of its launches for eight GPUs; a chunk's experts are copied to the GPUs once
SOURCE = "kvcache-ai/ktransformers, Kimi-K2-Thinking-Native.md"


def memory_budget(deployment: Deployment) -> Memory:
    """Every GPU's bytes and the RAM's, where all routed experts are, also those on the GPUs."""
    box, model, checkpoint, recipe = deployment.facts
    used = replace(recipe, hybrid=None).used_gpus(box)
    gpus, token = box.all_gpus, token_bytes(model, recipe)
    room = min((cache_room(gpus[index], model, checkpoint, recipe) for index in used), default=0)
    tokens = min(max(0, room) // token, recipe.context * recipe.slots)
    devices = {
        index: device_memory(
            "gpu",
            gpus[index].memory,
            gpu_weights(model, checkpoint, recipe),
            kv=tokens * token,
            activations=step_bytes(model, checkpoint, recipe),
            overhead=gpus[index].memory - utilized_bytes(gpus[index], recipe),
        )
        for index in used
    }
    experts = checkpoint.bytes_by_component.get("routed_experts", 0)
    ram = device_memory("ram", box.ram, {"routed_experts": experts}, overhead=ram_overhead(box))
    missing = max(recipe.context * token - room, -ram.free, 0)
    return Memory(
        devices=add_host_memory(box, all_gpu_memory(gpus, devices), ram),
        kv_tokens=tokens,
        kv_bytes_per_token=token,
        fits=not missing and recipe.parallel.gpu_count <= len(used) and bool(used),
        shortfall=missing,
    )


def cache_room(gpu: Gpu, model: Model, checkpoint: Checkpoint, recipe: Recipe) -> int:
    weights = sum(gpu_weights(model, checkpoint, recipe).values())
    return utilized_bytes(gpu, recipe) - weights - step_bytes(model, checkpoint, recipe)


def utilized_bytes(gpu: Gpu, recipe: Recipe) -> int:
    return round((visible_bytes(gpu) - reserved_bytes(gpu)) * (recipe.memory_utilization or UTILIZATION))


def gpu_weights(model: Model, checkpoint: Checkpoint, recipe: Recipe) -> dict[Component, int]:
    """Bytes of each component on one GPU; the fork has no flag that omits a vision tower."""
    weights = shards.weights_per_gpu(model, checkpoint, recipe.parallel, 0, vision_share=1.0)
    kept = gpu_expert_count(recipe) / max(model.experts, 1)
    weights["routed_experts"] = round(weights.get("routed_experts", 0) * kept)
    return drop_empty(weights)


def gpu_expert_count(recipe: Recipe) -> int:
    return (recipe.hybrid.gpu_experts or 0) if recipe.hybrid else 0


def step_tokens(recipe: Recipe, gpu: Gpu | None = None) -> int:
    return recipe.batched_tokens or CHUNK


def step_bytes(model: Model, checkpoint: Checkpoint, recipe: Recipe) -> int:
    """Activations of one prefill chunk, and the layer of experts that is copied in for it."""
    live = model.experts_used + memory_constant("load", "live_copies")
    activations = step_tokens(recipe) * model.hidden * 2 * live
    return int(activations) + checkpoint.expert_layer_bytes + memory_constant_bytes(SGLANG.name, "context")


def max_gpu_experts(deployment: Deployment) -> int:
    """Most experts of each layer on the GPUs that leave room for one sequence of the recipe's context."""
    box, model, checkpoint, recipe = deployment.facts
    if model.moe is None or not box.gpus:
        return 0
    room = min(cache_room(gpu, model, checkpoint, recipe) for gpu in box.gpus[: recipe.parallel.tp])
    free = room - recipe.context * token_bytes(model, recipe) * recipe.slots
    each = checkpoint.bytes_by_component.get("routed_experts", 0) / model.moe.experts / recipe.parallel.tp
    return max(0, min(model.moe.experts, int(free // max(each, 1))))


def memory_lines(deployment: Deployment, memory: Memory) -> tuple[ArithmeticLine, ...]:
    """Every part of the first GPU, then the RAM's."""
    model, checkpoint, recipe = deployment.model, deployment.checkpoint, deployment.recipe
    kept = f"{gpu_expert_count(recipe)} of {model.experts} experts of each layer / {recipe.parallel.tp}"
    weights = gpu_weights(model, checkpoint, recipe)
    return (
        *weight_lines(weights, model, checkpoint, recipe, 0, routed_experts=kept),
        bytes_line(
            "- a chunk's activations and one layer of experts",
            step_bytes(model, checkpoint, recipe),
            f"{step_tokens(recipe):,} tokens; {checkpoint.expert_layer_bytes:,} a layer",
            SOURCE,
        ),
        token_line(model, recipe, memory.kv_bytes_per_token),
        ArithmeticLine(what="KV tokens", formula="context × sequences", value=memory.kv_tokens, unit="tokens"),
        *(bytes_line(f"ram: {name}", size) for name, size in memory.devices[-1].weights.items()),
    )


def setting_reasons(deployment: Deployment, memory: Memory) -> list[str]:
    """How many experts are on the GPUs."""
    moe = deployment.model.moe
    if moe is None:
        return []
    kept = gpu_expert_count(deployment.recipe)
    text = f"{kept} of {format_count(moe.experts)} experts of each layer are on the GPUs, all of them in RAM"
    return [f"{text}; long prompts are read on the GPUs, one layer's experts at a time"]
