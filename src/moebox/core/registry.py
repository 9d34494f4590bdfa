"""The known engines: those in moebox's own folder, and those that other packages declare as entry points.

A package declares `name = "its_package"` in the entry point group `moebox.engines` and has the modules listed in
docs/engines.md. An engine that cannot be imported, or whose name is taken, is left out and noted in `problems`.
"""

import functools
import importlib
from dataclasses import dataclass
from pathlib import Path

from moebox.core.traits import Traits
from moebox.errors import IMPORT_ERRORS, require_known

ENTRY_POINT_GROUP = "moebox.engines"
OWN_PACKAGE = "moebox.engines"
OWN_FOLDER = Path(__file__).parents[1] / "engines"


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredEngine:
    """An engine's traits, and the package that holds its modules."""

    traits: Traits
    package: str

    @property
    def folder(self) -> Path:
        return Path(importlib.import_module(self.package).__path__[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class Registry:
    """The engines by name, the preferred ones first, and the problems of those left out."""

    engines: dict[str, RegisteredEngine]
    problems: tuple[str, ...]


@functools.cache
def load_registry() -> Registry:
    from importlib import metadata  # slow to import, and many commands need no engine

    found: dict[str, RegisteredEngine] = {}
    for path in OWN_FOLDER.glob("*/traits.py"):
        package = f"{OWN_PACKAGE}.{path.parent.name}"
        traits = importlib.import_module(f"{package}.traits").TRAITS
        found[traits.name] = RegisteredEngine(traits=traits, package=package)
    problems: list[str] = []
    points = {(point.name, point.value) for point in metadata.entry_points(group=ENTRY_POINT_GROUP)}
    for name, package in sorted(points):
        if package.startswith(f"{OWN_PACKAGE}."):
            continue
        problem = ""
        try:
            traits = importlib.import_module(f"{package}.traits").TRAITS
        except IMPORT_ERRORS as error:
            reason = " ".join(str(error).split())[:200]
            problem = f"{type(error).__name__}: {reason}; install it again or uninstall it"
        else:
            if not isinstance(traits, Traits):
                problem = f"{package}.traits.TRAITS is not a Traits; see docs/engines.md"
            elif traits.name in found:
                name = traits.name
                problem = f"{found[name].package} has that name; uninstall one of them"
            else:
                found[traits.name] = RegisteredEngine(traits=traits, package=package)
        if problem:
            problems.append(f"engine {name!r} of {package} is left out: {problem}")
    ordered = sorted(found.values(), key=lambda engine: (engine.traits.rank, engine.traits.name))
    return Registry(engines={engine.traits.name: engine for engine in ordered}, problems=tuple(problems))


def load_problems() -> tuple[str, ...]:
    """Engines that failed to load; nothing if no engine was needed so far."""
    return load_registry().problems if load_registry.cache_info().currsize else ()


def engine_names() -> tuple[str, ...]:
    """The names of all engines, the preferred ones first."""
    return tuple(load_registry().engines)


def all_traits() -> tuple[Traits, ...]:
    """The traits of all engines, the preferred ones first."""
    return tuple(engine.traits for engine in load_registry().engines.values())


def find_engine(name: str) -> RegisteredEngine:
    engines = load_registry().engines
    require_known("engine", name, engines)
    return engines[name]


def engine_traits(name: str) -> Traits:
    return find_engine(name).traits


def engine_display_name(name: str) -> str:
    """The engine's title, or the name itself if the engine is unknown."""
    found = load_registry().engines.get(name)
    return found.traits.title if found else name
