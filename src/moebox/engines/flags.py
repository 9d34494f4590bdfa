"""What flags an engine takes, by version, and whether a command line says only such.

A catalogue is made by `scripts/dump_flags.py` from the engine's own parser; `retired.toml` says what replaced
what is gone. A version older than the oldest catalogue is judged by that one: its flags and those retired since
pass, and values are left to the engine.
"""

import difflib
import functools
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from moebox import codec
from moebox.core import registry
from moebox.core.recipe import EngineName, Recipe
from moebox.data import FOLDER
from moebox.engines.retired import existed_in, replacement, value_replacement, version_key
from moebox.errors import BadInput

JSON = re.compile(r"(config|kwargs|overrides|per-prompt)$")  # flags whose value is a JSON object
Argument = tuple[str, ...]  # one flag with its values, or a positional


@dataclass(frozen=True, slots=True, kw_only=True)
class FlagSpec:
    """One flag: its first name, its other names, what turns it off, and how many values it takes."""

    name: str
    also: tuple[str, ...] = ()
    off: tuple[str, ...] = ()
    takes: int | str = 1  # a count, or argparse's "?", "*", "+"
    choices: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Every spelling that turns it on."""
        return (self.name, *self.also)

    def dotted_key(self, name: str) -> str:
        """What stands after the flag's own name: "a.b" of --config.a.b, "" of --fim-qwen-1.5b-default."""
        return "" if name in (*self.names, *self.off) else name.partition(".")[2]

    @property
    def long_name(self) -> str:
        """The spelling people read most easily: the first one with two dashes."""
        return next((name for name in self.names if name.startswith("--")), self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class FlagCatalogue:
    """Every flag of one engine at one version."""

    engine: EngineName
    version: str
    abbreviations: bool  # argparse takes any beginning that only one flag has
    specs: dict[str, FlagSpec]  # by every spelling
    removed: dict[str, str]

    def versioned_title(self, version: str) -> str:
        """The engine at the version that was asked for."""
        return f"{self.engine} {version or self.version}"

    def find_spec(self, name: str) -> FlagSpec | None:
        """The flag written as `name`: an alias, a beginning of it, or with a dotted key after it."""
        head = name.partition(".")[0]
        for spelling in (name, head, head.replace("_", "-")):
            if spelling in self.specs:
                return self.specs[spelling]
        if self.abbreviations and head.startswith("--"):
            near = {id(spec): spec for spelling, spec in self.specs.items() if spelling.startswith(head)}
            if len(near) == 1:
                return next(iter(near.values()))
        return None


@functools.cache
def known_versions(engine: EngineName) -> tuple[str, ...]:
    """Versions with a catalogue, oldest first."""
    return tuple(sorted(_tables(engine), key=version_key))


@functools.cache
def _tables(engine: EngineName) -> dict[str, Path]:
    """Catalogues by version: moebox's own, and for an engine of another package those in its folder `flags`."""
    folders = (FOLDER, registry.find_engine(engine).folder)
    files = (file for folder in folders for file in folder.glob(f"flags/{engine}-*.json"))
    return {file.stem.removeprefix(f"{engine}-"): file for file in files}


def newest_version(engine: EngineName) -> str:
    """The newest version moebox knows."""
    return known_versions(engine)[-1]


def version_or_newest(recipe: Recipe) -> str:
    """The version that a recipe names, or the newest that moebox knows."""
    return recipe.engine_version or newest_version(recipe.engine)


@functools.cache
def flag_catalogue(engine: EngineName, version: str = "") -> FlagCatalogue:
    """The newest catalogue that is not newer than `version`, or the oldest there is."""
    known = known_versions(engine)
    older = [release for release in known if not version or version_key(release) <= version_key(version)]
    chosen = older[-1] if older else known[0]
    file = _tables(engine)[chosen]
    table = codec.decode(FlagTable, json.loads(file.read_text(encoding="utf-8")), where=file.name)
    specs: dict[str, FlagSpec] = {}
    for name, row in table.flags.items():
        spec = FlagSpec(name=name, also=row.also, off=row.off, takes=row.takes, choices=row.choices)
        specs |= dict.fromkeys((name, *spec.also, *spec.off), spec)
    return FlagCatalogue(
        engine=engine, version=chosen, abbreviations=table.abbreviations, specs=specs, removed=table.removed
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FlagRow:
    """A flag as a catalogue's file has it."""

    also: tuple[str, ...] = ()
    off: tuple[str, ...] = ()
    takes: int | str = 1
    choices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FlagTable:
    """A catalogue's file."""

    engine: EngineName
    version: str
    source: str = ""
    made: str = ""
    abbreviations: bool = False
    flags: dict[str, FlagRow]
    removed: dict[str, str] = field(default_factory=dict)


def is_covered(engine: EngineName, version: str) -> bool:
    """Whether a catalogue is as old as `version` ("" is the newest)."""
    return not version or version_key(version) >= version_key(known_versions(engine)[0])


def check_arguments(engine: EngineName, version: str, words: Iterable[Argument], *, where: str = "flags") -> None:
    """Raise BadInput for the first flag or value that this version of the engine would refuse."""
    known = flag_catalogue(engine, version)
    for word in words:
        if not is_flag(word[0]):
            raise BadInput(f"{where}: {word[0]!r} belongs to no flag", hint="a flag before it takes no value")
        _check_word(known, version, word, where)


def is_flag(text: str) -> bool:
    """Whether `text` is a flag and no negative number."""
    return bool(re.match(r"-{1,2}[A-Za-z]", text))


def _check_word(known: FlagCatalogue, version: str, word: Argument, where: str) -> None:
    name, values = word[0], word[1:]
    spec = known.find_spec(name)
    absent = f"{where}: {known.versioned_title(version)} has no flag {name}"
    if told := replacement(known.engine, version, name, "flag"):
        raise BadInput(absent, hint=f"use {told}")
    older = not is_covered(known.engine, version)
    if spec is None and older and existed_in(known.engine, version, name):
        return
    if spec is None:
        raise BadInput(absent, hint=known.removed.get(name) or suggest_flags(name, known))
    if not older:
        _check_values(known, version, spec, name, values, where)


def _check_values(
    known: FlagCatalogue, version: str, spec: FlagSpec, name: str, values: Sequence[str], where: str
) -> None:
    title = f"{where}: {known.versioned_title(version)}'s {name}"
    key = spec.dotted_key(name)
    if key:
        _check_key(known, version, spec, key, where)
    else:
        _check_count(title, spec, name, values)
    for value in values:
        if new := value_replacement(known.engine, spec.names, value, "value"):
            raise BadInput(f"{title} does not take {value!r}", hint=f"use {new}")
    if not key:
        _check_choices(title, spec, values)
    if values and values[0].startswith("{") and JSON.search(spec.long_name):  # a chat template may begin so too
        for inner in _keys(values[0], f"{where}: {name}"):
            _check_key(known, version, spec, inner, where)


def _check_count(title: str, spec: FlagSpec, name: str, values: Sequence[str]) -> None:
    """Whether a flag has as many values as it takes."""
    takes = 0 if name in spec.off else spec.takes
    if takes == 0 and values:
        raise BadInput(f"{title} takes no value, got {' '.join(values)!r}")
    if isinstance(takes, int) and len(values) != takes:
        raise BadInput(f"{title} takes {_counted(takes)}, got {len(values)}")
    if takes == "+" and not values:
        raise BadInput(f"{title} takes at least one value")


def _check_choices(title: str, spec: FlagSpec, values: Sequence[str]) -> None:
    """Whether every value is one of those there are."""
    odd = [value for value in values if spec.choices and value not in spec.choices]
    if odd:
        raise BadInput(f"{title} does not take {odd[0]!r}", hint=f"choices: {', '.join(spec.choices)}")


def _check_key(known: FlagCatalogue, version: str, spec: FlagSpec, key: str, where: str) -> None:
    if new := value_replacement(known.engine, spec.names, key, "key"):
        raise BadInput(f"{where}: {known.versioned_title(version)}'s {spec.name} has no key {key}", hint=f"use {new}")


def _keys(text: str, where: str) -> list[str]:
    try:
        return list(_dotted(json.loads(text), ""))
    except (ValueError, RecursionError) as problem:
        raise BadInput(f"{where}: not valid JSON: {problem}") from None


def _dotted(document: object, under: str) -> Iterator[str]:
    """Every key of nested JSON objects, with those it lies under."""
    for key, value in document.items() if isinstance(document, dict) else ():
        yield under + key
        yield from _dotted(value, f"{under}{key}.")


def suggest_flags(name: str, known: FlagCatalogue) -> str:
    """The sentence that names the nearest flags."""
    spellings = difflib.get_close_matches(name, list(known.specs), n=3, cutoff=0.6)
    return f"did you mean {' or '.join(spellings)}?" if spellings else f"`--help` of {known.engine} lists its flags"


def _counted(number: int) -> str:
    return "one value" if number == 1 else f"{number} values"
