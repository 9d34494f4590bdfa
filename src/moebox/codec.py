"""Convert dataclasses to TOML and JSON and back, with errors that name the file and the field.

Unknown keys are rejected: a misspelt setting must not be ignored silently.
"""

import dataclasses
import functools
import json
import pickle
import re
import stat
import tomllib
import types
import typing
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from moebox.errors import BadInput, refuse_if, suggest_names, suggest_path

T = TypeVar("T")
MAX_FILE_BYTES = 16 * 2**20  # no hand-written file is larger
MAX_CACHED_CHARS = 100_000  # of a TOML file whose content is remembered
MAX_KEY_PARTS = 100  # of a dotted key; tomllib's time grows with the square of them
TYPE_WORDS = {  # msgspec's names of types in a reader's words, and how to write such a value
    "int": ("a whole number", "write {key} = 8, without quotes and unit"),
    "float": ("a number", "write {key} = 0.9, without quotes and unit"),
    "str": ("a text in quotes", 'write {key} = "…", in quotes'),
    "bool": ("true or false", "write {key} = true or {key} = false, without quotes"),
    "array": ("a list", "write {key} = [ ], with the values between the brackets"),
    "object": ("a table", "write [{path}] on a line of its own, and its settings below it"),
}
_LONG_KEY = re.compile(r"""(?<![\w"'.-])(?:[\w"'-]++[ \t]*+\.[ \t]*+){100}""")


def shared_fields(source: Any, kind: Any) -> Any:
    """Values of the fields that a dataclass has in common with `kind`, by name: to make one from the other."""
    names = {field.name for field in dataclasses.fields(kind)}
    return pick_fields(source, (field.name for field in dataclasses.fields(source) if field.name in names))


def pick_fields(source: Any, names: Iterable[str]) -> Any:
    """Values of some fields of an object, by name."""
    return {name: getattr(source, name) for name in names}


def decode(kind: type[T], value: Any, *, where: str) -> T:
    """Convert plain dicts and lists to a `kind`. Raise BadInput naming the field that does not fit."""
    for path, key, known in unknown_keys(kind, value):
        raise BadInput(f"{where}: unknown setting {path!r}", hint=suggest_names(key, known))
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as problem:
        text, hint = explain_mismatch(str(problem), kind, toml=not where.endswith(".json"))
        raise BadInput(f"{where}: {text}", hint=hint) from None


def explain_mismatch(text: str, kind: Any, *, toml: bool) -> tuple[str, str | None]:
    """Return msgspec's message as a sentence that begins with the field, and a hint for a misspelt value."""
    body, _, path = text.partition(" - at `$")
    path = path.removesuffix("`").lstrip(".").replace("[...]", ".NAME")
    if found := re.fullmatch(r"Expected `(.+)`, got `(.+)`", body):
        wanted, given = (
            " or ".join(TYPE_WORDS.get(name, (name, ""))[0] for name in names.split(" | ") if name != "null")
            for names in found.groups()
        )
        hint = TYPE_WORDS.get(found[1].removesuffix(" | null"), ("", ""))[1] if toml and path else ""
        hint = "" if "[" in path else hint.format(key=path.rpartition(".")[2], path=path)
        return f"{path or 'the content'} must be {wanted}, not {given or 'empty'}", hint or None
    if found := re.fullmatch(r"Object missing required field `(.+)`", body):
        return f"{path}{'.' if path else ''}{found[1]} is missing", None
    if found := re.fullmatch(r"Invalid enum value '?(.*?)'?", body):
        for part in path.split("."):
            fields = _field_types(kind)[0] if isinstance(kind, type) and dataclasses.is_dataclass(kind) else {}
            kind = fields.get(part)
            kind = next(filter(dataclasses.is_dataclass, typing.get_args(kind)), kind)
        return f"{path}: {found[1]!r} is not a valid value", suggest_names(found[1], map(str, typing.get_args(kind)))
    return f"{path}: {body}" if path else body, None


def read_toml(kind: type[T], path: Path) -> T:
    return decode(kind, load_toml(path), where=str(path))


def load_toml(path: Path) -> dict[str, object]:
    return parse_toml(read_text(path), where=str(path))


def parse_toml(text: str, *, where: str) -> dict[str, object]:
    refuse_if(_LONG_KEY.search(text), f"{where}: not valid TOML: a key of more than {MAX_KEY_PARTS} parts")
    try:
        if len(text) > MAX_CACHED_CHARS:
            return tomllib.loads(text)
        copied: dict[str, object] = pickle.loads(_pickled_toml(text))  # noqa: S301  (our own bytes)
        return copied
    except (ValueError, RecursionError) as problem:  # ValueError: also numbers and dates outside Python's range
        words = str(problem).replace("Cannot overwrite a value", "a setting is there twice")
        hint = "it looks like JSON" if text.lstrip()[:1] == "{" else 'a line of TOML is like name = "value"'
        raise BadInput(f"{where}: not valid TOML: {words}", hint=hint) from None


@functools.lru_cache(maxsize=64)
def _pickled_toml(text: str) -> bytes:
    """Parse a text once: all runs of a box have the same box.toml. Pickled, since callers may change their copy."""
    return pickle.dumps(tomllib.loads(text))


def load_json(path: Path) -> Any:
    return parse_json(read_text(path), where=str(path))


def parse_json(text: str, *, where: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as problem:
        words = str(problem).replace("JSON is malformed: ", "").replace("Input data was truncated", "it ends too early")
        raise BadInput(f"{where}: {f'not valid JSON: {words}' if text.strip() else 'is empty'}") from None


def read_text(path: Path, *, max_bytes: int = MAX_FILE_BYTES) -> str:
    """Return the text of a file of at most `max_bytes`. Raise BadInput if it cannot be read."""
    try:
        facts = path.stat()
        if stat.S_ISFIFO(facts.st_mode) and not str(path).startswith(("/dev/", "/proc/")):  # but allow <(…)
            raise BadInput(f"{path}: is a pipe, not a file")
        with open(path, "rb") as file:  # a device reports no size and may never end
            data = file.read(min(max_bytes, max(facts.st_size, MAX_FILE_BYTES)) + 1)
        refuse_if(len(data) > max_bytes, f"{path}: more than {max_bytes:,} bytes, which is too large")
        return data.decode("utf-8")
    except FileNotFoundError:
        raise BadInput(f"{path}: no such file", hint=suggest_path(path)) from None
    except IsADirectoryError:
        raise BadInput(f"{path}: is a folder, not a file") from None
    except UnicodeDecodeError as problem:
        raise BadInput(f"{path}: is not UTF-8 text (byte {problem.start})", hint="save it as UTF-8") from None
    except OSError as problem:
        raise BadInput(f"{path}: cannot be read: {problem.strerror}") from None


def to_plain(value: Any) -> Any:
    """Convert dataclasses and paths to dicts and strings; tuples stay tuples."""
    return msgspec.to_builtins(value, str_keys=True, enc_hook=str)


def to_document(value: Any) -> dict[str, object]:
    """Convert a dataclass to a JSON object."""
    fields: dict[str, object] = to_plain(value)
    return fields


def to_toml(value: Any) -> str:
    """Write `value` as TOML; fields that are None are left out."""

    def without_none(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: without_none(inner) for key, inner in value.items() if inner is not None}
        return [without_none(inner) for inner in value] if isinstance(value, list | tuple) else value

    return msgspec.toml.encode(without_none(to_plain(value))).decode()


def to_json(value: Any, *, indent: int | None = 2) -> str:
    """Write `value` as JSON, keys in field order."""
    built = to_plain(value)
    text = json.dumps(built, ensure_ascii=False, allow_nan=False)
    if indent is None:
        return text
    try:
        return msgspec.json.format(text, indent=indent)  # ten times as fast as json's own indenting
    except UnicodeEncodeError:  # an unpaired surrogate in text from elsewhere
        return json.dumps(built, indent=indent, ensure_ascii=False)


def unknown_keys(kind: Any, value: Any, at: str = "") -> Iterator[tuple[str, str, Iterable[str]]]:
    """Yield each key of `value` that the dataclass `kind` does not have with its path, and the known ones."""
    origin, args, has_fields = typing.get_origin(kind), typing.get_args(kind), dataclasses.is_dataclass(kind)
    if origin in (typing.Union, types.UnionType):
        choices = list(filter(dataclasses.is_dataclass, args))
        if len(choices) == 1:  # with several it is not known which one is meant
            yield from unknown_keys(choices[0], value, at)
    elif isinstance(value, list):
        for index, inner in enumerate(value if origin in (tuple, list) else ()):
            yield from unknown_keys(args[0], inner, f"{at}[{index}]")
    elif isinstance(value, dict) and has_fields:
        known, nested = _field_types(kind)
        prefix = f"{at}." if at else ""
        yield from ((f"{prefix}{key}", str(key), known) for key in value if key not in known)
        for key in nested:
            yield from unknown_keys(known[key], value.get(key), f"{prefix}{key}")
    elif isinstance(value, dict) and origin is dict:
        for key, inner in value.items():
            yield from unknown_keys(args[1], inner, f"{at}.{key}")


@functools.cache
def _field_types(kind: Any) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The types of a dataclass's fields, and the names of fields that hold another dataclass somewhere."""

    def holds_dataclass(hint: Any) -> bool:
        return dataclasses.is_dataclass(hint) or any(map(holds_dataclass, typing.get_args(hint)))

    hints = typing.get_type_hints(kind)
    return hints, tuple(name for name, hint in hints.items() if holds_dataclass(hint))
