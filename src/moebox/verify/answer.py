"""What a chat completion said, whole or in pieces, and what was wrong with how it was said."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NoReturn

from moebox.core.verdict import Exchange
from moebox.phantom.tasks import Call, Reply
from moebox.verify.sse import events

# Marks that belong to a chat template and never to an answer: <|im_end|>, <think>, ◁think▷, [EOS], DeepSeek's <｜…｜>.
SPECIAL = re.compile(
    r"<\|[A-Za-z0-9_▁]{1,40}\|>|<｜[^｜\n]{1,40}｜>|</?think(?:ing)?>|◁/?think▷|\[(?:BOS|EOS|EOT|PAD)\]"
)
BROKEN_TEXT = "\ufffd"  # what half a character becomes


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One answer, put together. `problems` holds every breach of protocol that was seen on the way."""

    content: str = ""
    reasoning: str = ""
    calls: tuple[Call, ...] = ()
    finish: str = ""  # finish_reason
    finishes: int = 0  # how often one was given
    usage: dict[str, Any] = field(default_factory=dict)
    logprobs: tuple[float, ...] = ()
    chunks: int = 0  # of a stream, those with something in them
    reasoning_first: bool = True  # of a stream: nothing was thought after something was said
    problems: tuple[str, ...] = ()

    @property
    def reply(self) -> Reply:
        """As the judges of tasks want it."""
        return Reply(content=self.content, reasoning=self.reasoning, calls=self.calls)

    @property
    def leak(self) -> str:
        """The first template mark or broken character that a reader would see, or nothing."""
        texts = (self.content, self.reasoning, *(call.arguments for call in self.calls))
        for text in texts:
            if found := SPECIAL.search(text):
                return found.group()
            if BROKEN_TEXT in text:
                return "half a character (U+FFFD)"
        return ""


def strict_json(text: str) -> Any:
    """JSON as the standard has it: NaN and Infinity are refused; ValueError for whatever is not JSON."""
    try:
        return json.loads(text, parse_constant=_refuse)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number that JSON has")


def whole(exchange: Exchange) -> Answer:
    """The answer of a request without `stream`."""
    try:
        body = strict_json(exchange.response)
    except ValueError as problem:
        return Answer(problems=(f"the answer is not JSON: {problem}",))
    choice = _choice(body)
    if choice is None:
        return Answer(problems=("the answer has no choices",))
    message = _dict(choice.get("message"))
    calls = tuple(_call(item) for item in _dicts(message.get("tool_calls")))
    finish = choice.get("finish_reason")
    return Answer(
        content=_text(message.get("content")),
        reasoning=_reasoning(message),
        calls=calls,
        finish=str(finish or ""),
        finishes=1 if finish else 0,
        usage=_dict(body.get("usage")),
        logprobs=tuple(_logprobs(choice)),
        problems=() if finish else ("no finish_reason",),
    )


def streamed(exchange: Exchange) -> Answer:
    """The answer of a stream, its pieces put together."""
    parts = _Parts()
    for _, data in events(exchange.response):
        if parts.done:
            parts.problems.append("something came after [DONE]")
            break
        if data.strip() == "[DONE]":
            parts.done = True
            continue
        try:
            parts.add(strict_json(data))
        except ValueError as problem:
            parts.problems.append(f"a chunk is not JSON ({problem}): {data[:80]}")
    return parts.answer()


class _Parts:
    """A stream while it is being put together."""

    def __init__(self) -> None:
        self.content: list[str] = []
        self.reasoning: list[str] = []
        self.calls: dict[int, dict[str, str]] = {}
        self.finishes: list[str] = []
        self.usage: dict[str, Any] = {}
        self.logprobs: list[float] = []
        self.ids: set[str] = set()
        self.chunks = 0
        self.in_order = True
        self.done = False
        self.problems: list[str] = []

    def add(self, body: Any) -> None:
        """One chunk."""
        if not isinstance(body, dict):
            self.problems.append("a chunk is not an object")
            return
        if body.get("error"):
            self.problems.append(f"an error inside the stream: {json.dumps(body['error'])[:200]}")
        if body.get("id"):
            self.ids.add(str(body["id"]))
        if body.get("usage"):
            self.usage = _dict(body["usage"])
        choice = _choice(body)
        if choice is None:
            return
        self._delta(_dict(choice.get("delta")))
        self.logprobs += _logprobs(choice)
        if choice.get("finish_reason"):
            self.finishes.append(str(choice["finish_reason"]))

    def _delta(self, delta: dict[str, Any]) -> None:
        said, thought = _text(delta.get("content")), _reasoning(delta)
        calls = _dicts(delta.get("tool_calls"))
        if (said or thought or calls) and self.finishes:
            self.problems.append("text after the finish_reason")
        if thought.strip() and (self.calls or any(piece.strip() for piece in self.content)):
            self.in_order = False
        self.chunks += bool(said or thought or calls)
        self.content.append(said)
        self.reasoning.append(thought)
        for position, item in enumerate(calls):
            self._call(int(item.get("index", position) or 0), item)

    def _call(self, index: int, item: dict[str, Any]) -> None:
        known = self.calls.setdefault(index, {"id": "", "name": "", "arguments": ""})
        function = _dict(item.get("function"))
        if item.get("id"):
            if known["id"] and known["id"] != item["id"]:
                self.problems.append(f"tool call {index} changes its id")
            known["id"] = str(item["id"])
        known["name"] = known["name"] or _text(function.get("name"))
        known["arguments"] += _text(function.get("arguments"))

    def answer(self) -> Answer:
        """All of it."""
        if not self.finishes:
            self.problems.append("the stream ended without a finish_reason")
        if len(self.finishes) > 1:
            self.problems.append(f"{len(self.finishes)} finish_reasons in one stream")
        if not self.done:
            self.problems.append("the stream ended without [DONE]")
        if len(self.ids) > 1:
            self.problems.append(f"{len(self.ids)} different ids in one stream")
        return Answer(
            content="".join(self.content),
            reasoning="".join(self.reasoning),
            calls=tuple(Call(**self.calls[index]) for index in sorted(self.calls)),
            finish=self.finishes[0] if self.finishes else "",
            finishes=len(self.finishes),
            usage=self.usage,
            logprobs=tuple(self.logprobs),
            chunks=self.chunks,
            reasoning_first=self.in_order,
            problems=tuple(dict.fromkeys(self.problems)),
        )


def _choice(body: Any) -> dict[str, Any] | None:
    choices = body.get("choices") if isinstance(body, dict) else None
    return choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else None


def _reasoning(message: dict[str, Any]) -> str:
    """vLLM calls it `reasoning`, most others `reasoning_content`; some send both with the same text."""
    return _text(message.get("reasoning_content")) or _text(message.get("reasoning"))


def _call(item: dict[str, Any]) -> Call:
    function = _dict(item.get("function"))
    arguments = function.get("arguments")
    text = arguments if isinstance(arguments, str) else json.dumps(arguments if arguments is not None else "")
    return Call(id=_text(item.get("id")), name=_text(function.get("name")), arguments=text)


def _logprobs(choice: dict[str, Any]) -> Iterator[float]:
    for token in _dicts(_dict(choice.get("logprobs")).get("content")):
        value = token.get("logprob")
        yield float(value) if isinstance(value, int | float) else float("nan")


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _dicts(value: Any) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
