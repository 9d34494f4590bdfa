"""Tools of the shapes that agents bring: nested arguments, lists, optional ones, none at all."""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from moebox.core import catalogue
from moebox.verify.checks.json_modes import schema_violation
from moebox.verify.checks.turns import PADDING
from moebox.verify.session import ProbeWarning, skip_if_rejected
from moebox.verify.trials import CheckSession
from moebox.verify.violations import parse_strict_json

Schema = Mapping[str, Any]
CALL_TOKENS = 96  # for a call; the longest but one here takes some eighty
LONG_CALL_TOKENS = 768
LONG_TOOL = "write_file"  # the tool with a long argument
BRIEF_TOOLS = ("deliver", "refresh_all", "edit")  # of a quick run, streamed only
MIN_SHARED_LETTERS = 4  # of a name
MCP_TOOL = "mcp__home-assistant__set_flags_of_every_lamp"  # as MCP servers name them: __, a dash, over 40 letters

# Values that parsers change: more than a double holds, and strings that look like something else.
_EXACT: dict[str, object] = {"number": 9007199254740993, "code": "007", "flag": "true", "rate": "1e5"}
_FILE = f"{PADDING.strip()}\n\n\t<a> & b\n" * 2  # agents write whole files


# A tool's name, what is asked for, and its parameters.
SHAPES: tuple[tuple[str, str, Schema], ...] = tuple(
    (row["name"], row["ask"], json.loads(row["parameters"].replace("FILE", json.dumps(_FILE)[1:-1])))
    for row in catalogue.load_table("check_requests")["shape"]
)


async def probe_argument_shapes(session: CheckSession) -> str | ProbeWarning:
    """Forced calls with nested, optional and no arguments have the right format, whatever the model writes."""
    fitting = made = 0
    other_value = ""  # the first call with another value than its schema allows
    for number, (name, question, schema) in enumerate(SHAPES):
        session.trial_progress = (number + 1, len(SHAPES))
        brief = session.options.brief
        if brief and name not in BRIEF_TOOLS:
            continue
        if name == LONG_TOOL and 2 * fitting <= made:  # takes long, and is judged only if schemas are enforced
            continue
        for stream in (True,) if brief or name in (LONG_TOOL, MCP_TOOL) else (False, True):
            with skip_if_rejected("the server does not accept such tools"):
                answer = await session.chat(
                    [{"role": "user", "content": question}],
                    tools=[{"type": "function", "function": {"name": name, "description": name, "parameters": schema}}],
                    tool_choice={"type": "function", "function": {"name": name}},
                    max_tokens=LONG_CALL_TOKENS if name == LONG_TOOL else CALL_TOKENS,
                    stream=stream,
                    allow_marks=True,
                )
            if answer.finish_reason == "length":  # too long to be judged, in a stream too
                break
            for call in answer.calls:
                reason = f"{name} was named and came as {call.name}" if _is_mangled(call.name, name) else ""
                session.failures.add("tool-call", reason, stream=stream)
                problem, violation = argument_problem(call.arguments, schema), schema_violation(call.arguments, schema)
                session.failures.add("tool-call", problem, stream=stream, where=name)
                made += 1
                fitting += not violation
                if violation and not problem:
                    other_value = other_value or f"{name}: {violation}"
    result = f"{fitting} of {made} calls fit their schemas"
    enforced = 2 * fitting > made
    return ProbeWarning(f"{other_value}; {result}") if other_value and enforced else result


def _is_mangled(received: str, name: str) -> bool:
    """True for a part of the name, or the name with other marks: no model writes another tool's name that way."""
    bare, whole = (re.sub(r"\W|_", "", text).lower() for text in (received, name))
    return received != name and len(bare) >= MIN_SHARED_LETTERS and (bare in whole or whole in bare)


def argument_problem(arguments: str, schema: Schema) -> str:
    """Damage by a parser that no model causes (not JSON, not an object, changed values), or ""."""
    try:
        given = parse_strict_json(arguments)
    except ValueError as problem:
        return f"arguments that are not JSON ({problem}): {arguments[:60]!r}"
    if not isinstance(given, dict):
        return f"arguments that are not an object: {arguments[:60]!r}"
    for key, value in given.items():
        if key in _EXACT and _is_converted(value, _EXACT[key]):
            return f"{_EXACT[key]!r} came as {value!r}: a parser took it for something else"
    return next(_values_in_strings(given, schema, "arguments"), "")


def _is_converted(value: object, exact: object) -> bool:
    """True if the value looks the same but has another type or is rounded."""
    if type(value) is type(exact) and value == exact:
        return False
    if isinstance(exact, int):
        return isinstance(value, int | float) and float(value) == float(exact)
    return value in (7, True, 100000.0, "7")


_IS_TYPE: dict[str, Callable[[object], bool]] = {
    "integer": lambda value: type(value) is int,
    "number": lambda value: type(value) in (int, float),
    "boolean": lambda value: type(value) is bool,
    "null": lambda value: value is None,
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
}
_PYTHON_WORDS: dict[str, object] = {"True": True, "False": False, "None": None}


def _values_in_strings(value: Any, schema: Schema, name: str) -> Iterator[str]:
    """Describe values, at any depth, that came as a string although the schema wants the value itself."""
    if isinstance(value, dict):
        known = schema.get("properties", {})
        for key, item in value.items():
            if key in known:
                yield from _values_in_strings(item, known[key], key)
    elif isinstance(value, list):
        for place, item in enumerate(value):
            yield from _values_in_strings(item, schema.get("items", {}), f"{name}[{place}]")
    elif isinstance(value, str):
        wanted = _allowed_types(schema)
        try:
            parsed = _PYTHON_WORDS[value] if value in _PYTHON_WORDS else parse_strict_json(value)
        except ValueError:
            return
        if "string" not in wanted and any(_IS_TYPE[kind](parsed) for kind in wanted):
            yield f"the {wanted[0]} {name!r} came as a string of it: {value[:60]!r}"


def _allowed_types(schema: Schema) -> list[str]:
    if "anyOf" in schema:
        return [kind for each in schema["anyOf"] for kind in _allowed_types(each)]
    kinds = schema.get("type", [])
    return [kinds] if isinstance(kinds, str) else list(kinds)
