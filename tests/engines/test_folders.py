"""One folder per engine: no other module knows an engine by its name."""

import re
from pathlib import Path

from moebox.core import registry

SOURCE = Path(registry.__file__).parents[1]


def own_folder(path: Path, package: str) -> bool:
    """Whether a file lies in the folder of the engine."""
    folder = SOURCE.parent.joinpath(*package.split("."))
    return path.is_relative_to(folder)


def test_an_engine_is_named_in_its_own_folder_only() -> None:
    """What else needs to know asks for traits."""
    found = []
    for name, registered in registry.load_registry().engines.items():
        literal = re.compile(rf"""(["']){re.escape(name)}\1""")
        for path in SOURCE.rglob("*.py"):
            if own_folder(path, registered.package):
                continue
            found += [f"{path.relative_to(SOURCE)}: {name}" for _ in literal.findall(path.read_text())]

    assert found == []


def test_every_engine_has_every_module() -> None:
    """moebox's own leave nothing to the plain rules."""
    wanted = {"traits", "argv", "log", "memory", "lines", "schedule", "refuse", "probe"}
    for registered in registry.load_registry().engines.values():
        folder = SOURCE.parent.joinpath(*registered.package.split("."))
        assert {path.stem for path in folder.glob("*.py")} >= wanted, registered.package
