"""What the memory budgets of all engines share: a device's sum, idle GPUs among those used, what RAM holds anyway."""

from collections.abc import Mapping, Sequence
from itertools import starmap
from typing import Protocol

from moebox.core import gpu_list
from moebox.core.box import Box, Gpu
from moebox.core.deployment import Deployment
from moebox.core.model import Component
from moebox.core.plan import DeviceMemory, Memory
from moebox.core.recipe import Recipe
from moebox.sizing.constants import host_reserved_bytes, reserved_bytes
from moebox.sizing.kv import token_bytes


def device_memory(
    name: str,
    total: int,
    weights: dict[Component, int],
    *,
    draft: int = 0,
    kv: int = 0,
    activations: int = 0,
    overhead: int,
) -> DeviceMemory:
    """A device with what is left free on it."""
    return DeviceMemory(
        device=name,
        total=total,
        weights=weights,
        draft=draft,
        kv=kv,
        activations=activations,
        overhead=overhead,
        free=total - sum(weights.values()) - draft - kv - activations - overhead,
    )


def all_gpu_memory(gpus: Sequence[Gpu], used: Mapping[int, DeviceMemory]) -> tuple[DeviceMemory, ...]:
    """All GPUs in their order; one that is not used holds what other programs hold of it."""
    return tuple(
        used[index] if index in used else gpu_list.idle_device_memory(index, gpu, reserved_bytes(gpu))
        for index, gpu in enumerate(gpus)
    )


def add_host_memory(box: Box, gpus: Sequence[DeviceMemory], ram: DeviceMemory) -> tuple[DeviceMemory, ...]:
    """GPUs and RAM; where they are one memory, RAM's part lies on the first GPU, which has the system's already."""
    if not box.has_unified_memory:
        return (*gpus, ram)
    first, *others = gpus
    weights = {name: first.weights.get(name, 0) + ram.weights.get(name, 0) for name in (*first.weights, *ram.weights)}
    kv, activations = first.kv + ram.kv, first.activations + ram.activations
    joined = device_memory(first.device, first.total, weights, kv=kv, activations=activations, overhead=first.overhead)
    return (joined, *others)


class RankMemory(Protocol):
    """What an engine does with the memory of one GPU: a rank of one pipeline stage lies on it."""

    def cache_tokens(self, gpu: Gpu, stage: int) -> int:
        """Tokens that its cache could hold."""

    def missing_bytes(self, gpu: Gpu, stage: int) -> int:
        """Bytes it lacks for the recipe's context; 0 or less where there is room."""

    def device_budget(self, gpu: Gpu, stage: int, tokens: int) -> DeviceMemory:
        """Its budget, with the tokens that all ranks can hold."""


def budget_over_ranks(deployment: Deployment, rank: RankMemory) -> Memory:
    """The budget of an engine whose cache is as large on every rank as on the fullest."""
    box, model, _, recipe = deployment.facts
    gpus, used = gpu_list.all_gpus(box), gpu_list.used_gpus(box, recipe)
    stages = gpu_list.pipeline_stages(used, recipe)
    alike = _kinds(gpus, stages)
    tokens = min(starmap(rank.cache_tokens, alike), default=0)
    short = max(starmap(rank.missing_bytes, alike), default=0)
    kinds = {(gpu, stage): rank.device_budget(gpu, stage, tokens) for gpu, stage in alike}
    devices = {index: _named(kinds[gpus[index], stage], f"gpu{index}") for index, stage in stages.items()}
    return Memory(
        devices=all_gpu_memory(gpus, devices),
        kv_tokens=tokens,
        kv_bytes_per_token=token_bytes(model, recipe),
        fits=short <= 0 and recipe.parallel.gpu_count <= len(used) and tokens >= recipe.context,
        shortfall=max(0, short),
    )


def _named(one: DeviceMemory, name: str) -> DeviceMemory:
    """The same budget of another device; `replace` takes three times as long, and there are thousands in a plan."""
    return DeviceMemory(
        device=name,
        total=one.total,
        weights=one.weights,
        draft=one.draft,
        kv=one.kv,
        activations=one.activations,
        overhead=one.overhead,
        free=one.free,
    )


def _kinds(gpus: Sequence[Gpu], stages: Mapping[int, int]) -> dict[tuple[Gpu, int], None]:
    """GPUs used, in their order, with their stage: those of one kind and stage have one budget."""
    return dict.fromkeys((gpus[index], stage) for index, stage in stages.items())


def fullest_gpu(deployment: Deployment, rank: RankMemory) -> tuple[Gpu, int] | None:
    """The GPU and the stage whose cache holds the fewest tokens: these decide for all; None without GPUs."""
    box, recipe = deployment.required_box, deployment.recipe
    stages = gpu_list.pipeline_stages(gpu_list.used_gpus(box, recipe), recipe)
    return min(_kinds(gpu_list.all_gpus(box), stages), key=lambda kind: rank.cache_tokens(*kind), default=None)


def first_gpu(box: Box, recipe: Recipe) -> Gpu | None:
    """The first GPU that a recipe runs on: what is said of an engine's memory is said of this one."""
    used = gpu_list.used_gpus(box, recipe)
    return gpu_list.all_gpus(box)[used[0]] if used else None


def ram_overhead(box: Box) -> int:
    """RAM that is not the engine's to fill: what is held now, at least a system's own, and the process itself."""
    held = 0 if box.ram_free is None else max(0, box.ram - box.ram_free)
    return host_reserved_bytes(held)
