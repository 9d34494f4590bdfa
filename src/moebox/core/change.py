"""One setting of a recipe, read or changed by its dotted path ("parallel.dcp", "flags.max-num-seqs", "env.NCCL_PROTO").

Paths are what symptoms, climbs and tunings speak in. A changed recipe is a new one; nothing is edited in place.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from moebox import codec
from moebox.core.recipe import Recipe
from moebox.errors import BadInput, suggest_names

_BY_KEY = ("flags", "env", "runtime.mounts")  # tables whose keys are free; a value of None removes the key


def get_setting(recipe: Recipe, path: str) -> Any:
    """The value at `path`, or None where nothing is set there."""
    table, key = _split(path)
    value: Any = recipe
    for name in table:
        value = getattr(value, name, None)
    if value is None or key is None:
        return value
    return value.get(key) if isinstance(value, Mapping) else None


def with_settings(recipe: Recipe, changes: Mapping[str, Any]) -> Recipe:
    """`recipe` with every path of `changes` set; BadInput names a path or value that cannot be."""
    document = codec.to_plain(recipe)
    for path, value in changes.items():
        _set(document, path, codec.to_plain(value))
    return codec.decode(Recipe, document, where="changed recipe")


def _set(document: dict[str, object], path: str, value: Any) -> None:
    table, key = _split(path)
    names = [*table] if key is None else [*table, key]
    kind: Any = Recipe
    for name in names[:-1]:
        kind = _refuse_unknown(kind, name, path)
        document = _table(document, name)
    if key is None:
        _refuse_unknown(kind, names[-1], path)
    if value is None and key is not None:
        document.pop(key, None)
    else:
        document[names[-1]] = value


def _table(document: dict[str, object], name: str) -> dict[str, object]:
    """The table called `name`, made where there is none."""
    inside = document.get(name)
    if not isinstance(inside, dict):
        inside = document[name] = {}
    return inside


def _refuse_unknown(kind: Any, name: str, path: str) -> Any:
    """The dataclass behind field `name` of `kind`, or None where it is a plain value."""
    import typing

    if not dataclasses.is_dataclass(kind):
        return None
    hints = typing.get_type_hints(kind)
    if name not in hints:
        raise BadInput(f"a recipe has no setting {path!r}", hint=suggest_names(name, hints))
    inside = [hint for hint in (hints[name], *typing.get_args(hints[name])) if dataclasses.is_dataclass(hint)]
    return inside[0] if inside else None


def _split(path: str) -> tuple[list[str], str | None]:
    """Field names down to a table with free keys, and the key in it (which may hold dots)."""
    for free in _BY_KEY:
        if path.startswith(f"{free}."):
            return free.split("."), path[len(free) + 1 :]
    return path.split("."), None
