"""Values out of JSON that somebody else wrote: the first name that is there, of the right kind, or nothing.

For replies of servers, files of other tools and run folders of other versions. What moebox itself writes has a type
(`codec.decode`).
"""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeGuard, TypeVar

Json = Mapping[str, object]  # an object of theirs: nothing is known of what stands in it
Document = dict[str, object]  # one that we write in somebody else's form
T = TypeVar("T")
MAX_FLOAT = sys.float_info.max  # JSON's integers have no end, and a float has


def get_number(row: object, *names: str) -> float | None:
    """The first finite number under one of `names`."""
    value = _first(row, names, is_number)
    return None if value is None else float(value)


def is_number(value: object) -> TypeGuard[int | float]:
    """A finite number; JSON's true and false are none."""
    return isinstance(value, int | float) and not isinstance(value, bool) and -MAX_FLOAT < value < MAX_FLOAT


def get_text(row: object, *names: str) -> str:
    """The first text under one of `names`; numbers are written out."""
    return next(filter(None, map(scalar_text, _values(row, names))), "")


def scalar_text(value: object) -> str:
    """A text as it is, a number written out; "" for anything else."""
    if isinstance(value, bool):
        return ""
    if isinstance(value, float):
        return f"{value:g}"
    return str(value) if isinstance(value, str | int) else ""


def get_objects(row: object, *names: str) -> list[Json]:
    """The first list of dicts under one of `names`, what is no dict left out."""
    return [each for each in _first(row, names, _is_list) or () if isinstance(each, dict)]


def get_texts(row: object, *names: str) -> list[str]:
    """The first list of strings under one of `names`; a string alone is a list of one."""
    found = _first(row, names, _is_list_or_text) or ()
    several = [found] if isinstance(found, str) else found
    return [str(each) for each in several if isinstance(each, str | int | float)]


def get_numbers(row: object, *names: str) -> list[float]:
    """The finite numbers of the first list under one of `names`."""
    return [float(each) for each in _first(row, names, _is_list) or () if is_number(each)]


def get_object(row: object, *names: str) -> Json:
    """The first dict under one of `names`, or an empty one."""
    return _first(row, names, _is_object) or {}


def _first(row: object, names: Sequence[str], wanted: Callable[[object], TypeGuard[T]]) -> T | None:
    """The first value under one of `names` that is of the `wanted` kind."""
    return next(filter(wanted, _values(row, names)), None)


def _values(row: object, names: Sequence[str]) -> Iterator[object]:
    return (get_path(row, name) for name in names)


def _is_list(value: object) -> TypeGuard[Sequence[object]]:
    return isinstance(value, list | tuple)


def _is_list_or_text(value: object) -> TypeGuard[Sequence[object]]:
    return isinstance(value, list | tuple | str) and value != ""


def _is_object(value: object) -> TypeGuard[Json]:
    return isinstance(value, dict)


def is_true(row: object, *names: str) -> bool:
    """Whether one of `names` is true."""
    return any(get_path(row, name) is True for name in names)


def get_path(row: object, name: str) -> object:
    """`row["a"]["b"]` for the name "a.b", or None."""
    for key in name.split("."):
        if not isinstance(row, Mapping):
            return None
        row = row.get(key)
    return row


def as_object(value: object) -> Json:
    """`value` where it is a JSON object, else an empty one."""
    return value if _is_object(value) else {}
