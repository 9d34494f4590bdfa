"""One folder per engine: no other module knows an engine by its name."""

import re
from pathlib import Path

from moebox.core import registry

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


def test_every_engine_has_every_module() -> None:
    """moebox's own engines leave no module to the defaults."""
    wanted = {"traits", "argv", "memory", "behaviour"}
    for registered in registry.load_registry().engines.values():
        folder = SOURCE.parent.joinpath(*registered.package.split("."))
        assert {path.stem for path in folder.glob("*.py")} >= wanted, registered.package
