"""What people write after flags, as values; BadInput names the flag."""

from collections.abc import Callable
from typing import TypeVar

from moebox.errors import BadInput
from moebox.units import parse_seconds, parse_tokens

T = TypeVar("T")


def read(flag: str, text: str, parse: Callable[[str], T], *, hint: str | None = None) -> T:
    """A value as people write it; `parse` raises ValueError with a sentence."""
    try:
        return parse(text)
    except ValueError as problem:
        raise BadInput(f"{flag}: {problem}", hint=hint) from None


def seconds(flag: str, text: str) -> float:
    """A duration."""
    return read(flag, text, parse_seconds)


def tokens(flag: str, text: str | None) -> int | None:
    """A token count; None where nothing is written."""
    return None if text is None else read(flag, text, parse_tokens)


def whole(flag: str, text: str | None) -> int | None:
    """A plain count; None where nothing is written."""
    if text is None:
        return None
    if not text.strip().isdigit():
        raise BadInput(f"{flag}: {text!r} is not a count", hint="write it like 32")
    return int(text)


def names(*given: str) -> list[str]:
    """Names with commas between them, or one flag each."""
    return [name.strip() for text in given for name in text.split(",") if name.strip()]
