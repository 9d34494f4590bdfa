"""Messages between moebox and the probe: requests on stdin or in a file, answers as lines or in a file.

The probe runs under an engine's own Python, so nothing here needs more than the standard library.
"""

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from .space import Choice, RankShape

Constant = int | float | bool | str


@dataclass(frozen=True)
class ProbeGpu:
    capability: int  # 120 for sm_120
    sms: int
    device_name: str
    memory: int
    smem: int


@dataclass(frozen=True)
class LaunchSearch:
    """Other ways to compile one launch."""

    hash: str
    candidates: list[Choice]


@dataclass(frozen=True)
class ScanRequest:
    """Make an engine launch its kernels, and record what they ask for."""

    engine: str  # the name of a module of this package
    root: str
    cache: str
    target: ProbeGpu
    shape: RankShape
    kv: str = "bf16"
    only: str = ""
    searches: list[LaunchSearch] = field(default_factory=list)

    @classmethod
    def from_json(cls, document: Any) -> "ScanRequest":
        target, shape = ProbeGpu(**document["target"]), RankShape(**document["shape"])
        searches = [LaunchSearch(**search) for search in document.get("searches", ())]
        return cls(**{**document, "target": target, "shape": shape, "searches": searches})


@dataclass(frozen=True, kw_only=True)
class KernelCost:
    """What a compiled kernel needs."""

    shared_bytes: int = 0
    registers: int = 0
    stack_bytes: int = 0
    spill_bytes: int | None = None  # None if the assembler's log was not seen
    error: str = ""  # the compiler's message if it does not compile

    @property
    def spilled_bytes(self) -> int:
        """Bytes that go to memory; the size of the stack if only that is known."""
        return self.stack_bytes if self.spill_bytes is None else self.spill_bytes


@dataclass(frozen=True, kw_only=True)
class LaunchRecord(KernelCost):
    case: str
    kernel: str
    file: str
    line: int
    launched_from: str = ""
    blocks: dict[str, int | str] = field(default_factory=dict)
    constants: dict[str, Constant] = field(default_factory=dict)
    grid: tuple[int, ...] = ()
    num_warps: int = 4
    num_stages: int = 0
    hash: str = ""


@dataclass(frozen=True, kw_only=True)
class LaunchVariant(KernelCost):
    """One launch compiled another way."""

    hash: str  # of the launch
    choice: Choice


@dataclass(frozen=True)
class MissedCase:
    """A case that ended before it launched anything, or launched nothing."""

    case: str
    why: str = ""


@dataclass(frozen=True)
class ScanDone:
    """The last line of a complete scan."""

    triton: str
    torch: str = ""
    python: str = ""


@dataclass(frozen=True)
class ProbeLine:
    """A line of the probe; one of the fields is set."""

    launch: LaunchRecord | None = None
    missed: MissedCase | None = None
    empty: MissedCase | None = None
    variant: LaunchVariant | None = None
    done: ScanDone | None = None


@dataclass(frozen=True)
class TuneRequest:
    """Time candidates on the GPU of this machine, under another architecture's limit."""

    engine: str
    root: str
    cache: str
    capability: int
    device: str
    sms: int
    limit: int
    limit_capability: int
    seconds: float
    only: str = ""
    shape: RankShape = field(default_factory=RankShape)

    @classmethod
    def from_json(cls, document: Any) -> "TuneRequest":
        return cls(**{**document, "shape": RankShape(**document["shape"])})


@dataclass(frozen=True)
class TimedConfig:
    """A configuration, as in the engine's tuned files, and its time."""

    config: Choice
    ms: float


@dataclass(frozen=True)
class TunedBaseline:
    """The time of an upstream choice."""

    config: Choice
    ms: float
    fits: bool
    shared_bytes: int | None = None
    choice: Choice = field(default_factory=dict)


@dataclass(frozen=True)
class TunedRow:
    """The best candidate of a case, beside the baselines."""

    case: str
    best: Choice | None
    ms: float | None
    baselines: dict[str, TunedBaseline]
    shared_bytes: int | None = None
    error: float | None = None
    tried: int = 0
    of: int = 0
    wrong: int = 0
    field: list[TimedConfig] = dataclasses.field(default_factory=list)
    # The best of each value of the case's group.
    groups: dict[str, TimedConfig] = dataclasses.field(default_factory=dict)
    kept: str = ""  # the baseline that won


@dataclass(frozen=True)
class TuneAnswer:
    triton: str
    rows: list[TunedRow]
