"""How many draft tokens are accepted: published lengths by model, method and draft length, with their spread."""

import functools
from dataclasses import dataclass, replace

from moebox.core import catalogue
from moebox.core.model import Model
from moebox.core.recipe import Speculate
from moebox.planner.speed import constants as tables
from moebox.planner.speed.step import acceptance_for_length, tokens_per_step

METHODS = {"nextn": "mtp", "deepseek_mtp": "mtp"}  # names of the same thing


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptanceRow:
    """Published lengths of one model with one draft method (a row of data/acceptance.toml)."""

    models: tuple[str, ...]
    method: str
    thinking: str = ""
    tokens: int = 1  # draft tokens of the first length
    lengths: tuple[float, ...] = ()
    low: float = 0.0
    high: float = 0.0
    source: str

    def acceptances(self, tokens: int) -> tuple[list[float], list[float]]:
        """Return the chance of a draft token at the nearest published draft length, and its bounds."""
        nearest = min(max(tokens, self.tokens), self.tokens + max(len(self.lengths) - 1, 0))
        means, bounds = self.lengths[nearest - self.tokens :][:1], filter(None, (self.low, self.high))
        chances, edges = ([acceptance_for_length(length, nearest) for length in part] for part in (means, bounds))
        return chances, edges


def draft_with_acceptance(model: Model, draft: Speculate) -> tables.DraftCost:
    """Return a draft's cost with the acceptance of its model: its own rows, its architecture's, or the method's."""
    costs = {row.method: row for row in catalogue.table_rows(tables.DraftCost, "efficiency", "draft")}
    cost = costs.get(draft.method.lower(), costs["eagle3"])
    method = METHODS.get(draft.method.lower(), draft.method.lower())
    return _with_rows(cost, model.name, model.architecture, method, draft.tokens)


@functools.lru_cache(maxsize=256)
def _with_rows(cost: tables.DraftCost, name: str, architecture: str, method: str, tokens: int) -> tables.DraftCost:
    every = catalogue.table_rows(AcceptanceRow, "acceptance", "acceptance")
    of_method = [row for row in every if row.method == method]
    own = [row for row in of_method if name in row.models]
    alike = catalogue.table_rows(Model, "models", "model", architecture)
    known = {model.name for model in alike if model.architecture == architecture}
    rows = own or [row for row in of_method if known.intersection(row.models)]
    means = [share for row in rows for share in row.acceptances(tokens)[0]]
    bounds = [share for row in rows or of_method for part in row.acceptances(tokens) for share in part]
    if not bounds:
        return cost
    length = sum(tokens_per_step(share, tokens) for share in means) / max(len(means), 1)
    accept = acceptance_for_length(length, tokens) if means else cost.accept
    source = "; ".join(dict.fromkeys(row.source for row in rows))
    source = source or f"{cost.source}; bounds of all models with {method}"
    low, high = min(*bounds, accept), max(*bounds, accept)
    return replace(cost, accept=accept, low=low, high=high, source=source)
