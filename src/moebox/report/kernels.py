"""What was found out about an engine's kernels, as a report shows it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class FailingKernel:
    """A kernel that does not launch."""

    name: str
    case: str = ""
    asked: float | None = None  # bytes of shared memory
    limit: float | None = None
    blocks: str = ""
    place: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelsJudged:
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
    judged: tuple[tuple[str, str], ...] = ()  # what is known by version, remedy

    @property
    def how(self) -> str:
        """By what means its launches were judged."""
        return "compiled" if self.compiled else "looked up"
