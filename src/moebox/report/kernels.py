"""What was found out about an engine's kernels, as a report shows it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class FailingKernel:
    """A kernel that does not launch."""

    name: str
    case: str = ""
    needed_bytes: float | None = None  # bytes of shared memory
    limit_bytes: float | None = None
    blocks: str = ""
    launched_from: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelScanRow:
    """One look at the kernels of an engine release: compiled for the card, or looked up."""

    engine: str = ""
    version: str = ""
    arch: str = ""
    model: str = ""
    tp: str = ""
    kv: str = ""
    compiled: bool = False
    triton: str = ""
    launches: int = 0
    spills: int = 0
    bad: tuple[FailingKernel, ...] = ()
    not_covered: tuple[tuple[str, str], ...] = ()  # what, why
    known_by_version: tuple[tuple[str, str], ...] = ()  # what is known by version, remedy

    @property
    def method_text(self) -> str:
        """By what means its launches were judged."""
        return "compiled" if self.compiled else "looked up"
