"""The recipes that can be started by name or file, and how the last run of each ended."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from moebox.core import registry, validation
from moebox.errors import BadInput
from moebox.flows.recipes import PHANTOM
from moebox.runs.listing import RunSummary, list_summaries
from moebox.serve import recipes
from moebox.store import runs_dir
from moebox.units import format_count

RecipeSource = Literal["saved", "run", "shipped"]


def run_recipes(runs: Path | None = None) -> dict[str, Path]:
    """Return the recipes of runs by name: of the newest run, and the best verified one if it climbed."""
    found: dict[str, Path] = {}
    for row in list_summaries(runs):
        if row.recipe and row.recipe not in found:
            best = runs_dir(runs) / row.id / "best.toml"
            found[row.recipe] = best if best.is_file() else best.with_name("recipe.toml")
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeRow:
    """One recipe of the list, and how its last run ended."""

    name: str  # as `moebox up` takes it
    source: RecipeSource
    path: str
    model: str = ""
    engine: str = ""
    box: str = ""
    about: str = ""  # everything in a line
    result: str = ""
    run: str = ""  # that the result is of


def list_recipes(runs: Path | None = None) -> list[RecipeRow]:
    """Return the recipes that the user saved, those of runs, newest first, and shipped ones."""
    saved, shipped = recipes.saved_recipes(), dict(sorted(recipes.shipped_recipes().items()))
    of_runs = {name: path for name, path in run_recipes(runs).items() if name not in {*saved, *shipped, PHANTOM}}
    last: dict[str, RunSummary] = {}
    for summary in list_summaries(runs):
        last.setdefault(summary.recipe, summary)
    sources: dict[RecipeSource, dict[str, Path]] = {"saved": saved, "run": of_runs, "shipped": shipped}
    rows = [_recipe_row(name, source, path, last) for source in sources for name, path in sources[source].items()]
    engine = next(traits.name for traits in registry.all_traits() if traits.embedded)
    phantom = RecipeRow(name=PHANTOM, source="shipped", path="", model=PHANTOM, engine=engine, box="any machine")
    if found := last.get(PHANTOM):
        phantom = replace(phantom, result=found.checks_text.strip("–") or found.state_text(live=False), run=found.id)
    return rows if PHANTOM in saved else [*rows, phantom]


def _recipe_row(name: str, source: RecipeSource, path: Path, last: Mapping[str, RunSummary]) -> RecipeRow:
    row = RecipeRow(name=name, source=source, path=str(path))
    try:
        recipe = validation.read_recipe(path)
    except BadInput as problem:
        return replace(row, about=problem.message)
    place = "experts in RAM" if recipe.hybrid else recipe.parallel.text
    context = f"context {format_count(recipe.context)}" if recipe.context else ""
    engine, box = registry.engine_display_name(recipe.engine), recipe.planned_for.box
    about = ", ".join(filter(None, (recipe.model, recipe.checkpoint, engine, place, context, box)))
    row = replace(row, model=recipe.model, engine=recipe.engine, box=box, about=about)
    if (found := last.get(recipe.name)) is None:
        return row
    state, checks = found.state_text(live=False), found.checks_text.strip("–")
    speed = f"{found.output_tok_s:,.0f} tok/s" if found.output_tok_s else ""
    parts = ("simulated" * found.simulation, state.removesuffix("ended"), checks, speed)
    return replace(row, result=", ".join(filter(None, parts)) or state, run=found.id)
