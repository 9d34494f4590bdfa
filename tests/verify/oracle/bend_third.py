"""Ways for a server to go wrong, third family: what bug reports of vLLM, SGLang, llama.cpp and gateways describe."""

import dataclasses
import itertools
import json
import re
from collections.abc import AsyncIterator
from typing import Any

from moebox.phantom.question import ModelReply, ToolCall

from . import chat
from .bend import Body, content, error, pieces, thinking
from .bend_more import call_deltas
from .chat import Made
from .solve import content_text
from .wire import Response


def _items(chunk: Body) -> list[Body]:
    found: list[Body] = chunk["choices"][0]["delta"].get("tool_calls", []) if chunk["choices"] else []
    return found


def _sent(chunks: list[Any], *, done: bool = True) -> Any:
    return pieces(lambda _: chunks, done=done)


async def required_twice(made: Made) -> AsyncIterator[bytes]:
    """Under tool_choice `required` each piece of streamed arguments comes twice."""
    sent = chat.chunks(made)
    if made.request.get("tool_choice") == "required":
        sent = [copy for chunk in sent for copy in ([chunk, chunk] if _is_argument(chunk) else [chunk])]
    async for part in _sent(sent)(made):
        yield part


def _is_argument(chunk: Body) -> bool:
    return any("name" not in item["function"] for item in _items(chunk))


def new_call_ids() -> Any:
    """Each piece of a call has an id of its own."""
    count = itertools.count()
    return call_deltas(lambda item: item.update(id=f"call_{next(count):024}"))


def name_in_each_piece(sent: list[Body]) -> list[Body]:
    """The function's name is repeated with every piece, as if it were another piece of it."""
    names: dict[int, str] = {}
    for chunk in sent:
        for item in _items(chunk):
            names.setdefault(item["index"], item["function"].get("name", ""))
            item["function"]["name"] = names[item["index"]]
    return sent


def stop_for_calls(chunk: Body) -> None:
    """A stream with calls ends as if it had none."""
    if chunk["choices"] and chunk["choices"][0]["finish_reason"] == "tool_calls":
        chunk["choices"][0]["finish_reason"] = "stop"


def _markup(calls: tuple[ToolCall, ...]) -> str:
    inner = "".join(
        f"<|tool_call_begin|>{call.id}<|tool_call_argument_begin|>{call.arguments}<|tool_call_end|>" for call in calls
    )
    return f"<|tool_calls_section_begin|>{inner}<|tool_calls_section_end|>"


def call_in_reasoning(reply: ModelReply, body: Body) -> ModelReply:
    """A call that follows the thoughts without an end of thinking stays in the reasoning."""
    if not (reply.calls and thinking(body)):
        return reply
    return dataclasses.replace(reply, reasoning=reply.reasoning + _markup(reply.calls), calls=())


def section_token(reply: ModelReply, body: Body) -> ModelReply:
    """The marker before the calls stands in the content."""
    return dataclasses.replace(reply, content="<|tool_calls_section_begin|>") if reply.calls else reply


def nested_as_text(call: ToolCall) -> ToolCall:
    """Objects and lists in arguments are strings of JSON."""
    given = {
        key: json.dumps(value) if isinstance(value, dict | list) else value
        for key, value in json.loads(call.arguments).items()
    }
    return dataclasses.replace(call, arguments=json.dumps(given, ensure_ascii=False))


def python_arguments(call: ToolCall) -> ToolCall:
    """Arguments as Python prints them."""
    return dataclasses.replace(call, arguments=repr(json.loads(call.arguments)))


def lossy(text: str) -> str:
    """Letters of three and more bytes are decoded byte by byte."""
    return re.sub("[\u0800-\U0010ffff]", "\ufffd\ufffd", text)


def lossy_arguments(item: Body) -> None:
    """Streamed arguments lose such letters, escaped or not."""
    text = item["function"].get("arguments") or ""
    item["function"]["arguments"] = re.sub(r"\\u[0-9a-fA-F]{4}", "\ufffd", lossy(text))


def lossy_content(delta: Body) -> None:
    """Streamed words lose such letters."""
    if delta.get("content"):
        delta["content"] = lossy(delta["content"])


def results_cut(all: list[Body]) -> list[Body]:
    """Of a long tool result only the beginning is read."""

    def cut(turn: Body) -> Body:
        long = turn["role"] == "tool" and isinstance(turn["content"], str) and len(turn["content"]) > 600
        return {**turn, "content": turn["content"][:600]} if long else turn

    return [cut(turn) for turn in all]


def results_swapped(all: list[Body]) -> list[Body]:
    """Results are matched with calls by place, and the wrong way round."""
    places = [place for place, turn in enumerate(all) if turn["role"] == "tool"]
    if len(places) < 2 or places[-1] - places[-2] != 1:
        return all
    a, b = all[places[-2]], all[places[-1]]
    swapped = [{**a, "content": b["content"]}, {**b, "content": a["content"]}]
    return [*all[: places[-2]], *swapped, *all[places[-1] + 1 :]]


def result_parts_lost(all: list[Body]) -> list[Body]:
    """A result that comes as parts is shown as an empty one."""
    lost = {"content": "{}"}
    return [turn | (lost if turn["role"] == "tool" and isinstance(turn["content"], list) else {}) for turn in all]


def another_tool(reply: ModelReply, body: Body) -> ModelReply:
    """A named tool_choice calls the first tool on offer."""
    tools = body.get("tools") or []
    if not (isinstance(body.get("tool_choice"), dict) and len(tools) > 1):
        return reply
    name = tools[0]["function"]["name"]
    return dataclasses.replace(reply, calls=tuple(dataclasses.replace(call, name=name) for call in reply.calls))


def null_content(request: Any, body: Body) -> Response | None:
    """An assistant's turn with calls and null content breaks the template."""
    turns = body.get("messages")
    if not isinstance(turns, list):
        return None
    null = any(turn.get("role") == "assistant" and turn.get("content", 0) is None for turn in turns)
    return error(500, "'NoneType' object is not iterable") if null else None


def second_round_as_text(reply: ModelReply, body: Body) -> ModelReply:
    """From the third round on, calls are written out as text."""
    rounds = sum(turn.get("role") == "tool" for turn in body["messages"])
    return ModelReply(content=_markup(reply.calls), reasoning=reply.reasoning) if reply.calls and rounds >= 2 else reply


def thoughts_after_result(reply: ModelReply, body: Body) -> ModelReply:
    """After a tool result the thoughts are taken for the answer."""
    after = body["messages"][-1]["role"] == "tool" and reply.reasoning
    return dataclasses.replace(reply, reasoning="", content=f"{reply.reasoning}\n{reply.content}") if after else reply


def end_tag(sent: list[Body]) -> list[Body]:
    """The end of thinking shows in the streamed content."""
    thought = any(chunk["choices"] and chunk["choices"][0]["delta"].get("reasoning") for chunk in sent)
    first = next((chunk for chunk in sent if content(chunk)), None)
    if thought and first:
        first["choices"][0]["delta"]["content"] = "</think>" + content(first)
    return sent


def answer_in_reasoning_when_off(reply: ModelReply, body: Body) -> ModelReply:
    """With thinking off the answer is taken for reasoning."""
    return reply if thinking(body) or reply.calls else ModelReply(reasoning=reply.content)


class Thoughts:
    """A server whose reasoning comes from another conversation."""

    def __init__(self) -> None:
        self.last = "nothing"

    def of_another(self, reply: ModelReply, body: Body) -> ModelReply:
        """The reasoning speaks of the request before."""
        last, self.last = self.last, content_text(body["messages"][-1].get("content"))[-300:]
        return dataclasses.replace(reply, reasoning=f"The user asks: {last}") if reply.reasoning else reply


def no_prompt_tokens(chunk: Body) -> None:
    """Streams count no prompt."""
    if chunk.get("usage"):
        chunk["usage"].update(prompt_tokens=0, total_tokens=chunk["usage"]["completion_tokens"])


def _less(usage: Body, less: int) -> None:
    made = max(1, usage["completion_tokens"] - less)
    usage.update(completion_tokens=made, total_tokens=usage["prompt_tokens"] + made)


def thoughts_uncounted(body: Body, made: Made) -> Body:
    """Reasoning is not counted."""
    _less(body["usage"], len(made.reasoning))
    return body


async def stream_uncounted(made: Made) -> AsyncIterator[bytes]:
    """The same in a stream."""
    sent = chat.chunks(made)
    for chunk in sent:
        if chunk.get("usage"):
            _less(chunk["usage"], len(made.reasoning))
    async for part in _sent(sent)(made):
        yield part


def cached_over_prompt(body: Body) -> None:
    """More tokens from the cache than the prompt has."""
    body["usage"]["prompt_tokens_details"] = {"cached_tokens": body["usage"]["prompt_tokens"] + 64}


def double_count(chunk: Body) -> None:
    """Streams count everything twice."""
    if chunk.get("usage"):
        _less(chunk["usage"], -chunk["usage"]["completion_tokens"])


def top_level_only(body: Body) -> None:
    """Of a schema only the first level is held."""
    schema = ((body.get("response_format") or {}).get("json_schema") or {}).get("schema")
    if schema:
        schema["properties"] = {key: _shallow(value) for key, value in schema.get("properties", {}).items()}


def _shallow(schema: Body) -> Body:
    return {"type": schema["type"]} if schema.get("type") in ("object", "array") else schema


def empty_number_enum(reply: ModelReply, body: Body) -> ModelReply:
    """An enum of numbers is held to the empty string."""
    schema = ((body.get("response_format") or {}).get("json_schema") or {}).get("schema") or {}
    lost = [
        key for key, value in schema.get("properties", {}).items() if isinstance((value.get("enum") or [""])[0], int)
    ]
    if not (lost and reply.content):
        return reply
    return dataclasses.replace(reply, content=json.dumps(json.loads(reply.content) | dict.fromkeys(lost, "")))


def renamed_key(text: str) -> str:
    """One key has another name."""
    given = json.loads(text)
    if not isinstance(given, dict) or not given:
        return text
    *rest, last = given.items()
    return json.dumps(dict(rest) | {"!": last[1]}, ensure_ascii=False)


def no_form_in_streams(body: Body) -> None:
    """Streams are not held to a schema."""
    if body.get("stream") and body.get("response_format"):
        body["response_format"] = {"type": "json_object"}


def arrays_of_one(text: str) -> str:
    """Of each list the first item."""
    given = json.loads(text)
    if not isinstance(given, dict):
        return text
    return json.dumps({key: value[:1] if isinstance(value, list) else value for key, value in given.items()})


def call_in_text_too(reply: ModelReply, body: Body) -> ModelReply:
    """The call stands in the content as well."""
    return dataclasses.replace(reply, content=reply.calls[0].arguments) if reply.calls else reply


def eight_tools(body: Body) -> None:
    """Of many tools the first eight are shown to the model."""
    if body.get("tools"):
        body["tools"] = body["tools"][:8]


def no_thoughts_back(request: Any, body: Body) -> Response | None:
    """A history with reasoning in it is refused."""
    turns = body.get("messages")
    back = isinstance(turns, list) and any("reasoning_content" in turn for turn in turns)
    return error(400, "extra field: reasoning_content") if back else None


def options_needed(request: Any, body: Body) -> Response | None:
    """A stream without stream_options crashes."""
    return error(500, "'NoneType' has no attribute 'include_usage'") if _bare_stream(body) else None


def _bare_stream(body: Body) -> bool:
    return bool(body.get("stream")) and not body.get("stream_options")
