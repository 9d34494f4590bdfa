"""What a reply does that OpenAI's or Anthropic's documentation does not allow."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NoReturn, TypeGuard

ViolationKind = Literal["format", "style", "finish", "usage"]
SURROGATE = re.compile("[\ud800-\udfff]")
LATEST_SECONDS = 10_000_000_000  # seconds: the year 2286; what is above was counted in milliseconds


@dataclass(frozen=True, slots=True)
class Violation:
    """One thing that is wrong. `format`: a strict client cannot read it; `style`: some clients trip over it."""

    kind: ViolationKind
    text: str
    fatal: bool = False  # nothing in the reply can be judged


def parse_strict_json(text: str) -> Any:
    """JSON as the standard has it: NaN and Infinity are refused; ValueError for whatever is not JSON."""
    try:
        return json.loads(text, parse_constant=_refuse)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number that JSON has")


class Violations:
    """Collects breaches, each said once."""

    def __init__(self) -> None:
        self._found: dict[str, Violation] = {}

    def add(self, kind: ViolationKind, text: str, *, fatal: bool = False) -> None:
        """Note it."""
        self._found.setdefault(text, Violation(kind, text, fatal))

    def require(self, good: bool, text: str | Callable[[], str], kind: ViolationKind = "format") -> bool:
        """Note `text` unless `good`; one that takes work to write is given as a function, for it is seldom wanted."""
        if not good:
            self.add(kind, text if isinstance(text, str) else text())
        return good

    def check_surrogates(self, text: str, where: str) -> None:
        """Half of a surrogate pair is no character in any string."""
        if SURROGATE.search(text):
            self.add("format", f"half a surrogate pair in {where}")

    @property
    def items(self) -> tuple[Violation, ...]:
        """All of them, in the order in which they were met."""
        return tuple(self._found.values())


def is_count(value: Any) -> TypeGuard[int]:
    """A number of tokens."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def is_text(value: object) -> TypeGuard[str]:
    """A string with something in it."""
    return isinstance(value, str) and value != ""


def text_of(value: object) -> str:
    """The string that it is, or an empty one."""
    return value if isinstance(value, str) else ""


def object_of(value: object) -> dict[str, object]:
    """The JSON object that it is, or an empty one."""
    return value if isinstance(value, dict) else {}


def objects_of(value: object) -> list[dict[str, object]]:
    """The objects in a list."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def check_header(violations: Violations, body: Mapping[str, Any], kind: str, model: str) -> None:
    """id, object, created and model of a completion or a chunk."""
    identity, made, name = body.get("id"), body.get("created"), body.get("model")
    violations.require(is_text(identity), lambda: f"no id (a string) but {shorten(identity)}")
    violations.require(body.get("object") == kind, lambda: f"object is {shorten(body.get('object'))}, not {kind!r}")
    violations.require(
        is_count(made) or isinstance(made, float), lambda: f"created is {shorten(made)}, not a time in seconds"
    )
    milliseconds = isinstance(made, int | float) and made > LATEST_SECONDS
    violations.require(
        not milliseconds, lambda: f"created is {shorten(made)}: milliseconds, where seconds are meant", "style"
    )
    check_model_name(violations, name, model)


def check_model_name(violations: Violations, name: object, model: str) -> None:
    """The model that a reply names is the one that was asked for, or goes by a longer or shorter name."""
    if not is_text(name):
        violations.add("format", f"model is {shorten(name)}, not a name")
        return
    echoed = model.lower() in name.lower() or name.lower() in model.lower()
    violations.require(echoed, lambda: f"model is {shorten(name)} where {model!r} was asked for", "style")


def check_usage(violations: Violations, counts: Mapping[str, Any]) -> None:
    """The three counts are there and add up."""
    prompt, made, total = (counts.get(f"{key}_tokens") for key in ("prompt", "completion", "total"))
    if not is_count(prompt) or not is_count(made):
        violations.add("usage", f"usage does not count: {shorten(counts)}")
        return
    violations.require(prompt > 0, "usage counts no prompt tokens", "usage")
    if violations.require(is_count(total), "usage has no total_tokens", "usage"):
        violations.require(total == prompt + made, lambda: f"usage does not add up: {shorten(counts)}", "usage")
    for part, of, most in (("cached", "prompt", prompt), ("reasoning", "completion", made)):
        _no_more_than(violations, counts, part, of, most)


def _no_more_than(notes: Violations, counts: Mapping[str, Any], part: str, of: str, most: int) -> None:
    """A part of a count is no more than the count."""
    details = counts.get(f"{of}_tokens_details")
    number = details.get(f"{part}_tokens") if isinstance(details, dict) else None
    if is_count(number):
        notes.require(number <= most, lambda: f"usage counts {number} {part} tokens of {most} {of} tokens", "usage")


def shorten(value: Any, longest: int = 60) -> str:
    """A value for a line of text."""
    shown = value if isinstance(value, str) else json.dumps(value, default=str)
    shown = repr(shown) if isinstance(value, str) else shown
    return shown if len(shown) <= longest else shown[: longest - 1] + "…"
