"""The flags that an engine takes, by version, and whether a command line has only such.

A catalogue is made by `scripts/dump_flags.py` from the engine's own parser; `retired.toml` lists what replaced removed
flags. A version older than the oldest catalogue is checked against that one: its flags and those retired since pass,
and values are left to the engine.
"""

import difflib
import functools
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from moebox import codec
from moebox.core import registry
from moebox.core.catalogue import load_table
from moebox.core.recipe import EngineName, Recipe
from moebox.core.versions import are_comparable, version_in_range, version_numbers
from moebox.data import FOLDER
from moebox.errors import BadInput, refuse_if

JSON = re.compile(r"(config|kwargs|overrides|per-prompt)$")  # flags whose value is a JSON object
Argument = tuple[str, ...]  # one flag with its values, or a positional
RetiredKind = Literal["flag", "env", "value", "key"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RetiredName:
    """A name that an engine no longer takes: flags and variables by `names`, values and keys by their flag."""

    engine: EngineName
    since: str  # the first version known to refuse it
    new: str
    names: tuple[str, ...] = ()
    flag: str = ""
    old: str = ""

    def is_gone(self, version: str) -> bool:
        """True if `version` ("" is the newest) refuses it."""
        return version_in_range(version, f">={self.since}")


@functools.cache
def retired_names(engine: EngineName, kind: RetiredKind) -> tuple[RetiredName, ...]:
    table = codec.decode(dict[RetiredKind, tuple[RetiredName, ...]], load_table("flags/retired"), where="retired.toml")
    return tuple(row for row in table.get(kind, ()) if row.engine == engine)


def replacement(engine: EngineName, version: str, name: str, kind: Literal["flag", "env"]) -> str:
    """Return what replaces `name` in a version that no longer has it, or ""."""
    rows = retired_names(engine, kind)
    return next((row.new for row in rows if name in row.names and row.is_gone(version)), "")


@dataclass(frozen=True, slots=True, kw_only=True)
class FlagSpec:
    """One flag: its first name, other names, what turns it off, and how many values it takes."""

    name: str = ""  # in a catalogue file, the key
    also: tuple[str, ...] = ()
    off: tuple[str, ...] = ()
    takes: int | str = 1  # a count, or argparse's "?", "*", "+"
    choices: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Every spelling that turns it on."""
        return (self.name, *self.also)

    def dotted_key(self, name: str) -> str:
        """Return what follows the flag's own name: "a.b" of --config.a.b, "" of --fim-qwen-1.5b-default."""
        return "" if name in (*self.names, *self.off) else name.partition(".")[2]


@dataclass(frozen=True, kw_only=True)
class FlagCatalogue:
    """Every flag of one engine at one version: a catalogue file."""

    engine: EngineName
    version: str
    source: str = ""
    made: str = ""
    abbreviations: bool = False  # argparse accepts any unambiguous prefix
    flags: dict[str, FlagSpec]
    removed: dict[str, str] = field(default_factory=dict)

    @functools.cached_property
    def specs(self) -> dict[str, FlagSpec]:
        found: dict[str, FlagSpec] = {}
        for name, row in self.flags.items():
            found |= dict.fromkeys((name, *row.also, *row.off), replace(row, name=name))
        return found

    def find_spec(self, name: str) -> FlagSpec | None:
        """Return the flag written as `name`: an alias, a prefix of it, or with a dotted key after it; or None."""
        head = name.partition(".")[0]
        for spelling in (name, head, head.replace("_", "-")):
            if spelling in self.specs:
                return self.specs[spelling]
        if self.abbreviations and head.startswith("--"):
            matches = {id(spec): spec for spelling, spec in self.specs.items() if spelling.startswith(head)}
            if len(matches) == 1:
                return next(iter(matches.values()))
        return None


@functools.cache
def _catalogue_files(engine: EngineName) -> dict[str, Path]:
    """Catalogue files by version, oldest first: moebox's own, and those in the `flags` folder of another package."""
    folders = (FOLDER, registry.find_engine(engine).folder)
    found = (file for folder in folders for file in folder.glob(f"flags/{engine}-*.json"))
    files = {file.stem.removeprefix(f"{engine}-"): file for file in found}
    return dict(sorted(files.items(), key=lambda item: version_numbers(item[0])))


def known_versions(engine: EngineName) -> tuple[str, ...]:
    """Versions with a catalogue, oldest first."""
    return tuple(_catalogue_files(engine))


def newest_version(engine: EngineName) -> str:
    return known_versions(engine)[-1]


def may_be_newer(engine: EngineName, version: str) -> bool:
    """True if a version is of a later series than the newest catalogue, or of another kind: a branch, a commit."""
    newest = newest_version(engine)
    later = version_numbers(version)[:2] > version_numbers(newest)[:2]
    return bool(version) and (later or not are_comparable(version, newest))


def is_at_least(recipe: Recipe, release: str) -> bool:
    """Whether a recipe's version is a release or newer."""
    return version_in_range(recipe.engine_version, f">={release}")


@functools.cache
def flag_catalogue(engine: EngineName, version: str = "") -> FlagCatalogue:
    """Return the newest catalogue that is not newer than `version`, or the oldest."""
    known = known_versions(engine)
    older = [release for release in known if version_in_range(version, f">={release}")]
    file = _catalogue_files(engine)[older[-1] if older else known[0]]
    return codec.decode(FlagCatalogue, json.loads(file.read_text(encoding="utf-8")), where=file.name)


def is_flag(text: str) -> bool:
    """True if `text` is a flag and not a negative number."""
    return bool(re.match(r"-{1,2}[A-Za-z]", text))


def check_arguments(engine: EngineName, version: str, arguments: Iterable[Argument], *, where: str = "flags") -> None:
    """Raise BadInput for the first flag or value that this version of the engine would refuse."""
    known = flag_catalogue(engine, version)
    title = f"{engine} {version or known.version}"
    too_old = version_in_range(version, f"<{known_versions(engine)[0]}")
    newer = may_be_newer(engine, version)
    for name, *values in arguments:
        refuse_if(not is_flag(name), f"{where}: {name!r} belongs to no flag", hint="a flag before it takes no value")
        spec, absent = known.find_spec(name), f"{where}: {title} has no flag {name}"
        if new := replacement(engine, version, name, "flag"):
            raise BadInput(absent, hint=f"use {new}")
        if spec is None:
            retired = retired_names(engine, "flag")
            if too_old and any(name in row.names and not row.is_gone(version) for row in retired):
                continue
            if newer and name not in known.removed:
                continue  # find_refusals warns of it
            similar = difflib.get_close_matches(name, list(known.specs), n=3, cutoff=0.6)
            hint = f"did you mean {' or '.join(similar)}?" if similar else f"`--help` of {engine} lists its flags"
            raise BadInput(absent, hint=known.removed.get(name) or hint)
        if not too_old:
            _check_values(spec, name, values, title=title, where=where, engine=engine)


def _check_values(spec: FlagSpec, name: str, values: list[str], *, title: str, where: str, engine: EngineName) -> None:
    """Raise BadInput for a wrong number of values, a retired value or key, or one that is not a choice."""
    subject, keys = f"{where}: {title}'s {name}", [spec.dotted_key(name)]
    if not keys[0]:
        takes = 0 if name in spec.off else spec.takes
        refuse_if(takes == 0 and values, f"{subject} takes no value, got {' '.join(values)!r}")
        if isinstance(takes, int) and len(values) != takes:
            wanted = "one value" if takes == 1 else f"{takes} values"
            raise BadInput(f"{subject} takes {wanted}, got {len(values)}")
        refuse_if(takes == "+" and not values, f"{subject} takes at least one value")

    def new_name(old: str, kind: Literal["value", "key"]) -> str:
        rows = retired_names(engine, kind)
        return next((row.new for row in rows if row.flag in spec.names and row.old == old), "")

    for value in values:
        if new := new_name(value, "value"):
            raise BadInput(f"{subject} does not take {value!r}", hint=f"use {new}")
        if not keys[0] and spec.choices and value not in spec.choices:
            raise BadInput(f"{subject} does not take {value!r}", hint=f"choices: {', '.join(spec.choices)}")
    long_name = next((each for each in spec.names if each.startswith("--")), spec.name)
    if values and values[0].startswith("{") and JSON.search(long_name):  # a chat template may begin so too
        try:
            keys += _dotted_keys(json.loads(values[0]))
        except (ValueError, RecursionError) as problem:
            raise BadInput(f"{where}: {name}: not valid JSON: {problem}") from None
    for key in filter(None, keys):
        if new := new_name(key, "key"):
            raise BadInput(f"{where}: {title}'s {spec.name} has no key {key}", hint=f"use {new}")


def _dotted_keys(document: object, under: str = "") -> list[str]:
    """Every key of nested JSON objects, with those above it."""
    keys = []
    for key, value in document.items() if isinstance(document, dict) else ():
        keys += [under + key, *_dotted_keys(value, f"{under}{key}.")]
    return keys
