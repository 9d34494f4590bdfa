"""What a person has fixed; everything else is the planner's to choose."""

from dataclasses import dataclass
from typing import get_args

from moebox.core.model import KV_BYTES
from moebox.core.plan import Goal
from moebox.core.recipe import ENGINES, EngineName
from moebox.errors import BadInput, UnknownName

IMAGES = ("stock", "community")
DRAFTS = ("none", "eagle3", "mtp", "ngram")
LONGEST = 2**31  # tokens; more is a typing error, not a context


@dataclass(frozen=True, slots=True, kw_only=True)
class Pins:
    """Settings that must hold in the recipe; None is free."""

    goal: Goal = "throughput"
    bold: bool = False
    engine: EngineName | None = None
    checkpoint: str | None = None
    tp: int | None = None
    pp: int | None = None
    ep: int | None = None
    dcp: int | None = None
    kv: str | None = None
    memory_utilization: float | None = None
    speculate: str | None = None
    context: int | None = None
    concurrency: int | None = None
    image: str | None = None
    experts: tuple[int, ...] | None = None  # expert layers by card
    ubatch: int | None = None
    mla: int | None = None
    threads: int | None = None

    def __post_init__(self) -> None:
        _known("goal", self.goal, get_args(Goal))
        _known("engine", self.engine, ENGINES)
        _known("KV cache type", self.kv, tuple(KV_BYTES))
        _known("draft method", self.speculate, DRAFTS)
        _known("image", self.image, IMAGES)
        for name in ("tp", "pp", "ep", "dcp", "concurrency", "ubatch", "threads"):
            _at_least(name, getattr(self, name), 1, 2**20)
        _at_least("context", self.context, 1, LONGEST)
        _at_least("mla", self.mla, 0, 3)
        share = self.memory_utilization
        if share is not None and not 0 < share <= 1:
            raise BadInput(f"--memory-utilization {share:g} is not a share of the card", hint="write it like 0.90")
        if self.experts and min(self.experts) < 0:
            raise BadInput("--experts-on-gpu counts layers; none can be negative")


def experts_of(text: str) -> tuple[int, ...]:
    """Expert layers by card: "3+3" is three on the first and three on the last of two; "0" is none."""
    parts = text.replace(" ", "").split("+")
    if not all(part.isdigit() and len(part) < 5 for part in parts):
        raise BadInput(f"--experts-on-gpu {text!r} is not a list of counts", hint="write it like 3+3, or 0 for none")
    return tuple(int(part) for part in parts)


def _known(kind: str, value: str | None, names: tuple[str, ...]) -> None:
    if value is not None and value not in names:
        raise UnknownName(kind, value, names)


def _at_least(name: str, value: int | None, least: int, most: int) -> None:
    if value is not None and not least <= value <= most:
        raise BadInput(f"--{name} {value} cannot be meant", hint=f"from {least:,} to {most:,}")
