"""The named constants of the memory model (`data/memory.toml`), and what a GPU has left for an engine."""

import functools
from dataclasses import dataclass
from typing import Any

from moebox.core import catalogue, presets
from moebox.core.box import Gpu
from moebox.core.recipe import Recipe

GIB = 2**30
MIB = 2**20
GRAPH_ESTIMATE_ENV = "VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS"  # "1" reserves memory for CUDA graphs


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmBuild:
    """What one line of vLLM builds needs besides weights and cache, in GiB."""

    name: str
    marks: tuple[str, ...]  # parts of image names that identify the build
    non_torch: float
    speculative: float
    splits: int
    graphs: float = 1.0  # share of the CUDA graph memory that is subtracted from the cache
    rejection: float = 1.0  # share of the buffers for probabilistic rejection of draft tokens
    source: str


@functools.cache
def memory_constant(section: str, name: str) -> Any:
    """Return one figure of the table. Cached: a plan looks up a hundred thousand."""
    return catalogue.load_table("memory")[section][name]


@functools.cache
def memory_constant_bytes(section: str, name: str) -> int:
    """Return one figure that the table gives in GiB, in bytes."""
    return round(float(memory_constant(section, name)) * GIB)


def vllm_build(recipe: Recipe) -> VllmBuild:
    """Return the vLLM build of a recipe by image tag; the community preset alone is the Kimi K2.6 image of May 2026."""
    builds, runtime = catalogue.table_rows(VllmBuild, "memory", "build"), recipe.runtime
    default = "community 2026-05" if runtime.preset == "community" else "stock"
    marked = [build for build in builds if any(map(runtime.image.count, build.marks))] if runtime.image else []
    return next(iter([*marked, *(build for build in builds if build.name == default)]))


def reserves_graph_memory(recipe: Recipe) -> bool:
    """True if vLLM subtracts CUDA graph memory from the cache, which is its default (envs.py, 0.32)."""
    environment = presets.load_preset(recipe.runtime.preset).environment | recipe.env
    return environment.get(GRAPH_ESTIMATE_ENV, "1") == "1"


def visible_bytes(gpu: Gpu) -> int:
    """Bytes of a GPU that CUDA can see: on some GPUs the driver keeps a little."""
    if gpu.mig:
        return gpu.memory
    kept_gib = catalogue.load_table("memory")["driver"]
    return gpu.memory - round(float(kept_gib.get(gpu.generation, kept_gib["other"])) * GIB)


def reserved_bytes(gpu: Gpu) -> int:
    """Bytes that an engine cannot use: other programs, and the host's part of unified memory."""
    held = bytes_held_by_others(gpu)
    return host_reserved_bytes(held) if gpu.unified else held


def host_reserved_bytes(bytes_in_use: int) -> int:
    """Host memory that weights cannot use: what is in use, at least the system's minimum, and the engine's process."""
    return max(bytes_in_use, memory_constant_bytes("llama", "os")) + memory_constant_bytes("llama", "host")


def kernel_page_bytes(installed: int) -> int:
    """RAM that Linux keeps for the structures of its pages: what it reports as total is less than what is installed."""
    return round(installed * float(memory_constant("llama", "pages")))


def bytes_held_by_others(gpu: Gpu) -> int:
    """Bytes that other programs hold on a detected GPU; engines started by moebox can be stopped and do not count."""
    if gpu.memory_free is None:
        return 0
    own = sum(process.bytes for process in gpu.holders if process.instance)
    return max(0, visible_bytes(gpu) - gpu.memory_free - own)
