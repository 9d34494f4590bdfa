"""Choose a remedy that a recipe does not have yet: advice to set what is already set helps no user."""

from collections.abc import Mapping
from typing import Any

from moebox.core.catalogue import load_table
from moebox.core.change import get_setting
from moebox.core.recipe import Flag, Recipe
from moebox.core.symptom import changes_text, version_in_range


def missing_changes(recipe: Recipe, change: Mapping[str, Flag]) -> dict[str, Flag]:
    """The settings of a change that the recipe does not have."""

    def has(path: str, wanted: Any) -> bool:
        value = get_setting(recipe, path)
        if isinstance(wanted, list | tuple):
            return set(wanted) <= set(value or ())
        return value is not None and (value == wanted or str(value).lower() == str(wanted).lower())

    return {path: wanted for path, wanted in change.items() if not has(path, wanted)}


def choose_remedy(
    recipe: Recipe | None, *, remedy: str, change: Mapping[str, Flag], versions: str = "", area: str = ""
) -> tuple[str, dict[str, Flag]]:
    """Return the remedy with the settings that are missing, or the next best if the recipe has it already.

    `versions` are those that have the failure; a recipe with another version has the remedy of a newer one already.
    """
    if recipe is None:
        return remedy, dict(change)
    missing = missing_changes(recipe, change)
    if change and not missing:
        already = f"the recipe has the usual remedy already ({changes_text(change)})"
    elif versions and recipe.engine_version and not version_in_range(recipe.engine_version, versions):
        already = f"known of {versions}, and the recipe runs {recipe.engine_version}: another version is no remedy"
    else:
        return remedy, missing
    table = load_table("symptoms")["next_best"]
    return f"{already}; {table.get(area) or table['any']}", {}
