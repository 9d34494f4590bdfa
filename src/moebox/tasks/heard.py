"""What a real client says of its work, line by line, as the turns of our own agent.

Claude Code tells the server's own stream and what its tools answered; opencode a summary of each step. Calls are valid
or not as our own agent's are: a tool that there is, with arguments that fit. One that was refused, such as a file that
is not there, was valid.
"""

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace

from moebox.loose import Json, get_number, get_object, get_objects, get_text
from moebox.redact import decode_reply
from moebox.stream import StreamEvent
from moebox.tasks.agent import build_turn, token_gaps
from moebox.tasks.reply import AgentReply, AnthropicParts
from moebox.tasks.result import CallRecord, TurnRecord

KEPT_LINES = 4000
CLAUDE_INVALID = ("InputValidationError", "No such tool available")
OPENCODE_INVALID = "called with invalid arguments"


@dataclass(frozen=True, slots=True)
class ClientCall:
    """A call, and why it was not valid."""

    tool: str
    id: str = ""
    error: str = ""


class ClientOutput(ABC):
    """A client's work so far."""

    def __init__(self, on_turn: Callable[[TurnRecord], None]) -> None:
        self.began = self.asked = time.monotonic()
        self.messages: list[Json] = []
        self.gaps: list[tuple[float, float]] = []
        self.text = ""
        self.problem = ""
        self.last = ""
        self._on_turn = on_turn
        self._turns: list[tuple[TurnRecord, list[ClientCall]]] = []
        self._errors: dict[str, str] = {}  # of calls by their ids, which may be told before the call's turn is over

    def read_line(self, raw: bytes) -> None:
        """One line of its output."""
        self.last = decode_reply(raw)
        try:
            event = json.loads(self.last)
        except (ValueError, RecursionError):
            return
        if isinstance(event, dict):
            if len(self.messages) < KEPT_LINES and event.get("type") != "stream_event":
                self.messages.append(event)
            self.handle_event(event)

    @abstractmethod
    def handle_event(self, event: Json) -> None:
        """One event."""

    @property
    def turn_count(self) -> int:
        """Turns so far."""
        return len(self._turns)

    @property
    def turns(self) -> list[TurnRecord]:
        """All of them, with what is known by now of their calls."""
        bad: set[str] = set()
        return [replace(turn, calls=tuple(self._seen(call, bad) for call in calls)) for turn, calls in self._turns]

    def _seen(self, call: ClientCall, bad: set[str]) -> CallRecord:
        """A call with its verdict; `bad` are the tools whose last call was none."""
        error = call.error or self._errors.get(call.id, "")
        repaired = not error and call.tool in bad
        (bad.add if error else bad.discard)(call.tool)
        return CallRecord(tool=call.tool[:80], ok=not error, error=error[:300], repaired=repaired)

    def add_turn(self, got: AgentReply, calls: list[ClientCall]) -> None:
        """One reply of the model's, which ends now."""
        turn = build_turn(len(self._turns) + 1, self.asked - self.began, got, [])
        self._turns.append((turn, calls))
        self.gaps += token_gaps(got)
        self.asked = time.monotonic()
        self._on_turn(self.turns[-1])


class ClaudeOutput(ClientOutput):
    """Claude Code's stream-json with partial messages: whole ones come a block each, with a usage that is not final."""

    def __init__(self, on_turn: Callable[[TurnRecord], None]) -> None:
        super().__init__(on_turn)
        self._parts = AnthropicParts()

    def handle_event(self, event: Json) -> None:
        match event.get("type"):
            case "system" if event.get("status") == "requesting":
                self.asked = time.monotonic()
            case "stream_event":
                self._stream(get_object(event, "event"))
            case "user":
                self._answers(get_objects(event, "message.content"))
            case "result":
                self.text = get_text(event, "result")
                self.problem = self.text[:300] if event.get("is_error") else ""

    def _stream(self, data: Json) -> None:
        """An event of the server's: from message_start to message_stop is a turn."""
        if data.get("type") == "message_start":
            self._parts = AnthropicParts()
        since = time.monotonic() - self.asked
        self._parts.add(since, StreamEvent(data))
        if data.get("type") == "message_stop":
            got = self._parts.build_reply("", since)
            self.add_turn(got, [ClientCall(call.name, call.id) for call in got.calls])

    def _answers(self, blocks: list[Json]) -> None:
        """What its tools answered to invalid calls."""
        for block in blocks:
            said = get_text(block, "content")
            if block.get("is_error") and any(sign in said for sign in CLAUDE_INVALID):
                self._errors[get_text(block, "tool_use_id")] = said


class OpencodeOutput(ClientOutput):
    """opencode's JSON events: steps, with the text and the tools between their begin and end."""

    def __init__(self, on_turn: Callable[[TurnRecord], None]) -> None:
        super().__init__(on_turn)
        self._calls: list[ClientCall] = []
        self._said: list[str] = []

    def handle_event(self, event: Json) -> None:
        match event.get("type"):
            case "text":
                self.text = get_text(event, "part.text")
                self._said.append(self.text)
            case "tool_use":
                self._calls.append(self._call(get_object(event, "part")))
            case "step_finish":
                self._finish(get_object(event, "part.tokens"))
            case "error":
                self.problem = str(event.get("error") or "")[:300]

    @staticmethod
    def _call(part: Json) -> ClientCall:
        """One call; those that it could not read it hands to a tool of its own, named invalid."""
        if part.get("tool") == "invalid":
            return ClientCall(
                get_text(part, "state.input.tool"), error=get_text(part, "state.input.error") or "invalid"
            )
        error = get_text(part, "state.error")
        return ClientCall(get_text(part, "tool"), error=error if OPENCODE_INVALID in error else "")

    def _finish(self, tokens: Json) -> None:
        """A step is over; what was cached, and what was thought, it counts apart."""

        def counted(*names: str) -> int | None:
            told = [number for name in names if (number := get_number(tokens, name)) is not None]
            return int(sum(told)) if told else None

        got = AgentReply(
            text="".join(self._said),
            prompt_tokens=counted("input", "cache.read", "cache.write"),
            completion_tokens=counted("output", "reasoning"),
            cached_tokens=counted("cache.read"),
            seconds=time.monotonic() - self.asked,
        )
        self.add_turn(got, self._calls)
        self._calls, self._said = [], []
