"""A streamed message of Anthropic's API: its events put together, held to the order that clients rely on."""

from collections.abc import Mapping
from typing import Any

from moebox.core.verdict import HttpExchange
from moebox.stream.events import ANTHROPIC_INPUTS
from moebox.stream.sse import parse_events
from moebox.verify.breach import Violations, is_count, object_of, parse_strict_json, shorten, text_of
from moebox.verify.message import (
    AnthropicMessage,
    build_message,
    check_message_header,
    check_message_usage,
    unreadable_message,
)

DELTAS = {"text_delta": "text", "thinking_delta": "thinking", "input_json_delta": "tool_use"}
PIECES = {"text_delta": "text", "thinking_delta": "thinking", "input_json_delta": "partial_json"}


def parse_message_stream(exchange: HttpExchange, asked: Mapping[str, Any]) -> AnthropicMessage:
    """Put a stream together."""
    kind = exchange.headers.get("content-type", "")
    parts = _MessageStream(asked)
    if "text/event-stream" not in kind.lower():
        return unreadable_message(parts.violations, f"asked for a stream, got {kind or 'no content type'}")
    for name, data in parse_events(exchange.response):
        if data.strip() == "[DONE]":
            parts.violations.add("style", "[DONE] at the end, which this API does not have")
            continue
        try:
            body = _event(data)
        except ValueError as problem:
            return unreadable_message(parts.violations, f"{problem}: {shorten(data)}")
        parts.violations.require(name == body["type"], f"an event called {name!r} is of type {body['type']!r}")
        parts.add(body)
    return parts.message()


def _event(data: str) -> dict[str, object]:
    """The object that an event holds, which names its type; ValueError says what it is instead."""
    try:
        body = parse_strict_json(data)
    except ValueError as problem:
        raise ValueError(f"an event is not JSON ({problem})") from None
    if not isinstance(body, dict) or not isinstance(body.get("type"), str):
        raise ValueError("an event without a type")
    return body


class _MessageStream:
    """A stream while it is being put together."""

    def __init__(self, asked: Mapping[str, Any]) -> None:
        self.request = asked
        self.violations = Violations()
        self.start: dict[str, object] = {}
        self.blocks: list[dict[str, object]] = []
        self.pieces: list[str] = []
        self.open: set[int] = set()
        self.order: list[str] = []
        self.stop: Any = None
        self.usage: dict[str, object] = {}

    def add(self, body: dict[str, object]) -> None:
        """One event."""
        kind = text_of(body["type"])
        if kind == "error":
            self.violations.add("format", f"an error inside the stream: {shorten(body.get('error'), 160)}", fatal=True)
        if kind != "ping":
            self.violations.require("message_stop" not in self.order, "something came after message_stop")
            self.violations.require(
                "message_start" in self.order or kind == "message_start", lambda: f"{kind} before message_start"
            )
            self.order.append(kind)
        ways = {
            "message_start": self._started,
            "content_block_start": self._opened,
            "content_block_delta": self._delta,
            "content_block_stop": self._closed,
            "message_delta": self._ended,
        }
        ways.get(kind, lambda _: None)(body)

    def _started(self, body: dict[str, object]) -> None:
        self.start = object_of(body.get("message"))
        check_message_header(self.violations, self.start, self.request)
        self.violations.require(self.start.get("content") == [], "message_start's content is not an empty list")
        check_message_usage(self.violations, self.start.get("usage"), least=0)
        self.usage = dict(object_of(self.start.get("usage")))

    def _opened(self, body: dict[str, object]) -> None:
        index, block = body.get("index"), body.get("content_block")
        self.violations.require(
            index == len(self.blocks), lambda: f"block {len(self.blocks)} begins with the index {shorten(index)}"
        )
        self.violations.require(isinstance(block, dict), lambda: f"a content_block is {shorten(block)}")
        self.blocks.append(dict(block) if isinstance(block, dict) else {})
        self.pieces.append("")
        self.open.add(len(self.blocks) - 1)

    def _delta(self, body: dict[str, object]) -> None:
        delta = object_of(body.get("delta"))
        kind = str(delta.get("type"))
        index = body.get("index")
        if not isinstance(index, int) or index not in self.open:
            self.violations.add("format", f"a piece for block {shorten(index)}, which is not open")
            return
        opened = self.blocks[index].get("type")
        if kind == "signature_delta":
            self.blocks[index]["signature"] = delta.get("signature")
        if kind not in DELTAS:
            self.violations.require(
                kind in ("signature_delta", "citations_delta"), lambda: f"a delta of type {kind!r}", "style"
            )
            return
        self.violations.require(opened == DELTAS[kind], lambda: f"a {kind} in a block of type {shorten(opened)}")
        piece = delta.get(PIECES[kind])
        if self.violations.require(isinstance(piece, str), lambda: f"a {kind} without {PIECES[kind]}"):
            self.pieces[index] += str(piece)

    def _closed(self, body: dict[str, object]) -> None:
        index = body.get("index")
        known = isinstance(index, int) and index in self.open
        self.violations.require(known, lambda: f"the block {shorten(index)} ends, which is not open")
        self.open.discard(index if isinstance(index, int) else -1)

    def _ended(self, body: dict[str, object]) -> None:
        self.stop = object_of(body.get("delta")).get("stop_reason")
        counted = object_of(body.get("usage"))
        made = counted.get("output_tokens")
        counted_some = is_count(made) and made > 0
        self.violations.require(counted_some, lambda: f"message_delta counts {shorten(made)} output_tokens", "usage")
        self.usage |= counted

    def message(self) -> AnthropicMessage:
        """All of it."""
        order, notes = self.order, self.violations
        if not order:
            return unreadable_message(notes, "an empty stream")
        notes.require(order[-1] == "message_stop", lambda: f"the stream ends with {order[-1]}, not message_stop")
        notes.require(not self.open, "a content block is opened and never closed")
        notes.require("message_delta" in order, "no message_delta, so nobody learns why it stopped", "finish")
        notes.require(order.count("message_start") < 2, "more than one message_start")
        read = [self.usage.get(key) for key in ANTHROPIC_INPUTS]
        notes.require(any(read), "the stream counts no input_tokens at all", "usage")
        blocks = [self._whole(block, piece) for block, piece in zip(self.blocks, self.pieces, strict=True)]
        return build_message(notes, self.start, blocks, self.stop, self.usage)

    def _whole(self, block: dict[str, object], pieces: str) -> dict[str, object]:
        if block.get("type") != "tool_use":
            key = "thinking" if block.get("type") == "thinking" else "text"
            return {**block, key: str(block.get(key) or "") + pieces}
        if not pieces:
            return block
        try:
            return {**block, "input": parse_strict_json(pieces)}
        except ValueError:
            self.violations.add("format", f"the pieces of an input are not JSON: {shorten(pieces)}")
            return {**block, "input": {}}
