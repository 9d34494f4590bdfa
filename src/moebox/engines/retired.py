"""Flags, values, keys and variables that an engine no longer takes, and what stands for them now: retired.toml."""

import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from moebox import codec
from moebox.core.catalogue import table
from moebox.core.recipe import EngineName

Kind = Literal["flag", "env", "value", "key"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Retired:
    """One of them: flags and variables by their names, values and keys by the flag they belonged to."""

    engine: EngineName
    since: str  # the first version known to refuse it
    new: str
    names: tuple[str, ...] = ()
    flag: str = ""
    old: str = ""

    def gone(self, version: str) -> bool:
        """Whether `version` ("" is the newest) refuses it."""
        return not version or order(version) >= order(self.since)


@functools.cache
def retired() -> dict[Kind, tuple[Retired, ...]]:
    """The table."""
    return codec.decode(dict[Kind, tuple[Retired, ...]], table("flags/retired"), where="retired.toml")


def rows(engine: EngineName, kind: Kind) -> Iterator[Retired]:
    """What is gone of one engine."""
    return (row for row in retired().get(kind, ()) if row.engine == engine)


def replaced(engine: EngineName, version: str, name: str, kind: Literal["flag", "env"]) -> str:
    """What stands for `name` now, when this version no longer has it; "" otherwise."""
    return next((row.new for row in rows(engine, kind) if name in row.names and row.gone(version)), "")


def replaced_part(engine: EngineName, names: tuple[str, ...], old: str, kind: Literal["value", "key"]) -> str:
    """What stands for a value or a key of the flag with these names; "" where it is still taken."""
    return next((row.new for row in rows(engine, kind) if row.flag in names and row.old == old), "")


def was_there(engine: EngineName, version: str, name: str) -> bool:
    """Whether an older `version` still had a flag that is gone since."""
    return any(name in row.names and not row.gone(version) for row in rows(engine, "flag"))


def order(version: str) -> tuple[int, ...]:
    """A version as numbers that sort: "0.5.23" is (0, 5, 23), "b11669" (11669,), "2026-04" (2026, 4)."""
    return tuple(map(int, re.findall(r"\d+", version)))
