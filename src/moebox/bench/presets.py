"""Benchmarks that others published, by name."""

import functools
from dataclasses import dataclass, field

from moebox import codec
from moebox.core import catalogue
from moebox.core.measure import Workload
from moebox.errors import UnknownName


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchPreset:
    """One published benchmark's settings."""

    about: str
    source: str
    workload: Workload
    concurrency: tuple[int, ...] = (1,)
    requests: int = 0  # for each concurrency; 0 takes requests_per_stream
    requests_per_stream: int = field(default=4)

    def request_count(self, concurrency: int) -> int:
        """Requests at this concurrency."""
        return self.requests or concurrency * self.requests_per_stream


@functools.cache
def load_presets() -> dict[str, BenchPreset]:
    """All of them."""
    rows = catalogue.load_table("presets")
    return {name: codec.decode(BenchPreset, row, where=f"preset {name}") for name, row in rows.items()}


def find_preset(name: str) -> BenchPreset:
    """The one of this name."""
    if name not in load_presets():
        raise UnknownName("preset", name, load_presets())
    return load_presets()[name]
