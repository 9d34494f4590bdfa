"""Limits for what a reader of the code feels. They only ever go down.

`python scripts/house.py --list` names the places behind each figure.
"""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from moebox.core import registry

SCRIPT = Path(__file__).parents[1] / "scripts" / "house.py"


@pytest.fixture(scope="module")
def house() -> ModuleType:
    """Import the script."""
    spec = importlib.util.spec_from_file_location("house", SCRIPT)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["house"] = module  # dataclasses look up their module there
    spec.loader.exec_module(module)
    return module


def test_the_code_keeps_its_limits(house: ModuleType) -> None:
    """One test, because counting the whole package takes a while.

    Functions are neither cut into pieces nor overgrown, and few short private helpers exist for one caller. Most names
    are phrases, participles rare, class names unique. Words that the field does not use, or uses for something else, do
    not appear (ALLOWED has exceptions). No file is over 400 lines, few modules are so small that they belong into their
    neighbour. Data has types: `dict[str, Any]` is the exception.
    """
    figures = house.measure()
    assert figures.per_thousand <= 60
    assert len(figures.used_once) <= 50
    assert figures.branches <= 15_790
    assert max(complexity for _, _, complexity in figures.functions) <= 40
    assert len(figures.one_word) <= 0.25 * len(figures.functions)
    assert len(figures.participles) <= 0.01 * len(figures.functions)
    assert [name for name, count in figures.classes.items() if count > 1] == []
    assert len(figures.forbidden) == 0
    assert figures.long_files == []
    assert figures.tiny_files == []
    assert figures.lines <= 66_000
    assert figures.untyped <= 44


@pytest.mark.parametrize(("plugin", "lines"), [("moebox_kernels", 3_520), ("moebox_fleet", 3_700)])
def test_the_plug_ins_keep_the_same_limits(house: ModuleType, plugin: str, lines: int) -> None:
    """What is in the wheel beside moebox reads as moebox does."""
    figures = house.measure(of=plugin)
    assert figures.lines <= lines
    assert len(figures.forbidden) == 0
    assert figures.long_files == []
    assert len(figures.participles) <= 0.01 * len(figures.functions)
    assert len(figures.used_once) <= 10


def test_a_recipe_takes_a_short_way_through_up(house: ModuleType) -> None:
    """Modules that get the recipe, and how often the reader changes the file, from the command to the printed argv."""
    modules, moves = house.count_hops()
    assert modules <= 14
    assert moves <= 64


def test_engines_are_named_in_their_folder_only(house: ModuleType) -> None:
    """Nothing outside engines/ asks for an engine by its name."""
    assert house.engine_literals(registry.engine_names()) == []
