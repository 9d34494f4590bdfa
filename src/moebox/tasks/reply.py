"""One reply of the model within a job, over either API: streamed, timed, bounded, put together.

What the server does wrong is in `Reply.problem`; nothing here raises because of it.
"""

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

from moebox.core.endpoint import Endpoint
from moebox.errors import ExternalError
from moebox.loose import Json, get_number, get_object, get_text
from moebox.redact import hide_known_keys
from moebox.stream import CONTENT, REASONING, StreamEvent, StreamExchange
from moebox.stream.events import ANTHROPIC_INPUTS, anthropic_prompt_tokens
from moebox.stream.exchange import join_tool_calls
from moebox.tasks.tools import AgentTool

TaskApi = Literal["openai", "anthropic"]
VERSION = "2023-06-01"  # the only value of anthropic-version in use
SLACK = 256  # events beyond max_tokens that an honest stream may have
SILENT_S = 120.0  # longest time without a byte; shorter where the job has less left
CONTEXT_WORDS = ("context length", "context size", "context window", "maximum context", "too long", "n_ctx", "exceed")


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedCall:
    """One tool call as the model wrote it."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentReply:
    """What came back."""

    text: str = ""
    reasoning: str = ""
    calls: tuple[RequestedCall, ...] = ()
    finish: str = ""
    problem: str = ""  # "" when the reply is whole
    context_full: bool = False
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    ttft_s: float | None = None
    seconds: float = 0.0
    gaps_s: tuple[float, ...] = field(default=(), repr=False)  # between events that carried tokens

    @property
    def output_tokens(self) -> int:
        """Tokens of the reply, as far as anybody counted them."""
        return self.completion_tokens or 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplySettings:
    """How replies are asked for."""

    endpoint: Endpoint
    api: TaskApi = "openai"
    temperature: float = 0.0
    thinking: bool | None = None  # None: as the server does by itself


Messages = Sequence[Json]
Stop = Callable[[], bool]


def request_reply(
    settings: ReplySettings,
    system: str,
    messages: Messages,
    tools: Sequence[AgentTool],
    *,
    max_tokens: int,
    ends_at: float,
    stop: Stop,
) -> AgentReply:
    """One reply, of `most` tokens at most, not later than `until` (monotonic)."""
    parts, exchange = _exchange(settings, system, messages, tools, max_tokens, ends_at)
    began = time.monotonic()
    try:
        problem = _heard(parts, exchange, max_tokens, ends_at, stop)
    except ExternalError as failure:
        problem = failure.message
    if not problem and not parts.finish:
        problem = "the stream broke off: it ended without saying why"
    return parts.build_reply(problem, time.monotonic() - began)


def _heard(parts: "ReplyParts", exchange: Callable[[], StreamExchange], most: int, until: float, stop: Stop) -> str:
    """Put the stream together to its end; what went wrong on the way, or nothing."""
    with exchange() as events:
        for count, (at, event) in enumerate(events):
            parts.add(at, event)
            problem = parts.error or _overrun(count, most, until, stop)
            if problem:
                return problem
    return "" if events.status == 200 else f"HTTP {events.status}"


def _exchange(
    ask: ReplySettings, system: str, messages: Messages, tools: Sequence[AgentTool], most: int, until: float
) -> tuple["ReplyParts", Callable[[], StreamExchange]]:
    """What puts the stream together, and the request in the API's words."""
    silent = max(1.0, min(SILENT_S, until - time.monotonic()))
    if ask.api == "anthropic":
        body = _messages_body(ask, system, messages, tools, most)
        headers = {"anthropic-version": VERSION, "x-api-key": ask.endpoint.key or "none"}
        return AnthropicParts(), lambda: StreamExchange(
            ask.endpoint, body, path="/messages", timeout_s=silent, headers=headers
        )
    chat = chat_body(ask, system, messages, tools, most)
    return _Chat(), lambda: StreamExchange(ask.endpoint, chat, timeout_s=silent)


def _overrun(count: int, most: int, until: float, stop: Stop) -> str:
    """Why a stream is left in its middle, or ""."""
    if time.monotonic() > until:
        return "out of time in the middle of a reply"
    if stop():
        return "stopped"
    return f"no end: {count} events for {most} tokens at most" if count > 2 * most + SLACK else ""


def tool_result_messages(api: TaskApi, given: AgentReply, results: Sequence[tuple[RequestedCall, str]]) -> list[Json]:
    """The reply and what its calls brought, as the next request tells them."""
    return (_anthropic_results if api == "anthropic" else _openai_results)(given, results)


def _anthropic_results(given: AgentReply, results: Sequence[tuple[RequestedCall, str]]) -> list[Json]:
    blocks: list[Json] = [{"type": "text", "text": given.text}] if given.text.strip() else []
    blocks += [{"type": "tool_use", "id": c.id, "name": c.name, "input": _readable(c.arguments)} for c in given.calls]
    answers = [{"type": "tool_result", "tool_use_id": call.id, "content": text} for call, text in results]
    return [{"role": "assistant", "content": blocks}, {"role": "user", "content": answers}]


def _openai_results(given: AgentReply, results: Sequence[tuple[RequestedCall, str]]) -> list[Json]:
    calls = [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": _repaired(call.arguments)}}
        for call in given.calls
    ]
    message: dict[str, object] = {"role": "assistant", "content": given.text or None, "tool_calls": calls}
    if given.reasoning:
        message["reasoning_content"] = given.reasoning
    told = [{"role": "tool", "tool_call_id": call.id, "name": call.name, "content": text} for call, text in results]
    return [message, *told]


def chat_body(
    settings: ReplySettings, system: str, messages: Messages, tools: Sequence[AgentTool], max_tokens: int
) -> Json:
    """The request of OpenAI's API."""
    body: dict[str, object] = {
        "model": settings.endpoint.model,
        "messages": [{"role": "system", "content": system}, *messages],
        "temperature": settings.temperature,
        "max_tokens": max_tokens,
        "stream_options": {"include_usage": True},
    }
    if settings.thinking is not None:
        body["chat_template_kwargs"] = {"thinking": settings.thinking, "enable_thinking": settings.thinking}
    if tools:
        functions = [
            {"name": tool.name, "description": tool.description, "parameters": tool.parameters} for tool in tools
        ]
        body["tools"] = [{"type": "function", "function": function} for function in functions]
        body["tool_choice"] = "auto"
    return body


def _messages_body(ask: ReplySettings, system: str, messages: Messages, tools: Sequence[AgentTool], most: int) -> Json:
    body: dict[str, object] = {
        "model": ask.endpoint.model,
        "system": system,
        "messages": list(messages),
        "temperature": ask.temperature,
        "max_tokens": most,
    }
    if tools:
        body["tools"] = [
            {"name": tool.name, "description": tool.description, "input_schema": tool.parameters} for tool in tools
        ]
    return body


class ReplyParts(ABC):
    """A stream while it is put together."""

    def __init__(self) -> None:
        self.text: list[str] = []
        self.reasoning: list[str] = []
        self.times: list[float] = []
        self.finish = ""
        self.error = ""
        self.usage = [-1, -1, -1]  # prompt, completion, cached

    @abstractmethod
    def calls(self) -> tuple[RequestedCall, ...]:
        """The calls that are there by now."""

    @abstractmethod
    def add(self, at: float, event: StreamEvent) -> None:
        """One event."""

    def build_reply(self, problem: str, seconds: float) -> AgentReply:
        """All of it."""
        prompt, completion, cached = (number if number >= 0 else None for number in self.usage)
        return AgentReply(
            text=hide_known_keys("".join(self.text)),
            reasoning=hide_known_keys("".join(self.reasoning)),
            calls=self.calls(),
            finish=self.finish,
            problem=problem,
            context_full=_is_context(problem),
            prompt_tokens=prompt,
            completion_tokens=completion if completion is not None else len(self.times) or None,
            cached_tokens=cached,
            ttft_s=self.times[0] if self.times else None,
            seconds=seconds,
            gaps_s=tuple(b - a for a, b in pairwise(self.times)),
        )


def _is_context(problem: str) -> bool:
    """Whether it is about a prompt that is too long."""
    return any(word in problem.lower() for word in CONTEXT_WORDS)


class _Chat(ReplyParts):
    """OpenAI's chunks."""

    def __init__(self) -> None:
        super().__init__()
        self._data: list[Json] = []

    def add(self, at: float, event: StreamEvent) -> None:
        self.error = self.error or event.error
        if event.kind:
            self.times.append(at)
            self._data.append(event.data)
        if event.kind == CONTENT:
            self.text.append(event.text)
        elif event.kind == REASONING:
            self.reasoning.append(event.text)
        self.finish = event.finish or self.finish
        if event.usage:
            prompt, completion, cached, *_ = event.usage
            self.usage = [prompt, completion, cached if cached >= 0 else _reused(event.data)]

    def calls(self) -> tuple[RequestedCall, ...]:
        joined = join_tool_calls(self._data)
        return tuple(
            RequestedCall(id=call.id or f"call_{place}", name=call.name, arguments=call.arguments)
            for place, call in enumerate(joined)
        )


def _reused(data: Json) -> int:
    """Prompt tokens that llama.cpp found in its slot, which it tells beside the usage; -1 where nobody does."""
    reused = get_number(data, "timings.cache_n")
    return -1 if reused is None or reused < 0 else int(reused)


class AnthropicParts(ReplyParts):
    """Anthropic's events. What its servers found in a cache they count apart from the other tokens of a prompt."""

    def __init__(self) -> None:
        super().__init__()
        self._told: dict[str, int] = {}
        self._blocks: dict[int, dict[str, str]] = {}

    def add(self, at: float, event: StreamEvent) -> None:
        data = event.data
        index = int(get_number(data, "index") or 0)
        match data.get("type"):
            case "message_start":
                self._count(get_object(data, "message.usage"))
            case "content_block_start":
                self._begin(index, get_object(data, "content_block"))
            case "content_block_delta":
                self._delta(at, index, get_object(data, "delta"))
            case "message_delta":
                self.finish = get_text(data, "delta.stop_reason") or self.finish
                self._count(get_object(data, "usage"))
            case "error":
                self.error = event.error or "an error inside the stream"
        self.error = self.error or event.error

    def _begin(self, index: int, block: Json) -> None:
        self._blocks[index] = {name: get_text(block, name) for name in ("type", "id", "name")} | {"arguments": ""}

    def _delta(self, at: float, index: int, delta: Json) -> None:
        self.times.append(at)
        self.text.append(get_text(delta, "text"))
        self.reasoning.append(get_text(delta, "thinking"))
        if index in self._blocks:
            self._blocks[index]["arguments"] += get_text(delta, "partial_json")

    def _count(self, usage: Json) -> None:
        told = {name: get_number(usage, name) for name in (*ANTHROPIC_INPUTS, "output_tokens")}
        self._told |= {name: int(number) for name, number in told.items() if number is not None}
        prompt = anthropic_prompt_tokens(self._told)
        written, cached = (self._told.get(name, -1) for name in ("output_tokens", "cache_read_input_tokens"))
        self.usage = [-1 if prompt is None else prompt, written, cached]

    def calls(self) -> tuple[RequestedCall, ...]:
        used = [block for _, block in sorted(self._blocks.items()) if block["type"] == "tool_use"]
        return tuple(
            RequestedCall(id=block["id"] or f"call_{place}", name=block["name"], arguments=block["arguments"] or "{}")
            for place, block in enumerate(used)
        )


def _loads(arguments: str) -> Json | None:
    """A call's arguments; None where they are no JSON object."""
    try:
        value = json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _readable(arguments: str) -> Json:
    """Arguments as servers take them back: their templates parse them, and many answer 500 to what is no JSON."""
    given = _loads(arguments)
    return {"unreadable": arguments[:2000]} if given is None else given


def _repaired(arguments: str) -> str:
    return arguments if _loads(arguments) is not None else json.dumps(_readable(arguments))
