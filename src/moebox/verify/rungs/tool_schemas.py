"""Tools of the shapes that agents bring: nested arguments, lists, optional ones, none at all."""

import re
from collections.abc import Callable, Mapping
from typing import Any

from moebox.verify.answer import ChatAnswer
from moebox.verify.ask import REJECTED_STATUSES, CheckSession, ProbeFailed, ProbeSkipped
from moebox.verify.breach import parse_strict_json
from moebox.verify.kinds import STREAMED
from moebox.verify.rung import ProbeWarning
from moebox.verify.rungs.json_modes import schema_violation
from moebox.verify.rungs.turns import PADDING

Schema = Mapping[str, Any]
CALL_TOKENS = 128  # tokens for a call; the longest but one here takes some eighty
LEAST_SHARED = 4  # letters of a name
LONG = "write_file"  # the tool with a long argument, and the room that it takes
LONG_ROOM = 768

_PLACE = {
    "type": "object",
    "properties": {"zip": {"type": "integer"}, "street": {"type": "string", "enum": ["<Main> & 5th"]}},
    "required": ["zip", "street"],
}
_SIZES = {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 3}
_ONE = {"type": "array", "items": {"type": "string", "enum": ["Ann"]}, "minItems": 1, "maxItems": 1}
MCP = "mcp__home-assistant__set_flags_of_every_lamp"  # as MCP servers name them: double marks, a dash, over 40 letters
# Values that parsers spoil: more than a double holds, and strings that look like something else.
_EXACT: dict[str, object] = {"number": 9007199254740993, "code": "007", "flag": "true", "rate": "1e5"}
# Values that `if value` drops, decimals, keys that a gateway rewrites, and a union of types.
_EDIT: dict[str, object] = {"start_line": 0, "dry_run": False, "new_suffix": "", "scale_by": 0.25}
_TYPES = {int: "integer", bool: "boolean", str: "string", float: "number"}
_FILE = f"{PADDING.strip()}\n\n\t<a> & b\n" * 2  # agents write whole files


def _only(values: Mapping[str, object]) -> dict[str, Any]:
    """Properties that allow these values and no others."""
    return {key: {"type": _TYPES[type(value)], "enum": [value]} for key, value in values.items()}


# A tool's name, what is asked for, and its parameters.
SHAPES: tuple[tuple[str, str, Schema], ...] = (
    (
        "deliver",
        "Deliver sizes 3 and 4 to <Main> & 5th, zip 1234, for Ann alone.",
        {
            "type": "object",
            "properties": {"place": _PLACE, "sizes": _SIZES, "people": _ONE},
            "required": ["place", "sizes", "people"],
        },
    ),
    (
        "book",
        "Book number 9007199254740993 with the code 007, the flag true and the rate 1e5.",
        {
            "type": "object",
            "properties": _only(_EXACT),
            "required": list(_EXACT),
        },
    ),
    ("refresh_all", "Refresh everything now.", {"type": "object", "properties": {}}),
    (
        MCP,
        "Turn the light on; leave the rest as it is.",
        {
            "type": "object",
            "properties": {"light": {"type": "boolean"}, "level": {"type": ["integer", "null"]}},
            "required": ["light"],
        },
    ),
    (
        "edit",
        "Make the edit that there is, up to line 7.",
        {
            "type": "object",
            "properties": _only(_EDIT) | {"end_line": {"anyOf": [{"type": "integer", "enum": [7]}, {"type": "null"}]}},
            "required": [*_EDIT, "end_line"],
        },
    ),
    (LONG, "Write the file.", {"type": "object", "properties": _only({"text": _FILE}), "required": ["text"]}),
)


class _ForcedCalls:
    """Forced calls so far: how many fit their schemas, and the first that another value slipped into."""

    def __init__(self, session: CheckSession) -> None:
        self.session = session
        self.kept = self.made = 0
        self.changed = ""

    @property
    def held(self) -> bool:
        """The server holds most calls to their schemas, or the model does: no other value may pass."""
        return 2 * self.kept > self.made

    def add(self, name: str, arguments: str, schema: Schema, stream: bool) -> None:
        """Judge one call."""
        why, unfit = argument_problem(arguments, schema), schema_violation(arguments, schema)
        self.session.failures.add("tool-call" + STREAMED * stream, why, where=name)
        self.made += 1
        self.kept += not unfit
        if unfit and not why:
            self.changed = self.changed or f"{name}: {unfit}"


async def probe_argument_shapes(session: CheckSession) -> str | ProbeWarning:
    """Forced calls of tools with nested, optional and no arguments: whatever the model says, the form is right."""
    calls = _ForcedCalls(session)
    for number, (name, question, schema) in enumerate(SHAPES):
        session.trial_progress = (number + 1, len(SHAPES))
        if name != LONG or calls.held:  # a long argument takes long, and is judged only where schemas are held to
            await _both(session, calls, name, question, schema)
    told = f"{calls.kept} of {calls.made} calls fit their schemas"
    return ProbeWarning(f"{calls.changed}; {told}") if calls.changed and calls.held else told


async def _both(session: CheckSession, calls: _ForcedCalls, name: str, question: str, schema: Schema) -> None:
    """The call whole and streamed, a long one streamed only; what is too long to be judged is so in a stream too."""
    for stream in (True,) if name == LONG else (False, True):
        answer = await _forced(session, name, question, schema, stream)
        if answer.finish_reason == "length":
            return
        for call in answer.calls:
            why = f"{name} was named and came as {call.name}" if _mangled(call.name, name) else ""
            session.failures.add("tool-call" + STREAMED * stream, why)
            calls.add(name, call.arguments, schema, stream)


def _mangled(came: str, name: str) -> bool:
    """A part of the name, or the name with other marks: no model writes another tool's name that way."""
    bare, whole = (re.sub(r"\W|_", "", text).lower() for text in (came, name))
    return came != name and len(bare) >= LEAST_SHARED and (bare in whole or whole in bare)


async def _forced(session: CheckSession, name: str, question: str, schema: Schema, stream: bool) -> ChatAnswer:
    function = {"name": name, "description": question, "parameters": schema}
    try:
        return await session.chat(
            [{"role": "user", "content": question}],
            tools=[{"type": "function", "function": function}],
            tool_choice={"type": "function", "function": {"name": name}},
            max_tokens=LONG_ROOM if name == LONG else CALL_TOKENS,
            stream=stream or None,
            allow_marks=True,
        )
    except ProbeFailed as problem:
        if problem.status in REJECTED_STATUSES:
            raise ProbeSkipped(f"the server does not take such tools: {problem}") from None
        raise


def argument_problem(arguments: str, schema: Schema) -> str:
    """ "" or what a parser made of arguments that no model writes so: no JSON, no object, a value inside a string."""
    try:
        given = parse_strict_json(arguments)
    except ValueError as problem:
        return f"arguments that are not JSON ({problem}): {arguments[:60]!r}"
    if not isinstance(given, dict):
        return f"arguments that are no object: {arguments[:60]!r}"
    spoilt = [key for key in given if key in _EXACT and _is_spoilt(given[key], _EXACT[key])]
    if spoilt:
        key = spoilt[0]
        return f"{_EXACT[key]!r} came as {given[key]!r}: a parser took it for something else"
    return _in_a_string(given, schema, "arguments")


def _is_spoilt(value: object, exact: object) -> bool:
    """The same to the eye, and another type or number: a string made a number, a large number rounded."""
    if type(value) is type(exact) and value == exact:
        return False
    if isinstance(exact, int):
        return isinstance(value, int | float) and float(value) == float(exact)
    return value in (7, True, 100000.0, "7")


def _in_a_string(value: Any, schema: Schema, name: str) -> str:
    """ "" or which value, at any depth, came as a string that spells what the schema wants in its place."""
    if isinstance(value, str):
        wanted = _wanted(schema)
        spelled = "string" not in wanted and any(_IS[kind](_read(value)) for kind in wanted)
        return f"the {wanted[0]} {name!r} came as a string of it: {value[:60]!r}" if spelled else ""
    return next((why for part in _parts(value, schema, name) if (why := _in_a_string(*part))), "")


def _parts(value: Any, schema: Schema, name: str) -> list[tuple[Any, Schema, str]]:
    """What stands in an object or a list, each with its schema and its name."""
    if isinstance(value, dict):
        known = schema.get("properties", {})
        return [(item, known[key], key) for key, item in value.items() if key in known]
    if isinstance(value, list):
        return [(item, schema.get("items", {}), f"{name}[{place}]") for place, item in enumerate(value)]
    return []


_IS: dict[str, Callable[[object], bool]] = {
    "integer": lambda value: type(value) is int,
    "number": lambda value: type(value) in (int, float),
    "boolean": lambda value: type(value) is bool,
    "null": lambda value: value is None,
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
}
_PYTHON: dict[str, object] = {"True": True, "False": False, "None": None}


def _wanted(schema: Schema) -> list[str]:
    """The types that a schema allows."""
    if "anyOf" in schema:
        return [kind for each in schema["anyOf"] for kind in _wanted(each)]
    kinds = schema.get("type", [])
    return [kinds] if isinstance(kinds, str) else list(kinds)


def _read(text: str) -> object:
    """The value that a string spells, as JSON or as Python writes it; else the string."""
    if text in _PYTHON:
        return _PYTHON[text]
    try:
        value: object = parse_strict_json(text)
    except ValueError:
        return text
    return value
