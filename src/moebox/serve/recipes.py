"""Find recipes by file or by name."""

from collections.abc import Iterable
from pathlib import Path

from moebox import files
from moebox.core import validation
from moebox.core.recipe import Recipe
from moebox.data import FOLDER
from moebox.errors import BadInput, suggest_names


def shipped_recipes() -> dict[str, Path]:
    """Recipes that come with moebox, by name."""
    return {path.stem: path for path in FOLDER.glob("recipes/*.toml")}


def saved_recipes_dir() -> Path:
    """The folder in which the local page saves recipes."""
    return files.data_home() / "moebox" / "recipes"


def saved_recipes() -> dict[str, Path]:
    """The user's own recipes, by name."""
    return {path.stem: path for path in sorted(saved_recipes_dir().glob("*.toml"))}


def read_recipe(name: str, *, other_names: Iterable[str] = ()) -> Recipe:
    """Read the recipe file `name`, or the saved or shipped recipe of that name. `other_names` are for the hint."""
    known = {**shipped_recipes(), **saved_recipes()}
    if name in known and not Path(name).is_file():
        return validation.read_recipe(known[name])
    if not Path(name).exists() and not name.endswith(".toml"):
        raise BadInput(
            f"no recipe {name!r}", hint=f"a .toml file, or {suggest_names(name, sorted({*known, *other_names}))}"
        )
    if not Path(name).exists():
        near = suggest_names(Path(name).stem, sorted({*known, *other_names}))
        raise BadInput(f"{name}: no such file", hint=f"a recipe's name has no .toml; {near}")
    return validation.read_recipe(Path(name))
