"""Benchmarks that others published, by name."""

import functools
from dataclasses import dataclass, field

from moebox import codec
from moebox.core import catalogue
from moebox.core.measure import Workload
from moebox.errors import UnknownName


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """One published benchmark's settings."""

    about: str
    source: str
    workload: Workload
    concurrency: tuple[int, ...] = (1,)
    requests: int = 0  # for each concurrency; 0 takes requests_per_stream
    requests_per_stream: int = field(default=4)

    def count(self, concurrency: int) -> int:
        """Requests at this concurrency."""
        return self.requests or concurrency * self.requests_per_stream


@functools.cache
def presets() -> dict[str, Preset]:
    """All of them."""
    rows = catalogue.load_table("presets")
    return {name: codec.decode(Preset, row, where=f"preset {name}") for name, row in rows.items()}


def preset(name: str) -> Preset:
    """The one of this name."""
    if name not in presets():
        raise UnknownName("preset", name, presets())
    return presets()[name]
