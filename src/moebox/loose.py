"""Read values from JSON that other programs wrote: the first name that holds a value of the right type.

For replies of servers, files of other tools and run folders of other versions. What moebox itself writes has a type
(`codec.decode`). A name such as "a.b" means `row["a"]["b"]`.
"""

import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeGuard, TypeVar

K = TypeVar("K")
T = TypeVar("T")
Json = Mapping[str, object]  # a JSON object from elsewhere, with unknown content
Document = dict[str, object]  # a JSON object that we write in another program's format
MAX_FLOAT = sys.float_info.max  # JSON integers have no limit, floats do


def read_json(text: str, otherwise: object = None) -> Any:
    """Return what a text means as JSON, or `otherwise` if it is none."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return otherwise


def get_path(row: object, name: str) -> object:
    """Return `row["a"]["b"]` for the name "a.b", or None."""
    for key in name.split("."):
        if not isinstance(row, Mapping):
            return None
        row = row.get(key)
    return row


def get_values(row: object, names: Iterable[str]) -> Iterator[object]:
    """Yield the values under `names`, None for those that are not there."""
    return (get_path(row, name) for name in names)


def get_number(row: object, *names: str) -> float | None:
    """Return the first finite number under one of `names`."""
    return next((float(value) for value in get_values(row, names) if is_number(value)), None)


def is_number(value: object) -> TypeGuard[int | float]:
    """True for a finite number; booleans do not count."""
    if type(value) is float:  # the usual case, of millions of log-probabilities
        return -MAX_FLOAT < value < MAX_FLOAT
    return isinstance(value, int | float) and not isinstance(value, bool) and -MAX_FLOAT < value < MAX_FLOAT


def get_text(row: object, *names: str) -> str:
    """Return the first text or number under one of `names`, as text."""
    return next(filter(None, map(scalar_text, get_values(row, names))), "")


def scalar_text(value: object) -> str:
    """Return a text or number as text, "" for anything else."""
    if isinstance(value, bool):
        return ""
    if isinstance(value, float):
        return f"{value:g}"
    return str(value) if isinstance(value, str | int) else ""


def get_objects(row: object, *names: str) -> list[Json]:
    """Return the dicts of the first list under one of `names`."""
    rows = next((value for value in get_values(row, names) if isinstance(value, list | tuple)), ())
    return [each for each in rows if isinstance(each, dict)]


def get_texts(row: object, *names: str) -> list[str]:
    """Return the first list of texts under one of `names`; a single text counts as a list of one."""
    values = ([value] if isinstance(value, str) and value else value for value in get_values(row, names))
    texts = next((value for value in values if isinstance(value, list | tuple)), ())
    return [str(each) for each in texts if isinstance(each, str | int | float)]


def get_object(row: object, *names: str) -> Json:
    """Return the first dict under one of `names`, or an empty one."""
    return next((value for value in get_values(row, names) if isinstance(value, dict)), {})


def drop_keys(row: Mapping[K, T], *names: K) -> dict[K, T]:
    """Return a mapping without these keys."""
    return {name: value for name, value in row.items() if name not in names}


def drop_empty(row: Mapping[K, T]) -> dict[K, T]:
    """Return a mapping without the values that are empty or 0."""
    return {name: value for name, value in row.items() if value}


def is_true(row: object, *names: str) -> bool:
    """True if one of `names` is the JSON value true."""
    return any(value is True for value in get_values(row, names))


def as_object(value: object) -> dict[str, object]:
    """Return `value` if it is a JSON object, else an empty one."""
    return value if isinstance(value, dict) else {}


def as_text(value: object) -> str:
    """Return `value` if it is a text, else ""."""
    return value if isinstance(value, str) else ""


def is_int_list(value: object) -> TypeGuard[list[int]]:
    """True for a list of integers that is not empty."""
    return isinstance(value, list) and value != [] and all(isinstance(each, int) for each in value)


def is_text(value: object) -> TypeGuard[str]:
    """True for a text that is not empty."""
    return isinstance(value, str) and value != ""


def is_count(value: object) -> TypeGuard[int]:
    """True for a whole number that is not negative; booleans do not count."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
