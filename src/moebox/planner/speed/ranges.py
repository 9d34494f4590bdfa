"""How far forecasts were from results on hosts that had no part in the fit, as factors by kind of result.

`data/ranges.toml` holds the factors; benchmarks/unseen.py computes them. A case uses the narrowest group with rows.
"""

import functools
from dataclasses import dataclass
from typing import Literal

from moebox.core import catalogue
from moebox.core.symptom import version_in_range

RangeKind = Literal["decode", "prompt", "serving"]
RANGE_KINDS: tuple[RangeKind, ...] = ("decode", "prompt", "serving")
ModelGroup = Literal["", "fitted", "other"]
NOTHING_ALIKE = "no measurement like this one stands behind it"
# Groups that stand in place of a GPU generation, because they matter more: constants are of one node and newer engines.
SEVERAL_NODES, OLDER = "several nodes", "older versions"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostRange:
    """A row of `data/ranges.toml`: four of five results lie between forecast / factor and forecast × factor."""

    kind: RangeKind
    generation: str = ""  # "": all; or SEVERAL_NODES, OLDER
    engine: str = ""  # "": all
    models: ModelGroup = ""  # whether the model's architecture had a part in the fit; "": both
    factor: float
    rows: int
    sources: int

    @property
    def text(self) -> str:
        """The results behind the range."""
        if not self.generation and not self.engine:
            return NOTHING_ALIKE
        what = f"80% of {self.rows} results from {self.sources} sources"
        if self.generation in (SEVERAL_NODES, OLDER):
            return f"{what} with {self.generation}"
        if not self.engine:
            return f"{what} on such GPUs with other engines"
        return what if self.generation else f"{what} with this engine on other GPUs"


def range_label(generation: str, engine: str, version: str, nodes: int) -> str:
    """Return what a result is grouped by: its GPUs, unless it is of several nodes or an old engine version."""
    if nodes > 1:
        return SEVERAL_NODES
    oldest = catalogue.load_table("ranges")["fitted"]["oldest"].get(engine, "")
    return OLDER if oldest and version and version_in_range(version, f"<{oldest}") else generation


def range_groups(label: str, engine: str, models: ModelGroup) -> tuple[tuple[str, str, ModelGroup], ...]:
    """Return the groups of a result by generation or label, engine and models, the narrowest first."""
    groups: tuple[tuple[str, str, ModelGroup], ...] = ((label, engine, models), (label, "", models))
    return groups if label in (SEVERAL_NODES, OLDER) else (*groups, ("", engine, models))


@functools.cache
def find_range(kind: RangeKind, label: str, engine: str, architecture: str) -> HostRange:
    """Return the range of the narrowest group that has rows; without one, that of cases which nothing is like."""
    fitted = catalogue.load_table("ranges")["fitted"]["architectures"]
    models: ModelGroup = "fitted" if architecture in fitted else "other"
    every = catalogue.table_rows(HostRange, "ranges", "range")
    rows = {(row.kind, row.generation, row.engine, row.models): row for row in every}
    groups = range_groups(label, engine, models)
    return next((rows[kind, *group] for group in groups if (kind, *group) in rows), rows[kind, "", "", ""])
