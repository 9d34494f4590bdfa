"""llama.cpp's and ik_llama.cpp's memory: every tensor has a device, and cache stays with the layer's GPU.

Dense tensors of a layer are on the GPU that owns the layer; expert tensors where the recipe's placement puts them, else
in RAM; the token embedding in RAM. Each GPU also needs a compute buffer and, while a large batch is prefilled, a buffer
to which the experts of one layer are copied from RAM.
"""

from bisect import bisect_right
from dataclasses import replace
from itertools import accumulate

from moebox.core import registry
from moebox.core.box import Box, Gpu
from moebox.core.calibration import gpu_expert_layers
from moebox.core.deployment import Deployment
from moebox.core.model import Checkpoint, Component, Gqa, Model
from moebox.core.plan import ArithmeticLine, DeviceMemory, Memory
from moebox.core.recipe import Recipe
from moebox.engines.budget import add_host_memory, all_gpu_memory, bytes_line, device_memory, ram_overhead, token_line
from moebox.loose import drop_empty
from moebox.sizing.constants import MIB, memory_constant, memory_constant_bytes, reserved_bytes, visible_bytes
from moebox.sizing.kv import entry_bytes, keeps_all_heads, token_bytes

USUAL_AMB = 256  # MiB, if ik_llama.cpp gets no -amb
AMB_TAKES = 1.625  # times -amb are allocated if it limits


def memory_budget(deployment: Deployment) -> Memory:
    """Every GPU's bytes and the RAM's; the cache is as large as the recipe's context and slots."""
    box, model, checkpoint, recipe = deployment.facts
    used = []
    if recipe.placement.gpu_layers > 0:  # GPUs of the first node
        used = [index for index in recipe.used_gpus(box) if index < len(box.gpus)]
    owned, last = owned_layers(model, [box.gpus[index] for index in used]), len(used) - 1
    budgets = {
        index: gpu_budget(box.gpus[index], model, checkpoint, recipe, owned[slot], slot, last=slot == last)
        for slot, index in enumerate(used)
    }
    ram = ram_budget(box, model, checkpoint, recipe)
    return memory_of_devices(model, recipe, add_host_memory(box, all_gpu_memory(box.gpus, budgets), ram))


def memory_of_devices(model: Model, recipe: Recipe, devices: tuple[DeviceMemory, ...]) -> Memory:
    """Return the budget of all devices together: the fullest decides whether it fits."""
    missing = max(-device.free for device in devices)
    return Memory(
        devices=devices,
        kv_tokens=cache_tokens(recipe),
        kv_bytes_per_token=token_bytes(model, recipe),
        fits=missing <= 0,
        shortfall=max(0, missing),
    )


def cache_tokens(recipe: Recipe) -> int:
    """Tokens of cache: the context of every slot."""
    return recipe.context * recipe.slots


def layer_cache_bytes(model: Model, recipe: Recipe, layers: int) -> int:
    """Bytes of the whole cache in that many layers of the kind that keeps the whole context."""
    return round(cache_tokens(recipe) * entry_bytes(model.attention, recipe) * layers)


def is_fork(recipe: Recipe) -> bool:
    """True for ik_llama.cpp, the engine with -mla modes."""
    return registry.engine_traits(recipe.engine).mla_modes


def owned_layers(model: Model, gpus: list[Gpu]) -> list[list[int]]:
    """Layers of each GPU: shares by free memory, the output counting as one more layer at the end."""
    if not gpus:
        return []
    sizes = [max(1, visible_bytes(gpu) - reserved_bytes(gpu)) for gpu in gpus]
    edges = [edge / sum(sizes) for edge in accumulate(sizes)]
    owned: list[list[int]] = [[] for _ in gpus]
    for layer in range(model.layers):
        owned[min(bisect_right(edges, layer / (model.layers + 1)), len(gpus) - 1)].append(layer)
    return owned


def gpu_budget(
    gpu: Gpu, model: Model, checkpoint: Checkpoint, recipe: Recipe, layers: list[int], slot: int, *, last: bool
) -> DeviceMemory:
    """One GPU's bytes; `slot` is its place among those used."""
    experts = recipe.placement.experts
    weights = dense_weights(model, checkpoint, layers, last=last)
    if slot < len(experts) and experts[slot]:
        weights["routed_experts"] = len(experts[slot]) * checkpoint.expert_layer_bytes
    compute = compute_bytes(model, recipe, last=last, alone=last and slot == 0)
    return device_memory(
        "gpu",
        gpu.memory,
        weights,
        kv=layer_cache_bytes(model, recipe, len(layers)),
        activations=compute + staging_bytes(model, checkpoint, recipe),
        overhead=gpu.memory - visible_bytes(gpu) + reserved_bytes(gpu) + memory_constant_bytes("llama", "context"),
    )


def dense_weights(model: Model, checkpoint: Checkpoint, layers: list[int], *, last: bool) -> dict[Component, int]:
    """Bytes of everything but routed experts in `layers`, with the output on the last GPU."""
    sizes = checkpoint.bytes_by_component
    first_moe = model.layers - model.moe_layers
    with_experts = sum(layer >= first_moe for layer in layers)
    every, moe = (len(layers), model.layers), (with_experts, model.moe_layers)
    shares: dict[Component, tuple[int, int]] = {  # how many of `layers`, and of all layers, have each component
        "attention": every,
        "shared_experts": moe,
        "router": moe,
        "norms": every,
        "dense_ffn": (len(layers) - with_experts, first_moe),
    }
    out: dict[Component, float] = {
        name: sizes.get(name, 0) * here / max(total, 1) for name, (here, total) in shares.items()
    }
    if last:
        out["lm_head"] = sizes.get("lm_head", 0) or sizes.get("embed", 0)
    return {name: round(size) for name, size in out.items() if size}


def compute_bytes(model: Model, recipe: Recipe, *, last: bool, alone: bool) -> int:
    """The compute buffer of one GPU, by micro-batch: the logits on the last GPU, attention elsewhere.

    llama.cpp b11669 on Kimi K2.6 shapes at -c 131072 (llama-fit-params): one GPU 504 MiB at -ub 512 and 4,032 at 4096;
    of two GPUs the first 344 and 2,752, the last 460 and 3,686. ik_llama.cpp: 2,672 at -ub 4096 with -amb 512.
    """
    ubatch, context = recipe.placement.ubatch, recipe.context
    if is_fork(recipe):
        attention = fork_attention_bytes(model, recipe)
        return max(ubatch * (model.vocab * 4 + model.hidden * 8), attention) if last else attention
    attention = ubatch * (attention_width(model, recipe) + 2 * context)
    if not last:
        return attention
    if alone:
        return ubatch * (model.vocab * 4 + 16 * model.hidden + 2 * context)
    return max(ubatch * (model.vocab * 4 + 40 * model.hidden), attention)


def attention_width(model: Model, recipe: Recipe) -> int:
    """Bytes of a token while attention computes: queries, their product with the cache, and the result."""
    if model.mla:
        whole = keeps_all_heads(model.mla, recipe)
        return 3 * 4 * (model.mla.heads_width if whole else model.mla.heads * model.mla.kv_width)
    kind = model.attention
    return 4 * (3 * kind.heads * kind.head_dim + model.hidden) if isinstance(kind, Gqa) else 16 * model.hidden


def fork_attention_bytes(model: Model, recipe: Recipe) -> int:
    """What ik_llama.cpp's attention needs: the mask of the whole cache, and by -mla latent or decompressed heads.

    -mla 2 and 3 decompress keys and values of as many heads at a time as -amb allows. Read from the August 2026 build's
    log on Kimi K2.6 shapes with -mla 3 -amb 512 at -ub 512: 928 MiB at -c 16384, 976 at 65536, 1,040 at 131072; with
    -amb 256 (its default) and 1024 at 65536: 570 and 1,808.
    """
    hybrid, mla = recipe.placement, model.mla
    mask = hybrid.ubatch * 2 * cache_tokens(recipe)
    if mla is None or hybrid.mla == 1:
        return mask + hybrid.ubatch * attention_width(model, recipe)
    heads = hybrid.ubatch * mla.heads * 2 * (mla.nope + mla.rope + mla.v) * 4
    whole = cache_tokens(recipe) * mla.heads * (mla.nope + mla.v) * 2 * 3
    limit = round(AMB_TAKES * (hybrid.attention_buffer or USUAL_AMB) * MIB)
    return mask + heads + min(whole, limit)


def staging_bytes(model: Model, checkpoint: Checkpoint, recipe: Recipe) -> int:
    """Buffer for experts copied to a GPU while a large batch is prefilled; 0 if all experts are on GPUs already.

    With a whole layer the VRAM of the EPYC 9175F report is reproduced: 42 and 43 GiB for 3+3 layers at -ub 4096, where
    its author saw 43 and 44.
    """
    if not model.moe or gpu_expert_layers(recipe) >= model.moe_layers:
        return 0
    if is_fork(recipe):
        large = recipe.placement.ubatch >= offload_threshold(model)
        return checkpoint.expert_layer_bytes if large else 0
    return checkpoint.expert_layer_bytes // 3


def offload_threshold(model: Model) -> int:
    """Tokens from which ik_llama.cpp computes RAM experts on a GPU: each is then used often enough to pay its copy."""
    return int(memory_constant("llama", "threshold") * model.experts // model.experts_used)


def cpu_compute_bytes(model: Model, recipe: Recipe, *, alone: bool) -> int:
    """The compute buffer in RAM: experts beside GPUs; without GPUs everything, and ik_llama.cpp's logits.

    llama.cpp b21e4de on the CPU, three expert layers, -ub 512, -c 4096: 180 MiB on Qwen3-235B, 270 on Kimi K2.6.
    """
    ubatch, moe = recipe.placement.ubatch, model.moe
    # Bytes of a token while its experts compute: what goes in, between and out of each of them.
    experts = ubatch * (4 * moe.used * 2 * (model.hidden + moe.intermediate) if moe else 0)
    if not alone:
        return experts
    if is_fork(recipe):
        return max(experts, compute_bytes(model, recipe, last=True, alone=True))
    return max(experts, ubatch * attention_width(model, recipe)) + ubatch * 2 * recipe.context


def ram_budget(box: Box, model: Model, checkpoint: Checkpoint, recipe: Recipe) -> DeviceMemory:
    """What stays in RAM: embedding and n-gram tables, the experts of all other layers, and without GPUs everything."""
    tables: tuple[Component, ...] = ("embed", "ngram")
    weights = {name: checkpoint.bytes_by_component.get(name, 0) for name in tables}
    experts = max(0, model.moe_layers - gpu_expert_layers(recipe)) * checkpoint.expert_layer_bytes
    if experts:
        weights["routed_experts"] = experts
    alone = recipe.placement.gpu_layers <= 0 or not box.gpus
    if alone:
        weights |= dense_weights(model, checkpoint, list(range(model.layers)), last=True)
    ram = device_memory(
        "ram",
        box.ram,
        drop_empty(weights),
        kv=layer_cache_bytes(model, recipe, model.layers) * alone,
        activations=cpu_compute_bytes(model, recipe, alone=alone),
        overhead=ram_overhead(box),
    )
    if box.ram or experts or not box.gpus:
        return ram
    # The amount of RAM is unknown: enough for a server whose experts are all on GPUs, nothing more.
    return replace(ram, total=-ram.free, free=0)


def memory_lines(deployment: Deployment, memory: Memory) -> tuple[ArithmeticLine, ...]:
    """Every device's bytes, one part a line."""
    model, checkpoint, recipe = deployment.model, deployment.checkpoint, deployment.recipe
    hybrid = recipe.placement
    buffers = f"-ub {hybrid.ubatch}, -amb {hybrid.attention_buffer or 'unset'}; a layer's experts while prefilling"
    source = "llama-fit-params of llama.cpp b11669; ik_llama.cpp logs of August 2026"
    lines = [
        bytes_line("routed experts a layer", checkpoint.expert_layer_bytes, checkpoint.quant, checkpoint.source),
        token_line(model, recipe, token_bytes(model, recipe)),
        ArithmeticLine(what="KV tokens", formula="context × slots", value=memory.kv_tokens, unit="tokens"),
    ]
    for device in memory.devices:
        if device.weights:
            name = device.device
            lines += [bytes_line(f"{name}: {part}", size) for part, size in device.weights.items()]
            lines.append(bytes_line(f"{name}: cache", device.kv, "its layers' share"))
            lines.append(bytes_line(f"{name}: compute and staging", device.activations, buffers, source))
            lines.append(bytes_line(f"{name}: free", device.free, "what is left of it"))
    return tuple(lines)
