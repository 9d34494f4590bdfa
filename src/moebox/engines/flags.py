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
from moebox.engines.retired import order, replaced, replaced_part, was_there
from moebox.errors import BadInput

JSON = re.compile(r"(config|kwargs|overrides|per-prompt)$")  # flags whose value is a JSON object
Word = tuple[str, ...]  # one flag with its values, or a positional


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
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

    def key(self, name: str) -> str:
        """What stands after the flag's own name: "a.b" of --config.a.b, "" of --fim-qwen-1.5b-default."""
        return "" if name in (*self.names, *self.off) else name.partition(".")[2]

    @property
    def long(self) -> str:
        """The spelling people read most easily: the first one with two dashes."""
        return next((name for name in self.names if name.startswith("--")), self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalogue:
    """Every flag of one engine at one version."""

    engine: EngineName
    version: str
    abbreviations: bool  # argparse takes any beginning that only one flag has
    specs: dict[str, Spec]  # by every spelling
    removed: dict[str, str]

    def title(self, version: str) -> str:
        """The engine at the version that was asked for."""
        return f"{self.engine} {version or self.version}"

    def find(self, name: str) -> Spec | None:
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
def versions(engine: EngineName) -> tuple[str, ...]:
    """Versions with a catalogue, oldest first."""
    return tuple(sorted(_tables(engine), key=order))


@functools.cache
def _tables(engine: EngineName) -> dict[str, Path]:
    """Catalogues by version: moebox's own, and for an engine of another package those in its folder `flags`."""
    folders = (FOLDER, registry.registered(engine).folder)
    files = (file for folder in folders for file in folder.glob(f"flags/{engine}-*.json"))
    return {file.stem.removeprefix(f"{engine}-"): file for file in files}


def newest(engine: EngineName) -> str:
    """The newest version moebox knows."""
    return versions(engine)[-1]


def version_of(recipe: Recipe) -> str:
    """The version that a recipe names, or the newest that moebox knows."""
    return recipe.engine_version or newest(recipe.engine)


@functools.cache
def catalogue(engine: EngineName, version: str = "") -> Catalogue:
    """The newest catalogue that is not newer than `version`, or the oldest there is."""
    known = versions(engine)
    older = [release for release in known if not version or order(release) <= order(version)]
    chosen = older[-1] if older else known[0]
    file = _tables(engine)[chosen]
    table = codec.decode(Table, json.loads(file.read_text(encoding="utf-8")), where=file.name)
    specs: dict[str, Spec] = {}
    for name, row in table.flags.items():
        spec = Spec(name=name, also=row.also, off=row.off, takes=row.takes, choices=row.choices)
        specs |= dict.fromkeys((name, *spec.also, *spec.off), spec)
    return Catalogue(
        engine=engine, version=chosen, abbreviations=table.abbreviations, specs=specs, removed=table.removed
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A flag as a catalogue's file has it."""

    also: tuple[str, ...] = ()
    off: tuple[str, ...] = ()
    takes: int | str = 1
    choices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A catalogue's file."""

    engine: EngineName
    version: str
    source: str = ""
    made: str = ""
    abbreviations: bool = False
    flags: dict[str, Row]
    removed: dict[str, str] = field(default_factory=dict)


def covered(engine: EngineName, version: str) -> bool:
    """Whether a catalogue is as old as `version` ("" is the newest)."""
    return not version or order(version) >= order(versions(engine)[0])


def check(engine: EngineName, version: str, words: Iterable[Word], *, where: str = "flags") -> None:
    """Raise BadInput for the first flag or value that this version of the engine would refuse."""
    known = catalogue(engine, version)
    for word in words:
        if not is_flag(word[0]):
            raise BadInput(f"{where}: {word[0]!r} belongs to no flag", hint="a flag before it takes no value")
        _check_word(known, version, word, where)


def is_flag(text: str) -> bool:
    """Whether `text` is a flag and no negative number."""
    return bool(re.match(r"-{1,2}[A-Za-z]", text))


def _check_word(known: Catalogue, version: str, word: Word, where: str) -> None:
    name, values = word[0], word[1:]
    spec = known.find(name)
    absent = f"{where}: {known.title(version)} has no flag {name}"
    if told := replaced(known.engine, version, name, "flag"):
        raise BadInput(absent, hint=f"use {told}")
    older = not covered(known.engine, version)
    if spec is None and older and was_there(known.engine, version, name):
        return
    if spec is None:
        raise BadInput(absent, hint=known.removed.get(name) or near(name, known))
    if not older:
        _check_values(known, version, spec, name, values, where)


def _check_values(known: Catalogue, version: str, spec: Spec, name: str, values: Sequence[str], where: str) -> None:
    title = f"{where}: {known.title(version)}'s {name}"
    key = spec.key(name)
    if key:
        _check_key(known, version, spec, key, where)
    else:
        _check_count(title, spec, name, values)
    for value in values:
        if new := replaced_part(known.engine, spec.names, value, "value"):
            raise BadInput(f"{title} does not take {value!r}", hint=f"use {new}")
    if not key:
        _check_choices(title, spec, values)
    if values and values[0].startswith("{") and JSON.search(spec.long):  # a chat template may begin so too
        for inner in _keys(values[0], f"{where}: {name}"):
            _check_key(known, version, spec, inner, where)


def _check_count(title: str, spec: Spec, name: str, values: Sequence[str]) -> None:
    """Whether a flag has as many values as it takes."""
    takes = 0 if name in spec.off else spec.takes
    if takes == 0 and values:
        raise BadInput(f"{title} takes no value, got {' '.join(values)!r}")
    if isinstance(takes, int) and len(values) != takes:
        raise BadInput(f"{title} takes {_counted(takes)}, got {len(values)}")
    if takes == "+" and not values:
        raise BadInput(f"{title} takes at least one value")


def _check_choices(title: str, spec: Spec, values: Sequence[str]) -> None:
    """Whether every value is one of those there are."""
    odd = [value for value in values if spec.choices and value not in spec.choices]
    if odd:
        raise BadInput(f"{title} does not take {odd[0]!r}", hint=f"choices: {', '.join(spec.choices)}")


def _check_key(known: Catalogue, version: str, spec: Spec, key: str, where: str) -> None:
    if new := replaced_part(known.engine, spec.names, key, "key"):
        raise BadInput(f"{where}: {known.title(version)}'s {spec.name} has no key {key}", hint=f"use {new}")


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


def near(name: str, known: Catalogue) -> str:
    """The sentence that names the nearest flags."""
    spellings = difflib.get_close_matches(name, list(known.specs), n=3, cutoff=0.6)
    return f"did you mean {' or '.join(spellings)}?" if spellings else f"`--help` of {known.engine} lists its flags"


def _counted(number: int) -> str:
    return "one value" if number == 1 else f"{number} values"
