"""OpenAI's responses API and several choices (`n`), made from the same replies, and servers that get them wrong."""

import itertools
import json
from collections.abc import Callable
from typing import Any

from . import chat
from .bend import Body
from .chat import Made, Refused
from .faults import Fault

_stored: dict[str, list[Body]] = {}


def from_response(body: Body) -> Body:
    """A request of the responses API as a chat request."""
    if "input" not in body:
        raise Refused(400, "'input' is required")
    known = body.get("previous_response_id")
    if known and known not in _stored:
        raise Refused(404, f"Response with id '{known}' not found.")
    turns: list[Body] = [{"role": "system", "content": body["instructions"]}] if body.get("instructions") else []
    turns += _stored.get(known or "", [])
    given = body["input"]
    for item in [{"role": "user", "content": given}] if isinstance(given, str) else given:
        if item.get("type") == "function_call":
            function = {"name": item["name"], "arguments": item["arguments"]}
            call = {"id": item["call_id"], "type": "function", "function": function}
            if turns and turns[-1].get("tool_calls"):
                turns[-1]["tool_calls"].append(call)
            else:
                turns.append({"role": "assistant", "content": "", "tool_calls": [call]})
        elif item.get("type") == "reasoning":
            continue
        elif item.get("type") == "function_call_output":
            turns.append({"role": "tool", "tool_call_id": item["call_id"], "content": item["output"]})
        else:
            turns.append(item)
    asked = {**body, "messages": turns, "max_tokens": body.get("max_output_tokens")}
    asked["tools"] = [
        {"type": "function", "function": {key: tool[key] for key in tool if key != "type"}}
        for tool in body.get("tools") or ()
    ]
    wanted = (body.get("text") or {}).get("format")
    if wanted:
        asked["response_format"] = {"type": "json_schema", "json_schema": {"schema": wanted["schema"]}}
    return asked


def response(made: Made) -> Body:
    """The object of the responses API."""
    output: list[Body] = []
    if made.reasoning:
        part = {"type": "reasoning_text", "text": "".join(made.reasoning)}
        output.append({"type": "reasoning", "id": f"rs_{made.number}", "summary": [], "content": [part]})
    if made.content:
        part = {"type": "output_text", "text": "".join(made.content), "annotations": []}
        head = {"type": "message", "id": f"msg_{made.number}", "role": "assistant", "status": "completed"}
        output.append({**head, "content": [part]})
    for place, call in enumerate(made.calls):
        named = {"call_id": call.id, "name": call.name, "arguments": call.arguments}
        output.append({"type": "function_call", "id": f"fc_{made.number}_{place}", "status": "completed", **named})
    cut = made.finish == "length"
    usage = made.usage
    counts = {"input": usage["prompt_tokens"], "output": usage["completion_tokens"], "total": usage["total_tokens"]}
    identity = f"resp_{made.number}"
    if made.request.get("store"):
        said = {"role": "assistant", "content": "".join(made.content)}
        _stored[identity] = [*made.request["messages"], said]
    return {
        "id": identity,
        "object": "response",
        "created_at": 1,
        "model": made.request["model"],
        "status": "incomplete" if cut else "completed",
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "output": output,
        "usage": {f"{key}_tokens": count for key, count in counts.items()},
    }


def response_events(full: Body) -> list[Body]:
    """The events of its stream."""
    begun = {**full, "status": "in_progress", "output": [], "usage": None, "incomplete_details": None}
    sent: list[Body] = [{"type": f"response.{kind}", "response": begun} for kind in ("created", "in_progress")]
    for index, item in enumerate(full["output"]):
        place = {"output_index": index, "item_id": item["id"]}
        kind = item["type"]
        bare = {**item, "content": []} if "content" in item else {**item, "arguments": ""}
        sent.append({"type": "response.output_item.added", "output_index": index, "item": bare})
        part = item["content"][0] if "content" in item else {}
        name, key, text = {
            "message": ("output_text", "text", part.get("text", "")),
            "reasoning": ("reasoning_text", "text", part.get("text", "")),
            "function_call": ("function_call_arguments", "arguments", item.get("arguments", "")),
        }[kind]
        if part:
            place["content_index"] = 0
            sent.append({"type": "response.content_part.added", **place, "part": {**part, "text": ""}})
        sent += [{"type": f"response.{name}.delta", **place, "delta": piece} for piece in chat.tokens(text)]
        sent.append({"type": f"response.{name}.done", **place, key: text})
        if part:
            sent.append({"type": "response.content_part.done", **place, "part": part})
        sent.append({"type": "response.output_item.done", "output_index": index, "item": item})
    sent.append({"type": f"response.{full['status']}", "response": full})
    return [{**event, "sequence_number": number} for number, event in enumerate(sent)]


def joined(wholes: list[Body]) -> Body:
    """Several answers as the choices of one."""
    choices = [{**each["choices"][0], "index": index} for index, each in enumerate(wholes)]
    return {**wholes[0], "choices": choices, "usage": _sum([each["usage"] for each in wholes])}


def _sum(usages: list[Body]) -> Body:
    made = sum(usage["completion_tokens"] for usage in usages)
    prompt = usages[0]["prompt_tokens"]
    return {"prompt_tokens": prompt, "completion_tokens": made, "total_tokens": prompt + made}


def interleaved(streams: list[list[Body]]) -> list[Body]:
    """The chunks of several answers in turn, and the counts of all at the end."""
    usages = [chunk["usage"] for stream in streams for chunk in stream if chunk.get("usage")]
    first = next(chunk for chunk in streams[0] if chunk["choices"])
    head = {key: first[key] for key in ("id", "object", "created", "model") if key in first}
    sent = [
        {**chunk, **head, "choices": [{**chunk["choices"][0], "index": index}]}
        for row in itertools.zip_longest(*streams)
        for index, chunk in enumerate(row)
        if chunk and chunk["choices"]
    ]
    return [*sent, *([{**head, "choices": [], "usage": _sum(usages)}] if usages else [])]


def _each_choice(change: Callable[[list[Body]], Any]) -> Callable[[Body], Body]:
    """Choices of a whole answer are changed in place."""

    def bend(body: Body) -> Body:
        change(body["choices"])
        return body

    return bend


def _last_lost(sent: list[Body]) -> list[Body]:
    """The other choice loses its last words."""
    words = [chunk for chunk in sent if chunk["choices"] and chunk["choices"][0]["index"] and _words(chunk)]
    return [chunk for chunk in sent if chunk not in words[-1:]]


def _words(chunk: Body) -> Body:
    delta = chunk["choices"][0]["delta"]
    return delta if delta.get("content") or delta.get("tool_calls") else {}


def _swapped(sent: list[Body]) -> list[Body]:
    """A piece of one choice goes to the other, and the other way round."""
    words = [chunk["choices"][0] for chunk in sent if chunk["choices"] and _words(chunk)]
    for mine, other in itertools.islice(itertools.pairwise(words), 3, 4):
        mine["delta"], other["delta"] = other["delta"], mine["delta"]
    return sent


def _one_state(sent: list[Body]) -> list[Body]:
    """One parser for all choices: only the first names its call."""
    for chunk in sent:
        for choice in chunk["choices"]:
            for call in choice["delta"].get("tool_calls") or () if choice["index"] else ():
                call.pop("id", None)
                call["function"].pop("name", None)
    return sent


def _all_zero(sent: list[Body]) -> list[Body]:
    for chunk in sent:
        for choice in chunk["choices"]:
            choice["index"] = 0
    return sent


def _first_counted(body: Body) -> Body:
    return {**body, "usage": {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}}


def _only(*kinds: str) -> Callable[[list[Body]], list[Body]]:
    """Events of these kinds are not sent."""
    return lambda sent: [event for event in sent if not event["type"].endswith(kinds)]


def _late_item(sent: list[Body]) -> list[Body]:
    """An item is announced when it is done."""
    added = [event for event in sent if event["type"].endswith("item.added")]
    return [*(event for event in sent[:-1] if event not in added), *added, sent[-1]]


def _drop(*keys: str) -> Callable[[Body], Body]:
    return lambda body: {key: value for key, value in body.items() if key not in keys}


def _objects(body: Body) -> Body:
    """Arguments as an object."""
    for item in body["output"]:
        if "arguments" in item:
            item["arguments"] = json.loads(item["arguments"])
    return body


def _half(sent: list[Body]) -> list[Body]:
    """Every third piece is lost."""
    return [event for number, event in enumerate(sent) if number % 3 or not event["type"].endswith(".delta")]


SEVERAL: dict[str, Fault] = {
    "one-choice-more": Fault(check="sampling", several=_each_choice(lambda choices: choices.append(choices[0]))),
    "choices-all-zero": Fault(check="sampling", several=_each_choice(lambda all: [one.update(index=0) for one in all])),
    "streamed-choices-all-zero": Fault(check="sampling", several_chunks=_all_zero),
    "second-choice-cut": Fault(check="sampling", several_chunks=_last_lost),
    "choices-bleed": Fault(check="sampling", several_chunks=_swapped),
    "one-parser-for-choices": Fault(check="sampling", several_chunks=_one_state),
    "first-choice-counted": Fault(check="sampling", red=False, several=_first_counted),
    "one-choice-only": Fault(
        check="sampling", red=False, several=lambda body: {**body, "choices": body["choices"][:1]}
    ),
    "responses-without-created": Fault(check="responses", response_events=_only("response.created")),
    "responses-never-completed": Fault(check="responses", response_events=_only("completed", "incomplete")),
    "responses-items-announced-late": Fault(check="responses", response_events=_late_item),
    "responses-pieces-lost": Fault(check="responses", response_events=_half),
    "responses-items-stay-open": Fault(check="responses", response_events=_only("item.done")),
    "responses-uncounted": Fault(check="responses", response=_drop("usage")),
    "responses-arguments-as-object": Fault(check="responses", response=_objects),
    "responses-cut-is-completed": Fault(
        check="responses",
        red=False,
        response=lambda body: {**body, "status": "completed", "incomplete_details": None},
    ),
    "responses-instructions-lost": Fault(check="responses", red=False, response_request=_drop("instructions")),
    "responses-format-ignored": Fault(check="responses", red=False, response_request=_drop("text")),
    "responses-results-lost": Fault(
        check="responses",
        response_request=lambda body: {
            **body,
            "input": [item | ({"output": ""} if "output" in item else {}) for item in body["input"]]
            if isinstance(body["input"], list)
            else body["input"],
        },
    ),
    "responses-forgotten": Fault(check="responses", red=False, response_request=_drop("previous_response_id")),
}
