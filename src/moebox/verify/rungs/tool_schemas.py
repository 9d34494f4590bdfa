"""Tools of the shapes that agents bring: nested arguments, lists, optional ones, none at all."""

from collections.abc import Mapping
from typing import Any

from moebox.verify.answer import Answer
from moebox.verify.ask import REFUSALS, Asker, Failed, Skipped
from moebox.verify.breach import strict_json
from moebox.verify.kinds import STREAMED
from moebox.verify.rungs.json_modes import misfit

Schema = Mapping[str, Any]
ROOM = 128  # tokens for a call; the longest here takes some eighty

_PLACE = {
    "type": "object",
    "properties": {"zip": {"type": "integer"}, "street": {"type": "string", "enum": ["Main Street"]}},
    "required": ["zip", "street"],
}
_SIZES = {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 3}
# Values that parsers spoil: more than a double holds, and strings that look like something else.
_EXACT: dict[str, object] = {"number": 9007199254740993, "code": "007", "flag": "true", "rate": "1e5"}
# A tool's name, what is asked for, and its parameters.
SHAPES: tuple[tuple[str, str, Schema], ...] = (
    (
        "deliver",
        "Deliver sizes 3 and 4 to 7 Main Street, zip 1234.",
        {"type": "object", "properties": {"place": _PLACE, "sizes": _SIZES}, "required": ["place", "sizes"]},
    ),
    (
        "book",
        "Book number 9007199254740993 with the code 007, the flag true and the rate 1e5.",
        {
            "type": "object",
            "properties": {
                key: {"type": "integer" if key == "number" else "string", "enum": [value]}
                for key, value in _EXACT.items()
            },
            "required": list(_EXACT),
        },
    ),
    ("refresh_all", "Refresh everything now.", {"type": "object", "properties": {}}),
    (
        "set_flags",
        "Turn the light on; leave the rest as it is.",
        {
            "type": "object",
            "properties": {"light": {"type": "boolean"}, "level": {"type": ["integer", "null"]}},
            "required": ["light"],
        },
    ),
)


async def shapes(ask: Asker) -> str:
    """Forced calls of tools with nested, optional and no arguments: whatever the model says, the form is right."""
    kept = 0
    for number, (name, question, schema) in enumerate(SHAPES):
        ask.trial = (number + 1, len(SHAPES))
        for stream in (False, True):
            answer = await _forced(ask, name, question, schema, stream)
            for call in answer.calls:
                why = "" if answer.finish == "length" else ill_formed(call.arguments, schema)
                ask.tally.add("tool-call" + STREAMED * stream, f"{name}: {why}" if why else "")
                kept += not misfit(call.arguments, schema)
    return f"{kept} of {2 * len(SHAPES)} calls fit their schemas"


async def _forced(ask: Asker, name: str, question: str, schema: Schema, stream: bool) -> Answer:
    function = {"name": name, "description": question, "parameters": schema}
    try:
        return await ask.chat(
            [{"role": "user", "content": question}],
            tools=[{"type": "function", "function": function}],
            tool_choice={"type": "function", "function": {"name": name}},
            max_tokens=ROOM,
            stream=stream or None,
            odd=True,
        )
    except Failed as problem:
        if problem.status in REFUSALS:
            raise Skipped(f"the server does not take such tools: {problem}") from None
        raise


def ill_formed(arguments: str, schema: Schema) -> str:
    """ "" or what a parser made of arguments that no model writes so: no JSON, no object, JSON inside a string."""
    try:
        given = strict_json(arguments)
    except ValueError as problem:
        return f"arguments that are not JSON ({problem}): {arguments[:60]!r}"
    if not isinstance(given, dict):
        return f"arguments that are no object: {arguments[:60]!r}"
    for key, value in given.items():
        wanted = schema["properties"].get(key, {}).get("type")
        if wanted in ("object", "array") and _is_json_of(value, wanted):
            return f"the {wanted} {key!r} came as a string of JSON: {value[:60]!r}"
        if key in _EXACT and _is_spoilt(value, _EXACT[key]):
            return f"{_EXACT[key]!r} came as {value!r}: a parser took it for something else"
    return ""


def _is_spoilt(value: object, exact: object) -> bool:
    """The same to the eye, and another type or number: a string made a number, a large number rounded."""
    if type(value) is type(exact) and value == exact:
        return False
    if isinstance(exact, int):
        return isinstance(value, int | float) and float(value) == float(exact)
    return value in (7, True, 100000.0, "7")


def _is_json_of(value: Any, wanted: str) -> bool:
    if not isinstance(value, str):
        return False
    try:
        inner = strict_json(value)
    except ValueError:
        return False
    return isinstance(inner, dict if wanted == "object" else list)
