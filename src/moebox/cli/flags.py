"""What people write after flags, as values, and flags that would have no effect; BadInput names the flag."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from moebox.errors import BadInput, refuse_if
from moebox.units import parse_seconds, parse_tokens

T = TypeVar("T")
UNSET: tuple[object, ...] = (None, "", (), [])  # as flags are that nobody gave


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


def numbers(
    words: Sequence[str],
    parse: Callable[[str], T],
    able: Callable[[T], bool],
    *,
    wrong: str,
    beyond: str = "",
    hint: str | None = None,
) -> tuple[T, ...]:
    """A list of numbers; BadInput, as `wrong` says, for what is none, and (`beyond`) for one that cannot be meant."""
    try:
        found = tuple(map(parse, words))
    except ValueError:
        raise BadInput(wrong, hint=hint) from None
    refuse_if(not all(map(able, found)), beyond or wrong, hint=hint)
    return found


def given(**values: object) -> list[str]:
    """Those of these flags that a person gave, as they are written; what is None, False or empty was not given."""
    return [written(name) for name, value in values.items() if value is not False and value not in UNSET]


def written(name: str) -> str:
    """A parameter's name as its flag."""
    return f"--{name.strip('_').replace('_', '-')}"


def belong_to(what: str, /, **values: object) -> None:
    """BadInput for flags that were given, and mean nothing without `what`, which was not."""
    if words := given(**values):
        leave = f"leave {' and '.join(words)} out"
        hint = f"add {what}, or {leave}" if what.startswith("--") else leave
        raise BadInput(f"{' and '.join(words)} belong{'s' * (len(words) == 1)} to {what}", hint=hint)


def not_taken(why: str, /, **values: object) -> None:
    """BadInput for flags that were given, and that what was asked for has no use for; `why` says what it does."""
    if words := given(**values):
        raise BadInput(f"{why}: it does not take {' or '.join(words)}", hint=f"leave {' and '.join(words)} out")
