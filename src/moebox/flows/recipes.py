"""Recipes wherever one is taken: a file, one that was saved, one that ships with moebox, or the rehearsal model."""

from pathlib import Path

from moebox.core.recipe import Recipe
from moebox.flows import boxes, phantom
from moebox.serve import recipes


def is_recipe(name: str) -> bool:
    """Whether `name` means a recipe rather than a model or an endpoint."""
    return name.endswith(".toml") or (not Path(name).exists() and name in _names())


def read(name: str) -> Recipe:
    """The recipe called `name`."""
    if name == phantom.NAME and not Path(name).is_file() and name not in recipes.saved():
        return phantom.plan(boxes.box()).recipe
    return recipes.read_recipe(name, besides=(phantom.NAME,))


def is_phantom(name: str) -> bool:
    """Whether `name` means the rehearsal model, and no file or folder."""
    return name == phantom.NAME and not Path(name).exists()


def _names() -> set[str]:
    return {*recipes.shipped(), *recipes.saved(), phantom.NAME}
