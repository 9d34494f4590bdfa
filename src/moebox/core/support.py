"""Which release of an engine first runs an architecture: the rows of data/architectures.toml."""

import functools
from dataclasses import dataclass, field

from moebox import codec
from moebox.core import catalogue
from moebox.core.model import Model
from moebox.core.symptom import in_range

NEVER = "never"


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """A row: the architecture's names and each engine's first release that runs it."""

    names: tuple[str, ...]
    title: str
    first: dict[str, str] = field(default_factory=dict)
    source: str = ""


@functools.cache
def _rows() -> tuple[Architecture, ...]:
    rows = catalogue.table("architectures")["architecture"]
    return tuple(codec.decode(Architecture, row, where="architectures.toml") for row in rows)


def architecture(model: Model | None) -> Architecture | None:
    """The row of a model's architecture, where one is needed."""
    if model is None:
        return None
    return next((row for row in _rows() if model.architecture in row.names), None)


def refusal(engine: str, title: str, model: Model | None, version: str = "") -> tuple[str, str]:
    """Why `version` of an engine does not run the model's architecture, and the source; "" where it does.

    Without a version the newest is meant, which runs everything that any release does.
    """
    row = architecture(model)
    first = row.first.get(engine, "") if row else ""
    if not first or row is None:
        return "", ""
    if first == NEVER:
        return f"{title} does not run {row.title} yet", row.source
    if version and in_range(_comparable(version), f"<{_comparable(first)}"):
        return f"{title} {version} does not run {row.title}: {first} is the first that does", row.source
    return "", ""


def _comparable(version: str) -> str:
    """A month such as 2026-02 as numbers that compare."""
    return version.replace("-", ".")
