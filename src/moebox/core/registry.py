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

GROUP = "moebox.engines"
OWN = "moebox.engines"
FOLDERS = Path(__file__).parents[1] / "engines"  # of moebox's own
# What another package's module may raise while it is imported.
FAILURES = (
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
class Registered:
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

    engines: dict[str, Registered]
    problems: tuple[str, ...]


@functools.cache
def registry() -> Registry:
    """Everything that is there, read once."""
    found: dict[str, Registered] = {}
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


def told() -> tuple[str, ...]:
    """What was left out, where engines were looked for at all."""
    return registry().problems if registry.cache_info().currsize else ()


def names() -> tuple[str, ...]:
    """Every engine's name, the preferred ones first."""
    return tuple(registry().engines)


def all_traits() -> tuple[Traits, ...]:
    """Every engine's traits, the preferred ones first."""
    return tuple(engine.traits for engine in registry().engines.values())


def registered(name: str) -> Registered:
    """The engine called `name`."""
    found = registry().engines.get(name)
    if found is None:
        raise UnknownName("engine", name, names())
    return found


def traits(name: str) -> Traits:
    """The traits of the engine called `name`."""
    return registered(name).traits


def titled(name: str) -> str:
    """The engine's title; the name itself where nobody knows it."""
    found = registry().engines.get(name)
    return found.traits.title if found else name


def _own() -> Iterator[Registered]:
    """Folders of moebox itself, whatever the installed metadata says of them."""
    for path in FOLDERS.glob("*/traits.py"):
        package = f"{OWN}.{path.parent.name}"
        yield Registered(traits=importlib.import_module(f"{package}.traits").TRAITS, package=package)


def _declared() -> Iterator[tuple[str, str]]:
    """Entry points of other packages: name and package."""
    from importlib import metadata  # slow to import, and many commands ask for no engine

    for point in metadata.entry_points(group=GROUP):
        if not point.value.startswith(f"{OWN}."):
            yield point.name, point.value


def _loaded(name: str, package: str, problems: list[str]) -> Registered | None:
    try:
        found = importlib.import_module(f"{package}.traits").TRAITS
    except FAILURES as problem:
        reason = " ".join(str(problem).split())[:200]
        why = f"{type(problem).__name__}: {reason}; install it again or uninstall it"
        problems.append(f"engine {name!r} of {package} is left out: {why}")
        return None
    if not isinstance(found, Traits):
        why = f"{package}.traits.TRAITS is no Traits; see docs/engines.md"
        problems.append(f"engine {name!r} of {package} is left out: {why}")
        return None
    return Registered(traits=found, package=package)
