"""The named constants of the memory model, from `data/memory.toml`, and which generation of vLLM a recipe means."""

import functools
from dataclasses import dataclass
from typing import Any

from moebox import codec
from moebox.core import catalogue, presets
from moebox.core.box import Gpu
from moebox.core.recipe import Recipe

GIB = 2**30
MIB = 2**20
GRAPH_ESTIMATE_ENV = "VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS"  # "1" takes room for CUDA graphs off the cache


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmBuild:
    """What one line of vLLM builds takes besides weights and cache, in GiB."""

    name: str
    marks: tuple[str, ...]
    non_torch: float
    speculative: float
    splits: int
    graphs: float = 1.0  # of the room for CUDA graphs, what it takes off the cache
    rejection: float = 1.0  # of the buffers for probabilistic rejection of draft tokens
    source: str


@functools.cache
def memory_constant(section: str, name: str) -> Any:
    """One figure of the table; a plan asks a hundred thousand times."""
    return catalogue.load_table("memory")[section][name]


@functools.cache
def memory_constant_bytes(section: str, name: str) -> int:
    """One figure that the table gives in GiB, in bytes."""
    return round(float(memory_constant(section, name)) * GIB)


@functools.cache
def vllm_builds() -> tuple[VllmBuild, ...]:
    """Every known line of vLLM builds."""
    rows = catalogue.load_table("memory")["build"]
    return tuple(codec.decode(VllmBuild, row, where=f"memory.toml [{row['name']}]") for row in rows)


def vllm_build(recipe: Recipe) -> VllmBuild:
    """The build a recipe runs: by its image's tag; the community preset alone means the Kimi K2.6 image of May 2026."""
    return _generation(recipe.runtime.image, recipe.runtime.preset == "community")


@functools.lru_cache(maxsize=256)
def _generation(image: str, community: bool) -> VllmBuild:
    """A plan asks for each of thousands of placements."""
    known = vllm_builds()
    for one in known:
        if any(mark in image for mark in one.marks):
            return one
    wanted = "community 2026-05" if community else "stock"
    return next(one for one in known if one.name == wanted)


def reserves_graph_memory(recipe: Recipe) -> bool:
    """Whether the build takes CUDA-graph room off the cache: vLLM does unless told not to (envs.py, 0.32)."""
    known = presets.recipe_preset(recipe).environment | recipe.env
    return known.get(GRAPH_ESTIMATE_ENV, "1") == "1"


def visible_bytes(gpu: Gpu) -> int:
    """Bytes of a GPU that CUDA sees: the driver keeps a little on some."""
    return gpu.memory - (0 if gpu.mig else _kept(gpu.generation))


@functools.cache
def _kept(generation: str) -> int:
    """Bytes that the driver keeps of a GPU of this family."""
    table = catalogue.load_table("memory")["driver"]
    return round(float(table.get(generation, table["other"])) * GIB)


def reserved_bytes(gpu: Gpu) -> int:
    """Bytes that are not an engine's to fill: other programs', and of a memory shared with the CPU the host's part."""
    return host_reserved_bytes(bytes_held_by_others(gpu)) if gpu.unified else bytes_held_by_others(gpu)


def host_reserved_bytes(bytes_in_use: int) -> int:
    """Of a memory the host runs in: what is held now, at least a system's own, and the engine's process itself."""
    return max(bytes_in_use, memory_constant_bytes("llama", "os")) + memory_constant_bytes("llama", "host")


def bytes_held_by_others(gpu: Gpu) -> int:
    """Bytes other programs hold on a detected GPU now; an engine of moebox's can be stopped and does not count."""
    if gpu.memory_free is None:
        return 0
    ours = sum(holder.bytes for holder in gpu.holders if holder.instance)
    return max(0, visible_bytes(gpu) - gpu.memory_free - ours)
