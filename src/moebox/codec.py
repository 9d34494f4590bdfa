"""Our dataclasses to TOML and JSON and back, with errors that name the file and the field.

The only place that knows how facts are written down. Unknown keys are refused, because a misspelt
setting that is silently ignored is the worst kind of setting.
"""

import dataclasses
import functools
import json
import re
import stat
import tomllib
import types
import typing
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from moebox.errors import BadInput, suggest_names

T = TypeVar("T")
MAX_FILE_BYTES = 16 * 2**20  # bytes; a hand-written file larger than this is not one of ours
MAX_KEY_PARTS = 100  # of a dotted key; tomllib takes time with the square of them
_LONG_KEY = re.compile(r"""(?<![\w"'.-])(?:[\w"'-]++[ \t]*+\.[ \t]*+){100}""")


def decode(kind: type[T], value: Any, *, where: str) -> T:
    """`value` (plain dicts and lists) as a `kind`; BadInput names the field when it is not one."""
    refuse_unknown(kind, value, where)
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as problem:
        raise BadInput(f"{where}: {problem}") from None


def read_toml(kind: type[T], path: Path) -> T:
    """The TOML file at `path` as a `kind`."""
    return decode(kind, load_toml(path), where=str(path))


def load_toml(path: Path) -> dict[str, object]:
    """The TOML file at `path` as plain dicts."""
    return parse_toml(read_text(path), where=str(path))


def parse_toml(text: str, *, where: str) -> dict[str, object]:
    """TOML text as plain dicts."""
    if _LONG_KEY.search(text):
        raise BadInput(f"{where}: not valid TOML: a key of more than {MAX_KEY_PARTS} parts")
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as problem:  # ValueError: also numbers and dates beyond Python's own
        raise BadInput(f"{where}: not valid TOML: {problem}") from None


def load_json(path: Path) -> Any:
    """The JSON file at `path` as plain values."""
    return parse_json(read_text(path), where=str(path))


def parse_json(text: str, *, where: str) -> Any:
    """JSON text as plain values."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as problem:
        raise BadInput(f"{where}: not valid JSON: {problem}") from None


def read_text(path: Path, *, max_bytes: int = MAX_FILE_BYTES) -> str:
    """The text of a file of at most `most` bytes; BadInput says what is wrong with it otherwise."""
    try:
        facts = path.stat()
        if stat.S_ISFIFO(facts.st_mode) and not str(path).startswith(("/dev/", "/proc/")):  # <(…) is meant
            raise BadInput(f"{path}: is a pipe, not a file")
        with open(path, "rb") as file:
            data = file.read(
                min(max_bytes, max(facts.st_size, MAX_FILE_BYTES)) + 1
            )  # a device has no size, and perhaps no end
        if len(data) > max_bytes:
            raise BadInput(f"{path}: more than {max_bytes:,} bytes, which is too large")
        return data.decode("utf-8")
    except FileNotFoundError:
        raise BadInput(f"{path}: no such file") from None
    except IsADirectoryError:
        raise BadInput(f"{path}: is a folder, not a file") from None
    except (UnicodeDecodeError, OSError) as problem:
        raise BadInput(f"{path}: cannot be read: {problem}") from None


def to_plain(value: Any) -> Any:
    """Dataclasses and paths as dicts and strings; tuples stay tuples."""
    return msgspec.to_builtins(value, str_keys=True, enc_hook=str)


def to_document(value: Any) -> dict[str, object]:
    """A dataclass as one JSON object."""
    fields: dict[str, object] = to_plain(value)
    return fields


def to_toml(value: Any) -> str:
    """`value` as TOML text; fields that are None are left out."""
    return msgspec.toml.encode(_without_none(to_plain(value))).decode()


def to_json(value: Any, *, indent: int | None = 2) -> str:
    """`value` as JSON text, keys in field order."""
    built = to_plain(value)
    text = json.dumps(built, ensure_ascii=False, allow_nan=False)
    if indent is None:
        return text
    try:
        return msgspec.json.format(text, indent=indent)  # in a tenth of the time of json's own indenting
    except UnicodeEncodeError:  # half a surrogate pair in a stranger's text
        return json.dumps(built, indent=indent, ensure_ascii=False)


def refuse_unknown(kind: Any, value: Any, where: str, at: str = "") -> None:
    """Raise BadInput for the first key of `value` that the dataclass `kind` does not have."""
    for inner_kind, inner, name in _inside(kind, value, where, at):
        refuse_unknown(inner_kind, inner, where, name)


def _inside(kind: Any, value: Any, where: str, at: str) -> list[tuple[Any, Any, str]]:
    """What `value` consists of as a `kind`: types and values of its parts, and where each stands."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return [(choice, value, at) for choice in _only_fields(args)]
    if isinstance(value, list):
        sequence = origin in (tuple, list)
        return [(args[0], inner, f"{at}[{index}]") for index, inner in enumerate(value)] if sequence else []
    if not isinstance(value, dict):
        return []
    if dataclasses.is_dataclass(kind):
        return _fields(kind, value, where, at)
    return [(args[1], inner, f"{at}.{key}") for key, inner in value.items()] if origin is dict else []


def _only_fields(kinds: tuple[Any, ...]) -> list[Any]:
    """The dataclass among the types of a union; none where there are several, for it is not known which is meant."""
    choices = [kind for kind in kinds if dataclasses.is_dataclass(kind)]
    return choices if len(choices) == 1 else []


def _fields(kind: Any, value: dict[Any, Any], where: str, at: str) -> list[tuple[Any, Any, str]]:
    """The fields in which there can be unknown keys further down."""
    hints, before = _hints(kind), f"{at}." if at else ""
    for key in value:
        if key not in hints:
            raise BadInput(f"{where}: unknown setting {f'{before}{key}'!r}", hint=suggest_names(str(key), hints))
    return [(hint, value[key], f"{before}{key}") for key, hint in _nested(kind).items() if key in value]


@functools.cache
def _hints(kind: Any) -> dict[str, Any]:
    """A dataclass's fields with their types; a table of a hundred rows asks as often."""
    return typing.get_type_hints(kind)


@functools.cache
def _nested(kind: Any) -> dict[str, Any]:
    """Those of them that hold a dataclass somewhere."""
    return {name: hint for name, hint in _hints(kind).items() if _holds_fields(hint)}


def _holds_fields(hint: Any) -> bool:
    return dataclasses.is_dataclass(hint) or any(map(_holds_fields, typing.get_args(hint)))


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_none(inner) for key, inner in value.items() if inner is not None}
    return [_without_none(inner) for inner in value] if isinstance(value, list | tuple) else value
