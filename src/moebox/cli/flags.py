"""What people write after flags, as values, and flags that would have no effect; BadInput names the flag."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from moebox.errors import BadInput, refuse_if
from moebox.units import parse_seconds, parse_tokens

T = TypeVar("T")
UNSET: tuple[object, ...] = (None, "", (), [])  # as flags are that nobody gave


def parse_value(flag: str, text: str, parse: Callable[[str], T], *, hint: str | None = None) -> T:
    """A value as people write it; `parse` raises ValueError with a sentence."""
    try:
        return parse(text)
    except ValueError as problem:
        raise BadInput(f"{flag}: {problem}", hint=hint) from None


def parse_duration(flag: str, text: str) -> float:
    """A duration."""
    return parse_value(flag, text, parse_seconds)


def parse_token_count(flag: str, text: str | None) -> int | None:
    """A token count; None where nothing is written."""
    return None if text is None else parse_value(flag, text, parse_tokens)


def parse_count(flag: str, text: str | None) -> int | None:
    """A plain count; None where nothing is written."""
    if text is None:
        return None
    if not text.strip().isdigit():
        raise BadInput(f"{flag}: {text!r} is not a count", hint="write it like 32")
    return int(text)


def split_names(*given: str) -> list[str]:
    """Names with commas between them, or one flag each."""
    return [name.strip() for text in given for name in text.split(",") if name.strip()]


def parse_numbers(
    texts: Sequence[str],
    parse: Callable[[str], T],
    is_allowed: Callable[[T], bool],
    *,
    not_numbers: str,
    out_of_range: str = "",
    hint: str | None = None,
) -> tuple[T, ...]:
    """A list of numbers; BadInput, as `wrong` says, for what is none, and (`beyond`) for one that cannot be meant."""
    try:
        found = tuple(map(parse, texts))
    except ValueError:
        raise BadInput(not_numbers, hint=hint) from None
    refuse_if(not all(map(is_allowed, found)), out_of_range or not_numbers, hint=hint)
    return found


def given_flags(**values: object) -> list[str]:
    """Those of these flags that a person gave, as they are written; what is None, False or empty was not given."""
    return [flag_name(name) for name, value in values.items() if value is not False and value not in UNSET]


def flag_name(name: str) -> str:
    """A parameter's name as its flag."""
    return f"--{name.strip('_').replace('_', '-')}"


def refuse_without(needed: str, /, **values: object) -> None:
    """BadInput for flags that were given, and mean nothing without `what`, which was not."""
    if words := given_flags(**values):
        leave = f"leave {' and '.join(words)} out"
        hint = f"add {needed}, or {leave}" if needed.startswith("--") else leave
        raise BadInput(f"{' and '.join(words)} belong{'s' * (len(words) == 1)} to {needed}", hint=hint)


def refuse_unused(reason: str, /, **values: object) -> None:
    """BadInput for flags that were given, and that what was asked for has no use for; `why` says what it does."""
    if words := given_flags(**values):
        raise BadInput(f"{reason}: it does not take {' or '.join(words)}", hint=f"leave {' and '.join(words)} out")
