"""One folder per engine: no other module knows an engine by its name."""

import re
from pathlib import Path

import pytest

from moebox.core import registry
from moebox.engines.engine import Engine, load_engine
from moebox.engines.events import engine_patterns

SOURCE = Path(registry.__file__).parents[1]


def own_folder(path: Path, package: str) -> bool:
    """True if a file is in the engine's folder."""
    folder = SOURCE.parent.joinpath(*package.split("."))
    return path.is_relative_to(folder)


def test_an_engine_is_named_in_its_own_folder_only() -> None:
    """Other modules use traits."""
    found = []
    for name, registered in registry.load_registry().engines.items():
        literal = re.compile(rf"""(["']){re.escape(name)}\1""")
        for path in SOURCE.rglob("*.py"):
            if own_folder(path, registered.package):
                continue
            found += [f"{path.relative_to(SOURCE)}: {name}" for _ in literal.findall(path.read_text())]

    assert found == []


@pytest.mark.parametrize("name", registry.engine_names())
def test_every_engine_is_an_object_with_its_own_log_and_refusals(name: str) -> None:
    """moebox's own engines do not rely on the defaults for what differs between servers."""
    engine = load_engine(name)
    assert engine.traits is registry.engine_traits(name)
    assert engine.fields
    assert engine.log_patterns != engine_patterns("common")
    assert type(engine).find_refusals is not Engine.find_refusals
    assert type(engine).memory_lines is not Engine.memory_lines
