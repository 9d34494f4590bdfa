"""llama.cpp's and ik_llama.cpp's memory: every tensor has a device, and cache stays with the layer's GPU.

Dense tensors of a layer lie on the GPU that owns the layer; expert tensors where the recipe's placement says, else in
RAM; the token embedding in RAM. Beside them each GPU needs a compute buffer and, while a large batch is prefilled, a
place to which the experts of one layer are copied from RAM.
"""

from bisect import bisect_right
from dataclasses import replace
from itertools import accumulate

from moebox.core import gpu_list, registry
from moebox.core.box import Box, Gpu
from moebox.core.deployment import Deployment
from moebox.core.model import Checkpoint, Component, Gqa, Model
from moebox.core.plan import DeviceMemory, Memory
from moebox.core.recipe import Hybrid, Recipe
from moebox.engines.devices import add_host_memory, all_gpu_memory, device_memory, ram_overhead
from moebox.sizing.constants import MIB, memory_constant, memory_constant_bytes, reserved_bytes, visible_bytes
from moebox.sizing.kv import keeps_all_heads, layer_bytes, token_bytes

USUAL_AMB = 256  # MiB, where ik_llama.cpp is given no -amb
AMB_TAKES = 1.625  # times -amb are allocated where it limits


def memory_budget(deployment: Deployment) -> Memory:
    """Every GPU's bytes and the RAM's; the cache is as large as the recipe asks for."""
    box, model, checkpoint, recipe = deployment.facts
    gpus, used = box.gpus, gpus_of_first_node(box, recipe)
    owners = owned_layers(model, [gpus[index] for index in used])
    budgets = {
        index: gpu_budget(index, gpus[index], model, checkpoint, recipe, owners[slot], slot, last=slot == len(used) - 1)
        for slot, index in enumerate(used)
    }
    devices = add_host_memory(box, all_gpu_memory(gpus, budgets), ram_budget(box, model, checkpoint, recipe))
    short = max(-place.free for place in devices)
    return Memory(
        devices=devices,
        kv_tokens=cache_tokens(recipe),
        kv_bytes_per_token=token_bytes(model, recipe),
        fits=short <= 0,
        shortfall=max(0, short),
    )


def gpus_of_first_node(box: Box, recipe: Recipe) -> list[int]:
    """GPUs of the first node that the recipe puts layers on."""
    if not has_gpu_layers(recipe):
        return []
    return [index for index in gpu_list.used_gpus(box, recipe) if index < len(box.gpus)]


def has_gpu_layers(recipe: Recipe) -> bool:
    """Whether any layer goes to a GPU."""
    return hybrid_settings(recipe).gpu_layers > 0


def hybrid_settings(recipe: Recipe) -> Hybrid:
    """The recipe's placement, or the engine's defaults."""
    return recipe.hybrid or Hybrid()


def cache_tokens(recipe: Recipe) -> int:
    """Tokens of cache: the context of every slot."""
    return recipe.context * recipe.slots


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
    index: int,
    gpu: Gpu,
    model: Model,
    checkpoint: Checkpoint,
    recipe: Recipe,
    layers: list[int],
    slot: int,
    *,
    last: bool,
) -> DeviceMemory:
    """One GPU's bytes; `slot` is its place among those used."""
    alone = last and slot == 0
    experts = hybrid_settings(recipe).experts
    weights = dense_weights(model, checkpoint, layers, last=last)
    count = len(experts[slot]) if slot < len(experts) else 0
    if count:
        weights["routed_experts"] = count * checkpoint.expert_layer_bytes
    kv = round(cache_tokens(recipe) * layer_bytes(model, recipe) * len(layers))
    activations = compute_bytes(model, recipe, last=last, alone=alone) + staging_bytes(model, checkpoint, recipe)
    overhead = gpu.memory - visible_bytes(gpu) + reserved_bytes(gpu) + memory_constant_bytes("llama", "context")
    return device_memory(f"gpu{index}", gpu.memory, weights, kv=kv, activations=activations, overhead=overhead)


def dense_weights(model: Model, checkpoint: Checkpoint, layers: list[int], *, last: bool) -> dict[Component, int]:
    """Bytes of everything but routed experts in `layers`, with the output on the last GPU."""
    sizes = checkpoint.bytes_by_component
    shares = layers_by_component(model, layers)
    out: dict[Component, float] = {
        name: sizes.get(name, 0) * here / max(total, 1) for name, (here, total) in shares.items()
    }
    if last:
        out["lm_head"] = sizes.get("lm_head", 0) or sizes.get("embed", 0)
    return {name: round(size) for name, size in out.items() if size}


def layers_by_component(model: Model, layers: list[int]) -> dict[Component, tuple[int, int]]:
    """How many of `layers`, and of all layers, have each component."""
    first = model.layers - model.moe_layers  # that has experts
    with_experts = sum(layer >= first for layer in layers)
    every, moe = (len(layers), model.layers), (with_experts, model.moe_layers)
    return {
        "attention": every,
        "shared_experts": moe,
        "router": moe,
        "norms": every,
        "dense_ffn": (len(layers) - with_experts, first),
    }


def compute_bytes(model: Model, recipe: Recipe, *, last: bool, alone: bool) -> int:
    """The compute buffer of one GPU, by micro-batch: the logits where they are made, attention elsewhere.

    llama.cpp b11669 on Kimi K2.6 shapes at -c 131072 (llama-fit-params): one GPU 504 MiB at -ub 512 and 4,032 at 4096;
    of two GPUs the first 344 and 2,752, the last 460 and 3,686. ik_llama.cpp: 2,672 at -ub 4096 with -amb 512.
    """
    ubatch, context = hybrid_settings(recipe).ubatch, recipe.context
    if "mla" in registry.engine_traits(recipe.engine).hybrid_fields:
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
        every = keeps_all_heads(model.mla, recipe)
        return 3 * 4 * (model.mla.heads_width if every else model.mla.heads * model.mla.kv_width)
    kind = model.attention
    return 4 * (3 * kind.heads * kind.head_dim + model.hidden) if isinstance(kind, Gqa) else 16 * model.hidden


def experts_width(model: Model) -> int:
    """Bytes of a token while its experts compute: what goes in, between and out of each of them."""
    return 4 * model.moe.used * 2 * (model.hidden + model.moe.intermediate) if model.moe else 0


def fork_attention_bytes(model: Model, recipe: Recipe) -> int:
    """What ik_llama.cpp's attention needs: the mask of the whole cache, and by -mla latent or decompressed heads.

    -mla 2 and 3 decompress keys and values of so many heads at a time as -amb allows. Read from the August 2026 build's
    log on Kimi K2.6 shapes with -mla 3 -amb 512 at -ub 512: 928 MiB at -c 16384, 976 at 65536, 1,040 at 131072; with
    -amb 256 (its default) and 1024 at 65536: 570 and 1,808.
    """
    hybrid, mla = hybrid_settings(recipe), model.mla
    mask = hybrid.ubatch * 2 * cache_tokens(recipe)
    if mla is None or hybrid.mla == 1:
        return mask + hybrid.ubatch * attention_width(model, recipe)
    heads = hybrid.ubatch * mla.heads * 2 * (mla.nope + mla.rope + mla.v) * 4
    whole = cache_tokens(recipe) * mla.heads * (mla.nope + mla.v) * 2 * 3
    limit = round(AMB_TAKES * (hybrid.attention_buffer or USUAL_AMB) * MIB)
    return mask + heads + min(whole, limit)


def staging_bytes(model: Model, checkpoint: Checkpoint, recipe: Recipe) -> int:
    """Room for experts copied to a GPU while a large batch is prefilled; 0 when all experts lie on GPUs already.

    With a whole layer the VRAM of the EPYC 9175F report comes out: 42 and 43 GiB for 3+3 layers at -ub 4096, where its
    author saw 43 and 44.
    """
    if not model.moe or expert_layers_on_gpus(recipe) >= model.moe_layers:
        return 0
    if "mla" in registry.engine_traits(recipe.engine).hybrid_fields:
        large = hybrid_settings(recipe).ubatch >= offload_threshold(model)
        return checkpoint.expert_layer_bytes if large else 0
    return checkpoint.expert_layer_bytes // 3


def offload_threshold(model: Model) -> int:
    """Tokens from which ik_llama.cpp computes RAM experts on a GPU: each is then used often enough to pay its copy."""
    assert model.moe is not None
    return int(memory_constant("llama", "threshold") * model.moe.experts // model.moe.used)


def expert_layers_on_gpus(recipe: Recipe) -> int:
    """Expert layers on GPUs."""
    return sum(map(len, hybrid_settings(recipe).experts))


def cpu_compute_bytes(model: Model, recipe: Recipe, *, alone: bool) -> int:
    """The compute buffer in RAM: experts beside GPUs; without GPUs everything, and ik_llama.cpp's logits.

    llama.cpp b21e4de on the CPU, three expert layers, -ub 512, -c 4096: 180 MiB on Qwen3-235B, 270 on Kimi K2.6.
    """
    ubatch = hybrid_settings(recipe).ubatch
    experts = ubatch * experts_width(model)
    if not alone:
        return experts
    if "mla" in registry.engine_traits(recipe.engine).hybrid_fields:
        return max(experts, compute_bytes(model, recipe, last=True, alone=True))
    return max(experts, ubatch * attention_width(model, recipe)) + ubatch * 2 * recipe.context


def unified_cpu_bytes(gpu: Gpu, model: Model, checkpoint: Checkpoint, recipe: Recipe) -> int:
    """What the CPU's side takes of this GPU's memory beside experts: nothing unless they share it."""
    held = checkpoint.bytes_by_component.get("embed", 0) + cpu_compute_bytes(model, recipe, alone=False)
    return held * gpu.unified


def ram_budget(box: Box, model: Model, checkpoint: Checkpoint, recipe: Recipe) -> DeviceMemory:
    """What stays in RAM: the embedding, the experts of all other layers, and without GPUs everything."""
    sizes = checkpoint.bytes_by_component
    weights: dict[Component, int] = {"embed": sizes.get("embed", 0)}
    experts = max(0, model.moe_layers - expert_layers_on_gpus(recipe)) * checkpoint.expert_layer_bytes
    if experts:
        weights["routed_experts"] = experts
    alone = not has_gpu_layers(recipe) or not box.gpus
    if alone:
        weights |= dense_weights(model, checkpoint, list(range(model.layers)), last=True)
    held = {name: size for name, size in weights.items() if size}
    kv = round(cache_tokens(recipe) * layer_bytes(model, recipe) * model.layers) * alone
    activations = cpu_compute_bytes(model, recipe, alone=alone)
    ram = device_memory("ram", box.ram, held, kv=kv, activations=activations, overhead=ram_overhead(box))
    if box.ram or experts or not box.gpus:
        return ram
    # Nobody said how much RAM there is: enough for a server whose experts all lie on GPUs, nothing beyond.
    return replace(ram, total=-ram.free, free=0)
