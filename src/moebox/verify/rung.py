"""What a rung is made of."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from moebox.core.verdict import Score
from moebox.verify.ask import CheckSession


class ProbeWarning(str):
    """What is no clear fault of this server, but will surprise its users: yellow."""

    __slots__ = ()


# A probe returns nothing, a remark, a warning or a score, and raises Failed or Skipped. Slips are counted by the asker.
ProbeFunction = Callable[[CheckSession], Awaitable[str | Score | None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One step of the ladder; where all probes named in `stops` fail, every later rung is meaningless."""

    name: str
    about: str
    probes: Mapping[str, ProbeFunction]
    stop_if_failed: tuple[frozenset[str], ...] = ()
    request_estimate: int = 10  # about how many requests it takes, for the time left
