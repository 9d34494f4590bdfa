"""A streamed chat completion: its pieces put together, each held to the documented form."""

import json
from typing import Any

from moebox.core.verdict import Exchange
from moebox.phantom.tasks import Call
from moebox.stream.sse import events
from moebox.verify import breach
from moebox.verify.answer import Answer, Token, check_finish, reasoning_in, tokens_in, unique_ids
from moebox.verify.breach import Notes, object_of, objects_of, short, strict_json, text_of


def streamed(exchange: Exchange) -> Answer:
    """The answer of a stream."""
    parts = _Parts(exchange.request if isinstance(exchange.request, dict) else {})
    for _, data in events(exchange.response):
        if parts.done:
            parts.notes.add("format", f"something came after [DONE]: {short(data)}")
            break
        if data.strip() == "[DONE]":
            parts.done = True
            continue
        try:
            parts.add(strict_json(data))
        except ValueError as problem:
            parts.notes.add("format", f"a chunk is not JSON ({problem}): {short(data)}", fatal=True)
    return parts.answer()


class _Parts:
    """A stream while it is being put together."""

    def __init__(self, asked: dict[str, object]) -> None:
        self.asked = asked
        self.notes = Notes()
        self.content: list[str] = []
        self.reasoning: list[str] = []
        self.calls: dict[int, dict[str, str]] = {}
        self.finishes: list[str] = []
        self.usage: dict[str, object] = {}
        self.tokens: list[Token] = []
        self.ids: list[str] = []
        self.roles = 0
        self.chunks = 0
        self.in_order = True
        self.done = False

    def add(self, body: Any) -> None:
        """One chunk."""
        if not isinstance(body, dict):
            self.notes.add("format", f"a chunk is not an object: {short(body)}", fatal=True)
            return
        if body.get("error"):
            self.notes.add("format", f"an error inside the stream: {json.dumps(body['error'])[:200]}", fatal=True)
            return
        if body.get("choices") or body.get("usage"):  # Azure begins with a chunk of filter results and little else
            breach.head(self.notes, body, "chat.completion.chunk", text_of(self.asked.get("model")))
        if breach.is_text(body.get("id")):
            self.ids.append(body["id"])
        self._usage(body.get("usage"))
        listed = body.get("choices")
        if self.notes.need(isinstance(listed, list), lambda: f"choices is {short(listed)}, not a list"):
            choices = objects_of(listed)
            self.notes.need(len(choices) < 2, lambda: f"{len(choices)} choices in a chunk, where one was asked for")
            for choice in choices[:1]:
                self._choice(choice)

    def _usage(self, counts: Any) -> None:
        if not isinstance(counts, dict):
            self.notes.need(counts is None, lambda: f"usage is {short(counts)}", "usage")
            return
        before, now = (given.get("completion_tokens") for given in (self.usage, counts))
        if breach.is_count(before) and breach.is_count(now):
            self.notes.need(now >= before, lambda: f"usage counts down from {before} to {now} tokens", "usage")
        self.usage = counts

    def _choice(self, choice: dict[str, object]) -> None:
        self.notes.need(choice.get("index") == 0, lambda: f"a choice's index is {short(choice.get('index'))}, not 0")
        delta = choice.get("delta")
        if self.notes.need(isinstance(delta, dict), lambda: f"a choice's delta is {short(delta)}, not an object"):
            self._delta(object_of(delta))
        self.tokens += tokens_in(choice)
        if choice.get("finish_reason"):
            self.finishes.append(str(choice["finish_reason"]))

    def _delta(self, delta: dict[str, object]) -> None:
        self._only_strings(delta)
        said, thought = text_of(delta.get("content")), reasoning_in(delta)
        self.notes.whole_text(said, "a piece of content")
        calls = objects_of(delta.get("tool_calls"))
        something = bool(said or thought or calls)
        self._role(delta.get("role"), something)
        self.notes.need(not (something and self.finishes), "text after the finish_reason")
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
                self.notes.add("format", f"a piece of {key} is {short(given)}")

    def _has_begun(self) -> bool:
        """Words or calls of the answer came already: thoughts should stand before it."""
        return bool(self.calls) or any(piece.strip() for piece in self.content)

    def _role(self, role: Any, something: bool) -> None:
        if role is None or role == "":
            self.notes.need(self.roles > 0 or not something, "the stream begins without a role", "style")
            return
        self.notes.need(role == "assistant", lambda: f"a role is {short(role)}, not 'assistant'")
        self.roles += 1
        self.notes.need(self.roles == 1, "the role comes more than once", "style")

    def _call(self, position: int, item: dict[str, object]) -> None:
        given_index = item.get("index")
        self.notes.need(
            breach.is_count(given_index), lambda: f"a piece of a tool call has the index {short(given_index)}"
        )
        index = given_index if breach.is_count(given_index) else position
        function = object_of(item.get("function"))
        if index not in self.calls:
            self._opened(item, function)
        known = self.calls.setdefault(index, {"id": "", "name": "", "arguments": ""})
        self._named(known, "id", text_of(item.get("id")))
        self._named(known, "name", text_of(function.get("name")))
        given = function.get("arguments")
        self.notes.need(given is None or isinstance(given, str), lambda: f"a tool call's arguments are {short(given)}")
        known["arguments"] += given if isinstance(given, str) else json.dumps(given) if given else ""

    def _opened(self, item: dict[str, object], function: dict[str, object]) -> None:
        """The first piece of a call says which it is."""
        self.notes.need(
            bool(text_of(item.get("id"))), lambda: f"a streamed tool call begins with the id {short(item.get('id'))}"
        )
        kind = item.get("type")
        self.notes.need(kind == "function", lambda: f"a streamed tool call's type is {short(kind)}, not 'function'")
        name = function.get("name")
        self.notes.need(bool(text_of(name)), lambda: f"a streamed tool call begins with the name {short(name)}")

    def _named(self, known: dict[str, str], key: str, value: str) -> None:
        if not value:
            return
        if known[key]:
            changed = known[key] != value
            self.notes.need(
                not changed, lambda: f"a streamed tool call changes its {key} from {known[key]!r} to {value!r}"
            )
            self.notes.need(changed, lambda: f"the {key} of a streamed tool call comes again in later pieces", "style")
        known[key] = known[key] or value

    def answer(self) -> Answer:
        """All of it."""
        self._ended()
        calls = tuple(Call(**self.calls[index]) for index in sorted(self.calls))
        unique_ids(self.notes, [call.id for call in calls])
        return Answer(
            id=self.ids[0] if self.ids else "",
            content="".join(self.content),
            reasoning="".join(self.reasoning),
            calls=calls,
            finish=self.finishes[0] if self.finishes else "",
            usage=self.usage,
            tokens=tuple(self.tokens),
            chunks=self.chunks,
            reasoning_first=self.in_order,
            stream=True,
            breaches=self.notes.all,
        )

    def _ended(self) -> None:
        notes = self.notes
        notes.need(bool(self.finishes), "the stream ended without a finish_reason", "finish")
        notes.need(len(self.finishes) < 2, lambda: f"{len(self.finishes)} finish_reasons in one stream", "finish")
        for finish in self.finishes[:1]:
            check_finish(notes, finish, bool(self.calls), self.asked)
        notes.need(self.done, "the stream ended without [DONE]")
        notes.need(len(set(self.ids)) < 2, lambda: f"{len(set(self.ids))} different ids in one stream")
        indexes = sorted(self.calls)
        notes.need(indexes == list(range(len(indexes))), lambda: f"tool calls have the indexes {indexes}")
        wanted = object_of(self.asked.get("stream_options")).get("include_usage")
        if wanted and notes.need(bool(self.usage), "the stream has no usage, which was asked for", "usage"):
            breach.usage(notes, self.usage)
