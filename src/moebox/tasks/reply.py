"""One reply of the model within a job, over either API: streamed, timed, bounded.

A server's mistakes are in `AgentReply.problem`; nothing here raises because of them.
"""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Literal

from moebox.core.endpoint import Endpoint, ToolCall
from moebox.errors import ExternalError
from moebox.loose import Json, get_number, get_object, get_text, read_json
from moebox.redact import hide_known_keys
from moebox.stream.events import ANTHROPIC_INPUTS, CONTENT, REASONING, StreamEvent, anthropic_prompt_tokens
from moebox.stream.exchange import StreamExchange, join_tool_calls
from moebox.tasks.tools import AgentTool

TaskApi = Literal["openai", "anthropic"]
VERSION = "2023-06-01"  # the only value of anthropic-version in use
SLACK_EVENTS = 256  # events beyond max_tokens of a correct stream
MAX_SILENCE_S = 120.0  # without a byte; less if the job has less time left
CONTEXT_WORDS = ("context length", "context size", "context window", "maximum context", "too long", "n_ctx", "exceed")


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentReply:
    text: str = ""
    reasoning: str = ""
    calls: tuple[ToolCall, ...] = ()
    finish: str = ""
    problem: str = ""  # "" if the reply is complete
    context_full: bool = False
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    ttft_s: float | None = None
    seconds: float = 0.0
    gaps_s: tuple[float, ...] = field(default=(), repr=False)  # between events with tokens

    @property
    def output_tokens(self) -> int:
        """Tokens of the reply, 0 if unknown."""
        return self.completion_tokens or 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplySettings:
    endpoint: Endpoint
    api: TaskApi = "openai"
    temperature: float = 0.0
    thinking: bool | None = None  # None leaves it to the server


Messages = Sequence[Json]
ShouldStop = Callable[[], bool]
Results = Sequence[tuple[ToolCall, str]]


def request_reply(
    settings: ReplySettings,
    system: str,
    messages: Messages,
    tools: Sequence[AgentTool],
    *,
    max_tokens: int,
    ends_at: float,
    stop: ShouldStop,
) -> AgentReply:
    """Request one reply that ends before `ends_at` (monotonic clock)."""
    silence_s = max(1.0, min(MAX_SILENCE_S, ends_at - time.monotonic()))
    parts: ReplyParts
    if settings.api == "anthropic":
        parts, path = AnthropicParts(), "/messages"
        headers = {"anthropic-version": VERSION, "x-api-key": settings.endpoint.key or "none"}
    else:
        parts, path, headers = ReplyParts(), "/chat/completions", {}
    body = request_body(settings, system, messages, tools, max_tokens)
    began = time.monotonic()
    problem = ""
    try:
        with StreamExchange(settings.endpoint, body, path=path, timeout_s=silence_s, headers=headers) as events:
            for count, (at, event) in enumerate(events):
                parts.add(at, event)
                problem = parts.error
                if not problem and time.monotonic() > ends_at:
                    problem = "out of time in the middle of a reply"
                elif not problem and stop():
                    problem = "stopped"
                elif not problem and count > 2 * max_tokens + SLACK_EVENTS:
                    problem = f"no end: {count} events for {max_tokens} tokens at most"
                if problem:
                    break
        if not problem and events.status != 200:
            problem = f"HTTP {events.status}"
    except ExternalError as failure:
        problem = failure.message
    if not problem and not parts.finish:
        problem = "the stream broke off: it ended without a finish_reason"
    return parts.build_reply(problem, time.monotonic() - began)


def tool_result_messages(api: TaskApi, reply: AgentReply, results: Results) -> list[Json]:
    """The reply and the results of its calls as messages of the next request.

    Arguments that are not JSON are wrapped: servers' templates parse them, and many answer 500 otherwise.
    """
    calls: list[tuple[ToolCall, str, Json]] = []
    for call in reply.calls:
        value = read_json(call.arguments or "{}")
        readable = isinstance(value, dict)
        given = value if readable else {"unreadable": call.arguments[:2000]}
        calls.append((call, call.arguments if readable else json.dumps(given), given))
    if api == "anthropic":
        blocks: list[Json] = [{"type": "text", "text": reply.text}] if reply.text.strip() else []
        blocks += [{"type": "tool_use", "id": call.id, "name": call.name, "input": given} for call, _, given in calls]
        answers = [{"type": "tool_result", "tool_use_id": call.id, "content": text} for call, text in results]
        return [{"role": "assistant", "content": blocks}, {"role": "user", "content": answers}]
    functions = [(call.id, {"name": call.name, "arguments": arguments}) for call, arguments, _ in calls]
    message: dict[str, object] = {
        "role": "assistant",
        "content": reply.text or None,
        "tool_calls": [{"id": identity, "type": "function", "function": function} for identity, function in functions],
    }
    if reply.reasoning:
        message["reasoning_content"] = reply.reasoning
    returned = [{"role": "tool", "tool_call_id": call.id, "name": call.name, "content": text} for call, text in results]
    return [message, *returned]


def request_body(
    settings: ReplySettings, system: str, messages: Messages, tools: Sequence[AgentTool], max_tokens: int
) -> Json:
    """Request body of either API."""
    body: dict[str, object] = {"model": settings.endpoint.model, "temperature": settings.temperature}
    body["max_tokens"] = max_tokens
    if settings.api == "anthropic":
        named = [{"name": t.name, "description": t.description, "input_schema": t.parameters} for t in tools]
        return body | {"system": system, "messages": list(messages)} | ({"tools": named} if tools else {})
    body["messages"] = [{"role": "system", "content": system}, *messages]
    body["stream_options"] = {"include_usage": True}
    if settings.thinking is not None:
        body["chat_template_kwargs"] = {"thinking": settings.thinking, "enable_thinking": settings.thinking}
    if tools:
        functions = [{"name": t.name, "description": t.description, "parameters": t.parameters} for t in tools]
        body["tools"] = [{"type": "function", "function": function} for function in functions]
        body["tool_choice"] = "auto"
    return body


class ReplyParts:
    """A stream of OpenAI's chunks while it is assembled."""

    def __init__(self) -> None:
        self.text: list[str] = []
        self.reasoning: list[str] = []
        self.times: list[float] = []
        self.finish = ""
        self.error = ""
        self.usage = [-1, -1, -1]  # prompt, completion, cached; -1 if unknown
        self._data: list[Json] = []

    def build_reply(self, problem: str, seconds: float) -> AgentReply:
        prompt, completion, cached = (number if number >= 0 else None for number in self.usage)
        return AgentReply(
            text=hide_known_keys("".join(self.text)),
            reasoning=hide_known_keys("".join(self.reasoning)),
            calls=self.calls(),
            finish=self.finish,
            problem=problem,
            context_full=any(word in problem.lower() for word in CONTEXT_WORDS),
            prompt_tokens=prompt,
            completion_tokens=completion,
            cached_tokens=cached,
            ttft_s=next(iter(self.times), None),
            seconds=seconds,
            gaps_s=tuple(b - a for a, b in pairwise(self.times)),
        )

    def add(self, at: float, event: StreamEvent) -> None:
        """Add one event."""
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
            prompt, completion, cached = event.usage
            if cached < 0:  # llama.cpp reports the tokens found in its slot beside the usage
                reused = get_number(event.data, "timings.cache_n")
                cached = -1 if reused is None or reused < 0 else int(reused)
            self.usage = [prompt, completion, cached]

    def calls(self) -> tuple[ToolCall, ...]:
        """The calls so far."""
        joined = enumerate(join_tool_calls(self._data))
        return tuple(replace(call, id=call.id or f"call_{place}") for place, call in joined)


class AnthropicParts(ReplyParts):
    """Anthropic's events. Its servers count cached tokens apart from the other tokens of a prompt."""

    def __init__(self) -> None:
        super().__init__()
        self._counts: dict[str, int] = {}
        self._blocks: dict[int, dict[str, str]] = {}

    def add(self, at: float, event: StreamEvent) -> None:
        data = event.data
        index = int(get_number(data, "index") or 0)
        match data.get("type"):
            case "message_start":
                self._count(get_object(data, "message.usage"))
            case "content_block_start":
                block = get_object(data, "content_block")
                named = {name: get_text(block, name) for name in ("type", "id", "name")}
                self._blocks[index] = named | {"arguments": ""}
            case "content_block_delta":
                delta = get_object(data, "delta")
                self.times.append(at)
                self.text.append(get_text(delta, "text"))
                self.reasoning.append(get_text(delta, "thinking"))
                if index in self._blocks:
                    self._blocks[index]["arguments"] += get_text(delta, "partial_json")
            case "message_delta":
                self.finish = get_text(data, "delta.stop_reason") or self.finish
                self._count(get_object(data, "usage"))
            case "error":
                self.error = event.error or "an error inside the stream"
        self.error = self.error or event.error

    def _count(self, usage: Json) -> None:
        for name in (*ANTHROPIC_INPUTS, "output_tokens"):
            number = get_number(usage, name)
            if number is not None:
                self._counts[name] = int(number)
        prompt = anthropic_prompt_tokens(self._counts)
        written, cached = (self._counts.get(name, -1) for name in ("output_tokens", "cache_read_input_tokens"))
        self.usage = [-1 if prompt is None else prompt, written, cached]

    def calls(self) -> tuple[ToolCall, ...]:
        used = [block for _, block in sorted(self._blocks.items()) if block["type"] == "tool_use"]
        return tuple(
            ToolCall(id=block["id"] or f"call_{place}", name=block["name"], arguments=block["arguments"] or "{}")
            for place, block in enumerate(used)
        )
