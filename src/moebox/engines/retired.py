"""Flags, values, keys and variables that an engine no longer takes, and what stands for them now: retired.toml."""

import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from moebox import codec
from moebox.core.catalogue import load_table
from moebox.core.recipe import EngineName

RetiredKind = Literal["flag", "env", "value", "key"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RetiredName:
    """One of them: flags and variables by their names, values and keys by the flag they belonged to."""

    engine: EngineName
    since: str  # the first version known to refuse it
    new: str
    names: tuple[str, ...] = ()
    flag: str = ""
    old: str = ""

    def is_gone(self, version: str) -> bool:
        """Whether `version` ("" is the newest) refuses it."""
        return not version or version_key(version) >= version_key(self.since)


@functools.cache
def retired_names() -> dict[RetiredKind, tuple[RetiredName, ...]]:
    """The table."""
    return codec.decode(dict[RetiredKind, tuple[RetiredName, ...]], load_table("flags/retired"), where="retired.toml")


def names_of_engine(engine: EngineName, kind: RetiredKind) -> Iterator[RetiredName]:
    """What is gone of one engine."""
    return (row for row in retired_names().get(kind, ()) if row.engine == engine)


def replacement(engine: EngineName, version: str, name: str, kind: Literal["flag", "env"]) -> str:
    """What stands for `name` now, when this version no longer has it; "" otherwise."""
    return next((row.new for row in names_of_engine(engine, kind) if name in row.names and row.is_gone(version)), "")


def value_replacement(engine: EngineName, names: tuple[str, ...], old: str, kind: Literal["value", "key"]) -> str:
    """What stands for a value or a key of the flag with these names; "" where it is still taken."""
    return next((row.new for row in names_of_engine(engine, kind) if row.flag in names and row.old == old), "")


def existed_in(engine: EngineName, version: str, name: str) -> bool:
    """Whether an older `version` still had a flag that is gone since."""
    return any(name in row.names and not row.is_gone(version) for row in names_of_engine(engine, "flag"))


def version_key(version: str) -> tuple[int, ...]:
    """A version as numbers that sort: "0.5.23" is (0, 5, 23), "b11669" (11669,), "2026-04" (2026, 4)."""
    return tuple(map(int, re.findall(r"\d+", version)))
