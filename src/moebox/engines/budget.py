"""What the memory budgets of all engines share: a device's sum, idle GPUs, RAM, and lines of written-out arithmetic."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import starmap
from typing import Protocol

from moebox.core.box import Box, Gpu
from moebox.core.deployment import Deployment
from moebox.core.model import KV_BYTES, Checkpoint, Component, Model
from moebox.core.plan import ArithmeticLine, DeviceMemory, Memory
from moebox.core.recipe import Recipe
from moebox.sizing import shards
from moebox.sizing.constants import host_reserved_bytes, kernel_page_bytes, memory_constant, reserved_bytes
from moebox.sizing.kv import keeps_all_heads, kv_type, token_bytes

MXFP4_ROWS = 256  # kernels pad the hidden size to a multiple of this (SGLang 0.5.15, mxfp4.py)
MARLIN_WIDTH = 128  # and Marlin a rank's part of an expert's width to this, others to 256


def device_memory(name: str, total: int, weights: dict[Component, int], **parts: int) -> DeviceMemory:
    """Return a device with its free bytes computed; `parts` are its draft, kv, activations and overhead."""
    free = total - sum(weights.values()) - sum(parts.values())
    return DeviceMemory(device=name, total=total, weights=weights, free=free, **parts)


def all_gpu_memory(gpus: Sequence[Gpu], used: Mapping[int, DeviceMemory]) -> tuple[DeviceMemory, ...]:
    """Return all GPUs in order, by name; an unused one holds what other programs hold."""
    devices = []
    for index, gpu in enumerate(gpus):
        device = used.get(index) or device_memory("gpu", gpu.memory, {}, overhead=reserved_bytes(gpu))
        devices.append(replace(device, device=f"gpu{index}"))
    return tuple(devices)


def add_host_memory(box: Box, gpus: Sequence[DeviceMemory], ram: DeviceMemory) -> tuple[DeviceMemory, ...]:
    """Return GPUs and RAM; in unified memory RAM's part is on the first GPU, which has the system's already."""
    if not box.has_unified_memory:
        return (*gpus, ram)
    first, *others = gpus
    weights = {name: first.weights.get(name, 0) + ram.weights.get(name, 0) for name in (*first.weights, *ram.weights)}
    kv, activations = first.kv + ram.kv, first.activations + ram.activations
    merged = device_memory(first.device, first.total, weights, kv=kv, activations=activations, overhead=first.overhead)
    return (merged, *others)


def add_tier_memory(deployment: Deployment, memory: Memory) -> Memory:
    """Return the budget with the RAM of the KV tier; it does not fit if the box's RAM is known and too small."""
    box, size = deployment.required_box, int(deployment.recipe.tiers.ram_gib * 2**30)
    known = next((device for device in memory.devices if device.device == "ram"), None)
    ram = known or device_memory("ram", box.ram, {}, overhead=ram_overhead(box) if box.ram else 0)
    ram = replace(ram, kv=ram.kv + size, free=ram.free - size)
    others = tuple(device for device in memory.devices if device is not known)
    devices = add_host_memory(box, others, ram)
    free = min(device.free for device in devices if device.device == "ram" or box.has_unified_memory)
    if free >= 0 or not box.ram:
        return replace(memory, devices=devices)
    return replace(memory, devices=devices, fits=False, shortfall=max(memory.shortfall, -free))


class RankMemory(Protocol):
    """An engine's memory on one GPU, which holds a rank of one pipeline stage."""

    def cache_tokens(self, gpu: Gpu, stage: int) -> int:
        """Tokens that its cache could hold."""

    def missing_bytes(self, gpu: Gpu, stage: int) -> int:
        """Bytes missing for the recipe's context; 0 or less if there is room."""

    def device_budget(self, gpu: Gpu, stage: int, tokens: int) -> DeviceMemory:
        """Its budget, with the tokens that all ranks can hold."""


def budget_over_ranks(deployment: Deployment, rank: RankMemory) -> Memory:
    """Return the budget of an engine whose cache is as large on every rank as on the fullest."""
    box, model, _, recipe = deployment.facts
    gpus, stages = box.all_gpus, recipe.pipeline_stages(box)
    kinds = _gpu_kinds(gpus, stages)
    tokens = min(starmap(rank.cache_tokens, kinds), default=0)
    missing = max(starmap(rank.missing_bytes, kinds), default=0)
    budgets = {(gpu, stage): rank.device_budget(gpu, stage, tokens) for gpu, stage in kinds}
    return Memory(
        devices=all_gpu_memory(gpus, {index: budgets[gpus[index], stage] for index, stage in stages.items()}),
        kv_tokens=tokens,
        kv_bytes_per_token=token_bytes(model, recipe),
        fits=missing <= 0 and recipe.parallel.gpu_count <= len(stages) and tokens >= recipe.context,
        shortfall=max(0, missing),
    )


def _gpu_kinds(gpus: Sequence[Gpu], stages: Mapping[int, int]) -> dict[tuple[Gpu, int], None]:
    """GPUs used, in order, with their stage: those of one kind and stage have one budget."""
    return dict.fromkeys((gpus[index], stage) for index, stage in stages.items())


def fullest_gpu(deployment: Deployment, rank: RankMemory) -> tuple[Gpu, int] | None:
    """Return the GPU and stage whose cache holds the fewest tokens, which decides for all; None without GPUs."""
    box, recipe = deployment.required_box, deployment.recipe
    kinds = _gpu_kinds(box.all_gpus, recipe.pipeline_stages(box))
    return min(kinds, key=lambda kind: rank.cache_tokens(*kind), default=None)


def first_gpu(box: Box, recipe: Recipe) -> Gpu | None:
    """Return the first GPU that a recipe runs on, or None."""
    used = recipe.used_gpus(box)
    return box.all_gpus[used[0]] if used else None


def ram_overhead(box: Box) -> int:
    """RAM that the engine cannot use: what is held now, at least a system's own, and the process itself.

    A detected amount is what Linux reports; of a declared one, the kernel keeps a part.
    """
    if box.ram_free is None:
        return kernel_page_bytes(box.ram) + host_reserved_bytes(0)
    return host_reserved_bytes(max(0, box.ram - box.ram_free))


def bytes_line(what: str, value: float, formula: str = "", source: str = "") -> ArithmeticLine:
    return ArithmeticLine(what=what, formula=formula, value=value, unit="B", source=source)


def stage_note(recipe: Recipe, stage: int) -> str:
    """Return which stage the arithmetic is about, if there are several."""
    return f"; stage {stage + 1} of {recipe.parallel.pp} holds the fewest" if recipe.parallel.pp > 1 else ""


def token_line(model: Model, recipe: Recipe, value: int, stage: int = 0) -> ArithmeticLine:
    """Return the line of one token's cache bytes in a stage."""
    kind, mean = kv_type(recipe), "" if len(model.stack) == 1 else ", mean of all layers"
    each = token_bytes(model, recipe) / model.layers
    formula = f"{shards.stage_layers(model.layers, recipe.parallel.pp)[stage]} layers × {each:g} B"
    if model.mla and keeps_all_heads(model.mla, recipe):
        formula += f" ({model.mla.heads_width} elements in {kind}: keys and values of every head{mean})"
    elif model.mla:
        index = f", {model.mla.index_bytes:g} B of selector keys" if model.mla.indexer else ""
        formula += f" ({model.mla.kv_lora} + {model.mla.rope} elements in {kind}{index}, the same on every rank{mean})"
    else:
        formula += f" (keys and values of the rank's heads in {kind}{mean})"
    return bytes_line("cache a token", value, formula, f"{KV_BYTES[kind]:g} B an element; {model.source}")


def weight_lines(
    weights: dict[Component, int], model: Model, checkpoint: Checkpoint, recipe: Recipe, stage: int, **own: str
) -> list[ArithmeticLine]:
    """Return the lines of each component's bytes on a rank of one stage; `own` are an engine's own formulas.

    Its own of routed experts follows the usual one.
    """
    parallel, sizes = recipe.parallel, checkpoint.bytes_by_component
    dense, with_experts = shards.layers_in_stage(model, parallel.pp, stage)
    here, dense_layers = dense + with_experts, model.layers - model.moe_layers
    part = f" × {here}/{model.layers} layers" if here < model.layers else ""
    dense_part = f" × {dense}/{dense_layers} layers" if dense < dense_layers else ""
    expert_part = f" × {with_experts}/{model.moe_layers} layers" if with_experts < model.moe_layers else ""
    whole = shards.replicated_share(model, parallel.tp)
    again = shards.absorbed_kv_bytes(model, parallel.tp, here)
    sliced = f"({whole:.6f} whole + {1 - whole:.6f} / {parallel.tp})" if whole else f"1 / {parallel.tp}"
    formulas = {
        "attention": f"{sizes.get('attention', 0):,}{part} × {sliced}{f' + {again:,} of kv_b again' if again else ''}",
        "router": f"{sizes.get('router', 0):,}{part}, whole on every rank",
        "norms": norms_formula(checkpoint, memory_constant("load", "slack"), part),
        "dense_ffn": f"{sizes.get('dense_ffn', 0):,}{dense_part} / {parallel.tp}",
    }
    if model.moe:
        formula = f"{sizes.get('routed_experts', 0):,}{expert_part} × {shards.expert_share(model, parallel):.6g}"
        own["routed_experts"] = formula + own.get("routed_experts", "")
        formulas["shared_experts"] = f"{sizes.get('shared_experts', 0):,}{expert_part} / {parallel.tp}"
    formulas |= own
    usual = {name: f"{sizes.get(name, 0):,} / {parallel.tp}" for name in weights} | formulas
    return [bytes_line(f"- {name}", size, usual[name], checkpoint.source) for name, size in weights.items()]


def norms_formula(checkpoint: Checkpoint, slack_gib: float, part: str = "") -> str:
    """Return the formula of the norms' bytes, and what weights take beyond all tensors."""
    slack = f" + {slack_gib} GiB of rope tables and rounding" if slack_gib else ""
    return f"{checkpoint.bytes_by_component.get('norms', 0):,}{part}{slack}"


def expert_growth(table: str, gpu: Gpu, model: Model, checkpoint: Checkpoint, recipe: Recipe) -> tuple[float, str]:
    """Return the bytes of routed experts in memory over those in their files, and the end of a formula with it."""
    moe, quant = model.moe, checkpoint.quant
    if quant == "nvfp4" and (copies := memory_constant(table, "nvfp4_scale_copies")):
        scales = 0.5 / 4.5  # of an NVFP4 weight's 4.5 bits, the block scale's half bit
        return 1 + scales * copies, f" × (1 + 1/9 × {copies} scales twice)"
    if quant != "mxfp4" or moe is None:
        return 1.0, ""
    if gpu.generation == "hopper":
        growth = float(memory_constant(table, "mxfp4_hopper"))
        return growth, f" × {growth:g}, as triton_kernels lay them out"
    rows, width = moe.latent or model.hidden, moe.intermediate / (1 if recipe.parallel.ep else recipe.parallel.tp)
    step = 256 if gpu.generation in ("blackwell", "cdna") else MARLIN_WIDTH
    growth = math.ceil(rows / MXFP4_ROWS) * MXFP4_ROWS / rows * math.ceil(width / step) * step / width
    return growth, f" × {growth:.4g}, padded to multiples of {MXFP4_ROWS} and {step}" * (growth > 1)
