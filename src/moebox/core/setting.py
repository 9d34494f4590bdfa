"""Settings by their path, as in "parallel.dcp", "flags.max-num-seqs" or "env.NCCL_PROTO": parsed, read and changed.

The types of the fields parse the values of `--set`. A changed recipe is a new object.
"""

import dataclasses
import fnmatch
import json
import re
import types
import typing
from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal, TypeVar

from moebox import codec
from moebox.core.recipe import Recipe, split_path
from moebox.core.versions import SIGNS
from moebox.errors import BadInput, UnknownName, refuse_if, suggest_names
from moebox.loose import read_json
from moebox.units import parse_seconds, parse_tokens

T = TypeVar("T")
Effort = Literal["quick", "normal", "thorough"]  # of --effort, the same for every command
TRUTH = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


def split_setting(text: str) -> tuple[str, str]:
    """Return the path and the value of "path=value"."""
    path, equals, value = text.partition("=")
    refuse_if(not (equals and path.strip()), f"--set {text!r} is not a setting", hint="write it like --set context=64k")
    names, key = split_path(path.strip())  # flags in one spelling
    return ".".join((*names, key) if key else names), value.strip()


def apply_settings(base: T, texts: Sequence[str]) -> T:
    """Return a dataclass with every "path=value" of `texts` set. Raise BadInput that names the setting."""
    for text in texts:
        path, value = split_setting(text)
        base = _set_field(base, type(base), path, value, f"--set {path}")
    return base


def split_settings(base: T, texts: Sequence[str], known: Sequence[str] = ()) -> tuple[T, list[str]]:
    """Apply the settings whose first word is a field of `base`; return it and the others, which are in `known`."""
    names = [field.name for field in dataclasses.fields(base)]  # type: ignore[arg-type]
    others = [text for text in texts if split_setting(text)[0].partition(".")[0] not in names]
    wrong = ", ".join(sorted({split_setting(text)[0] for text in others} - {*known}))
    hint = suggest_names(wrong, [*names, *known])
    refuse_if(wrong * bool(known), f"--set {wrong}: there is no such setting", hint=hint)
    return apply_settings(base, [text for text in texts if text not in others]), others


def setting_flags(value: Any, usual: Any, above: str = "") -> list[str]:
    """Return the `--set path=value` for every field of a dataclass that differs from `usual`."""
    flags = []
    for field in dataclasses.fields(value):
        new, old = getattr(value, field.name), getattr(usual, field.name)
        if new == old:
            continue
        if isinstance(new, bool | dict):
            text = json.dumps(new)
        else:  # a float reads back as the same one, without an exponent
            text = f"{Decimal(repr(new)).normalize():f}" if isinstance(new, float) else str(new)
        flags += ["--set", f"{above}{field.name}={text}"]
    return flags


def flag_words(flags: Mapping[str, object]) -> list[str]:
    """Return the flags that have a value as words of a command; True is a flag alone, "ram_bandwidth" a name of one."""
    words: list[str] = []
    for name, value in flags.items():
        flag = name if name.startswith("-") else f"--{name.strip('_').replace('_', '-')}"
        if value is not False and value not in (None, "", ()):
            words += [flag] if value is True else [flag, str(value)]
    return words


def setting_names(kind: Any) -> list[str]:
    """Return the paths of all fields of a dataclass, those of inner dataclasses too."""
    found = []
    for name, hint in typing.get_type_hints(kind).items():
        inner = _without_none(hint)
        found += [f"{name}.{path}" for path in setting_names(inner)] if dataclasses.is_dataclass(inner) else [name]
    return found


def _set_field(value: Any, kind: Any, path: str, text: str, shown: str) -> Any:
    """Return `value`, which is of type `kind`, with what `path` names in it parsed from `text`."""
    whole_kind, kind = kind, _without_none(kind)
    if dataclasses.is_dataclass(kind):
        name, _, rest = path.partition(".")
        hints = typing.get_type_hints(kind)
        if name not in hints:
            above = shown.removeprefix("--set ").removesuffix(path)
            above += "." if above and not path else ""
            known = [f"{above}{each}" for each in setting_names(kind)]
            refuse_if(not path, f"{shown}: is a table of settings", hint=f"set one of them: {', '.join(known)}")
            near = suggest_names(f"{above}{path}", known)
            below = next((f"did you mean {each}?" for each in known if each.endswith(f".{path}")), near)
            raise BadInput(f"{shown}: there is no such setting", hint=below)
        whole = kind() if value is None else value  # type: ignore[operator]
        changed = _set_field(getattr(whole, name), hints[name], rest, text, shown)
        return dataclasses.replace(whole, **{name: changed})
    if typing.get_origin(kind) is dict and path:
        return {**value, path: parse_text(typing.get_args(kind)[1], text, shown)}
    refuse_if(path, f"{shown}: there is nothing below {shown.removesuffix(f'.{path}').removeprefix('--set ')}")
    return parse_text(whole_kind, text, shown)


def parse_text(kind: Any, text: str, shown: str) -> Any:
    """Parse a value by its type; token counts may be written like 64k, seconds (names in _s) like 2m."""
    if type(None) in typing.get_args(kind) and text == "none":
        return None
    kind = _without_none(kind)
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Literal:
        if text not in args:
            raise UnknownName(f"value of {shown}:", text, map(str, args))
        return text
    if origin in (tuple, list) and text.startswith("["):
        return codec.decode(kind, codec.parse_json(text, where=shown), where=shown)
    if origin in (tuple, list):
        return origin(parse_text(args[0], part.strip(), shown) for part in text.split(",") if part.strip())
    try:
        if kind is bool:
            return TRUTH[text.lower()]
        if kind is int:
            return parse_tokens(text)
        if kind is float:
            return parse_seconds(text) if shown.endswith("_s") else float(text)
        if origin is dict:
            return dict(json.loads(text))
    except (ValueError, KeyError, TypeError, RecursionError):
        number = "write a time, such as 30s or 5m" if shown.endswith("_s") else "write a number"
        words = {bool: "write true or false", float: number, dict: "write a JSON object"}
        words[int] = "write a whole number from 0 on, such as 8 or 64k"
        raise BadInput(f"{shown}={text}: {words[origin or kind]}") from None
    if kind in (str, Path):
        return kind(text)
    value = read_json(text, text)  # of several types, such as an engine's flag: JSON for the engine stays as it is
    items = value if isinstance(value, list) else [value]
    is_meant = str(value) == text if isinstance(value, float) else all(isinstance(each, str | int) for each in items)
    return value if is_meant else text


def _without_none(kind: Any) -> Any:
    """Return X for `X | None`."""
    is_union = typing.get_origin(kind) in (typing.Union, types.UnionType)
    others = [each for each in typing.get_args(kind) if each is not type(None)] if is_union else []
    return others[0] if len(others) == 1 else kind


def with_settings(recipe: Recipe, changes: Mapping[str, Any]) -> Recipe:
    """Return `recipe` with every path of `changes` set (None removes a key); BadInput for an unknown path or value."""
    document = codec.to_plain(recipe)
    for path, value in changes.items():
        names, key = split_path(path)
        *above, last = names if key is None else (*names, key)
        table = document
        for name in above:
            if not isinstance(table.get(name), dict):
                table[name] = {}
            table = table[name]
        table[last] = codec.to_plain(value)
        if value is None and key is not None:
            del table[last]
    for path, name, known in codec.unknown_keys(Recipe, document):
        raise BadInput(f"a recipe has no setting {path!r}", hint=suggest_names(name, known))
    return codec.decode(Recipe, document, where="changed recipe")


def setting_matches(value: Any, wanted: str) -> bool:
    """Whether a value is "set", "unset", within a bound such as ">4096", or like `wanted`, which may have wildcards."""
    if wanted in ("set", "unset"):
        return (value not in (None, "", (), [], {}, False)) == (wanted == "set")
    if wanted[:1] in ("<", ">") and (bound := re.fullmatch(r"(<=|>=|<|>)(\d+(?:\.\d+)?)", wanted)):
        is_number = re.fullmatch(r"\d+(\.\d+)?", str(value)) is not None
        return is_number and SIGNS[bound[1]](float(value), float(bound[2]))
    text, like = str(value).lower(), wanted.lower()
    return value is not None and (text == like or ("*" in like and fnmatch.fnmatchcase(text, like)))
