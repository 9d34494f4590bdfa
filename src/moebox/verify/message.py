"""One message of Anthropic's API: what it says, and everything that is wrong with its form."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from moebox.core.verdict import Exchange
from moebox.phantom.tasks import Call, Reply
from moebox.verify.breach import Breach, Notes, echo, is_count, is_text, short, strict_json

STOPS = (
    "end_turn",
    "max_tokens",
    "stop_sequence",
    "tool_use",
    "pause_turn",
    "refusal",
    "model_context_window_exceeded",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One answer of the messages API."""

    id: str = ""
    text: str = ""
    thinking: str = ""
    calls: tuple[Call, ...] = ()
    stop: str = ""
    usage: Mapping[str, Any]
    breaches: tuple[Breach, ...] = ()

    @property
    def reply(self) -> Reply:
        """As the judges of tasks want it."""
        return Reply(content=self.text, reasoning=self.thinking, calls=self.calls)


def whole(exchange: Exchange, asked: Mapping[str, Any]) -> Message:
    """A message that came in one piece."""
    notes = Notes()
    try:
        body = strict_json(exchange.response)
    except ValueError as problem:
        return broken(notes, f"the message is not JSON: {problem}")
    if not isinstance(body, dict) or not isinstance(body.get("content"), list):
        return broken(notes, f"not a message of this API: {short(body)}")
    head(notes, body, asked)
    counts(notes, body.get("usage"), least=1)
    blocks = [block for block in body["content"] if isinstance(block, dict)]
    notes.need("stop_sequence" in body, "the message has no stop_sequence", "style")
    return message(notes, body, blocks, body.get("stop_reason"), body.get("usage"))


def broken(notes: Notes, why: str) -> Message:
    """What cannot be judged at all."""
    notes.add("format", why, fatal=True)
    return Message(usage={}, breaches=notes.all)


def head(notes: Notes, body: Mapping[str, Any], asked: Mapping[str, Any]) -> None:
    """id, type, role and model."""
    notes.need(is_text(body.get("id")), lambda: f"the message's id is {short(body.get('id'))}")
    notes.need(body.get("type") == "message", lambda: f"the message's type is {short(body.get('type'))}, not 'message'")
    notes.need(body.get("role") == "assistant", lambda: f"the role is {short(body.get('role'))}, not 'assistant'")
    echo(notes, body.get("model"), str(asked.get("model", "")))


def counts(notes: Notes, usage: Any, *, least: int) -> None:
    """input_tokens and output_tokens are numbers."""
    if not notes.need(isinstance(usage, dict), lambda: f"usage is {short(usage)}", "usage"):
        return
    for key in ("input_tokens", "output_tokens"):
        number = usage.get(key)
        notes.need(is_count(number) and number >= least, f"usage counts {short(number)} {key}", "usage")


def message(notes: Notes, body: Mapping[str, Any], blocks: list[dict[str, object]], stop: Any, usage: Any) -> Message:
    """The message from its blocks, each held to its type."""
    for block in blocks:
        _block(notes, block)
    calls = tuple(_call(block) for block in blocks if block.get("type") == "tool_use")
    notes.need(len({call.id for call in calls}) == len(calls), "two tool_use blocks share an id")
    _stop(notes, stop, bool(calls))
    return Message(
        id=str(body.get("id") or ""),
        text=_joined(blocks, "text"),
        thinking=_joined(blocks, "thinking"),
        calls=calls,
        stop=str(stop or ""),
        usage=usage if isinstance(usage, dict) else {},
        breaches=notes.all,
    )


def _joined(blocks: list[dict[str, object]], kind: str) -> str:
    """The text of all blocks of a kind."""
    return "".join(str(block.get(kind) or "") for block in blocks if block.get("type") == kind)


def _call(block: dict[str, object]) -> Call:
    """The call that a tool_use block makes."""
    name, arguments = str(block.get("name") or ""), json.dumps(block.get("input"))
    return Call(id=str(block.get("id") or ""), name=name, arguments=arguments)


def _stop(notes: Notes, stop: Any, called: bool) -> None:
    """stop_reason is a known one, and "tool_use" where there are calls, save where max_tokens cut them."""
    notes.need(stop in STOPS, lambda: f"stop_reason is {short(stop)}", "finish")
    if not called:
        notes.need(stop != "tool_use", "stop_reason 'tool_use' without a tool_use block", "finish")
    elif stop != "max_tokens":
        notes.need(stop == "tool_use", lambda: f"stop_reason {stop!r} with a tool_use block", "finish")


def _block(notes: Notes, block: Mapping[str, Any]) -> None:
    kind = block.get("type")
    if kind in ("text", "thinking"):
        notes.need(isinstance(block.get(kind), str), lambda: f"a {kind} block without {kind}: {short(block)}")
        signed = kind == "text" or isinstance(block.get("signature"), str)
        notes.need(signed, "a thinking block without a signature, which Anthropic's SDKs expect", "style")
    elif kind == "tool_use":
        notes.need(is_text(block.get("id")), lambda: f"a tool_use block's id: {short(block)}")
        notes.need(is_text(block.get("name")), lambda: f"a tool_use's name: {short(block)}")
        given = block.get("input")
        notes.need(isinstance(given, dict), lambda: f"the input of a tool_use is {short(given)}, not an object")
    else:
        notes.need(is_text(kind), lambda: f"a block without a type: {short(block)}")
