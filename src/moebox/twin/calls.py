"""Tool calls of a simulation: shaped as an agent's loop needs them, with nothing thought behind them.

A twin that is offered tools calls the first (or the one that `tool_choice` names) with arguments made to fit its
schema; told a tool's result, it answers with text. So a client's loop runs, and ends.
"""

import json
from typing import Any

from moebox.loose import Json, inner, rows, words

NESTED = 4  # how deep a schema is filled


def chosen(body: Json) -> tuple[str, str] | None:
    """The call to make, name and arguments as JSON; None where text is the answer."""
    functions = {words(tool, "function.name"): inner(tool, "function.parameters") for tool in rows(body, "tools")}
    functions.pop("", None)
    choice = body.get("tool_choice") or "auto"
    if not functions or choice == "none":
        return None
    if choice == "auto" and _told_a_result(body):
        return None
    named = words(choice, "function.name")
    name = named if named in functions else next(iter(functions))
    return name, json.dumps(filled(functions[name]))


def _told_a_result(body: Json) -> bool:
    messages = rows(body, "messages")
    return bool(messages) and messages[-1].get("role") == "tool"


def filled(schema: Any, depth: int = 0) -> Any:
    """The plainest value that fits a JSON schema."""
    if not isinstance(schema, dict) or depth > NESTED:
        return {}
    if schema.get("enum"):
        return schema["enum"][0]
    kind = schema.get("type", "object")
    kind = kind[0] if isinstance(kind, list) and kind else kind
    if kind == "object":
        properties = schema.get("properties") or {}
        required = schema.get("required") or ()
        return {str(name): filled(properties.get(name, {"type": "string"}), depth + 1) for name in required}
    if kind == "array":
        return [filled(schema.get("items"), depth + 1)] * int(schema.get("minItems") or 0)
    if kind in ("integer", "number"):
        return schema.get("minimum", 1)
    return {"boolean": False, "null": None}.get(str(kind), "simulated")
