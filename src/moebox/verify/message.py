"""One message of Anthropic's API: what it says, and everything that is wrong with its form."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from moebox.core.verdict import HttpExchange
from moebox.phantom.tasks import ModelReply, ToolCall
from moebox.verify.breach import Violation, Violations, check_model_name, is_count, is_text, parse_strict_json, shorten

STOP_REASONS = (
    "end_turn",
    "max_tokens",
    "stop_sequence",
    "tool_use",
    "pause_turn",
    "refusal",
    "model_context_window_exceeded",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AnthropicMessage:
    """One answer of the messages API."""

    id: str = ""
    text: str = ""
    thinking: str = ""
    calls: tuple[ToolCall, ...] = ()
    stop_reason: str = ""
    usage: Mapping[str, Any]
    violations: tuple[Violation, ...] = ()

    @property
    def reply(self) -> ModelReply:
        """As the judges of tasks want it."""
        return ModelReply(content=self.text, reasoning=self.thinking, calls=self.calls)


def parse_message(exchange: HttpExchange, asked: Mapping[str, Any]) -> AnthropicMessage:
    """A message that came in one piece."""
    notes = Violations()
    try:
        body = parse_strict_json(exchange.response)
    except ValueError as problem:
        return unreadable_message(notes, f"the message is not JSON: {problem}")
    if not isinstance(body, dict) or not isinstance(body.get("content"), list):
        return unreadable_message(notes, f"not a message of this API: {shorten(body)}")
    check_message_header(notes, body, asked)
    check_message_usage(notes, body.get("usage"), least=1)
    blocks = [block for block in body["content"] if isinstance(block, dict)]
    notes.require("stop_sequence" in body, "the message has no stop_sequence", "style")
    return build_message(notes, body, blocks, body.get("stop_reason"), body.get("usage"))


def unreadable_message(notes: Violations, why: str) -> AnthropicMessage:
    """What cannot be judged at all."""
    notes.add("format", why, fatal=True)
    return AnthropicMessage(usage={}, violations=notes.items)


def check_message_header(notes: Violations, body: Mapping[str, Any], asked: Mapping[str, Any]) -> None:
    """id, type, role and model."""
    notes.require(is_text(body.get("id")), lambda: f"the message's id is {shorten(body.get('id'))}")
    notes.require(
        body.get("type") == "message", lambda: f"the message's type is {shorten(body.get('type'))}, not 'message'"
    )
    notes.require(body.get("role") == "assistant", lambda: f"the role is {shorten(body.get('role'))}, not 'assistant'")
    check_model_name(notes, body.get("model"), str(asked.get("model", "")))


def check_message_usage(notes: Violations, usage: Any, *, least: int) -> None:
    """input_tokens and output_tokens are numbers."""
    if not notes.require(isinstance(usage, dict), lambda: f"usage is {shorten(usage)}", "usage"):
        return
    for key in ("input_tokens", "output_tokens"):
        number = usage.get(key)
        notes.require(is_count(number) and number >= least, f"usage counts {shorten(number)} {key}", "usage")


def build_message(
    notes: Violations, body: Mapping[str, Any], blocks: list[dict[str, object]], stop: Any, usage: Any
) -> AnthropicMessage:
    """The message from its blocks, each held to its type."""
    for block in blocks:
        _block(notes, block)
    calls = tuple(_call(block) for block in blocks if block.get("type") == "tool_use")
    notes.require(len({call.id for call in calls}) == len(calls), "two tool_use blocks share an id")
    _stop(notes, stop, bool(calls))
    return AnthropicMessage(
        id=str(body.get("id") or ""),
        text=_joined(blocks, "text"),
        thinking=_joined(blocks, "thinking"),
        calls=calls,
        stop_reason=str(stop or ""),
        usage=usage if isinstance(usage, dict) else {},
        violations=notes.items,
    )


def _joined(blocks: list[dict[str, object]], kind: str) -> str:
    """The text of all blocks of a kind."""
    return "".join(str(block.get(kind) or "") for block in blocks if block.get("type") == kind)


def _call(block: dict[str, object]) -> ToolCall:
    """The call that a tool_use block makes."""
    name, arguments = str(block.get("name") or ""), json.dumps(block.get("input"))
    return ToolCall(id=str(block.get("id") or ""), name=name, arguments=arguments)


def _stop(notes: Violations, stop: Any, called: bool) -> None:
    """stop_reason is a known one, and "tool_use" where there are calls, save where max_tokens cut them."""
    notes.require(stop in STOP_REASONS, lambda: f"stop_reason is {shorten(stop)}", "finish")
    if not called:
        notes.require(stop != "tool_use", "stop_reason 'tool_use' without a tool_use block", "finish")
    elif stop != "max_tokens":
        notes.require(stop == "tool_use", lambda: f"stop_reason {stop!r} with a tool_use block", "finish")


def _block(notes: Violations, block: Mapping[str, Any]) -> None:
    kind = block.get("type")
    if kind in ("text", "thinking"):
        notes.require(isinstance(block.get(kind), str), lambda: f"a {kind} block without {kind}: {shorten(block)}")
        signed = kind == "text" or isinstance(block.get("signature"), str)
        notes.require(signed, "a thinking block without a signature, which Anthropic's SDKs expect", "style")
    elif kind == "tool_use":
        notes.require(is_text(block.get("id")), lambda: f"a tool_use block's id: {shorten(block)}")
        notes.require(is_text(block.get("name")), lambda: f"a tool_use's name: {shorten(block)}")
        given = block.get("input")
        notes.require(isinstance(given, dict), lambda: f"the input of a tool_use is {shorten(given)}, not an object")
    else:
        notes.require(is_text(kind), lambda: f"a block without a type: {shorten(block)}")
