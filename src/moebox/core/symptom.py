"""Known failures: how each looks, why it happens, what mends it, and where it applies.

The base is `moebox/data/symptoms.toml`; a new symptom is a change to that file. Logs are searched elsewhere
(`doctor.logs`); here is only what a symptom is and whether it concerns a given recipe.
"""

import fnmatch
import functools
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from moebox import codec
from moebox.core.catalogue import load_table
from moebox.core.change import get_setting
from moebox.core.recipe import Flag, Recipe

SymptomKind = Literal["log", "host", "behaviour"]
Severity = Literal["note", "warning", "fatal"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SymptomConditions:
    """Where a symptom holds; an empty field is no condition. A setting holds when any of its values does."""

    engine: tuple[str, ...] = ()
    versions: str = ""  # ">=0.24,<0.28", of the engine
    sm: tuple[str, ...] = ()  # compute capabilities
    models: tuple[str, ...] = ()  # beginnings of model names: "kimi-k2" is the whole family
    except_models: tuple[str, ...] = ()  # beginnings of those among them that it does not concern
    settings: dict[str, tuple[str, ...]] = field(default_factory=dict)  # path -> "fp8", "*nvfp4*", ">1", "set", "unset"

    def covers_model(self, model: str) -> bool:
        """Whether a model of that name is meant."""
        name = model.lower()
        return name.startswith(self.models or ("",)) and not name.startswith(self.except_models)

    def covers_engine(self, engine: str) -> bool:
        """Whether that engine is meant; one that is not known ("") may be."""
        return _lists(self.engine, engine)

    def covers(self, *, engine: str = "", version: str = "", sm: str = "") -> bool:
        """Whether that engine on such a GPU is meant. What is not known (an empty argument) contradicts nothing."""
        if not self.covers_engine(engine) or not _lists(self.sm, sm):
            return False
        return not self.versions or version_in_range(version, self.versions)


@dataclass(frozen=True, slots=True, kw_only=True)
class Symptom:
    """One known failure with its source."""

    id: str
    area: str
    kind: SymptomKind = "log"  # seen in a log, found on the host, or only in behaviour
    severity: Severity = "fatal"  # a note explains a line that is no failure
    pattern: str = ""  # regular expression on one log line; empty for what no log shows
    next_line: bool = False  # the line after it says what exactly, and belongs to the cause
    cause: str
    remedy: str
    change: dict[str, Flag] = field(default_factory=dict)  # recipe path -> value; "{name}" is a group of the pattern
    foresee: bool = False  # worth a warning before anything starts, where it applies
    applies: SymptomConditions = SymptomConditions()
    status: str = ""
    source: str

    def recipe_changes(self, match: re.Match[str] | None) -> dict[str, Flag]:
        """The recipe change, with groups of the matched line filled in; empty when a group is missing."""
        groups = match.groupdict() if match else {}
        filled: dict[str, Flag] = {}
        for path, value in self.change.items():
            name = _group(value)
            if name and not groups.get(name):
                return {}
            filled[path] = _number(groups[name]) if name else value
        return filled


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A known symptom seen in a log."""

    symptom: str
    area: str
    severity: str
    line: int  # counted from 1
    text: str
    cause: str
    remedy: str
    change: dict[str, Flag] = field(default_factory=dict)
    source: str = ""

    @property
    def change_text(self) -> str:
        """The recipe change in words, or nothing."""
        return changes_text(self.change)


@functools.cache
def symptoms() -> tuple[Symptom, ...]:
    """The whole base, in file order: the more telling pattern stands first."""
    rows = load_table("symptoms")["symptom"]
    return tuple(codec.decode(Symptom, row, where=f"symptoms.toml [{row.get('id', '?')}]") for row in rows)


def _lists(listed: tuple[str, ...], value: str) -> bool:
    """Whether a list that names some, or none for all, has nothing against a value that may be unknown."""
    return not listed or not value or value in listed


def predicted_symptoms(
    *, engine: str, version: str = "", sm: str = "", model: str, recipe: Recipe
) -> tuple[Symptom, ...]:
    """Symptoms worth a warning before this recipe is started on such a GPU."""
    possible = _possible(engine, version, sm, model)
    return tuple(symptom for symptom in possible if _set_so(symptom.applies.settings, recipe))


@functools.lru_cache(maxsize=64)
def _possible(engine: str, version: str, sm: str, model: str) -> tuple[Symptom, ...]:
    """Symptoms worth a warning, whatever the recipe's settings are; a plan asks for hundreds of recipes."""
    worth_telling = (symptom for symptom in symptoms() if symptom.foresee and symptom.applies.covers_model(model))
    return tuple(one for one in worth_telling if one.applies.covers(engine=engine, version=version, sm=sm))


def _set_so(settings: Mapping[str, tuple[str, ...]], recipe: Recipe) -> bool:
    """Whether a recipe has the settings that a symptom needs."""
    return all(_any_holds(get_setting(recipe, path), wanted) for path, wanted in settings.items())


def version_in_range(version: str, wanted: str) -> bool:
    """Whether a version meets ">=0.24,<0.28". An unknown version is the newest: it meets no upper bound."""
    here = _numbers(version)
    for bound in wanted.split(","):
        match = re.fullmatch(r"\s*(<=|>=|<|>|==)\s*(\S+)\s*", bound)
        assert match, f"symptoms.toml: {wanted!r} is not a version range"
        sign, there = match.group(1), _numbers(match.group(2))
        if not here:
            if sign.startswith("<") or sign == "==":
                return False
            continue
        if not _compare(sign, here, there):
            return False
    return True


def _compare(sign: str, here: tuple[int, ...], there: tuple[int, ...]) -> bool:
    width = max(len(here), len(there))
    a, b = (numbers + (0,) * (width - len(numbers)) for numbers in (here, there))
    return {"<": a < b, "<=": a <= b, ">": a > b, ">=": a >= b, "==": a == b}[sign]


def _numbers(version: str) -> tuple[int, ...]:
    """ "0.25.1rc2" as (0, 25, 1); "b11549" as (11549,)."""
    match = re.match(r"[a-zA-Z]*(\d+(?:\.\d+)*)", version)
    return tuple(map(int, match.group(1).split("."))) if match else ()


def _any_holds(value: Any, wanted: tuple[str, ...]) -> bool:
    return any(_holds(value, each) for each in wanted)


def _holds(value: Any, wanted: str) -> bool:
    given = value not in (None, "", (), [], {})
    if wanted in ("set", "unset"):
        return given == (wanted == "set")
    match = re.fullmatch(r"(<=|>=|<|>)(\d+(?:\.\d+)?)", wanted)
    if match and isinstance(value, int | float):
        sign, bound = match.group(1), float(match.group(2))
        return {"<": value < bound, "<=": value <= bound, ">": value > bound, ">=": value >= bound}[sign]
    if isinstance(value, bool):
        return wanted == str(value).lower()
    return given and fnmatch.fnmatchcase(str(value).lower(), wanted.lower())


def _group(value: Flag) -> str:
    """The group of the pattern that a value stands for; "" where it is a value of its own."""
    return value[1:-1] if isinstance(value, str) and value.startswith("{") else ""


def _number(text: str) -> Flag:
    plain = text.replace(",", "").replace("_", "")
    return int(plain) if plain.isdigit() else text


def changes_text(changes: Mapping[str, Flag]) -> str:
    """A recipe change as a recipe writes it: `kv = "bf16", context = 8192`."""
    return ", ".join(f"{path} = {json.dumps(value, ensure_ascii=False)}" for path, value in changes.items())
