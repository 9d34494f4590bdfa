"""What a rung is made of."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from moebox.core.verdict import Score
from moebox.verify.ask import Asker


class Caution(str):
    """A remark on what is no fault of this server's settings, but will surprise its users."""

    __slots__ = ()


# A probe returns nothing, a remark, a caution or a score when all is well, and raises Failed or Skipped otherwise.
ProbeFunction = Callable[[Asker], Awaitable[str | Score | None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """One step of the ladder; where all probes named in `stops` fail, every later rung is meaningless."""

    name: str
    about: str
    probes: Mapping[str, ProbeFunction]
    stops: tuple[frozenset[str], ...] = ()
