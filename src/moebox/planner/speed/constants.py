"""The efficiency constants: how much of a GPU's paper figures an engine reaches, as data with their spread.

They live in `data/efficiency.toml`, fitted by `benchmarks/fit_speed.py` to published rows. An engine or a GPU
generation that nobody has measured falls back to the nearest one, and its band widens.
"""

import functools
from dataclasses import dataclass, replace
from typing import Any, TypeVar, cast

from moebox import codec
from moebox.core import catalogue
from moebox.core.recipe import EngineName
from moebox.core.symptom import version_in_range

T = TypeVar("T")

# What to look at when a generation has no row of its own, nearest first. Consumer and server Blackwell share kernels
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
QUANT_FAMILIES = ("nvfp4", "mxfp4", "fp8", "int4", "bf16")  # of quantisations, that expert kernels are made for
NEWEST = "999"
STEP_AWAY = 1.35  # the band widens by this much for each step to a neighbour


@dataclass(frozen=True, slots=True, kw_only=True)
class Efficiency:
    """What one engine reaches on one GPU generation. Shares are of the GPU's paper figures."""

    engine: str
    generation: str
    preset: str = ""  # "community": the patched, tuned image
    layer_us: float  # least time of a layer (plain attention) inside a CUDA graph: small kernels, gaps between them
    piecewise_us: float  # the same while a prompt is read, outside full graphs
    eager_us: float  # host time to launch one layer without graphs
    prompt_us: float = 0.0  # host time to launch one layer of a prompt outside graphs; 0: prompts are read in graphs
    step_us: float  # scheduler, sampling, output once a step, on the reference CPU
    request_ms: float = 10.0  # HTTP, tokenizer and scheduling before a prompt's first step, and its first event back
    dense_bw: float  # of memory bandwidth, reading attention, shared and dense weights
    experts: float  # multiplies the expert kernel's own share of bandwidth
    gemm: float  # of the bf16 rate, dense matrix products of a prompt
    attention_bw: float  # of memory bandwidth, reading the cache
    attention_flops: float  # of the bf16 rate, attention against the cache
    attention_fill: float  # sequences × head tiles that fill the GPU to 1 - 1/e
    head_tile: int = 16  # query heads are padded to this
    wide_tile: int = 16  # and to this above `head_tile`
    dcp_us: float = 0.0  # more for each layer where the cache is divided: partial results, their merging
    joint_queries: bool = False  # guesses of one sequence share one read of its cache
    prefill_attention: float  # of the bf16 rate, prompt attention
    link: str = ""  # row of [[link]] on PCIe; "" is "pcie"
    hosts: int = 1  # whose rows are behind it
    decode_spread: float  # standard deviation of ln(published / model) on those
    prefill_spread: float
    host_spread: float = 0.0  # the same of hosts' means when each is left out of the fit; 0: that of all groups
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overhead:
    """What versions before `before` of an engine need more of the host in every step."""

    engine: str
    before: str
    step_us: float = 0.0
    sequence_us: float = 0.0  # for each sequence of the step
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FusedNorm:
    """Where an engine's all-reduce does the norm after it in the same kernel."""

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
    kernel: str = ""  # whose: marlin, triton, cutlass, trtllm
    engine: str = ""  # only under this engine; "": any
    architectures: tuple[str, ...] = ()  # only for these; (): all
    before: str = ""  # only in versions before this one; "": in all
    fixed_us: float
    bandwidth: float
    flops: float
    measured: bool = True  # false where no engine's result says: a neighbour's figures, or the kernel timed alone
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnifiedMemory:
    """Memory that CPU and GPU share."""

    rate: float  # of the datasheet's bandwidth what a kernel reads
    spread: float  # of ln(published / model) on such memory: engines that serve from GPUs alone
    spread_sharing: float  # and those that can keep experts in RAM
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wire:
    """A kind of link between GPUs, as collectives see it."""

    name: str
    base_us: float = 0.0  # latency of any collective
    hop_us: float  # and of one hop of a ring; an all-reduce has 2(n-1)
    tree_us: float = 0.0  # latency of one level of a tree; an all-reduce has 2 log2(n)
    bus: float  # share of the one-way rate that a large all-reduce reaches as bus bandwidth
    bus_sockets: float = 0.0  # the same where the group spans two sockets and nothing tells NCCL how; 0: no less
    small_us: float = 0.0  # one-shot all-reduce, where there is one
    small_ranks: int = 0  # up to this many ranks
    small_bytes: int = 0  # and this size; 0: wherever it is the faster way
    no_p2p_us: float = 0.0  # more for each hop where GPUs have no peer access
    sockets_us: float = 0.0  # more where the group spans two sockets and nothing tells NCCL how
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftCost:
    """A way of guessing ahead: how often a guess is right and what one costs."""

    method: str
    accept: float  # probability that a guess is taken, given that those before it were
    bytes: int  # read for one guess, all ranks together
    pass_us: float  # fixed cost of one guess
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostEfficiency:
    """CPU+GPU engines: what the CPU side reaches."""

    engine: str
    ram: float  # of the theoretical rate of RAM, reading experts
    ram_measured: float  # of a measured rate
    numa: float  # what is left of it on two sockets
    layer_us: float  # handing over to the CPU and back, for each layer with experts in RAM
    gpu_layer_us: float  # fixed cost of a layer's GPU part
    gpu_bw: float  # of the GPU's bandwidth, one token at a time
    core_flops: float  # operations/s of one core on quantised experts, a batch at a time
    core_gb_s: float  # bytes/s one core can unpack
    core_attention: float = 0.0  # operations/s of one core in attention where there is no GPU; 0: core_flops
    shares_unpacking: bool = True  # the tokens of a batch share one unpacking of weights; False: each has its own
    upload: float  # of the PCIe rate, copying experts to the GPU for a large batch
    upload_tokens: float  # experts are copied to the GPU for at least this many tokens at once
    upload_each: bool  # … this many for each expert on average
    attention_flops: float  # of the GPU's bf16 rate, one token against the cache
    prompt_flops: float  # of the GPU's bf16 rate while a prompt is read
    decode_spread: float
    prefill_spread: float
    host_spread: float = 0.0
    upload_ram: float = 0.0  # of RAM's rate, feeding the copies to all GPUs together; 0: their links decide alone
    source: str = ""


@functools.cache
def _decoded(key: str, kind: type[Any]) -> tuple[Any, ...]:
    rows = catalogue.load_table("efficiency")[key]
    return tuple(codec.decode(kind, row, where=f"efficiency.toml [{key}]") for row in rows)


def _rows(key: str, kind: type[T]) -> tuple[T, ...]:
    rows: tuple[T, ...] = _decoded(key, cast(Any, kind))
    return rows


def clear_caches() -> None:
    """Read the tables again: for the fitting script, which changes them between looks."""
    _decoded.cache_clear()
    unified_memory.cache_clear()


def find_efficiency(engine: EngineName, preset: str, generation: str) -> tuple[Efficiency, int]:
    """The constants for an engine on a generation, and how many steps away the row is."""
    best: tuple[int, tuple[int, bool, bool], Efficiency] | None = None
    near = NEAREST.get(generation, ("blackwell-rtx",))
    for row in _rows("engine", Efficiency):
        if row.generation not in near or (row.preset and row.preset != preset):
            continue
        # Another engine on the same GPU tells more than the same engine on another GPU.
        steps = (near.index(row.generation), row.engine != engine, row.preset != preset)
        away = sum(steps) + (generation not in NEAREST)
        if best is None or (away, steps) < best[:2]:
            best = away, steps, row
    assert best is not None, f"efficiency.toml has no row near {generation}"
    return _as_engine(best[2], engine, near), best[0]


def _as_engine(row: Efficiency, engine: EngineName, near: tuple[str, ...]) -> Efficiency:
    """Another engine's row as `engine` would have it: the shares are the GPUs', host and scheduler are the engine's.

    Times of a layer keep the ratio that the two engines have on the nearest GPUs where both were measured.
    """
    if row.engine == engine:
        return row
    own, others = _plain_rows(engine), _plain_rows(row.engine)
    shared = next((name for name in near if name in own and name in others), None)
    if shared is None:
        return row
    here, there = own[shared], others[shared]
    return replace(
        row,
        layer_us=row.layer_us * here.layer_us / there.layer_us,
        piecewise_us=here.piecewise_us,
        eager_us=here.eager_us,
        prompt_us=here.prompt_us,
        step_us=here.step_us,
        request_ms=here.request_ms,
        link=here.link,
    )


def _plain_rows(engine: EngineName) -> dict[str, Efficiency]:
    """An engine's rows by generation, without those of patched images."""
    return {row.generation: row for row in _rows("engine", Efficiency) if row.engine == engine and not row.preset}


def find_overhead(engine: EngineName, version: str) -> Overhead | None:
    """What a version needs of the host beyond what the constants were fitted on; None for a newer or unknown one."""
    rows = (row for row in _rows("overhead", Overhead) if row.engine == engine)
    return next((row for row in rows if version and version_in_range(version, f"<{row.before}")), None)


def has_fused_norms(engine: EngineName, version: str, generation: str, architecture: str) -> bool:
    """Whether the engine does a layer's norms inside its all-reduces; a version nobody names is the newest."""
    return any(
        architecture in row.architectures and version_in_range(version or NEWEST, f">={row.since}")
        for row in _rows("fused_norm", FusedNorm)
        if row.engine == engine and generation in row.generations
    )


def widen_spread(row: Efficiency, away: int) -> Efficiency:
    """The same constants with the band of a guess `away` steps from what was measured."""
    factor = STEP_AWAY**away
    return replace(row, decode_spread=row.decode_spread * factor, prefill_spread=row.prefill_spread * factor)


def find_expert_kernel(
    quant: str, generation: str, engine: EngineName, architecture: str, version: str
) -> ExpertKernel:
    """The expert kernel for a quantisation, on this generation or the nearest that was measured.

    Engines differ in which kernel they take: what is told of this version and architecture goes before the rest.
    """
    family = next((name for name in QUANT_FAMILIES if name in quant.lower()), "int4")
    rows = (row for row in _rows("experts", ExpertKernel) if row.quant == family)
    meant = [row for row in rows if _is_meant(row, engine, architecture, version)]
    near = NEAREST.get(generation, ("blackwell-rtx",))
    found = min(meant, key=lambda row: _distance(row, near))
    return found if found.generation == near[0] else replace(found, measured=False)


def _distance(row: ExpertKernel, near: tuple[str, ...]) -> tuple[int, bool, bool, bool]:
    """How far a row is from these generations; of those as near, the one that is told of least comes first."""
    steps = near.index(row.generation) if row.generation in near else len(near)
    return steps, not row.before, not row.architectures, not row.engine


def _is_meant(row: ExpertKernel, engine: str, architecture: str, version: str) -> bool:
    if row.engine not in ("", engine):
        return False
    if row.architectures and architecture not in row.architectures:
        return False
    return not row.before or (bool(version) and version_in_range(version, f"<{row.before}"))


def named_expert_kernel(quant: str, generation: str, kernel: str) -> ExpertKernel:
    """The row of one kernel, whoever uses it."""
    rows = (row for row in _rows("experts", ExpertKernel) if (row.quant, row.generation) == (quant, generation))
    return next(row for row in rows if row.kernel == kernel and not row.before)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCpu:
    """A row of `data/cpus.toml`."""

    match: str = ""
    channels: int = 0
    bandwidth: int = 0
    host: float = 1.0  # speed of one core beside the one the constants were fitted on
    core_flops: float = 0.0  # operations/s of one core on quantised experts, a batch at a time
    source: str = ""


@functools.cache
def find_cpu(name: str) -> HostCpu:
    """What is known of a CPU by its name; one as fast as the reference when nothing is."""
    rows: list[dict[str, Any]] = catalogue.load_table("cpus")["cpu"]
    found = next((row for row in rows if name and row["match"] in name), {})
    return codec.decode(HostCpu, found, where="cpus.toml")


def spread_between_hosts(row: Efficiency | HostEfficiency, away: int) -> float:
    """Standard deviation of ln(published / model) on another host: that of its group, or of groups that had no row."""
    bands: dict[str, float] = catalogue.load_table("efficiency")["bands"]
    if away:
        return bands["neighbour"] * STEP_AWAY ** (away - 1)
    return row.host_spread or bands["between_hosts"]


@functools.cache
def unified_memory() -> UnifiedMemory:
    """What is known of memory that CPU and GPU share."""
    return codec.decode(UnifiedMemory, catalogue.load_table("efficiency")["unified"], where="efficiency.toml [unified]")


def intake_ms(engine: EngineName) -> float:
    """How long a server's front process takes over each request, one after another."""
    table: dict[str, float] = catalogue.load_table("efficiency")["intake"]
    return table.get(engine, 1.0)


def kernel_counts() -> dict[str, float]:
    """Kernels of a layer of latent (or linear) and of compressed attention, beside one of plain attention."""
    table: dict[str, float] = catalogue.load_table("efficiency")["kernels"]
    return table


def find_wire(name: str) -> Wire:
    """The row of [[link]] called `name`."""
    return next(row for row in _rows("link", Wire) if row.name == name)


def draft_cost(method: str) -> DraftCost:
    """The row of [[draft]] for a speculation method; unknown ones behave like EAGLE3."""
    rows = {row.method: row for row in _rows("draft", DraftCost)}
    return rows.get(method.lower(), rows["eagle3"])


def host_efficiency(engine: EngineName) -> HostEfficiency:
    """The row of [[host]] for a CPU+GPU engine; the most careful one for an engine without a row."""
    rows = {row.engine: row for row in _rows("host", HostEfficiency)}
    return rows.get(engine) or min(rows.values(), key=lambda row: row.ram)
