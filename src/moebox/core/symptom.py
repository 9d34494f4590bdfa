"""Known failures: how each looks, its cause, its fix and the conditions under which it occurs.

The tables are symptoms.toml, kernels.toml and xids.toml of `moebox/data`; `doctor.logs` searches logs for symptoms.
"""

import functools
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, cast

import msgspec

from moebox.core.catalogue import load_table, table_rows
from moebox.core.recipe import Flag, Recipe
from moebox.core.setting import setting_matches
from moebox.core.versions import version_in_range

SymptomKind = Literal["log", "host", "behaviour", "frame", "words"]
Severity = Literal["note", "warning", "fatal"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SymptomConditions:
    """When a symptom occurs; an empty field is no condition. A setting matches if any of its values does."""

    engine: tuple[str, ...] = ()
    versions: str = ""  # ">=0.24,<0.28", of the engine
    sm: tuple[str, ...] = ()  # compute capabilities
    models: tuple[str, ...] = ()  # prefixes of model names: "kimi-k2" is the whole family
    except_models: tuple[str, ...] = ()  # prefixes of models among them that are not affected
    settings: dict[str, tuple[str, ...]] = field(default_factory=dict)  # path -> "fp8", "*nvfp4*", ">1", "set", "unset"

    def covers_model(self, model: str) -> bool:
        name = model.lower()
        return name.startswith(self.models or ("",)) and not name.startswith(self.except_models)

    def covers_engine(self, engine: str) -> bool:
        """An unknown engine ("") may be covered."""
        return not self.engine or not engine or engine in self.engine

    def covers(self, *, engine: str = "", version: str = "", sm: str = "") -> bool:
        """True if the conditions include this engine on this GPU; an unknown value (an empty argument) may match."""
        if not self.covers_engine(engine) or (self.sm and sm and sm not in self.sm):
            return False
        return not self.versions or version_in_range(version, self.versions)


@dataclass(frozen=True, slots=True, kw_only=True)
class Symptom:
    """One known failure with its source."""

    id: str
    area: str
    kind: SymptomKind = "log"  # seen in a log, a traceback, an error's words, on the host, or in behaviour
    severity: Severity = "fatal"  # a note explains a line that is not a failure
    pattern: str = ""  # regular expression for one log line; empty if no log shows it
    next_line: bool = False  # the line after it has the details, which are added to the cause
    cause: str
    remedy: str
    change: dict[str, Flag] = field(default_factory=dict)  # recipe path -> value; "{name}" is a group of the pattern
    bounds: dict[str, Literal["most", "least"]] = field(default_factory=dict)  # path: its change must lower or raise it
    misspelt: str = ""  # path of the name that the line rejects (group `given`) beside those it knows (`listed`)
    ambiguous: bool = False  # other engines print the same: only if the log or the user names the engine
    narrows: str = ""  # id of the wider symptom that is not the cause if this one is seen too
    foresee: bool = False  # warn before an engine starts, if the conditions are met
    applies: SymptomConditions = SymptomConditions()
    status: str = ""
    source: str

    def recipe_changes(self, match: re.Match[str] | None) -> dict[str, Flag]:
        """The recipe change with groups of the matched line filled in; empty if a group is missing."""
        groups = match.groupdict() if match else {}
        filled = dict(self.change)
        for path, value in self.change.items():
            if isinstance(value, str) and value.startswith("{"):
                if not (text := groups.get(value[1:-1])):
                    return {}
                digits = text.replace(",", "").replace("_", "")
                filled[path] = int(digits) if digits.isdigit() else text
        return filled

    def adapt(self, recipe: Recipe | None, logged: Mapping[str, float]) -> "Symptom":
        """Fit its numbers to the present ones, of the recipe or else the log; drop one that might go the wrong way."""
        change = dict(self.change)
        for path, bound in self.bounds.items():
            own, value = recipe.get(path) if recipe else None, change.pop(path)
            default = float("inf") if recipe and bound == "most" and "flags." not in path else 0.0
            present = float(str(own)) if re.fullmatch(r"\d+(\.\d+)?", str(own)) else logged.get(path, default)
            limit = float(cast(Any, value))
            if own == value or (present > limit if bound == "most" else present < limit):
                change[path] = value
            elif bound == "most":
                lower = round(present - 0.05, 2) if isinstance(value, float) else int(present) // 2
                change |= {path: str(lower) if isinstance(value, str) else lower} if lower > 0 else {}
        return replace(self, change=change)


class Finding(msgspec.Struct, frozen=True):
    """A known symptom seen in a log."""

    symptom: str = ""
    area: str = ""
    severity: str = ""
    line: int = 0  # counted from 1
    text: str = ""
    cause: str = ""
    remedy: str = ""
    change: dict[str, Flag] = msgspec.field(default_factory=dict)
    source: str = ""

    @property
    def change_text(self) -> str:
        return changes_text(self.change)


@functools.cache
def symptoms() -> tuple[Symptom, ...]:
    """Every known failure, the narrower pattern first: reported ones, those of symptoms.toml, then families."""
    tables = ("symptoms_reported", "symptoms", "symptoms_general")
    return tuple(each for table in tables for each in table_rows(Symptom, table, "symptom"))


def predicted_symptoms(
    *, engine: str, version: str = "", sm: str = "", model: str, recipe: Recipe
) -> tuple[Symptom, ...]:
    """Symptoms to warn of before this recipe is started on such a GPU."""
    return tuple(
        symptom
        for symptom in _possible_symptoms(engine, version, sm, model)
        if all(
            any(setting_matches(recipe.get(path), each) for each in wanted)
            for path, wanted in symptom.applies.settings.items()
        )
    )


@functools.lru_cache(maxsize=64)
def _possible_symptoms(engine: str, version: str, sm: str, model: str) -> tuple[Symptom, ...]:
    """Symptoms to warn of with some settings; cached, since a plan tries hundreds of recipes."""
    every = table_rows(Symptom, "symptoms", "symptom", "foresee")
    foreseeable = (symptom for symptom in every if symptom.foresee and symptom.applies.covers_model(model))
    return tuple(each for each in foreseeable if each.applies.covers(engine=engine, version=version, sm=sm))


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownFailure:
    """A launch that does not fit, from the table of scanned releases."""

    kernel: str
    case: str
    shared_bytes: int
    limit_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownScan:
    """A scan of a release, from data/kernels.toml."""

    engine: str
    version: str
    arch: str
    kv: str
    triton: str
    launches: int
    not_covered: int
    bad: tuple[KnownFailure, ...] = ()

    @property
    def attention_failures(self) -> tuple[KnownFailure, ...]:
        """Failures that do not depend on the format of the weights."""
        return tuple(bad for bad in self.bad if not bad.case.startswith("fused MoE"))


@functools.lru_cache(maxsize=64)  # a plan asks for each of its candidates
def known_scan(*, engine: str, version: str, sm: str, kv: str) -> KnownScan | None:
    wanted = (engine, version, f"sm_{sm.replace('.', '')}", kv)
    scans = table_rows(KnownScan, "kernels", "scan", wanted[2])
    return next((scan for scan in scans if (scan.engine, scan.version, scan.arch, scan.kv) == wanted), None)


def changes_text(changes: Mapping[str, Flag]) -> str:
    """Recipe changes as text: `kv = "bf16", context = 8192`."""
    return ", ".join(f"{path} = {json.dumps(value, ensure_ascii=False)}" for path, value in changes.items())


def missing_changes(recipe: Recipe, change: Mapping[str, Flag]) -> dict[str, Flag]:
    """The settings of a change that the recipe does not have."""

    def has(path: str, wanted: Any) -> bool:
        value = recipe.get(path)
        if isinstance(wanted, list | tuple):
            return set(wanted) <= set(value or ())
        return value is not None and (value == wanted or str(value).lower() == str(wanted).lower())

    return {path: wanted for path, wanted in change.items() if not has(path, wanted)}


def choose_remedy(
    recipe: Recipe | None, *, remedy: str, change: Mapping[str, Flag], versions: str = "", area: str = ""
) -> tuple[str, dict[str, Flag]]:
    """Return the remedy with the settings that are missing, or the next best if the recipe has it already.

    `versions` are those that have the failure; a recipe with another version has the remedy of a newer one already.
    """
    if recipe is None:
        return remedy, dict(change)
    missing = missing_changes(recipe, change)
    if change and not missing:
        already = f"the recipe has the usual remedy already ({changes_text(change)})"
    elif versions and recipe.engine_version and not version_in_range(recipe.engine_version, versions):
        already = f"known of {versions}, and the recipe runs {recipe.engine_version}: another version is no remedy"
    else:
        return remedy, missing
    table = load_table("symptoms")["next_best"]
    return f"{already}; {table.get(area) or table['any']}", {}


XID_LINE = re.compile(r"NVRM: Xid \([^)]*\): (?P<xid>\d+)")
Owner = Literal["application", "driver", "hardware", "thermal", "bus"]
FAULTS: dict[Owner, str] = {
    "application": "the program that ran on the GPU",
    "driver": "the driver or its firmware",
    "hardware": "the GPU itself",
    "thermal": "cooling or power",
    "bus": "the PCIe link: slot, riser, cable or power",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Xid:
    """A row of data/xids.toml."""

    number: int
    name: str
    meaning: str
    owner: Owner
    action: str
    severity: Severity
    source: str

    @property
    def cause(self) -> str:
        """The meaning and the usual fault in one text."""
        return f"Xid {self.number}, {self.name}: {self.meaning} Usually the fault of {FAULTS[self.owner]}."


@functools.cache
def xids() -> dict[int, Xid]:
    """Every Xid of NVIDIA's table by number."""
    return {xid.number: xid for xid in table_rows(Xid, "xids", "xid")}


def xid_of_line(line: str) -> Xid | None:
    """The Xid that a kernel log line reports, or None if it reports none that is known."""
    match = XID_LINE.search(line)
    return xids().get(int(match["xid"])) if match else None
