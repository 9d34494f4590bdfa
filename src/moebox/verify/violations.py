"""Violations of OpenAI's or Anthropic's documentation in a reply, and token counts that cannot be right."""

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NoReturn, TypeGuard

from moebox.core.verdict import HttpExchange

ViolationKind = Literal["format", "style", "finish", "usage"]
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
    """One problem. `format`: a strict client cannot parse the reply; `style`: some clients are confused by it."""

    kind: ViolationKind
    text: str
    fatal: bool = False  # nothing in the reply can be judged


class Violations:
    """Collects violations, each text once."""

    def __init__(self) -> None:
        self._found: dict[str, Violation] = {}

    def add(self, kind: ViolationKind, text: str, *, fatal: bool = False) -> None:
        self._found.setdefault(text, Violation(kind, text, fatal))

    def require(self, good: bool, text: str | Callable[[], str], kind: ViolationKind = "format") -> bool:
        """Record `text` unless `good`; a text that takes work to write is given as a function."""
        if not good:
            self.add(kind, text if isinstance(text, str) else text())
        return good

    def check_surrogates(self, text: str, where: str) -> None:
        """Half of a surrogate pair is not a character."""
        if SURROGATE.search(text):
            self.add("format", f"half a surrogate pair in {where}")

    @property
    def items(self) -> tuple[Violation, ...]:
        """All violations in the order in which they were found."""
        return tuple(self._found.values())


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


def parse_json_or(text: str, otherwise: Any) -> Any:
    """The value of standard JSON, or `otherwise`."""
    try:
        return parse_strict_json(text)
    except ValueError:
        return otherwise


def is_count(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def is_text(value: object) -> TypeGuard[str]:
    return isinstance(value, str) and value != ""


def text_of(value: object) -> str:
    return value if isinstance(value, str) else ""


def object_of(value: object) -> dict[str, object]:
    return value if isinstance(value, dict) else {}


def objects_of(value: object) -> list[dict[str, object]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def stream_problem(exchange: HttpExchange) -> str:
    """Return why the reply to a request with `stream` is not a stream, or ""."""
    media_type = exchange.headers.get("content-type") or "no content type"
    return "" if "text/event-stream" in media_type.lower() else f"requested a stream, got {media_type}"


def check_header(violations: Violations, body: Mapping[str, Any], kind: str, model: str) -> None:
    """Check id, object, created and model of a completion or a chunk."""
    identity, created = body.get("id"), body.get("created")
    violations.require(is_text(identity), lambda: f"no id (a string) but {shorten(identity)}")
    violations.require(body.get("object") == kind, lambda: f"object is {shorten(body.get('object'))}, not {kind!r}")
    is_time = is_count(created) or isinstance(created, float)
    violations.require(is_time, lambda: f"created is {shorten(created)}, not a time in seconds")
    milliseconds = isinstance(created, int | float) and created > LATEST_SECONDS
    violations.require(not milliseconds, lambda: f"created is {shorten(created)}: milliseconds, not seconds", "style")
    check_model_name(violations, body.get("model"), model)


def check_model_name(violations: Violations, name: object, model: str) -> None:
    """The reply must name the requested model, or a longer or shorter form of its name."""
    if not is_text(name):
        violations.add("format", f"model is {shorten(name)}, not a name")
        return
    same = model.lower() in name.lower() or name.lower() in model.lower()
    violations.require(same, lambda: f"model is {shorten(name)}, but {model!r} was requested", "style")


def check_usage(violations: Violations, counts: Mapping[str, Any]) -> None:
    """The three counts must be there and add up, and their parts must not exceed them."""
    prompt, completion, total = (counts.get(f"{key}_tokens") for key in ("prompt", "completion", "total"))
    if not is_count(prompt) or not is_count(completion):
        violations.add("usage", f"usage has no counts: {shorten(counts)}")
        return
    violations.require(prompt > 0, "usage counts no prompt tokens", "usage")
    if violations.require(is_count(total), "usage has no total_tokens", "usage"):
        adds_up = total == prompt + completion
        violations.require(adds_up, lambda: f"usage does not add up: {shorten(counts)}", "usage")
    for part, whole, most in (("cached", "prompt", prompt), ("reasoning", "completion", completion)):
        number = object_of(counts.get(f"{whole}_tokens_details")).get(f"{part}_tokens")
        if is_count(number) and number > most:
            violations.add("usage", f"usage counts {number} {part} tokens of {most} {whole} tokens")


def shorten(value: Any, max_chars: int = 60) -> str:
    """A value as one short piece of text."""
    shown = repr(value) if isinstance(value, str) else json.dumps(value, default=str)
    return shown if len(shown) <= max_chars else shown[: max_chars - 1] + "…"


class PromptCounts:
    """Token counts of all prompts so far: the same prompt must have the same count every time."""

    def __init__(self) -> None:
        self._known: dict[bytes, int] = {}

    def count_change(self, request: Any, count: int | None) -> str:
        """Return the contradiction with an earlier count of the same prompt, or ""."""
        if count is None or not isinstance(request, dict):
            return ""
        prompt = {key: value for key, value in request.items() if key not in NOT_IN_PROMPT}
        key = hashlib.sha256(json.dumps(prompt, sort_keys=True, default=str).encode()).digest()
        before = self._known.setdefault(key, count)
        if abs(count - before) <= CLOCK_TOKENS:
            return ""
        return f"the same prompt is {before} tokens at first, and {count} when it is sent again"
