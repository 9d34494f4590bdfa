"""Types and values of command-line flags, and BadInput for flags that would have no effect."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, TypeVar

from cyclopts import Parameter

from moebox.errors import BadInput, refuse_if
from moebox.units import parse_seconds, parse_tokens

T = TypeVar("T")
Switch = Annotated[bool, Parameter(negative=())]
AsJson = Annotated[bool, Parameter(parse=False)]  # the global --json
Names = Annotated[tuple[str, ...], Parameter(negative=())]  # comma-separated or repeated
OutputPath = Annotated[Path | None, Parameter(name=["--output", "-o"])]
All = Annotated[bool, Parameter(name="--all", negative=())]
Settings = Annotated[tuple[str, ...], Parameter(name="--set", negative=(), allow_leading_hyphen=False)]  # path=value
ServedModel = Annotated[str, Parameter(help="The served model name. Default: the only one that the server lists.")]
KeyEnv = Annotated[str, Parameter(help="The environment variable that holds the key.")]
Target = Annotated[
    str, Parameter(help="A URL, a recipe, or the name of an engine that moebox started. Default: the running one.")
]
Ram = Annotated[str, Parameter(help="Memory to assume, such as 768GiB.")]
RamBandwidth = Annotated[str, Parameter(help="Its bandwidth, such as 614GB/s.")]
MAX_COUNT = 1_200_000  # tokens of a prompt or reply, and streams
UNSET: tuple[object, ...] = (None, "", (), [])  # the values of flags that were not given


def parse_value(flag: str, text: str, parse: Callable[[str], T]) -> T:
    """Parse a flag's value with `parse`, which raises ValueError with a sentence."""
    try:
        return parse(text)
    except ValueError as problem:
        raise BadInput(f"{flag}: {problem}") from None


def parse_duration(flag: str, text: str) -> float:
    return parse_value(flag, text, parse_seconds)


def parse_token_count(flag: str, text: str | None) -> int | None:
    return None if text is None else parse_value(flag, text, parse_tokens)


def parse_count(flag: str, text: str | None) -> int | None:
    if text is None:
        return None
    refuse_if(not text.strip().isdigit(), f"{flag}: {text!r} is not a count", hint="write it like 32")
    return int(text)


def split_names(*given: str) -> list[str]:
    """Split names at commas; a flag may also be repeated."""
    return [name.strip() for text in given for name in text.split(",") if name.strip()]


def parse_counts(
    flag: str, text: str | None, *, least: int = 1, most: int = MAX_COUNT, like: str = "1,8,32"
) -> tuple[int, ...]:
    """Parse counts joined by commas, such as 1,8,32 or 8k,64k; none if the flag was not given."""
    try:
        counts = tuple(map(parse_tokens, split_names(text or "")))
    except ValueError:
        raise BadInput(f"{flag} {text!r}: write it like {like}") from None
    wrong = not all(least <= count <= most for count in counts)
    refuse_if(wrong, f"{flag} {text}: each is from {least} to {most:,}", hint=f"write it like {like}")
    return counts


def parse_rates(text: str | None) -> tuple[float, ...]:
    """Parse the requests a second of --rate; none if it was not given."""
    try:
        rates = tuple(map(float, split_names(text or "")))
    except ValueError:
        rates = (0.0,)
    wrong = not all(0 < rate < 1e6 for rate in rates)
    refuse_if(wrong, f"--rate: {text!r} is not a list of requests a second", hint="write it like 0.5,1,2")
    return rates


def flag_name(name: str) -> str:
    return f"--{name.strip('_').replace('_', '-')}"


def given_flags(**values: object) -> list[str]:
    """Return the flags that were given: those that are not None, False or empty."""
    return [flag_name(name) for name, value in values.items() if value is not False and value not in UNSET]


def refuse_without(needed: str, /, **values: object) -> None:
    """Raise BadInput for given flags that have no effect without `needed`, which is missing."""
    if given := given_flags(**values):
        leave = f"leave {' and '.join(given)} out"
        hint = f"add {needed}, or {leave}" if needed.startswith("--") else leave
        raise BadInput(f"{' and '.join(given)} need{'s' * (len(given) == 1)} {needed}", hint=hint)


def refuse_unused(reason: str, /, **values: object) -> None:
    """Raise BadInput for given flags that this use of the command ignores; `reason` is what it does instead."""
    if given := given_flags(**values):
        raise BadInput(f"{reason}: it does not take {' or '.join(given)}", hint=f"leave {' and '.join(given)} out")
