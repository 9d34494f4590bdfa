"""The resources that a GPU kernel needs, and whether an architecture has them."""

from dataclasses import dataclass, field
from typing import Literal

from moebox.core import catalogue
from moebox.core.symptom import KnownFailure
from moebox.errors import UnknownName

LaunchVerdict = Literal["launches", "spills", "does not fit", "does not compile"]
REGISTERS_SM = 65_536  # 32-bit registers of a multiprocessor since Kepler
RESERVED_SMEM = 1_024  # bytes of shared memory reserved per block since compute capability 8.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Arch:
    """The limits of a GPU architecture."""

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
        """The number in the name: 120 for sm_120."""
        return int(self.name.removeprefix("sm_"))

    def blocks_per_sm(self, shared: int, registers: int, warps: int) -> int:
        """Concurrent blocks on one multiprocessor; 0 if not even one fits."""
        if shared > self.smem:
            return 0
        by_shared = self.smem_sm // (shared + RESERVED_SMEM)
        by_threads = self.threads_sm // (warps * 32)
        # Registers are allocated to a warp in units of 256.
        by_registers = REGISTERS_SM // (-(-registers * 32 // 256) * 256) // warps if registers else by_threads
        return max(0, min(by_shared, by_threads, by_registers, self.blocks_sm))


def find_arch(name: str) -> Arch:
    """Find an architecture by name: sm_120, 120 or 12.0."""
    wanted = name.lower().removeprefix("sm_").replace(".", "").rstrip("af")
    rows = catalogue.load_table("archs")["arch"]
    if f"sm_{wanted}" not in rows:
        raise UnknownName("architecture", name, rows)
    return Arch(name=f"sm_{wanted}", **rows[f"sm_{wanted}"])


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelLaunch:
    """A kernel as an engine would launch it."""

    case: str  # the engine's operation
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
    error: str = ""  # the compiler's message, if it does not compile
    verdict: LaunchVerdict


@dataclass(frozen=True, slots=True, kw_only=True)
class NotCovered:
    """A kernel that a scan could not check, and the reason."""

    what: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ScannedKernels:
    """The kernels of one engine for one model on one architecture."""

    engine: str
    version: str
    arch: str
    model: str
    tp: int
    kv: str
    triton: str = ""
    not_covered: tuple[NotCovered, ...] = ()
    judged: tuple[NotCovered, ...] = ()  # kernels other than Triton's: known facts by version


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelScan(ScannedKernels):
    """All launches, compiled."""

    launches: tuple[KernelLaunch, ...]

    @property
    def failing_launches(self) -> tuple[KernelLaunch, ...]:
        """Launches that do not fit or compile."""
        return tuple(launch for launch in self.launches if launch.verdict in ("does not fit", "does not compile"))


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelFindings(ScannedKernels):
    """Findings about them, as stored in a run folder."""

    by: Literal["compiling", "table"]
    launches: int = 0
    spills: int = 0
    bad: tuple[KernelLaunch | KnownFailure, ...] = ()
