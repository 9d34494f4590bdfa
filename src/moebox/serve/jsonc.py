"""Edit JSON with comments and trailing commas in place.

Only the requested values change; comments, order and spacing of everything else stay as they are.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

from moebox.errors import BadInput, refuse_if
from moebox.loose import Json

TEXT = r'"(?:[^"\\\x00-\x1f]|\\.)*"'  # may hold what looks like a comment or a comma
COMMENT = re.compile(rf"{TEXT}|(//[^\n]*|/\*.*?\*/)", re.DOTALL)
LAST_COMMA = re.compile(rf"{TEXT}|[\[{{]\s*,|(,)(?=\s*[\]}}])")  # but not a comma without a value before it
MEMBER = re.compile(rf"[\s,]*({TEXT})\s*:\s*")
BY_HAND = "paste the settings by hand"


def blank_extras(text: str) -> str:
    """Put spaces in the place of comments and trailing commas, so that everything else keeps its position."""
    for extra in (COMMENT, LAST_COMMA):
        text = extra.sub(lambda found: re.sub(r"[^\n]", " ", found[0]) if found[1] else found[0], text)
    return text


def merge_changes(text: str, changes: Json, where: str) -> str:
    """Set every leaf of `changes` in `text`; lists are leaves. A text with only comments gets an object."""
    if not blank_extras(text).strip():
        text = f"{text.rstrip()}\n{{}}\n".lstrip("\n")
    for path, value in list_leaves(changes):
        text = set_value(text, path, value, where)
    return text


def list_leaves(changes: Json, under: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], object]]:
    """Paths and values of nested dicts."""
    for key, value in changes.items():
        if isinstance(value, dict) and value:
            yield from list_leaves(value, (*under, key))
        else:
            yield (*under, key), value


def set_value(text: str, path: tuple[str, ...], value: Any, where: str) -> str:
    """Set the value at `path`, and create the objects on the way."""
    plain = blank_extras(text)
    try:
        refuse_if(not isinstance(json.loads(plain), dict), f"{where}: holds no JSON object", hint=BY_HAND)
    except (ValueError, RecursionError) as problem:
        line = getattr(problem, "lineno", 1)
        raise BadInput(f"{where}: line {line} is not valid JSON", hint=f"fix the file, or {BY_HAND}") from None
    start, end = plain.index("{"), len(plain.rstrip())
    for depth, key in enumerate(path):
        refuse_if(plain[start] != "{", f"{where}: {'.'.join(path[:depth])} is not an object", hint=BY_HAND)
        members = find_members(plain, start)
        if key not in members:
            inside = text[start + 1 : end - 1]
            return (
                text[: start + 1] + _insert_member(inside, path[depth:], value, depth, bool(members)) + text[end - 1 :]
            )
        start, end = members[key]
    if json.loads(plain[start:end]) == value:
        return text
    return text[:start] + _format_value(value, len(path)) + text[end:]


def find_members(plain: str, start: int) -> dict[str, tuple[int, int]]:
    """Where the values of the object at `start` begin and end, by name."""
    members, end = dict[str, tuple[int, int]](), start + 1
    while member := MEMBER.match(plain, end):
        _, end = json.JSONDecoder().raw_decode(plain, member.end())
        members[json.loads(member[1])] = (member.end(), end)
    return members


def _insert_member(inside: str, path: tuple[str, ...], value: Any, depth: int, has_members: bool) -> str:
    """Insert a member as the first one between the braces, so that no existing line needs another comma."""
    for key in reversed(path[1:]):
        value = {key: value}
    member = f"\n{'  ' * (depth + 1)}{json.dumps(path[0])}: {_format_value(value, depth + 1)}"
    if has_members:
        return f"{member},{inside if inside[:1] in (chr(10), chr(13)) else ' ' + inside.lstrip(' ')}"
    # an empty object, or one with comments only: its closing brace gets its own line
    return f"{member}{' ' + inside.strip() if inside.strip() else ''}\n{'  ' * depth}"


def _format_value(value: Any, depth: int) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False).replace("\n", "\n" + "  " * depth)
