"""Anthropic's messages API: requests made from questions, and replies parsed and checked, whole or streamed."""

import json
from collections.abc import Mapping
from typing import Any

from moebox.core.verdict import HttpExchange
from moebox.phantom.question import Question, ToolCall
from moebox.stream.events import ANTHROPIC_INPUTS
from moebox.stream.sse import parse_events
from moebox.verify.completions import ChatAnswer
from moebox.verify.trials import CheckSession
from moebox.verify.violations import (
    Violations,
    check_model_name,
    is_count,
    is_text,
    object_of,
    objects_of,
    parse_strict_json,
    shorten,
    stream_problem,
    text_of,
)

VERSION = "2023-06-01"  # the only value of anthropic-version in use
STOP_REASONS = (
    *("end_turn", "max_tokens", "stop_sequence", "tool_use", "pause_turn", "refusal"),
    "model_context_window_exceeded",
)
# Types of deltas: the block that they belong to, and the field that holds the piece.
DELTAS = {
    "text_delta": ("text", "text"),
    "thinking_delta": ("thinking", "thinking"),
    "input_json_delta": ("tool_use", "partial_json"),
}


def message_request(
    session: CheckSession, question: Question, *, stream: bool = False, turns: list[Any] | None = None
) -> dict[str, object]:
    functions = [tool["function"] for tool in question.tools]
    body: dict[str, object] = {
        "model": session.endpoint.model,
        "messages": turns or list(question.messages),
        "temperature": 0,
        "max_tokens": session.token_limit(question.max_tokens),
        "stream": stream,
        **session.template_arguments(thinking=False),
    }
    if functions:
        body["tools"] = [
            {"name": function["name"], "description": function["description"], "input_schema": function["parameters"]}
            for function in functions
        ]
    return body


async def send_message(session: CheckSession, body: dict[str, object], *, allow_marks: bool = False) -> ChatAnswer:
    """Send one request; see CheckSession.send_request."""
    parse = parse_message_stream if body["stream"] else parse_message
    return await session.send_request("messages", body, parse, headers=key_headers(session), allow_marks=allow_marks)


def key_headers(session: CheckSession) -> dict[str, str]:
    return {"anthropic-version": VERSION, **({"x-api-key": session.endpoint.key} if session.endpoint.key else {})}


def parse_message(exchange: HttpExchange) -> ChatAnswer:
    violations = Violations()
    body = parse_body(violations, exchange, "message", "content")
    if not body:
        return ChatAnswer(violations=violations.items)
    _check_header(violations, body, object_of(exchange.request))
    _check_usage(violations, body.get("usage"), least=1)
    violations.require("stop_sequence" in body, "the message has no stop_sequence", "style")
    return _build_message(violations, body, objects_of(body["content"]), body.get("stop_reason"), body.get("usage"))


def parse_body(violations: Violations, exchange: HttpExchange, name: str, key: str) -> dict[str, Any]:
    """Read a reply whose `key` holds a list; empty, with a violation, if it is something else."""
    try:
        body = parse_strict_json(exchange.response)
    except ValueError as problem:
        violations.add("format", f"the {name} is not JSON: {problem}", fatal=True)
        return {}
    if isinstance(body, dict) and isinstance(body.get(key), list):
        return body
    violations.add("format", f"not a {name} of this API: {shorten(body)}", fatal=True)
    return {}


def unreadable_answer(violations: Violations, reason: str) -> ChatAnswer:
    violations.add("format", reason, fatal=True)
    return ChatAnswer(violations=violations.items)


def _check_header(violations: Violations, body: Mapping[str, Any], request: Mapping[str, Any]) -> None:
    identity, kind, role = body.get("id"), body.get("type"), body.get("role")
    violations.require(is_text(identity), lambda: f"the message's id is {shorten(identity)}")
    violations.require(kind == "message", lambda: f"the message's type is {shorten(kind)}, not 'message'")
    violations.require(role == "assistant", lambda: f"the role is {shorten(role)}, not 'assistant'")
    check_model_name(violations, body.get("model"), str(request.get("model", "")))


def _check_usage(violations: Violations, usage: Any, *, least: int) -> None:
    if not violations.require(isinstance(usage, dict), lambda: f"usage is {shorten(usage)}", "usage"):
        return
    for key in ("input_tokens", "output_tokens"):
        number = usage.get(key)
        violations.require(is_count(number) and number >= least, f"usage counts {shorten(number)} {key}", "usage")


def _build_message(
    violations: Violations, body: Mapping[str, Any], blocks: list[dict[str, object]], stop: Any, usage: Any
) -> ChatAnswer:
    """Check every block and the stop reason, and build the message from them."""
    calls: list[ToolCall] = []
    texts = {"text": "", "thinking": ""}
    for block in blocks:
        kind = block.get("type")
        if kind in ("text", "thinking"):
            if not isinstance(block.get(str(kind)), str):
                violations.add("format", f"a {kind} block without {kind}: {shorten(block)}")
            if kind == "thinking" and not isinstance(block.get("signature"), str):
                violations.add("style", "a thinking block without a signature, which Anthropic's SDKs expect")
            texts[str(kind)] += str(block.get(str(kind)) or "")
        elif kind == "tool_use":
            identity, name, given = block.get("id"), block.get("name"), block.get("input")
            violations.require(is_text(identity), f"a tool_use block's id: {shorten(block)}")
            violations.require(is_text(name), f"a tool_use's name: {shorten(block)}")
            is_object = isinstance(given, dict)
            violations.require(is_object, f"the input of a tool_use is {shorten(given)}, not an object")
            calls.append(ToolCall(id=str(identity or ""), name=str(name or ""), arguments=json.dumps(given)))
        elif not is_text(kind):
            violations.add("format", f"a block without a type: {shorten(block)}")
    violations.require(len({call.id for call in calls}) == len(calls), "two tool_use blocks share an id")
    violations.require(stop in STOP_REASONS, lambda: f"stop_reason is {shorten(stop)}", "finish")
    if not calls:
        violations.require(stop != "tool_use", "stop_reason 'tool_use' without a tool_use block", "finish")
    elif stop not in ("tool_use", "max_tokens"):
        violations.add("finish", f"stop_reason {stop!r} with a tool_use block")
    return ChatAnswer(
        id=str(body.get("id") or ""),
        content=texts["text"],
        reasoning=texts["thinking"],
        calls=tuple(calls),
        finish_reason=str(stop or ""),
        usage=usage if isinstance(usage, dict) else {},
        violations=violations.items,
    )


def parse_message_stream(exchange: HttpExchange) -> ChatAnswer:
    """Assemble a streamed message and check the order of its events."""
    stream = _MessageStream(object_of(exchange.request))
    if problem := stream_problem(exchange):
        return unreadable_answer(stream.violations, problem)
    for name, data in parse_events(exchange.response):
        if data.strip() == "[DONE]":
            stream.violations.add("style", "[DONE] at the end, which this API does not have")
            continue
        try:
            body = parse_strict_json(data)
        except ValueError as error:
            return unreadable_answer(stream.violations, f"an event is not JSON ({error}): {shorten(data)}")
        if not isinstance(body, dict) or not isinstance(body.get("type"), str):
            return unreadable_answer(stream.violations, f"an event without a type: {shorten(data)}")
        stream.violations.require(name == body["type"], f"an event called {name!r} is of type {body['type']!r}")
        stream.add_event(body)
    return stream.build_message()


class _MessageStream:
    def __init__(self, request: Mapping[str, Any]) -> None:
        self.request = request
        self.violations = Violations()
        self.start: dict[str, object] = {}
        self.blocks: list[dict[str, object]] = []
        self.pieces: list[str] = []
        self.open: set[int] = set()
        self.order: list[str] = []
        self.stop_reason: Any = None
        self.usage: dict[str, object] = {}

    def add_event(self, body: dict[str, object]) -> None:
        violations, kind, index = self.violations, text_of(body["type"]), body.get("index")
        if kind == "error":
            text = f"an error inside the stream: {shorten(body.get('error'), 160)}"
            violations.add("format", text, fatal=True)
        if kind != "ping":
            violations.require("message_stop" not in self.order, "an event after message_stop")
            started = "message_start" in self.order or kind == "message_start"
            violations.require(started, lambda: f"{kind} before message_start")
            self.order.append(kind)
        if kind == "message_start":
            self.start = object_of(body.get("message"))
            _check_header(violations, self.start, self.request)
            violations.require(self.start.get("content") == [], "message_start's content is not an empty list")
            _check_usage(violations, self.start.get("usage"), least=0)
            self.usage = dict(object_of(self.start.get("usage")))
        elif kind == "content_block_start":
            number, block = len(self.blocks), body.get("content_block")
            violations.require(index == number, lambda: f"block {number} begins with the index {shorten(index)}")
            violations.require(isinstance(block, dict), lambda: f"a content_block is {shorten(block)}")
            self.blocks.append(dict(object_of(block)))
            self.pieces.append("")
            self.open.add(number)
        elif kind == "content_block_delta":
            self._add_delta(index, object_of(body.get("delta")))
        elif kind == "content_block_stop":
            known = isinstance(index, int) and index in self.open
            violations.require(known, lambda: f"the block {shorten(index)} ends, which is not open")
            self.open.discard(index if isinstance(index, int) else -1)
        elif kind == "message_delta":
            self.stop_reason = object_of(body.get("delta")).get("stop_reason")
            counts = object_of(body.get("usage"))
            made = counts.get("output_tokens")
            has_count = is_count(made) and made > 0
            violations.require(has_count, lambda: f"message_delta counts {shorten(made)} output_tokens", "usage")
            self.usage |= counts

    def _add_delta(self, index: object, delta: dict[str, object]) -> None:
        kind = str(delta.get("type"))
        if not isinstance(index, int) or index not in self.open:
            self.violations.add("format", f"a piece for block {shorten(index)}, which is not open")
            return
        if kind == "signature_delta":
            self.blocks[index]["signature"] = delta.get("signature")
        if kind not in DELTAS:
            known = kind in ("signature_delta", "citations_delta")
            self.violations.require(known, lambda: f"a delta of type {kind!r}", "style")
            return
        block_type, field = DELTAS[kind]
        opened, piece = self.blocks[index].get("type"), delta.get(field)
        self.violations.require(opened == block_type, lambda: f"a {kind} in a block of type {shorten(opened)}")
        if self.violations.require(isinstance(piece, str), lambda: f"a {kind} without {field}"):
            self.pieces[index] += str(piece)

    def build_message(self) -> ChatAnswer:
        order, violations = self.order, self.violations
        if not order:
            return unreadable_answer(violations, "an empty stream")
        violations.require(order[-1] == "message_stop", lambda: f"the stream ends with {order[-1]}, not message_stop")
        violations.require(not self.open, "a content block is opened and never closed")
        violations.require("message_delta" in order, "no message_delta, so the stop reason is unknown", "finish")
        violations.require(order.count("message_start") < 2, "more than one message_start")
        counted = any(map(self.usage.get, ANTHROPIC_INPUTS))
        violations.require(counted, "the stream counts no input_tokens at all", "usage")
        blocks: list[dict[str, object]] = []
        for block, pieces in zip(self.blocks, self.pieces, strict=True):
            if block.get("type") != "tool_use":
                key = "thinking" if block.get("type") == "thinking" else "text"
                blocks.append({**block, key: str(block.get(key) or "") + pieces})
            elif pieces:
                try:
                    blocks.append({**block, "input": parse_strict_json(pieces)})
                except ValueError:
                    violations.add("format", f"the pieces of an input are not JSON: {shorten(pieces)}")
                    blocks.append({**block, "input": {}})
            else:
                blocks.append(block)
        return _build_message(violations, self.start, blocks, self.stop_reason, self.usage)
