"""Works out the answer to a question of the task families from its words alone."""

import dataclasses
import functools
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import fastjsonschema

from moebox.data import load_table
from moebox.phantom.question import ModelReply, ToolCall
from moebox.phantom.text_questions import FACTS
from moebox.phantom.tool_questions import TOOLS

_PLAIN = {ask: fact.answer for fact in FACTS for ask in fact.asks}
_SIGNS = {"plus": "+", "minus": "-", "times": "*"}
LOST = "I am not sure what you mean."


def solve(
    messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = (), form: Any = None
) -> ModelReply:
    """The reply a perfect assistant gives."""
    messages = [{**message, "content": content_text(message.get("content"))} for message in messages]
    last = messages[-1]
    if last["role"] == "tool":
        return ModelReply(content=_repeat_results(messages))
    question = str(last["content"])
    offered = {tool["function"]["name"]: tool["function"].get("parameters", {"type": "object"}) for tool in tools}
    if tools and (calls := called(question, set(offered))):
        return ModelReply(calls=tuple(_held(call, offered[call.name]) for call in calls))
    if form:
        return ModelReply(content=_record(question, form))
    for way in (_plain, _sum, _needle, _secret, _copy, _count, _code, _story):
        if answer := way(question):
            return ModelReply(content=answer)
    return ModelReply(content=_remembered(messages) or _needle(question, messages) or LOST)


def content_text(content: Any) -> str:
    """The text of a turn, which may come as parts."""
    if isinstance(content, list):
        return "".join(part.get("text", "") for part in content)
    return content or ""


def _held(call: ToolCall, schema: Mapping[str, Any]) -> ToolCall:
    """The call with arguments that its schema accepts, as a grammar would force them."""
    good = fits(json.loads(call.arguments), schema)
    return call if good else dataclasses.replace(call, arguments=json.dumps(least(schema), ensure_ascii=False))


def called(question: str, offered: set[str]) -> tuple[ToolCall, ...]:
    """The calls that a question wants."""
    found: list[tuple[int, str, dict[str, Any]]] = []
    for tool in TOOLS:
        if tool.name not in offered:
            continue
        for ask in tool.prompts:
            for match in re.finditer(_pattern(ask), question):
                found += [(match.start(), tool.name, one) for one in _arguments(tool.params, match.groupdict())]
    if "refresh_all" in offered and (at := question.find("Refresh everything now.")) >= 0:
        found.append((at, "refresh_all", {}))
    unique = list({json.dumps(item): item for item in sorted(found, key=lambda item: item[0])}.values())
    return tuple(
        ToolCall(id=f"functions.{name}:{index}", name=name, arguments=json.dumps(arguments))
        for index, (_, name, arguments) in enumerate(unique)
    )


def _pattern(template: str) -> str:
    """A template as a pattern with its slots as groups."""
    text = re.escape(template).replace(r"\{", "{").replace(r"\}", "}")
    return re.sub(r"\{(\w+)\}", lambda slot: rf"(?P<{slot[1]}>[^?\"]+?)", text)


def _arguments(params: Mapping[str, Mapping[str, Any]], slots: Mapping[str, str]) -> list[dict[str, Any]]:
    """Typed arguments; "A and in B" is two calls."""
    if set(params) == {"city"}:
        return [{"city": city} for city in slots["city"].split(" and in ")]
    return [{key: int(slots[key]) if each["type"] == "integer" else slots[key] for key, each in params.items()}]


def _repeat_results(messages: Sequence[Mapping[str, Any]]) -> str:
    """What the tools returned, in the tool's own sentence if it is one of ours."""
    calls = {call["id"]: call["function"] for turn in messages for call in turn.get("tool_calls") or ()}
    texts = []
    last = max(place for place, turn in enumerate(messages) if turn["role"] != "tool")
    for turn in messages[last + 1 :]:
        function = calls[turn["tool_call_id"]]
        tool = next((tool for tool in TOOLS if tool.name == function["name"]), None)
        found = _read(str(turn["content"]))
        known = tool and set(found) == set(tool.result)
        texts.append(tool.answer.format(**json.loads(function["arguments"]), **found) if known else f"It says {found}.")
    return " ".join(texts)


def _read(text: str) -> dict[str, Any]:
    """A tool's result; what is not JSON stays as it is."""
    try:
        found = json.loads(text)
    except ValueError:
        return {"text": text}
    return found if isinstance(found, dict) else {"value": found}


def _record(question: str, form: Any) -> str:
    """The facts of the question as an object with the keys asked for."""
    facts = dict(re.findall(r"The (\w+) is ([^.]+)\.", question))
    keys = re.search(r"the keys? ([\w, ]+?)(?:\.| and nothing)", question)
    names = re.split(r", | and ", keys[1]) if keys else list(facts)
    words = {"true": True, "false": False}
    reported = [name for name in names if name in facts]
    record = {name: words.get(value := facts[name], int(value) if value.isdigit() else value) for name in reported}
    schema = form.get("json_schema", {}).get("schema", {})
    return json.dumps(record if fits(record, schema) else least(schema), ensure_ascii=False)


@functools.lru_cache(maxsize=512)  # the same tools are offered again and again
def _validator(schema: str) -> Any:
    return fastjsonschema.compile(json.loads(schema))


def fits(value: Any, schema: Mapping[str, Any]) -> bool:
    """Whether a schema accepts the value."""
    try:
        _validator(json.dumps(schema))(value)
    except fastjsonschema.JsonSchemaException:
        return False
    return True


def least(schema: Mapping[str, Any], root: Mapping[str, Any] | None = None) -> Any:
    """The smallest value that a schema accepts, as a grammar would force it."""
    root = schema if root is None else root
    if "$ref" in schema:
        return least(root["$defs"][schema["$ref"].rsplit("/", 1)[1]], root)
    if "anyOf" in schema:
        return least(schema["anyOf"][0], root)
    if "enum" in schema:
        return schema["enum"][0]
    if "const" in schema:
        return schema["const"]
    if schema.get("type") == "object":
        return {key: least(schema["properties"][key], root) for key in schema.get("required", ())}
    if schema.get("type") == "array":
        return [least(schema["items"], root)] * schema.get("minItems", 0)
    if schema["type"] == "string":
        repeated = re.fullmatch(r"\^\[(.)-.\]\{(\d+)\}\$", schema.get("pattern", ""))
        return repeated[1] * int(repeated[2]) if repeated else "x" * schema.get("minLength", 0)
    return {"integer": schema.get("minimum", 0), "number": 0.5, "boolean": False}[schema["type"]]


def _plain(question: str) -> str:
    return _PLAIN.get(question, "")


def _sum(question: str) -> str:
    found = re.search(r"(\d+) (\+|-|\*|plus|minus|times) (\d+)", question)
    if not found:
        return ""
    a, sign, b = int(found[1]), _SIGNS.get(found[2], found[2]), int(found[3])
    return str({"+": a + b, "-": a - b, "*": a * b}[sign])


def _needle(question: str, messages: Sequence[Mapping[str, Any]] = ()) -> str:
    place = re.search(r"What is the access code for the (\w+)\?", question)
    text = "\n".join([*(str(message["content"]) for message in messages), question])
    code = place and re.search(rf"The access code for the {place[1]} is (\w+)\.", text)
    return code[1] if code else ""


def _secret(question: str) -> str:
    found = re.match(r"(?:The secret is|Remember this code:|My code word is) (\w+)\.", question)
    return found[1] if found else ""


def _copy(question: str) -> str:
    found = re.match(r"(?:Repeat|Copy|Say) [^:]+: (.+)", question, re.DOTALL)
    return found[1] if found else ""


def _count(question: str) -> str:
    found = re.search(r"(?:ount|numbers) from (\d+) (?:up )?to (\d+)", question)
    return ", ".join(map(str, range(int(found[1]), int(found[2]) + 1))) if found else ""


def _code(question: str) -> str:
    asked = re.search(
        r"function (?:called |named )?(\w+) that takes (a [\w ]+? (\w)) and returns (.+?)\. (?:Reply|Answer)", question
    )
    if not asked:
        return ""
    name, takes, parameter, does = asked.groups()
    for row in load_table("questions")["function"]:
        slots = re.fullmatch(_pattern(row["does"]), does)
        if row["takes"] == takes and slots:
            return f"```python\ndef {name}({parameter}):\n    return {row['body'].format(**slots.groupdict())}\n```"
    return ""


def _story(question: str) -> str:
    found = re.search(r"long story about (?P<who>.+?) called (?P<name>\w+)(?:,| who)", question)
    place = re.search(r"(?:the town of|lives in) (?P<city>\w+) and (?:travels to )?a (?P<place>\w+)", question)
    return (
        " ".join(load_table("questions")["prompts"]["story_lines"]).format(**found.groupdict(), **place.groupdict())
        if found and place
        else ""
    )


def _remembered(messages: Sequence[Mapping[str, Any]]) -> str:
    for reported, ask, answer in (
        (row["mention"], row["question"], row["answer"]) for row in load_table("questions")["memory"]
    ):
        if messages[-1]["content"] != ask:
            continue
        for turn in messages[:-1]:
            if found := re.fullmatch(_pattern(reported), str(turn["content"])):
                return answer.format(**found.groupdict())
    return ""
