"""Tool calls of a simulation: shaped as an agent's loop needs them, with nothing thought behind them.

A twin that is offered tools calls the first (or the one that `tool_choice` names) with arguments made to fit its
schema; told a tool's result, it answers with text. So a client's loop runs, and ends. Schemas are anybody's.
"""

import json
from collections.abc import Mapping

from moebox import loose

MAX_DEPTH = 4  # how deep a schema is filled
MAX_ITEMS = 16  # properties and items of one place
PLAINEST: dict[str, object] = {"boolean": False, "null": None}  # of types that have no parts; else a text


def choose_call(body: Mapping[str, object]) -> tuple[str, str] | None:
    """The call to make, name and arguments as JSON; None where text is the answer."""
    functions = _functions(body)
    choice = body.get("tool_choice") or "auto"
    if not functions or choice == "none":
        return None
    if choice == "auto" and _answered(body.get("messages")):
        return None
    wanted = loose.get_path(choice, "function.name")
    name, schema = next((function for function in functions if function[0] == wanted), functions[0])
    return name, json.dumps(fill_schema(schema))


def _functions(body: loose.Json) -> list[tuple[str, object]]:
    """Names and schemas of what is offered."""
    offered = [loose.get_object(tool, "function") for tool in loose.get_objects(body, "tools")]
    return [(str(function["name"]), function.get("parameters")) for function in offered if function.get("name")]


def _answered(messages: object) -> bool:
    """The last message is a tool's result."""
    return isinstance(messages, list) and bool(messages) and loose.get_path(messages[-1], "role") == "tool"


def fill_schema(schema: object, depth: int = 0) -> object:
    """The plainest value that fits a JSON schema."""
    if not isinstance(schema, dict) or depth > MAX_DEPTH:
        return {}
    choices = schema.get("enum")
    if isinstance(choices, list) and choices:
        return choices[0]
    kind = next(iter(loose.get_texts(schema, "type")), "object")
    if kind == "object":
        return _properties(schema, depth)
    if kind == "array":
        items = min(int(loose.get_number(schema, "minItems") or 0), MAX_ITEMS)
        return [fill_schema(schema.get("items"), depth + 1)] * items
    if kind in ("integer", "number"):
        return _number(schema)
    return PLAINEST.get(kind, "simulated")


def _number(schema: Mapping[str, object]) -> int | float:
    """The least that is allowed, or 1."""
    least = schema.get("minimum")
    return least if isinstance(least, int | float) else 1


def _properties(schema: Mapping[str, object], depth: int) -> dict[str, object]:
    known, required = loose.get_object(schema, "properties"), schema.get("required")
    names = [name for name in required if isinstance(name, str)][:MAX_ITEMS] if isinstance(required, list) else []
    return {name: fill_schema(known.get(name, {"type": "string"}), depth + 1) for name in names}
