"""What flags an engine takes, by version, and whether a command line says only such.

A catalogue is made by `scripts/dump_flags.py` from the engine's own parser; `retired.toml` says what replaced
what is gone. A version older than the oldest catalogue is judged by that one: its flags and those retired since
pass, and values are left to the engine.
"""

import difflib
import functools
import json
import re
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Any

from moebox.core import registry
from moebox.core.recipe import EngineName
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

    def key(self, name: str) -> str:
        """What stands after the flag's own name: "a.b" of --config.a.b, "" of --fim-qwen-1.5b-default."""
        return "" if name in (self.name, *self.also, *self.off) else name.partition(".")[2]

    @property
    def long(self) -> str:
        """The spelling people read most easily: the first one with two dashes."""
        return next((name for name in (self.name, *self.also) if name.startswith("--")), self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalogue:
    """Every flag of one engine at one version."""

    engine: EngineName
    version: str
    abbreviations: bool  # argparse takes any beginning that only one flag has
    specs: dict[str, Spec]  # by every spelling
    removed: dict[str, str]

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
def _tables(engine: EngineName) -> dict[str, Traversable]:
    """Catalogues by version: moebox's own, and for an engine of another package those in its folder `flags`."""
    registered = registry.registered(engine)
    found: dict[str, Traversable] = {}
    for folder in (resources.files("moebox.data"), resources.files(registered.package)):
        table = folder.joinpath("flags")
        for item in table.iterdir() if table.is_dir() else ():
            if match := re.fullmatch(rf"{re.escape(engine)}-(.+)\.json", item.name):
                found[match.group(1)] = item
    return found


def newest(engine: EngineName) -> str:
    """The newest version moebox knows."""
    return versions(engine)[-1]


def order(version: str) -> tuple[int, ...]:
    """A version as numbers that sort: "0.5.23" is (0, 5, 23), "b11669" (11669,), "2026-04" (2026, 4)."""
    return tuple(int(part) for part in re.findall(r"\d+", version))


@functools.cache
def catalogue(engine: EngineName, version: str = "") -> Catalogue:
    """The newest catalogue that is not newer than `version`, or the oldest there is."""
    known = versions(engine)
    older = [one for one in known if not version or order(one) <= order(version)]
    chosen = older[-1] if older else known[0]
    data = _whole(json.loads(_tables(engine)[chosen].read_text(encoding="utf-8")))
    specs: dict[str, Spec] = {}
    for name, row in data["flags"].items():
        spec = Spec(
            name=name,
            also=tuple(row.get("also", ())),
            off=tuple(row.get("off", ())),
            takes=row.get("takes", 1),
            choices=tuple(row.get("choices", ())),
        )
        specs |= dict.fromkeys((name, *spec.also, *spec.off), spec)
    return Catalogue(
        engine=engine, version=chosen, abbreviations=data["abbreviations"], specs=specs, removed=data["removed"]
    )


def _whole(data: dict[str, Any]) -> dict[str, Any]:
    """A catalogue with that of the release it is a fork of underneath."""
    if "extends" not in data:
        return data
    table = resources.files("moebox.data").joinpath("flags", data["extends"])
    below = json.loads(table.read_text(encoding="utf-8"))
    return {**below, "flags": {**below["flags"], **data["flags"]}}


@functools.cache
def retired() -> dict[str, list[dict[str, Any]]]:
    """The table of what is gone."""
    text = resources.files("moebox.data").joinpath("flags", "retired.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


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
    title = f"{known.engine} {version or known.version}"
    if told := replaced(known.engine, version, name, "flag"):
        raise BadInput(f"{where}: {title} has no flag {name}", hint=f"use {told}")
    spec = known.find(name)
    if spec is None:
        if name in known.removed:
            raise BadInput(f"{where}: {title} has no flag {name}", hint=known.removed[name])
        if not covered(known.engine, version) and _was_there(known.engine, version, name):
            return
        raise BadInput(f"{where}: {title} has no flag {name}", hint=near(name, known))
    if not covered(known.engine, version):
        return
    _check_values(known, version, spec, name, values, where)


def _check_values(known: Catalogue, version: str, spec: Spec, name: str, values: Sequence[str], where: str) -> None:
    title = f"{known.engine} {version or known.version}"
    off = name in spec.off
    if spec.key(name):
        _check_key(known, version, spec, spec.key(name), where)
    elif (spec.takes == 0 or off) and values:
        raise BadInput(f"{where}: {title}'s {name} takes no value, got {' '.join(values)!r}")
    elif isinstance(spec.takes, int) and not off and len(values) != spec.takes:
        raise BadInput(f"{where}: {title}'s {name} takes {_counted(spec.takes)}, got {len(values)}")
    elif spec.takes == "+" and not values:
        raise BadInput(f"{where}: {title}'s {name} takes at least one value")
    for value in values:
        for row in retired().get("value", ()):
            if (row["engine"], row["old"]) == (known.engine, value) and row["flag"] in (spec.name, *spec.also):
                raise BadInput(f"{where}: {title}'s {name} does not take {value!r}", hint=f"use {row['new']}")
        if spec.choices and not spec.key(name) and value not in spec.choices:
            raise BadInput(
                f"{where}: {title}'s {name} does not take {value!r}", hint=f"choices: {', '.join(spec.choices)}"
            )
    if values and values[0].startswith("{") and JSON.search(spec.long):  # a chat template may begin so too
        for key in _keys(values[0], f"{where}: {name}"):
            _check_key(known, version, spec, key, where)


def _check_key(known: Catalogue, version: str, spec: Spec, key: str, where: str) -> None:
    for row in retired().get("key", ()):
        if row["engine"] == known.engine and row["flag"] in (spec.name, *spec.also) and row["old"] == key:
            title = f"{known.engine} {version or known.version}"
            raise BadInput(f"{where}: {title}'s {spec.name} has no key {key}", hint=f"use {row['new']}")


def _keys(text: str, where: str, under: str = "") -> list[str]:
    try:
        document = json.loads(text)
    except json.JSONDecodeError as problem:
        raise BadInput(f"{where}: not valid JSON: {problem}") from None
    return _dotted(document, under) if isinstance(document, dict) else []


def _dotted(document: dict[str, Any], under: str) -> list[str]:
    found: list[str] = []
    for key, value in document.items():
        found.append(under + key)
        if isinstance(value, dict):
            found += _dotted(value, f"{under}{key}.")
    return found


def replaced(engine: EngineName, version: str, name: str, kind: str) -> str:
    """What stands for `name` now, when this version no longer has it; "" otherwise."""
    for row in retired().get(kind, ()):
        gone = not version or order(version) >= order(row["since"])
        if row["engine"] == engine and name in row["names"] and gone:
            return str(row["new"])
    return ""


def _was_there(engine: EngineName, version: str, name: str) -> bool:
    rows = retired().get("flag", ())
    return any(row["engine"] == engine and name in row["names"] for row in rows) and not replaced(
        engine, version, name, "flag"
    )


def near(name: str, known: Catalogue) -> str:
    """The sentence that names the nearest flags."""
    spellings = difflib.get_close_matches(name, list(known.specs), n=3, cutoff=0.6)
    return f"did you mean {' or '.join(spellings)}?" if spellings else f"`--help` of {known.engine} lists its flags"


def _counted(number: int) -> str:
    return "one value" if number == 1 else f"{number} values"
