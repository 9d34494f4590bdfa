"""How far forecasts were from results on hosts that had no part in the fit, as factors by kind of result.

`data/ranges.toml` holds the factors; benchmarks/unseen.py computes them. A case uses the narrowest group with rows.
"""

import functools
import math
from dataclasses import dataclass, replace
from typing import Literal

from moebox.core import catalogue
from moebox.core.versions import version_in_range

RangeKind = Literal["decode", "prompt", "serving"]
RANGE_KINDS: tuple[RangeKind, ...] = ("decode", "prompt", "serving")
ModelGroup = Literal["", "fitted", "other"]
NOTHING_ALIKE = "no measurement like this one stands behind it"
# Groups that stand in place of a GPU generation, because they matter more: constants are of one node and newer engines.
SEVERAL_NODES, OLDER = "several nodes", "older versions"
NEGLIGIBLE = 0.1  # difference of ln(active parameters) that no range is widened for


@dataclass(frozen=True, slots=True, kw_only=True)
class HostRange:
    """A row of `data/ranges.toml`: four of five results lie between forecast / factor and forecast × factor."""

    kind: RangeKind
    generation: str = ""  # "": all; or SEVERAL_NODES, OLDER
    engine: str = ""  # "": all
    models: ModelGroup = ""  # whether the architecture had a part in the fit of this engine; "": both
    factor: float
    rows: int
    sources: int
    beyond: str = ""  # why the factor is larger than that of the rows; "": it is not

    @property
    def text(self) -> str:
        """The results behind the range."""
        if not self.generation and not self.engine:
            return NOTHING_ALIKE
        where = "" if self.generation else " with this engine on other GPUs"
        if self.generation in (SEVERAL_NODES, OLDER):
            where = f" with {self.generation}"
        elif not self.engine:
            where = " on such GPUs with other engines"
        return f"80% of {self.rows} results from {self.sources} sources{where}{self.beyond}"


def range_label(generation: str, engine: str, version: str, nodes: int) -> str:
    """Return what a result is grouped by: its GPUs, unless it is of several nodes or an old engine version."""
    if nodes > 1:
        return SEVERAL_NODES
    oldest = catalogue.load_table("ranges")["fitted"]["oldest"].get(engine, "")
    return OLDER if oldest and version and version_in_range(version, f"<{oldest}") else generation


def range_groups(
    kind: RangeKind, label: str, engine: str, models: ModelGroup
) -> tuple[tuple[str, str, ModelGroup], ...]:
    """Return the groups of a result by generation or label, engine and models, the narrowest first.

    Launches and scheduling decide short prompts: they resemble those of the same engine more than of the same GPUs.
    """
    if label in (SEVERAL_NODES, OLDER):  # no model was fitted there
        return (label, engine, ""), (label, "", "")
    own, such_gpus, such_engine = (label, engine, models), (label, "", models), ("", engine, models)
    return (own, such_engine, such_gpus) if kind == "prompt" else (own, such_gpus, such_engine)


@functools.cache
def find_range(kind: RangeKind, label: str, engine: str, architecture: str, active: int) -> HostRange:
    """Return the range of the narrowest group that has rows; without one, that of cases which nothing is like.

    It is wider for a model with fewer or more active parameters than those that the results are of.
    """
    fitted = catalogue.load_table("ranges")["fitted"]
    known = architecture in fitted["architectures"].get(engine.partition(" ")[0], ())
    models: ModelGroup = "fitted" if known else "other"
    every = catalogue.table_rows(HostRange, "ranges", "range")
    rows = {(row.kind, row.generation, row.engine, row.models): row for row in every}
    groups = range_groups(kind, label, engine, models)
    found = next((rows[kind, *group] for group in groups if (kind, *group) in rows), rows[kind, "", "", ""])
    least, most = fitted["active_b"]
    distance = math.log(max(least * 1e9 / active, active / (most * 1e9), 1.0))
    if distance < NEGLIGIBLE:
        return found
    beyond = f", widened: {active / 1e9:.2g} B active parameters, results are of {least:g} to {most:g} B"
    return replace(found, factor=found.factor * math.exp(fitted["widening"] * distance), beyond=beyond)
