"""Violations of OpenAI's or Anthropic's documentation in a reply, and token counts that cannot be right."""

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

from moebox.core.verdict import HttpExchange
from moebox.loose import as_object, as_text, drop_keys, get_path, is_count, is_text
from moebox.phantom.question import ToolCall
from moebox.stream.sse import parse_events

Reply = dict[str, Any]  # or a part of one
ViolationKind = Literal["reply-format", "reply-style", "finish", "usage"]  # also kinds of failures
SURROGATE = re.compile("[\ud800-\udfff]")
LATEST_SECONDS = 10_000_000_000  # the year 2286; a larger time is in milliseconds
CLOCK_TOKENS = 3  # difference that the time of day in a template can make
# Request fields that do not change the prompt.
NOT_IN_PROMPT = (
    *("stream", "stream_options", "max_tokens", "max_completion_tokens", "stop", "grammar"),
    *("temperature", "top_p", "seed", "logprobs", "top_logprobs"),
)


@dataclass(frozen=True, slots=True)
class Violation:
    """One problem. `reply-format`: a strict client cannot parse the reply; `reply-style`: some are confused by it."""

    kind: ViolationKind
    text: str
    fatal: bool = False  # nothing in the reply can be judged


def parse_strict_json(text: str) -> Any:
    """Parse standard JSON. Raise ValueError for anything else, NaN and Infinity included."""

    def reject_constant(name: str) -> NoReturn:
        raise ValueError(f"{name} is not a number that JSON has")

    try:
        return json.loads(text, parse_constant=reject_constant)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def is_json(text: str) -> bool:
    return parse_json_or(text, text) is not text


def parse_json_or(text: str, otherwise: Any = None) -> Any:
    """The value of standard JSON, or `otherwise`."""
    try:
        return parse_strict_json(text)
    except ValueError:
        return otherwise


def stream_problem(exchange: HttpExchange) -> str:
    """Return why the reply to a request with `stream` is not a stream, or ""."""
    media_type = exchange.headers.get("content-type") or "no content type"
    return "" if "text/event-stream" in media_type.lower() else f"requested a stream, got {media_type}"


class UnreadableReply(Exception):
    """A violation that leaves nothing to judge."""


class ReplyReader:
    """A reply that is being parsed, and its violations so far, each text once."""

    def __init__(self, exchange: HttpExchange) -> None:
        self.exchange, self.request = exchange, as_object(exchange.request)
        self.found: dict[str, Violation] = {}

    def require(self, good: bool, text: str, *values: object, kind: ViolationKind = "reply-format") -> bool:
        """Record `text`, with the values for its {}, unless `good`."""
        if not good:
            shown = text.format(*map(shorten, values)) if values else text
            self.found.setdefault(shown, Violation(kind, shown))
        return good

    def parse_body(self, name: str, key: str) -> Reply:
        """Read a whole reply, whose `key` holds a list. Raise UnreadableReply if it is something else."""
        try:
            body = parse_strict_json(self.exchange.response)
        except ValueError as problem:
            raise UnreadableReply(f"the {name} is not JSON: {problem}") from None
        if isinstance(body, dict) and isinstance(body.get(key), list):
            return body
        raise UnreadableReply(f"not a {name} of this API: {shorten(body)}")

    def read_events(self, *, strict: bool) -> Iterator[tuple[str, Reply]]:
        """Type and content of each event of a stream. Raise UnreadableReply for an error and for what is not an event.

        `strict`: clients go by the names of events, and know no [DONE], with which SGLang ends every stream.
        """
        if problem := stream_problem(self.exchange):
            raise UnreadableReply(problem)
        for name, data in parse_events(self.exchange.response):
            if data.strip() == "[DONE]":
                self.require(not strict, "[DONE] at the end, which this API does not have", kind="reply-style")
                continue
            try:
                body = as_object(parse_strict_json(data))
            except ValueError as error:
                raise UnreadableReply(f"an event is not JSON ({error}): {shorten(data)}") from None
            kind = as_text(body.get("type"))
            if not kind:
                raise UnreadableReply(f"an event without a type: {shorten(data)}")
            if kind in ("error", "response.failed"):
                raise UnreadableReply(f"an error inside the stream: {shorten(body, 160)}")
            self.require(name == kind or not (name or strict), "an event called {} is of type {}", name, kind)
            yield kind, body

    def check_header(self, body: Reply, time: str = "", **wanted: str) -> None:
        """Check id, model and time (the field called so) of a reply or chunk, and the fields with one right value."""
        identity, name, model = body.get("id"), body.get("model"), as_text(self.request.get("model"))
        self.require(is_text(identity), "no id (a string) but {}", identity)
        for key, value in wanted.items():
            self.require(body.get(key) == value, f"the {key} is {{}}, not {value!r}", body.get(key))
        if time:
            created = body.get(time)
            is_time = is_count(created) or isinstance(created, float)
            self.require(is_time, f"{time} is {{}}, not a time in seconds", created)
            seconds = not isinstance(created, int | float) or created <= LATEST_SECONDS
            self.require(seconds, f"{time} is {{}}: milliseconds, not seconds", created, kind="reply-style")
        self.require(is_text(name), "model is {}, not a name", name)
        # The requested model, or a longer or shorter form of its name
        names = as_text(name).lower(), model.lower()
        same = names[0] in names[1] or names[1] in names[0]
        self.require(same, "model is {}, but {} was requested", name, model, kind="reply-style")

    def check_usage(self, counts: Reply) -> None:
        """The three counts must be there and add up, and their parts must not exceed them."""
        prompt, completion, total = (counts.get(f"{key}_tokens") for key in ("prompt", "completion", "total"))
        if not is_count(prompt) or not is_count(completion):
            self.require(False, "usage has no counts: {}", counts, kind="usage")
            return
        self.require(prompt > 0, "usage counts no prompt tokens", kind="usage")
        if self.require(is_count(total), "usage has no total_tokens", kind="usage"):
            self.require(total == prompt + completion, "usage does not add up: {}", counts, kind="usage")
        for part, whole, most in (("cached", "prompt", prompt), ("reasoning", "completion", completion)):
            number = get_path(counts, f"{whole}_tokens_details.{part}_tokens")
            fits = not is_count(number) or number <= most
            self.require(fits, f"usage counts {number} {part} tokens of {most} {whole} tokens", kind="usage")

    def read_call(self, identity: object, name: object, arguments: object) -> ToolCall:
        """Check and read the parts of a tool call, which must be texts."""
        self.require(is_text(identity), "a tool call's id is {}", identity)
        self.require(is_text(name), "a tool call's name is {}", name)
        self.require(isinstance(arguments, str), "a tool call's arguments are {}, not a string", arguments)
        if not isinstance(arguments, str):
            arguments = json.dumps(arguments if arguments is not None else "")
        return ToolCall(id=as_text(identity), name=as_text(name), arguments=arguments)

    def check_ids(self, calls: Sequence[ToolCall]) -> tuple[ToolCall, ...]:
        """The calls, whose ids must differ."""
        ids = [call.id for call in calls]
        self.require(len(set(ids)) == len(ids), "two tool calls share an id: {}", ids)
        return tuple(calls)


def shorten(value: Any, max_chars: int = 60) -> str:
    """A value as one short piece of text."""
    shown = repr(value) if isinstance(value, str) else json.dumps(value, default=str)
    return shown if len(shown) <= max_chars else shown[: max_chars - 1] + "…"


def prompt_count_change(known: dict[bytes, int], request: Any, count: int | None) -> str:
    """Return the contradiction with the `known` count of the same prompt, or ""."""
    if count is None or not isinstance(request, dict):
        return ""
    prompt = drop_keys(request, *NOT_IN_PROMPT)
    key = hashlib.sha256(json.dumps(prompt, sort_keys=True, default=str).encode()).digest()
    before = known.setdefault(key, count)
    changed = abs(count - before) > CLOCK_TOKENS
    return f"the same prompt is {before} tokens at first, and {count} when it is sent again" if changed else ""
