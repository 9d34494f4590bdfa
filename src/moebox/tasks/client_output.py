"""Output of real clients, line by line, as turns like those of moebox's own agent.

Claude Code prints the server's own stream and the answers of its tools; opencode prints a summary of each step. A call
is valid as it is for moebox's own agent: an existing tool with arguments that fit. A call that the tool refused, such
as for a missing file, was valid.
"""

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace

from moebox.loose import Json, get_number, get_object, get_objects, get_text
from moebox.redact import decode_reply
from moebox.stream.events import StreamEvent
from moebox.tasks.agent import build_turn, token_gaps
from moebox.tasks.reply import AgentReply, AnthropicParts
from moebox.tasks.result import CallRecord, TurnRecord

MAX_KEPT_LINES = 4000
CLAUDE_INVALID = ("InputValidationError", "No such tool available")
OPENCODE_INVALID = "called with invalid arguments"


@dataclass(frozen=True, slots=True)
class ClientCall:
    """A call, and why it was not valid."""

    tool: str
    id: str = ""
    error: str = ""


class ClientOutput(ABC):
    def __init__(self, on_turn: Callable[[TurnRecord], None]) -> None:
        self.began = self.requested = time.monotonic()
        self.messages: list[Json] = []
        self.gaps: list[tuple[float, float]] = []
        self.text = ""
        self.problem = ""
        self.last_line = ""
        self._on_turn = on_turn
        self._turns: list[tuple[TurnRecord, list[ClientCall]]] = []
        self._errors: dict[str, str] = {}  # of calls by id; may come before the call's turn is over

    def read_line(self, raw: bytes) -> None:
        """Read one line; lines that are not JSON objects are ignored."""
        self.last_line = decode_reply(raw)
        try:
            event = json.loads(self.last_line)
        except (ValueError, RecursionError):
            return
        if isinstance(event, dict):
            if len(self.messages) < MAX_KEPT_LINES and event.get("type") != "stream_event":
                self.messages.append(event)
            self.handle_event(event)

    @abstractmethod
    def handle_event(self, event: Json) -> None:
        """Handle one event."""

    @property
    def turn_count(self) -> int:
        return len(self._turns)

    @property
    def turns(self) -> list[TurnRecord]:
        """All turns, with what is known by now of their calls."""
        turns: list[TurnRecord] = []
        bad_tools: set[str] = set()  # whose last call was not valid
        for turn, calls in self._turns:
            records = []
            for call in calls:
                error = call.error or self._errors.get(call.id, "")
                repaired = not error and call.tool in bad_tools
                (bad_tools.add if error else bad_tools.discard)(call.tool)
                record = CallRecord(tool=call.tool[:80], ok=not error, error=error[:300], repaired=repaired)
                records.append(record)
            turns.append(replace(turn, calls=tuple(records)))
        return turns

    def add_turn(self, reply: AgentReply, calls: list[ClientCall]) -> None:
        """Add a reply of the model that ends now."""
        turn = build_turn(len(self._turns) + 1, self.requested - self.began, reply, [])
        self._turns.append((turn, calls))
        self.gaps += token_gaps(reply)
        self.requested = time.monotonic()
        self._on_turn(self.turns[-1])


class ClaudeOutput(ClientOutput):
    """Claude Code's stream-json with partial messages; its whole messages have a usage that is not final."""

    def __init__(self, on_turn: Callable[[TurnRecord], None]) -> None:
        super().__init__(on_turn)
        self._parts = AnthropicParts()

    def handle_event(self, event: Json) -> None:
        match event.get("type"):
            case "system" if event.get("status") == "requesting":
                self.requested = time.monotonic()
            case "stream_event":
                # From message_start to message_stop is a turn
                data = get_object(event, "event")
                if data.get("type") == "message_start":
                    self._parts = AnthropicParts()
                since = time.monotonic() - self.requested
                self._parts.add(since, StreamEvent(data))
                if data.get("type") == "message_stop":
                    reply = self._parts.build_reply("", since)
                    self.add_turn(reply, [ClientCall(call.name, call.id) for call in reply.calls])
            case "user":
                for block in get_objects(event, "message.content"):
                    answer = get_text(block, "content")
                    if block.get("is_error") and any(mark in answer for mark in CLAUDE_INVALID):
                        self._errors[get_text(block, "tool_use_id")] = answer
            case "result":
                self.text = get_text(event, "result")
                self.problem = self.text[:300] if event.get("is_error") else ""


class OpencodeOutput(ClientOutput):
    """opencode's JSON events: steps, with text and tools between their begin and end."""

    def __init__(self, on_turn: Callable[[TurnRecord], None]) -> None:
        super().__init__(on_turn)
        self._calls: list[ClientCall] = []
        self._texts: list[str] = []

    def handle_event(self, event: Json) -> None:
        match event.get("type"):
            case "text":
                self.text = get_text(event, "part.text")
                self._texts.append(self.text)
            case "tool_use":
                part = get_object(event, "part")
                tool, error = get_text(part, "tool"), get_text(part, "state.error")
                error = error if OPENCODE_INVALID in error else ""
                if tool == "invalid":  # opencode's own tool for calls that it could not parse
                    tool, error = get_text(part, "state.input.tool"), get_text(part, "state.input.error") or "invalid"
                self._calls.append(ClientCall(tool, error=error))
            case "step_finish":
                self._finish_step(get_object(event, "part.tokens"))
            case "error":
                self.problem = str(event.get("error") or "")[:300]

    def _finish_step(self, tokens: Json) -> None:
        """Add the step as a turn; cached and reasoning tokens are counted apart."""

        def sum_counts(*names: str) -> int | None:
            counts = [number for name in names if (number := get_number(tokens, name)) is not None]
            return int(sum(counts)) if counts else None

        reply = AgentReply(
            text="".join(self._texts),
            prompt_tokens=sum_counts("input", "cache.read", "cache.write"),
            completion_tokens=sum_counts("output", "reasoning"),
            cached_tokens=sum_counts("cache.read"),
            seconds=time.monotonic() - self.requested,
        )
        self.add_turn(reply, self._calls)
        self._calls, self._texts = [], []
