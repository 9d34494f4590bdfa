"""Which release of an engine first runs an architecture: the rows of data/architectures.toml."""

import functools
from dataclasses import dataclass, field

from moebox import codec
from moebox.core import catalogue
from moebox.core.model import Model
from moebox.core.symptom import version_in_range

NEVER = "never"


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchitectureSupport:
    """A row: the architecture's names and each engine's first release that runs it."""

    names: tuple[str, ...]
    title: str
    first: dict[str, str] = field(default_factory=dict)
    source: str = ""


@functools.cache
def _rows() -> tuple[ArchitectureSupport, ...]:
    rows = catalogue.load_table("architectures")["architecture"]
    return tuple(codec.decode(ArchitectureSupport, row, where="architectures.toml") for row in rows)


def architecture_support(model: Model | None) -> ArchitectureSupport | None:
    """The row of a model's architecture, where one is needed."""
    if model is None:
        return None
    return next((row for row in _rows() if model.architecture in row.names), None)


def unsupported_reason(engine: str, title: str, model: Model | None, version: str = "") -> tuple[str, str]:
    """Why `version` of an engine does not run the model's architecture, and the source; "" where it does.

    Without a version the newest is meant, which runs everything that any release does.
    """
    row = architecture_support(model)
    first = row.first.get(engine, "") if row else ""
    if not first or row is None:
        return "", ""
    if first == NEVER:
        return f"{title} does not run {row.title} yet", row.source
    if version and version_in_range(_comparable(version), f"<{_comparable(first)}"):
        return f"{title} {version} does not run {row.title}: {first} is the first that does", row.source
    return "", ""


def _comparable(version: str) -> str:
    """A month such as 2026-02 as numbers that compare."""
    return version.replace("-", ".")
