"""What one event of a chat or completion stream carries, and how many tokens that is."""

import itertools
import operator
from array import array
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from moebox.escape import printable_line
from moebox.loose import Json, get_text
from moebox.redact import decode_reply, hide_in_error

CONTENT, REASONING, TOOL = 1, 2, 3  # kinds of token, as kept in samples; 0 is none
SILENT = 4  # tokens that the server counted and did not show
ESTIMATED_TIME = 128  # added to a kind: when it came is only known to lie between two others
ANTHROPIC_INPUTS = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
_TEXTS = (("content", CONTENT), ("text", CONTENT), ("reasoning_content", REASONING), ("reasoning", REASONING))
_decode = msgspec.json.Decoder().decode


class StreamEvent(NamedTuple):
    """One decoded event. `usage` is (prompt, completion, cached, reasoning) tokens, -1 where not told."""

    data: Json
    kind: int = 0
    text: str = ""
    finish: str = ""
    error: str = ""
    usage: tuple[int, int, int, int] | None = None
    silent: bool = False  # a delta with nothing in it, as a token without text leaves one


def decode_event(payload: bytes) -> StreamEvent | None:
    """The event in `payload`, or None where it is not a JSON object."""
    try:
        data = _decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if not isinstance(data, dict):
        return None
    kind, text, finish, silent = _choice(data.get("choices"))
    error = _error(data["error"]) if "error" in data else ""
    usage = _usage(data["usage"]) if "usage" in data else None
    return StreamEvent(data, kind, text, finish, error, usage, silent)


def describe_error(status: int, payload: bytes) -> str:
    """An HTTP error in one line: its status and what the server said."""
    event = decode_event(payload)
    said = ""
    if event is not None:
        said = event.error or _error(event.data.get("detail")) or _error(event.data.get("message"))
    else:
        said = decode_reply(payload, status)[:200].strip().partition("\n")[0]
    return f"HTTP {status}: {printable_line(said)}" if said else f"HTTP {status}"


def tokens_by_chunk(sizes: Sequence[int], counts: Sequence[int], total: int) -> "array[int]":
    """Tokens in each token-bearing event.

    Exact where the server counts in every event (`counts`, running totals). Otherwise one each where that makes the
    total; where there are more tokens than events (speculative decoding) the surplus goes to events by the bytes they
    have above the smallest; where there are fewer (a character split over events), events share them evenly and some
    carry none.
    """
    chunks = len(sizes)
    if chunks and len(counts) == chunks and all(itertools.starmap(operator.le, itertools.pairwise(counts))):
        return _steps([0, *counts])
    if total <= 0 or total == chunks or not chunks:
        return array("H", [1]) * chunks
    if total < chunks:
        return _steps([-(-i * total // chunks) for i in range(chunks + 1)])  # rounded up: the first event carries one
    return _surplus(sizes, total - chunks)


def _steps(totals: Sequence[int]) -> "array[int]":
    """What each running total has more than the one before."""
    return array("H", [min(65535, after - before) for before, after in itertools.pairwise(totals)])


def _surplus(sizes: Sequence[int], surplus: int) -> "array[int]":
    least = min(sizes)
    weights = [size - least for size in sizes]
    whole = sum(weights)
    if not whole:
        weights, whole = [1] * len(sizes), len(sizes)
    tokens, given, seen = array("H"), 0, 0
    for weight in weights:
        seen += weight
        upto = (surplus * seen * 2 + whole) // (2 * whole)  # rounded, so that the sum is exact
        tokens.append(min(65535, 1 + upto - given))
        given = upto
    return tokens


def _choice(choices: Any) -> tuple[int, str, str, bool]:
    """Kind and text of the first choice's delta, its finish reason, and whether it is empty but for a token.

    A delta that names the role comes before any token, so that one is never a token without text.
    """
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        return 0, "", "", False
    choice = choices[0]
    finish = get_text(choice, "finish_reason")
    delta = choice.get("delta")
    if delta is None:
        delta = choice.get("message") or choice
    if not isinstance(delta, dict):
        return 0, "", finish, False
    kind, text = _text(delta)
    return kind, text, finish, not (kind or finish or "role" in delta)


def _text(delta: Json) -> tuple[int, str]:
    """Kind and text of a delta; 0 where it has neither text nor a tool call."""
    for key, kind in _TEXTS:
        text = delta.get(key)
        if text and isinstance(text, str):
            return kind, text
    return (TOOL if delta.get("tool_calls") or delta.get("function_call") else 0), ""


def _error(value: Any) -> str:
    """A server's error as one line, whatever template it has."""
    if not value:
        return ""
    if isinstance(value, dict):
        value = value.get("message") or value.get("detail") or value
    return printable_line(hide_in_error(str(value))[:300])


def _usage(value: Any) -> tuple[int, int, int, int] | None:
    if not isinstance(value, dict):
        return None
    prompt, output = value.get("prompt_tokens_details"), value.get("completion_tokens_details")
    return (
        _whole(value.get("prompt_tokens")),
        _whole(value.get("completion_tokens")),
        _whole(prompt.get("cached_tokens")) if isinstance(prompt, dict) else -1,
        _whole(output.get("reasoning_tokens")) if isinstance(output, dict) else -1,
    )


def _whole(value: Any) -> int:
    """A count as it fits a column of samples; -1 where it is none (`true` is an int to Python)."""
    counts = isinstance(value, int) and not isinstance(value, bool)
    return min(value, 2**31 - 1) if counts and value >= 0 else -1


def anthropic_prompt_tokens(usage: Mapping[str, object]) -> int | None:
    """All tokens of a prompt: what a cache gave or took Anthropic's API counts beside input_tokens, not in it."""
    counted, *cached = (usage.get(name) for name in ANTHROPIC_INPUTS)
    return counted + sum(count for count in cached if isinstance(count, int)) if isinstance(counted, int) else None
