"""What a GPU kernel asks for, and whether an architecture can give it."""

from dataclasses import dataclass, field
from typing import Any, Literal

from moebox.core import catalogue
from moebox.errors import UnknownName

Verdict = Literal["launches", "spills", "does not fit", "does not compile"]
REGISTERS_SM = 65_536  # 32-bit registers of a multiprocessor, the same on every architecture since Kepler
RESERVED = 1_024  # bytes of shared memory the system keeps of each block since compute capability 8.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Arch:
    """An architecture's limits."""

    name: str  # "sm_120"
    smem: int
    smem_sm: int
    threads_sm: int
    blocks_sm: int
    sms: int
    device: str
    memory: int

    @property
    def capability(self) -> int:
        """120 for sm_120."""
        return int(self.name.removeprefix("sm_"))

    def blocks_per_sm(self, shared: int, registers: int, warps: int) -> int:
        """Blocks that live on one multiprocessor at a time; 0 when not even one does."""
        if shared > self.smem:
            return 0
        by_shared = self.smem_sm // (shared + RESERVED)
        by_threads = self.threads_sm // (warps * 32)
        # Registers are given out in units of 256 to a warp.
        by_registers = REGISTERS_SM // (-(-registers * 32 // 256) * 256) // warps if registers else by_threads
        return max(0, min(by_shared, by_threads, by_registers, self.blocks_sm))


def arch(name: str) -> Arch:
    """The architecture called `name`: sm_120, 120 or 12.0."""
    wanted = name.lower().removeprefix("sm_").replace(".", "").rstrip("af")
    rows: dict[str, Any] = catalogue.table("archs")["arch"]
    if f"sm_{wanted}" not in rows:
        raise UnknownName("architecture", name, rows)
    return Arch(name=f"sm_{wanted}", **rows[f"sm_{wanted}"])


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelLaunch:
    """One kernel as an engine would launch it."""

    case: str  # what the engine was asked to do
    kernel: str
    file: str
    line: int
    launched_from: str = ""
    blocks: dict[str, int | str] = field(default_factory=dict)
    num_warps: int
    num_stages: int
    shared_bytes: int
    limit_bytes: int
    registers: int = 0
    stack_bytes: int = 0
    spill_bytes: int = 0
    blocks_per_sm: int = 0
    error: str = ""  # the compiler's words, where it does not compile
    verdict: Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class NotCovered:
    """What a scan could not judge, and why; never passed over in silence."""

    what: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelScan:
    """All launches of one engine for one model on one architecture."""

    engine: str
    version: str
    arch: str
    model: str
    tp: int
    kv: str
    triton: str
    launches: tuple[KernelLaunch, ...]
    not_covered: tuple[NotCovered, ...] = ()
    judged: tuple[NotCovered, ...] = ()  # kernels that are not Triton's: what is known of them by version

    @property
    def bad(self) -> tuple[KernelLaunch, ...]:
        """Launches that fail."""
        return tuple(one for one in self.launches if one.verdict in ("does not fit", "does not compile"))


def known_bad(*, engine: str, version: str, sm: str, kv: str) -> tuple[dict[str, Any], ...]:
    """Attention kernels of a scanned release that do not launch on such a card with such a cache."""
    name = f"sm_{sm.replace('.', '')}"
    return tuple(
        bad
        for row in catalogue.table("kernels")["scan"]
        if (row["engine"], row["version"], row["arch"], row["kv"]) == (engine, version, name, kv)
        for bad in row["bad"]
        if not bad["case"].startswith("fused MoE")
    )
