"""Edit JSON with comments and trailing commas in place.

Only the requested values change; comments, order and spacing of everything else stay as they are.
"""

import json
import re
from dataclasses import dataclass
from typing import Any, NoReturn

from moebox.errors import BadInput
from moebox.loose import Json

BLANK = re.compile(r"(?:\s|//[^\n]*|/\*.*?\*/)*", re.DOTALL)
STRING = re.compile(r'"(?:[^"\\\x00-\x1f]|\\.)*"')
SCALAR = re.compile(r"-?\d[\d.eE+-]*|true|false|null")
DEEPEST = 100


@dataclass(frozen=True, slots=True)
class Span:
    """The position of a value in the text, and the members of an object by name."""

    start: int
    end: int
    members: dict[str, "Span"] | None = None


class _SpanReader:
    def __init__(self, text: str, where: str) -> None:
        self.text, self.where = text, where

    def fail_at(self, at: int) -> NoReturn:
        line = self.text.count("\n", 0, at) + 1
        hint = "fix the file, or paste the settings by hand"
        raise BadInput(f"{self.where}: line {line} is not valid JSON", hint=hint)

    def skip_blank(self, at: int) -> int:
        match = BLANK.match(self.text, at)
        return match.end() if match else at

    def read_document(self) -> Span:
        """Parse the whole text. Raise BadInput with the line if it is not valid."""
        span = self.read_value(self.skip_blank(0), 0)
        end = self.skip_blank(span.end)
        if end != len(self.text):
            self.fail_at(end)
        return span

    def read_value(self, at: int, depth: int) -> Span:
        head = self.text[at : at + 1]
        if depth > DEEPEST:
            self.fail_at(at)
        if head in ("{", "["):
            return self.read_members(at, depth)
        match = (STRING if head == '"' else SCALAR).match(self.text, at)
        if not match:
            self.fail_at(at)
        return Span(at, match.end())

    def read_members(self, start: int, depth: int) -> Span:
        """Read an object or an array, whose items have no names."""
        is_object = self.text[start] == "{"
        close, members, name = "}" if is_object else "]", dict[str, Span](), ""
        at = self.skip_blank(start + 1)
        while self.text[at : at + 1] != close:
            if is_object:
                match = STRING.match(self.text, at)
                colon = self.skip_blank(match.end()) if match else at
                if not match or self.text[colon : colon + 1] != ":":
                    self.fail_at(at)
                try:
                    name = json.loads(match[0])
                except ValueError:
                    self.fail_at(at)
                at = self.skip_blank(colon + 1)
            members[name] = self.read_value(at, depth + 1)
            at = self.skip_blank(members[name].end)
            if self.text[at : at + 1] == ",":
                at = self.skip_blank(at + 1)
            elif self.text[at : at + 1] != close:
                self.fail_at(at)
        return Span(start, at + 1, members if is_object else None)


def merge_changes(text: str, changes: Json, where: str) -> str:
    """Set every leaf of `changes` in `text`; lists are leaves. A text with only comments gets an object."""
    reader = _SpanReader(text, where)
    if reader.skip_blank(0) == len(text):
        text = f"{text.rstrip()}\n{{}}\n".lstrip("\n")
    elif reader.read_document().members is None:
        raise BadInput(f"{where}: holds no JSON object", hint="paste the settings by hand")
    for path, value in list_leaves(changes):
        text = set_value(text, path, value, where)
    return text


def list_leaves(changes: Json, under: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], object]]:
    """Paths and values of nested dicts."""
    found: list[tuple[tuple[str, ...], object]] = []
    for key, value in changes.items():
        found += list_leaves(value, (*under, key)) if isinstance(value, dict) and value else [((*under, key), value)]
    return found


def set_value(text: str, path: tuple[str, ...], value: Any, where: str) -> str:
    """Set the value at `path`, and create the objects on the way."""
    span = _SpanReader(text, where).read_document()
    for depth, key in enumerate(path):
        members = span.members
        if members is None:
            raise BadInput(f"{where}: {'.'.join(path[:depth])} is not an object", hint="paste the settings by hand")
        if key not in members:
            return _insert_member(text, span, path[depth:], value, depth)
        span = members[key]
    try:
        if json.loads(text[span.start : span.end]) == value:
            return text
    except ValueError:  # comments inside
        pass
    return text[: span.start] + _format_value(value, len(path)) + text[span.end :]


def _insert_member(text: str, span: Span, path: tuple[str, ...], value: Any, depth: int) -> str:
    """Insert a member as the first one, so that no existing line needs another comma."""
    for key in reversed(path[1:]):
        value = {key: value}
    member = f"\n{'  ' * (depth + 1)}{json.dumps(path[0])}: {_format_value(value, depth + 1)}"
    before, rest = text[: span.start + 1], text[span.start + 1 :]
    if span.members:
        return f"{before}{member},{rest if rest[:1] in (chr(10), chr(13)) else ' ' + rest.lstrip(' ')}"
    # an empty object, or one with comments only: put its closing brace on its own line
    inside, closing = rest[: span.end - span.start - 2].rstrip(), rest[span.end - span.start - 2 :]
    return f"{before}{member}{' ' + inside.lstrip() if inside.strip() else ''}\n{'  ' * depth}{closing}"


def _format_value(value: Any, depth: int) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False).replace("\n", "\n" + "  " * depth)
