"""Which engines there are: those in moebox's own folder, and those that other packages bring by entry point.

A package declares `name = "its_package"` in the entry point group `moebox.engines`; the package has the modules that
docs/engines.md lists. What cannot be imported or has a name that is taken is left out and told in `problems`; nothing
else stops working.
"""

import functools
import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from moebox.core.traits import Traits
from moebox.errors import UnknownName

ENTRY_POINT_GROUP = "moebox.engines"
OWN_PACKAGE = "moebox.engines"
OWN_FOLDER = Path(__file__).parents[1] / "engines"  # of moebox's own
# What another package's module may raise while it is imported.
IMPORT_ERRORS = (
    ImportError,
    SyntaxError,
    NameError,
    AttributeError,
    TypeError,
    ValueError,
    LookupError,
    RuntimeError,
    AssertionError,
    ArithmeticError,
    OSError,
    SystemExit,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredEngine:
    """An engine and the package that holds what moebox knows of it."""

    traits: Traits
    package: str

    @property
    def folder(self) -> Path:
        """Where its modules and tables lie."""
        return Path(importlib.import_module(self.package).__path__[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class Registry:
    """The engines by name, the preferred ones first, and what was left out."""

    engines: dict[str, RegisteredEngine]
    problems: tuple[str, ...]


@functools.cache
def load_registry() -> Registry:
    """Everything that is there, read once."""
    found: dict[str, RegisteredEngine] = {}
    problems: list[str] = []
    for own in _own():
        found[own.traits.name] = own
    for name, package in sorted(_declared()):
        other = _loaded(name, package, problems)
        if other is None:
            continue
        there = found.setdefault(other.traits.name, other)
        if there is not other:
            text = f"engine {other.traits.name!r} of {package} is left out: {there.package} has that name"
            problems.append(f"{text}; uninstall one of them")
    ordered = sorted(found.values(), key=lambda engine: (engine.traits.rank, engine.traits.name))
    return Registry(engines={engine.traits.name: engine for engine in ordered}, problems=tuple(problems))


def load_problems() -> tuple[str, ...]:
    """What was left out, where engines were looked for at all."""
    return load_registry().problems if load_registry.cache_info().currsize else ()


def engine_names() -> tuple[str, ...]:
    """Every engine's name, the preferred ones first."""
    return tuple(load_registry().engines)


def all_traits() -> tuple[Traits, ...]:
    """Every engine's traits, the preferred ones first."""
    return tuple(engine.traits for engine in load_registry().engines.values())


def find_engine(name: str) -> RegisteredEngine:
    """The engine called `name`."""
    found = load_registry().engines.get(name)
    if found is None:
        raise UnknownName("engine", name, engine_names())
    return found


def engine_traits(name: str) -> Traits:
    """The traits of the engine called `name`."""
    return find_engine(name).traits


def engine_display_name(name: str) -> str:
    """The engine's title; the name itself where nobody knows it."""
    found = load_registry().engines.get(name)
    return found.traits.title if found else name


def _own() -> Iterator[RegisteredEngine]:
    """Folders of moebox itself, whatever the installed metadata says of them."""
    for path in OWN_FOLDER.glob("*/traits.py"):
        package = f"{OWN_PACKAGE}.{path.parent.name}"
        yield RegisteredEngine(traits=importlib.import_module(f"{package}.traits").TRAITS, package=package)


def _declared() -> Iterator[tuple[str, str]]:
    """Entry points of other packages: name and package."""
    from importlib import metadata  # slow to import, and many commands ask for no engine

    for point in metadata.entry_points(group=ENTRY_POINT_GROUP):
        if not point.value.startswith(f"{OWN_PACKAGE}."):
            yield point.name, point.value


def _loaded(name: str, package: str, problems: list[str]) -> RegisteredEngine | None:
    try:
        found = importlib.import_module(f"{package}.traits").TRAITS
    except IMPORT_ERRORS as problem:
        reason = " ".join(str(problem).split())[:200]
        why = f"{type(problem).__name__}: {reason}; install it again or uninstall it"
        problems.append(f"engine {name!r} of {package} is left out: {why}")
        return None
    if not isinstance(found, Traits):
        why = f"{package}.traits.TRAITS is no Traits; see docs/engines.md"
        problems.append(f"engine {name!r} of {package} is left out: {why}")
        return None
    return RegisteredEngine(traits=found, package=package)
