"""Recipes wherever one is taken: a file, one that was saved, one that ships with moebox, or the rehearsal model."""

from pathlib import Path

from moebox.core.recipe import Recipe
from moebox.flows import boxes, phantom
from moebox.serve import recipes


def is_recipe(name: str) -> bool:
    """Whether `name` means a recipe rather than a model or an endpoint."""
    return name.endswith(".toml") or (not Path(name).exists() and name in _names())


def load_recipe(name: str) -> Recipe:
    """The recipe called `name`."""
    if name == phantom.PHANTOM and not Path(name).is_file() and name not in recipes.saved_recipes():
        return phantom.plan_phantom(boxes.calibrated_box()).recipe
    return recipes.read_recipe(name, other_names=(phantom.PHANTOM,))


def is_phantom(name: str) -> bool:
    """Whether `name` means the rehearsal model, and no file or folder."""
    return name == phantom.PHANTOM and not Path(name).exists()


def _names() -> set[str]:
    return {*recipes.shipped_recipes(), *recipes.saved_recipes(), phantom.PHANTOM}
