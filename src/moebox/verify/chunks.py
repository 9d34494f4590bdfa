"""A streamed chat completion: its pieces put together, each held to the documented form."""

import json
from typing import Any

from moebox.core.verdict import HttpExchange
from moebox.phantom.tasks import ToolCall
from moebox.stream.sse import parse_events
from moebox.verify import breach
from moebox.verify.answer import (
    ChatAnswer,
    TokenLogprob,
    check_finish_reason,
    check_unique_ids,
    parse_token_logprobs,
    reasoning_text,
)
from moebox.verify.breach import Violations, object_of, objects_of, parse_strict_json, shorten, text_of


def parse_chat_stream(exchange: HttpExchange) -> ChatAnswer:
    """The answer of a stream."""
    parts = _ChatStream(exchange.request if isinstance(exchange.request, dict) else {})
    for _, data in parse_events(exchange.response):
        if parts.done:
            parts.violations.add("format", f"something came after [DONE]: {shorten(data)}")
            break
        if data.strip() == "[DONE]":
            parts.done = True
            continue
        try:
            parts.add(parse_strict_json(data))
        except ValueError as problem:
            parts.violations.add("format", f"a chunk is not JSON ({problem}): {shorten(data)}", fatal=True)
    return parts.answer()


class _ChatStream:
    """A stream while it is being put together."""

    def __init__(self, asked: dict[str, object]) -> None:
        self.request = asked
        self.violations = Violations()
        self.content: list[str] = []
        self.reasoning: list[str] = []
        self.calls: dict[int, dict[str, str]] = {}
        self.finishes: list[str] = []
        self.usage: dict[str, object] = {}
        self.tokens: list[TokenLogprob] = []
        self.ids: list[str] = []
        self.roles = 0
        self.chunks = 0
        self.in_order = True
        self.done = False

    def add(self, body: Any) -> None:
        """One chunk."""
        if not isinstance(body, dict):
            self.violations.add("format", f"a chunk is not an object: {shorten(body)}", fatal=True)
            return
        if body.get("error"):
            self.violations.add("format", f"an error inside the stream: {json.dumps(body['error'])[:200]}", fatal=True)
            return
        if body.get("choices") or body.get("usage"):  # Azure begins with a chunk of filter results and little else
            breach.check_header(self.violations, body, "chat.completion.chunk", text_of(self.request.get("model")))
        if breach.is_text(body.get("id")):
            self.ids.append(body["id"])
        self._usage(body.get("usage"))
        listed = body.get("choices")
        if self.violations.require(isinstance(listed, list), lambda: f"choices is {shorten(listed)}, not a list"):
            choices = objects_of(listed)
            self.violations.require(
                len(choices) < 2, lambda: f"{len(choices)} choices in a chunk, where one was asked for"
            )
            for choice in choices[:1]:
                self._choice(choice)

    def _usage(self, counts: Any) -> None:
        if not isinstance(counts, dict):
            self.violations.require(counts is None, lambda: f"usage is {shorten(counts)}", "usage")
            return
        before, now = (given.get("completion_tokens") for given in (self.usage, counts))
        if breach.is_count(before) and breach.is_count(now):
            self.violations.require(now >= before, lambda: f"usage counts down from {before} to {now} tokens", "usage")
        self.usage = counts

    def _choice(self, choice: dict[str, object]) -> None:
        self.violations.require(
            choice.get("index") == 0, lambda: f"a choice's index is {shorten(choice.get('index'))}, not 0"
        )
        delta = choice.get("delta")
        if self.violations.require(
            isinstance(delta, dict), lambda: f"a choice's delta is {shorten(delta)}, not an object"
        ):
            self._delta(object_of(delta))
        self.tokens += parse_token_logprobs(choice)
        if choice.get("finish_reason"):
            self.finishes.append(str(choice["finish_reason"]))

    def _delta(self, delta: dict[str, object]) -> None:
        self._only_strings(delta)
        said, thought = text_of(delta.get("content")), reasoning_text(delta)
        self.violations.check_surrogates(said, "a piece of content")
        calls = objects_of(delta.get("tool_calls"))
        something = bool(said or thought or calls)
        self._role(delta.get("role"), something)
        self.violations.require(not (something and self.finishes), "text after the finish_reason")
        if thought.strip() and self._has_begun():
            self.in_order = False
        self.chunks += something
        self.content.append(said)
        self.reasoning.append(thought)
        for position, item in enumerate(calls):
            self._call(position, item)

    def _only_strings(self, delta: dict[str, object]) -> None:
        """Pieces of text are strings, or null."""
        for key in ("content", "reasoning_content", "reasoning"):
            given = delta.get(key)
            if given is not None and not isinstance(given, str):
                self.violations.add("format", f"a piece of {key} is {shorten(given)}")

    def _has_begun(self) -> bool:
        """Words or calls of the answer came already: thoughts should stand before it."""
        return bool(self.calls) or any(piece.strip() for piece in self.content)

    def _role(self, role: Any, something: bool) -> None:
        if role is None or role == "":
            self.violations.require(self.roles > 0 or not something, "the stream begins without a role", "style")
            return
        self.violations.require(role == "assistant", lambda: f"a role is {shorten(role)}, not 'assistant'")
        self.roles += 1
        self.violations.require(self.roles == 1, "the role comes more than once", "style")

    def _call(self, position: int, item: dict[str, object]) -> None:
        given_index = item.get("index")
        self.violations.require(
            breach.is_count(given_index), lambda: f"a piece of a tool call has the index {shorten(given_index)}"
        )
        index = given_index if breach.is_count(given_index) else position
        function = object_of(item.get("function"))
        if index not in self.calls:
            self._opened(item, function)
        known = self.calls.setdefault(index, {"id": "", "name": "", "arguments": ""})
        self._named(known, "id", text_of(item.get("id")))
        self._named(known, "name", text_of(function.get("name")))
        given = function.get("arguments")
        self.violations.require(
            given is None or isinstance(given, str), lambda: f"a tool call's arguments are {shorten(given)}"
        )
        known["arguments"] += given if isinstance(given, str) else json.dumps(given) if given else ""

    def _opened(self, item: dict[str, object], function: dict[str, object]) -> None:
        """The first piece of a call says which it is."""
        self.violations.require(
            bool(text_of(item.get("id"))), lambda: f"a streamed tool call begins with the id {shorten(item.get('id'))}"
        )
        kind = item.get("type")
        self.violations.require(
            kind == "function", lambda: f"a streamed tool call's type is {shorten(kind)}, not 'function'"
        )
        name = function.get("name")
        self.violations.require(
            bool(text_of(name)), lambda: f"a streamed tool call begins with the name {shorten(name)}"
        )

    def _named(self, known: dict[str, str], key: str, value: str) -> None:
        if not value:
            return
        if known[key]:
            changed = known[key] != value
            self.violations.require(
                not changed, lambda: f"a streamed tool call changes its {key} from {known[key]!r} to {value!r}"
            )
            self.violations.require(
                changed, lambda: f"the {key} of a streamed tool call comes again in later pieces", "style"
            )
        known[key] = known[key] or value

    def answer(self) -> ChatAnswer:
        """All of it."""
        self._ended()
        calls = tuple(ToolCall(**self.calls[index]) for index in sorted(self.calls))
        check_unique_ids(self.violations, [call.id for call in calls])
        return ChatAnswer(
            id=self.ids[0] if self.ids else "",
            content="".join(self.content),
            reasoning="".join(self.reasoning),
            calls=calls,
            finish_reason=self.finishes[0] if self.finishes else "",
            usage=self.usage,
            tokens=tuple(self.tokens),
            chunks=self.chunks,
            reasoning_first=self.in_order,
            stream=True,
            violations=self.violations.items,
        )

    def _ended(self) -> None:
        notes = self.violations
        notes.require(bool(self.finishes), "the stream ended without a finish_reason", "finish")
        notes.require(len(self.finishes) < 2, lambda: f"{len(self.finishes)} finish_reasons in one stream", "finish")
        for finish in self.finishes[:1]:
            check_finish_reason(notes, finish, bool(self.calls), self.request)
        notes.require(self.done, "the stream ended without [DONE]")
        notes.require(len(set(self.ids)) < 2, lambda: f"{len(set(self.ids))} different ids in one stream")
        indexes = sorted(self.calls)
        notes.require(indexes == list(range(len(indexes))), lambda: f"tool calls have the indexes {indexes}")
        wanted = object_of(self.request.get("stream_options")).get("include_usage")
        if wanted and notes.require(bool(self.usage), "the stream has no usage, which was asked for", "usage"):
            breach.check_usage(notes, self.usage)
