"""Decode the events of a chat or completion stream, and count their tokens."""

import itertools
import operator
from array import array
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from moebox.escape import printable_line
from moebox.loose import Json, get_text
from moebox.redact import decode_reply, hide_in_error

CONTENT, REASONING, TOOL = 1, 2, 3  # kinds of token in samples; 0 is none
SILENT = 4  # tokens that the server counted but did not send
ESTIMATED_TIME = 128  # added to a kind: its time is only known to lie between two others
ANTHROPIC_INPUTS = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
_TEXTS = (("content", CONTENT), ("text", CONTENT), ("reasoning_content", REASONING), ("reasoning", REASONING))
_decode = msgspec.json.Decoder().decode


class StreamEvent(NamedTuple):
    """One decoded event. `usage` is (prompt, completion, cached) tokens, -1 if not reported."""

    data: Json
    kind: int = 0
    text: str = ""
    finish: str = ""
    error: str = ""
    usage: tuple[int, int, int] | None = None
    silent: bool = False  # an empty delta, as for a token without text


def decode_event(payload: bytes) -> StreamEvent | None:
    """Decode an event; None if it is not a JSON object."""
    try:
        data = _decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if not isinstance(data, dict):
        return None
    kind, text, finish, silent = _decode_choice(data.get("choices"))
    error = _error_text(data["error"]) if "error" in data else ""
    usage = _decode_usage(data["usage"]) if "usage" in data else None
    return StreamEvent(data, kind, text, finish, error, usage, silent)


def describe_error(status: int, payload: bytes) -> str:
    """An HTTP error in one line: its status and the server's message."""
    event = decode_event(payload)
    if event is not None:
        text = event.error or _error_text(event.data.get("detail")) or _error_text(event.data.get("message"))
    else:
        text = decode_reply(payload, status)[:200].strip().partition("\n")[0]
    return f"HTTP {status}: {printable_line(text)}" if text else f"HTTP {status}"


def tokens_by_chunk(sizes: Sequence[int], counts: Sequence[int], total: int) -> "array[int]":
    """Return the number of tokens in each event that carries tokens.

    Exact if the server counts in every event (`counts`, running totals). Otherwise one each if that makes the total. If
    there are more tokens than events (speculative decoding), the surplus goes to events by the bytes they have above
    the smallest; if there are fewer (a character split over events), they are spread evenly and some events have none.
    """
    chunks = len(sizes)
    if chunks and len(counts) == chunks and all(itertools.starmap(operator.le, itertools.pairwise(counts))):
        return _differences([0, *counts])
    if total <= 0 or total == chunks or not chunks:
        return array("H", [1]) * chunks
    if total < chunks:  # rounded up, so that the first event has one
        return _differences([-(-i * total // chunks) for i in range(chunks + 1)])
    surplus, least = total - chunks, min(sizes)
    weights = [size - least for size in sizes]
    whole = sum(weights)
    if not whole:
        weights, whole = [1] * chunks, chunks
    tokens, given, seen = array("H"), 0, 0
    for weight in weights:
        seen += weight
        up_to = (surplus * seen * 2 + whole) // (2 * whole)  # rounded, so that the sum is exact
        tokens.append(min(65535, 1 + up_to - given))
        given = up_to
    return tokens


def _differences(totals: Sequence[int]) -> "array[int]":
    return array("H", [min(65535, after - before) for before, after in itertools.pairwise(totals)])


def _decode_choice(choices: Any) -> tuple[int, str, str, bool]:
    """Kind and text of the first choice's delta, its finish reason, and whether it is an empty token.

    A delta with a role comes before any token, so it is never an empty token.
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
    for key, kind in _TEXTS:
        text = delta.get(key)
        if text and isinstance(text, str):
            return kind, text, finish, False
    kind = TOOL if delta.get("tool_calls") or delta.get("function_call") else 0
    return kind, "", finish, not (kind or finish or "role" in delta)


def _error_text(value: Any) -> str:
    """A server's error in one line, for all usual formats."""
    if not value:
        return ""
    if isinstance(value, dict):
        value = value.get("message") or value.get("detail") or value
    return printable_line(hide_in_error(str(value))[:300])


def _decode_usage(value: Any) -> tuple[int, int, int] | None:
    if not isinstance(value, dict):
        return None
    details = value.get("prompt_tokens_details")
    return (
        _token_count(value.get("prompt_tokens")),
        _token_count(value.get("completion_tokens")),
        _token_count(details.get("cached_tokens")) if isinstance(details, dict) else -1,
    )


def _token_count(value: Any) -> int:
    """A count that fits a column of samples; -1 if it is not valid (`true` is an int in Python)."""
    valid = isinstance(value, int) and not isinstance(value, bool)
    return min(value, 2**31 - 1) if valid and value >= 0 else -1


def anthropic_prompt_tokens(usage: Mapping[str, object]) -> int | None:
    """All tokens of a prompt: Anthropic's API counts cached tokens beside input_tokens, not in it."""
    counted, *cached = map(usage.get, ANTHROPIC_INPUTS)
    return counted + sum(count for count in cached if isinstance(count, int)) if isinstance(counted, int) else None
