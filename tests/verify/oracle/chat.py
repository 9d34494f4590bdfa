"""A chat completion in OpenAI's and Anthropic's form, whole and in pieces, made from a reply."""

import itertools
import json
import random
import re
from dataclasses import dataclass, field, replace
from typing import Any

from moebox.phantom.question import ModelReply, ToolCall

from .solve import LOST, least, solve

CONTEXT = 6000
TOO_LONG = 400  # the status of a prompt beyond it
_unseeded = itertools.count(10**9)  # hot answers without a seed: each another
REASONING = "The user asks something. I work it out step by step and then answer."


class Refused(Exception):
    """A request that gets an HTTP error."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass
class Made:
    """What will be sent: the parts of an answer, already cut to the request's limits."""

    request: dict[str, Any]
    reasoning: list[str]
    content: list[str]
    calls: tuple[ToolCall, ...]
    finish: str
    prompt_tokens: int
    stopped: str = ""  # the stop string that ended it
    number: int = field(default_factory=itertools.count(1).__next__)

    @property
    def tokens(self) -> int:
        """Completion tokens."""
        return (
            len(self.reasoning) + len(self.content) + sum(len(tokens(call.arguments)) + 3 for call in self.calls) or 1
        )

    @property
    def logprob(self) -> float:
        """How sure it is of a token: of what it knows, and not of other things."""
        return -1.0 if "".join(self.content).startswith(LOST) else -0.01

    @property
    def usage(self) -> dict[str, int]:
        """OpenAI's token counts."""
        total = self.prompt_tokens + self.tokens
        return {"prompt_tokens": self.prompt_tokens, "completion_tokens": self.tokens, "total_tokens": total}


def tokens(text: str) -> list[str]:
    """Pieces of at most six letters, spaces kept with the word after them."""
    return re.findall(r"\s?\w{1,6}|\s|[^\w\s]", text)


def prompt_tokens(request: dict[str, Any]) -> int:
    """The prompt as this server counts it: four tokens a turn for the template."""
    texts = [json.dumps(message.get("content")) for message in request["messages"]]
    return sum(len(tokens(text)) + 4 for text in texts) + len(tokens(json.dumps(request.get("tools") or "")))


def answer(request: dict[str, Any], change: Any = None, context: int | None = None) -> Made:
    """Work out the answer to a request; `change` may bend the reply before it is cut to size."""
    if not isinstance(request.get("messages"), list):
        raise Refused(400, "messages must be a list")
    _check(request)
    size = prompt_tokens(request)
    most = context or CONTEXT
    if size + 1 > most:
        raise Refused(TOO_LONG, f"This model's maximum context length is {most} tokens, the request has {size}.")
    choice = request.get("tool_choice", "auto")
    tools = [] if choice == "none" else request.get("tools") or []
    reply = solve(request["messages"], tools, request.get("response_format"))
    if request.get("parallel_tool_calls") is False:
        reply = replace(reply, calls=reply.calls[:1])
    hot = (request.get("temperature") or 0) > 1
    if hot and "🦜" not in json.dumps(request["messages"], ensure_ascii=False):
        dice = random.Random(request.get("seed", next(_unseeded)))
        reply = replace(reply, content=f"{LOST} {dice.random()}")
    if choice == "required" and tools and not reply.calls:
        reply = replace(reply, content="", calls=forced(tools[0]["function"]["name"], tools))
    if isinstance(choice, dict):
        named = tuple(call for call in reply.calls if call.name == choice["function"]["name"])
        reply = replace(reply, calls=named or forced(choice["function"]["name"], tools))
    if (request.get("chat_template_kwargs") or {}).get("thinking", True):
        reply = replace(reply, reasoning=REASONING)
    if change:
        reply = change(reply, request)
    return _cut(request, reply, size)


def forced(name: str, tools: list[dict[str, Any]]) -> tuple[ToolCall, ...]:
    """The call that a grammar makes of a named tool, whatever was asked."""
    schemas = [tool["function"]["parameters"] for tool in tools if tool["function"]["name"] == name]
    arguments = [json.dumps(least(schema), ensure_ascii=False) for schema in schemas]
    return tuple(ToolCall(id=f"functions.{name}:0", name=name, arguments=text) for text in arguments[:1])


def _check(request: dict[str, Any]) -> None:
    """What vLLM checks before it renders a conversation."""
    known = set()
    for message in request["messages"]:
        content = message.get("content")
        if isinstance(content, list) and any(part.get("type") != "text" for part in content):
            raise Refused(400, "this model reads text only")
        for call in message.get("tool_calls") or ():
            known.add(call.get("id"))
            if "name" not in call["function"]:
                raise Refused(400, "a tool call has no name")
            try:
                json.loads(call["function"]["arguments"])
            except ValueError as problem:
                raise Refused(400, f"tool call arguments are not JSON: {problem}") from None
        if message["role"] == "tool" and message.get("tool_call_id") not in known:
            raise Refused(400, "a tool result answers no call")


def _cut(request: dict[str, Any], reply: ModelReply, size: int) -> Made:
    """Stop strings, then the token limit."""
    text, finish = reply.content, "tool_calls" if reply.calls else "stop"
    stops = request.get("stop") or ()
    stopped = ""
    for stop in [stops] if isinstance(stops, str) else stops:
        if stop in text:
            text, stopped = text.split(stop)[0], stop
    room = request.get("max_tokens") or request.get("max_completion_tokens") or 512
    thought, output = tokens(reply.reasoning), tokens(text)
    if len(thought) + len(output) > room:
        thought, finish, stopped = thought[:room], "length", ""
        output = output[: room - len(thought)]
    calls, whole = _calls_in(reply.calls, room - len(thought) - len(output))
    return Made(request, thought, output, calls, finish if whole else "length", size, stopped)


def _calls_in(calls: tuple[ToolCall, ...], room: int) -> tuple[tuple[ToolCall, ...], bool]:
    """What of the calls fits into so many tokens, and whether that is all."""
    kept: list[ToolCall] = []
    for call in calls:
        pieces = tokens(call.arguments)
        if len(pieces) + 3 > room:
            cut = [replace(call, arguments="".join(pieces[: room - 3]))] if room > 3 else []
            return (*kept, *cut), False
        room -= len(pieces) + 3
        kept.append(call)
    return tuple(kept), True


def whole(made: Made) -> dict[str, Any]:
    """OpenAI's object."""
    message: dict[str, Any] = {"role": "assistant", "content": "".join(made.content) or None}
    if made.reasoning:
        message["reasoning_content"] = "".join(made.reasoning)
    if made.calls:
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in made.calls
        ]
    choice: dict[str, Any] = {"index": 0, "message": message, "finish_reason": made.finish}
    if made.request.get("logprobs"):
        choice["logprobs"] = {"content": [_chance(made, token) for token in made.content]}
    return _head("chat.completion", made) | {"choices": [choice], "usage": made.usage}


def _chance(made: Made, token: str) -> dict[str, Any]:
    """A token with its log-probability, and the others that were likely where they are asked for."""
    mine = {"token": token, "logprob": made.logprob, "bytes": None}
    many = made.request.get("top_logprobs") or 0
    others = [{"token": f"~{rank}", "logprob": -5.0 - rank, "bytes": None} for rank in range(1, many)]
    return {**mine, "top_logprobs": [mine, *others][:many]}


def _head(kind: str, made: Made) -> dict[str, Any]:
    return {"id": f"chatcmpl-{made.number}", "object": kind, "created": 1, "model": made.request["model"]}


def chunks(made: Made) -> list[dict[str, Any]]:
    """OpenAI's stream: role, thoughts, words, calls in pieces, the end, the counts. vLLM's name for thoughts here."""
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    deltas += [{"reasoning": piece} for piece in made.reasoning]
    deltas += [{"content": piece} for piece in made.content]
    for index, call in enumerate(made.calls):
        named = {"index": index, "id": call.id, "type": "function", "function": {"name": call.name, "arguments": ""}}
        deltas.append({"tool_calls": [named]})
        for piece in tokens(call.arguments):
            deltas.append({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
    head = _head("chat.completion.chunk", made)
    sent = [head | {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    if made.request.get("logprobs"):
        for chunk, delta in zip(sent, deltas, strict=True):
            if delta.get("content"):
                chunk["choices"][0]["logprobs"] = {"content": [_chance(made, delta["content"])]}
    sent.append(head | {"choices": [{"index": 0, "delta": {}, "finish_reason": made.finish}]})
    if (made.request.get("stream_options") or {}).get("include_usage"):
        sent.append(head | {"choices": [], "usage": made.usage})
    return sent


def from_anthropic(body: dict[str, Any]) -> dict[str, Any]:
    """A messages request as a chat request."""
    if "messages" not in body:
        raise Refused(400, "messages: field required")
    turns: list[dict[str, Any]] = [{"role": "system", "content": body["system"]}] if body.get("system") else []
    for message in body["messages"]:
        if isinstance(message["content"], str):
            turns.append(message)
            continue
        for block in message["content"]:
            if block["type"] == "tool_use":
                function = {"name": block["name"], "arguments": json.dumps(block["input"])}
                calls = [{"id": block["id"], "type": "function", "function": function}]
                turns.append({"role": "assistant", "content": "", "tool_calls": calls})
            elif block["type"] in ("thinking", "redacted_thinking"):
                continue
            elif block["type"] == "tool_result":
                turns.append({"role": "tool", "tool_call_id": block["tool_use_id"], "content": block["content"]})
            else:
                turns.append({"role": message["role"], "content": block["text"]})
    tools = [
        {"type": "function", "function": {"name": tool["name"], "parameters": tool["input_schema"]}}
        for tool in body.get("tools") or ()
    ]
    asked = {**body, "messages": turns, "tools": tools, "stop": body.get("stop_sequences")}
    if choice := body.get("tool_choice"):
        named = {"type": "function", "function": {"name": choice.get("name")}}
        asked["tool_choice"] = {"auto": "auto", "any": "required", "none": "none", "tool": named}[choice["type"]]
    if thinking := body.get("thinking"):
        asked["chat_template_kwargs"] = {"thinking": thinking["type"] == "enabled"}
    return asked


def blocks(made: Made) -> list[dict[str, Any]]:
    """Anthropic's content blocks."""
    found: list[dict[str, Any]] = []
    if made.reasoning:
        found.append({"type": "thinking", "thinking": "".join(made.reasoning), "signature": ""})
    if made.content:
        found.append({"type": "text", "text": "".join(made.content)})
    return found + [
        {"type": "tool_use", "id": call.id, "name": call.name, "input": json.loads(call.arguments)}
        for call in made.calls
    ]


STOPS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


def message(made: Made) -> dict[str, Any]:
    """Anthropic's object."""
    usage = {"input_tokens": made.prompt_tokens, "output_tokens": made.tokens}
    head = {"id": f"msg_{made.number}", "type": "message", "role": "assistant", "model": made.request["model"]}
    why = "stop_sequence" if made.stopped else STOPS[made.finish]
    return head | {"content": blocks(made), "stop_reason": why, "stop_sequence": made.stopped or None, "usage": usage}


def message_events(made: Made) -> list[dict[str, Any]]:
    """Anthropic's stream."""
    full = message(made)
    empty = {**full, "content": [], "stop_reason": None, "usage": {**full["usage"], "output_tokens": 0}}
    sent: list[dict[str, Any]] = [{"type": "message_start", "message": empty}, {"type": "ping"}]
    for index, block in enumerate(full["content"]):
        kind = block["type"]
        key, name, text = {
            "text": ("text", "text_delta", block.get("text", "")),
            "thinking": ("thinking", "thinking_delta", block.get("thinking", "")),
            "tool_use": ("partial_json", "input_json_delta", json.dumps(block.get("input", {}))),
        }[kind]
        bare = {**block, "input": {}} if kind == "tool_use" else {**block, key: ""}
        sent.append({"type": "content_block_start", "index": index, "content_block": bare})
        for piece in tokens(text):
            delta = {"type": name, key: piece}
            sent.append({"type": "content_block_delta", "index": index, "delta": delta})
        sent.append({"type": "content_block_stop", "index": index})
    end = {"stop_reason": full["stop_reason"], "stop_sequence": full["stop_sequence"]}
    sent.append({"type": "message_delta", "delta": end, "usage": {"output_tokens": made.tokens}})
    return [*sent, {"type": "message_stop"}]
