"""Read or change one setting of a recipe by its path ("parallel.dcp", "flags.max-num-seqs", "env.NCCL_PROTO").

Symptoms, climbs and tunings use these paths. A changed recipe is a new object.
"""

import dataclasses
import fnmatch
import functools
import operator
import re
import typing
from collections.abc import Mapping
from typing import Any

from moebox import codec
from moebox.core.recipe import Recipe
from moebox.errors import BadInput, suggest_names

_FREE_TABLES = ("flags", "env", "runtime.mounts")  # tables with any keys; a value of None removes the key


def get_setting(recipe: Recipe, path: str) -> Any:
    """Return the value at `path`, or None if nothing is set there."""
    names, key = _split_path(path)
    value: Any = recipe
    for name in names:
        value = getattr(value, name, None)
    if value is None or key is None:
        return value
    return value.get(key) if isinstance(value, Mapping) else None


def with_settings(recipe: Recipe, changes: Mapping[str, Any]) -> Recipe:
    """Return `recipe` with every path of `changes` set. Raise BadInput for an unknown path or an invalid value."""
    document = codec.to_plain(recipe)
    for path, value in changes.items():
        names, key = _split_path(path)
        kind: Any = Recipe
        table = document
        for name in names if key is not None else names[:-1]:
            kind = _nested_type(kind, name, path)
            if not isinstance(table.get(name), dict):
                table[name] = {}
            table = table[name]
        if key is None:
            _nested_type(kind, names[-1], path)
            table[names[-1]] = codec.to_plain(value)
        elif value is None:
            table.pop(key, None)
        else:
            table[key] = codec.to_plain(value)
    return codec.decode(Recipe, document, where="changed recipe")


def setting_matches(value: Any, wanted: str) -> bool:
    """Whether a value is "set", "unset", within a bound such as ">4096", or like `wanted`, which may have wildcards."""
    if wanted in ("set", "unset"):
        return (value not in (None, "", (), [], {}, False)) == (wanted == "set")
    if wanted[:1] in ("<", ">") and (bound := re.fullmatch(r"(<=|>=|<|>)(\d+(?:\.\d+)?)", wanted)):
        signs = {">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt}
        is_number = re.fullmatch(r"\d+(\.\d+)?", str(value)) is not None
        return is_number and signs[bound[1]](float(value), float(bound[2]))
    text, like = str(value).lower(), wanted.lower()
    return value is not None and (text == like or ("*" in like and fnmatch.fnmatchcase(text, like)))


def _nested_type(kind: Any, name: str, path: str) -> Any:
    """Return the dataclass in field `name` of `kind`, None for a plain value. Raise BadInput for an unknown field."""
    if not dataclasses.is_dataclass(kind):
        return None
    hints = typing.get_type_hints(kind)
    if name not in hints:
        raise BadInput(f"a recipe has no setting {path!r}", hint=suggest_names(name, hints))
    return next(filter(dataclasses.is_dataclass, (hints[name], *typing.get_args(hints[name]))), None)


@functools.cache
def _split_path(path: str) -> tuple[tuple[str, ...], str | None]:
    """Split into field names and, in a table with any keys, the key (which may contain dots)."""
    for free in _FREE_TABLES:
        if path.startswith(f"{free}."):
            return tuple(free.split(".")), path[len(free) + 1 :]
    return tuple(path.split(".")), None
