"""The efficiency constants: how much of a GPU's nominal figures an engine reaches, as data with their spread.

They are in `data/efficiency.toml`, fitted by `benchmarks/fit_speed.py` to published rows. An engine or GPU generation
without published rows uses the nearest one, with a wider range.
"""

import functools
from dataclasses import dataclass, replace
from typing import Any

from moebox import codec
from moebox.core import catalogue
from moebox.core.recipe import EngineName, Recipe
from moebox.core.versions import version_in_range
from moebox.sizing.rank import RankWork

# Generations to use if one has no row of its own, nearest first. Consumer and server Blackwell share kernels
# with Ada and Ampere consumer GPUs (100 KB of shared memory); Hopper and server Blackwell share theirs.
NEAREST = {
    "hopper": ("hopper", "blackwell", "ampere", "blackwell-rtx"),
    "blackwell": ("blackwell", "hopper", "blackwell-rtx"),
    "blackwell-rtx": ("blackwell-rtx", "ada", "blackwell"),
    "ada": ("ada", "blackwell-rtx", "ampere-rtx"),
    "ampere-rtx": ("ampere-rtx", "blackwell-rtx"),
    "ampere": ("ampere", "hopper", "blackwell"),
    "cdna": ("cdna", "hopper", "blackwell"),
}
QUANT_FAMILIES = ("nvfp4", "mxfp4", "fp8", "int4", "bf16")  # quantisations with expert kernels
NEWEST = "999"
STEP_AWAY = 1.35  # the range widens by this factor for each step to a neighbour


@dataclass(frozen=True, slots=True, kw_only=True)
class Efficiency:
    """What one engine reaches on one GPU generation. Shares are of the GPU's nominal figures."""

    engine: str
    generation: str
    sm: str = ""  # only GPUs of this architecture; "": all of the generation
    preset: str = ""  # "community": the patched, tuned image
    layer_us: float  # least time of a layer (plain attention) inside a CUDA graph: small kernels, gaps between them
    piecewise_us: float  # least time of a layer while a prompt is read, outside full graphs
    eager_us: float  # host time to launch one layer without graphs
    prompt_us: float = 0.0  # host time to launch one layer of a prompt that is longer than captured graphs
    step_us: float  # scheduler, sampling and output once per step, on the reference CPU
    token_us: float = 0.0  # more for each token of a prompt: lists of ids, hashes of cache blocks
    dense_bw: float  # of memory bandwidth, reading attention, shared and dense weights
    experts: float  # multiplies the expert kernel's own share of bandwidth
    gemm: float  # of the bf16 rate, dense matrix products of a prompt
    narrow_gemm: float = 0.0  # that share with attention weights below 16 bits, if it is larger
    attention_bw: float  # of memory bandwidth, reading the cache
    attention_flops: float  # of the bf16 rate, attention against the cache
    attention_fill: float  # sequences × head tiles that fill the GPU to 1 - 1/e
    head_tile: int = 16  # query heads are padded to this
    wide_tile: int = 16  # above `head_tile` they are padded to this
    dcp_us: float = 0.0  # extra per layer with a divided cache: partial results, their merging
    joint_queries: bool = False  # draft tokens of one sequence share one read of its cache
    prefill_attention: float  # of the bf16 rate, prompt attention
    latent: float = 0.0  # kernels of a layer with latent attention; 0: as in [kernels]
    link: str = ""  # row of [[link]] on PCIe; "" is "pcie"
    reduce_us: float = 0.0  # the engine's one-shot all-reduce over NVLink; 0: as in [[link]]
    hosts: int = 1  # hosts that published the rows
    decode_spread: float  # standard deviation of ln(published / model) on those hosts
    prefill_spread: float
    host_spread: float = 0.0  # deviation of hosts' means, each left out of the fit; 0: that of all groups
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overhead:
    """What engine versions before `before` take in addition: host time per step, kernels of a layer."""

    engine: str
    before: str
    generation: str = ""  # "": all
    latent: float = 0.0  # kernels of a layer with latent attention
    sequence_us: float = 0.0  # per sequence of the step
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FusedNorm:
    """GPUs and models for which an engine's all-reduce includes the norm after it."""

    engine: str
    generations: tuple[str, ...]
    architectures: tuple[str, ...]
    since: str
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertKernel:
    """One mixture-of-experts kernel: fixed cost, share of bandwidth, share of the bf16 rate."""

    quant: str
    generation: str
    kernel: str = ""  # marlin, triton, cutlass, trtllm, deepgemm
    engine: str = ""  # only under this engine; "": any
    architectures: tuple[str, ...] = ()  # only for these; (): all
    before: str = ""  # only in versions before this one; "": in all
    backend: str = ""  # only if the recipe names this `moe-backend` (SGLang: `moe-runner-backend`); "": any
    fixed_us: float
    hidden_us: float = 0.0  # for each 1,024 of the hidden size: inputs are quantised and permuted, outputs summed
    expert_us: float = 0.0  # for each expert that the batch activates on a rank
    bandwidth: float
    flops: float
    tile: int = 0  # rows of an expert that it multiplies together: fewer are padded, by at most their number
    row_bytes: float = 0.0  # moved for each element of a routed row: inputs gathered, outputs written and summed
    measured: bool = True  # False: a neighbour's figures, or the kernel timed alone
    source: str = ""

    def least_us(self, rank: RankWork, tokens: float) -> float:
        """Microseconds of one layer before any weight is read."""
        experts = rank.distinct_experts(tokens) / (rank.expert_ranks if rank.whole_experts else 1)
        return self.fixed_us + self.hidden_us * rank.model.hidden / 1024 + self.expert_us * experts

    def bytes_moved(self, rank: RankWork, tokens: float) -> float:
        """Bytes of routed rows in one layer: tensor parallelism cuts experts, not the rows that each rank handles."""
        rows = tokens * rank.model.experts_used / (rank.expert_ranks if rank.whole_experts else 1)
        return rows * rank.model.hidden * self.row_bytes

    def padded_share(self, rank: RankWork, tokens: float) -> float:
        """Rows that are multiplied over rows of the batch."""
        rows = tokens * rank.model.experts_used / max(rank.distinct_experts(tokens), 1.0)
        return 1 + min(self.tile / 2 / max(rows, 1.0), 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnifiedMemory:
    """Memory that CPU and GPU share."""

    rate: float  # share of the datasheet's bandwidth that a kernel reads
    engine_rate: float  # the same for GPU-only engines, before their own shares
    spread: float  # of ln(published / model) on such memory: GPU-only engines
    spread_sharing: float  # engines that can keep experts in RAM
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wire:
    """A kind of link between GPUs, as collectives see it."""

    name: str
    base_us: float = 0.0  # latency of any collective
    hop_us: float  # latency of one hop of a ring; an all-reduce has 2(n-1)
    tree_us: float = 0.0  # latency of one level of a tree; an all-reduce has 2 log2(n)
    bus: float  # share of the one-way rate that a large all-reduce reaches as bus bandwidth
    bus_sockets: float = 0.0  # that share if the group spans two sockets without an NCCL topology; 0: no less
    bus_xeons: float = 0.0  # the same for two of Intel's; 0: as any two
    small_us: float = 0.0  # one-shot all-reduce, if there is one
    small_ranks: int = 0  # up to this many ranks
    small_bytes: int = 0  # up to this size; 0: whenever it is faster
    no_p2p_us: float = 0.0  # extra per hop if GPUs have no peer access
    sockets_us: float = 0.0  # extra if the group spans two sockets without an NCCL topology
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftCost:
    """A draft method: how often a draft token is accepted and what one costs."""

    method: str
    accept: float  # probability that a draft token is accepted, given that those before it were
    bytes: int  # read for one draft token, all ranks together
    pass_us: float  # fixed cost of one draft token
    source: str = ""
    low: float = 0.0  # bounds of `accept` over published rows; 0 if it is given by the user
    high: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class HostEfficiency:
    """CPU+GPU engines: what the CPU side reaches."""

    engine: str
    ram: float  # of the nominal rate of RAM, reading experts
    ram_measured: float  # of a measured rate
    numa: float  # share of it that two sockets reach
    layer_us: float  # handover to the CPU and back, per layer with experts in RAM
    gpu_layer_us: float  # fixed cost of a layer's GPU part
    gpu_bw: float  # of the GPU's bandwidth, one token at a time
    core_flops: float  # operations/s of one core on quantised experts, a batch at a time
    core_gb_s: float  # bytes/s one core can unpack
    core_attention: float = 0.0  # operations/s of one core in attention without a GPU; 0: core_flops
    shares_unpacking: bool = True  # the tokens of a batch share one unpacking of weights; False: each has its own
    upload: float  # of the PCIe rate, copying experts to the GPU for a large batch
    upload_tokens: float  # experts are copied to the GPU for at least this many tokens at once
    upload_each: bool  # upload_tokens is per expert on average
    attention_flops: float  # of the GPU's bf16 rate, one token against the cache
    prompt_flops: float  # of the GPU's bf16 rate while a prompt is read
    decode_spread: float
    prefill_spread: float
    host_spread: float = 0.0
    prompt_attention: float = 0.0  # of the GPU's bf16 rate, attention while a prompt is read; 0: prompt_flops
    wide_vectors: float = 1.0  # times core_flops on a CPU with AVX-512
    upload_ram: float = 0.0  # of RAM's rate, feeding the copies to all GPUs; 0: only their links limit
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCpu:
    """A row of `data/cpus.toml`."""

    match: str = ""
    channels: int = 0
    bandwidth: int = 0
    host: float = 1.0  # speed of one core relative to the one the constants were fitted on
    core_flops: float = 0.0  # operations/s of one core on quantised experts, a batch at a time
    avx512: bool = False
    source: str = ""


def clear_caches() -> None:
    """Read the tables again; the fitting script changes them."""
    catalogue.decode_rows.cache_clear()
    unified_memory.cache_clear()


def find_efficiency(engine: EngineName, preset: str, generation: str, sm: str = "") -> tuple[Efficiency, int]:
    """Return the constants of an engine on a generation, and how many steps away the row is."""
    near = NEAREST.get(generation, ("blackwell-rtx",))

    def distance(row: Efficiency) -> tuple[int, ...]:
        # Another engine on the same GPU is a better neighbour than the same engine on another GPU.
        steps = (near.index(row.generation), row.engine != engine, row.preset != preset)
        return (sum(steps), *steps, not row.sm)

    every = catalogue.table_rows(Efficiency, "efficiency", "engine")
    usable = [row for row in every if row.generation in near and row.preset in ("", preset) and row.sm in ("", sm)]
    nearest = min(usable, key=distance)
    return convert_row(nearest, engine, near), distance(nearest)[0] + (generation not in NEAREST)


def convert_row(row: Efficiency, engine: EngineName, near: tuple[str, ...]) -> Efficiency:
    """Return another engine's row converted to `engine`: shares belong to the GPU, host and scheduler to the engine.

    Times of a layer keep the ratio of the two engines on the nearest GPUs with rows of both.
    """
    if row.engine == engine:
        return row
    stock = [each for each in catalogue.table_rows(Efficiency, "efficiency", "engine") if not (each.preset or each.sm)]
    own = {each.generation: each for each in stock if each.engine == engine}
    others = {each.generation: each for each in stock if each.engine == row.engine}
    shared = next((name for name in near if name in own and name in others), None)
    if shared is None:
        return row
    here, there = own[shared], others[shared]
    names = ("piecewise_us", "eager_us", "prompt_us", "step_us", "token_us", "link")
    host = {name: getattr(here, name) for name in names}
    return replace(row, layer_us=row.layer_us * here.layer_us / there.layer_us, **host)


def find_overhead(engine: EngineName, version: str, generation: str) -> Overhead | None:
    """Return what a version takes in addition; None for a newer or unknown one."""
    rows = (row for row in catalogue.table_rows(Overhead, "efficiency", "overhead") if row.engine == engine)
    rows = (row for row in rows if row.generation in ("", generation))
    return next((row for row in rows if version_in_range(version, f"<{row.before}")), None)


def has_fused_norms(engine: EngineName, version: str, generation: str, architecture: str) -> bool:
    """True if the engine's all-reduces include a layer's norms; an unspecified version is the newest."""
    return any(
        architecture in row.architectures and version_in_range(version or NEWEST, f">={row.since}")
        for row in catalogue.table_rows(FusedNorm, "efficiency", "fused_norm")
        if row.engine == engine and generation in row.generations
    )


def find_expert_kernel(quant: str, generation: str, architecture: str, recipe: Recipe) -> ExpertKernel:
    """Return the expert kernel for a quantisation, on this generation or the nearest that was measured.

    Engines differ in which kernel they use: rows for this backend, version and architecture take precedence.
    """
    family = next((name for name in QUANT_FAMILIES if name in quant.lower()), "int4")
    # Without FP4 units, or with 16-bit activations, Marlin unpacks NVFP4 as it does INT4 (vLLM, oracle/nvfp4.py).
    unpacks = family == "nvfp4" and (quant.endswith("a16") or "blackwell" not in generation)
    family = "int4" if unpacks else family
    near = NEAREST.get(generation, ("blackwell-rtx",))
    ranked, named = [], recipe.flags.get("moe-backend", recipe.flags.get("moe-runner-backend"))
    for row in catalogue.table_rows(ExpertKernel, "efficiency", "experts"):
        fits = row.quant == family and architecture in (row.architectures or (architecture,))
        fits = fits and row.engine in ("", recipe.engine) and row.backend in ("", named)
        if fits and (not row.before or version_in_range(recipe.engine_version, f"<{row.before}")):
            steps = near.index(row.generation) if row.generation in near else len(near)
            ranked.append(((steps, not row.backend, not row.before, not row.architectures, not row.engine), row))
    found = min(ranked, key=lambda pair: pair[0])[1]
    return found if found.generation == near[0] and not unpacks else replace(found, measured=False)


@functools.cache
def find_cpu(name: str) -> HostCpu:
    """Return what is known of a CPU by its name; the reference CPU if nothing is."""
    rows: list[dict[str, Any]] = catalogue.load_table("cpus")["cpu"]
    found = next((row for row in rows if name and row["match"] in name), {})
    return codec.decode(HostCpu, found, where="cpus.toml")


def spread_between_hosts(row: Efficiency | HostEfficiency, steps_away: int) -> float:
    """Standard deviation of ln(published / model) on another host: of its group, or of groups without a row."""
    spreads: dict[str, float] = catalogue.load_table("efficiency")["bands"]
    if steps_away:
        return spreads["neighbour"] * STEP_AWAY ** (steps_away - 1)
    return row.host_spread or spreads["between_hosts"]


@functools.cache
def unified_memory() -> UnifiedMemory:
    row = catalogue.load_table("efficiency")["unified"]
    return codec.decode(UnifiedMemory, row, where="efficiency.toml [unified]")


def kernel_counts() -> dict[str, float]:
    """Kernels of a layer by kind of attention."""
    table: dict[str, float] = catalogue.load_table("efficiency")["kernels"]
    return table


def find_wire(name: str) -> Wire:
    """Return the row of [[link]] called `name`."""
    return next(row for row in catalogue.table_rows(Wire, "efficiency", "link") if row.name == name)
