"""Values out of JSON that somebody else wrote: the first name that is there, of the right kind, or nothing.

For replies of servers, files of other tools and run folders of other versions. What moebox itself writes has a type
(`codec.decode`).
"""

import sys
from collections.abc import Mapping
from typing import TypeGuard

Json = Mapping[str, object]  # an object of theirs: nothing is known of what stands in it
Document = dict[str, object]  # one that we write in somebody else's form
LARGEST = sys.float_info.max  # JSON's integers have no end, and a float has


def figure(row: object, *names: str) -> float | None:
    """The first finite number under one of `names`."""
    for name in names:
        value = within(row, name)
        if is_figure(value):
            return float(value)
    return None


def is_figure(value: object) -> TypeGuard[int | float]:
    """A finite number; JSON's true and false are none."""
    return isinstance(value, int | float) and not isinstance(value, bool) and -LARGEST < value < LARGEST


def words(row: object, *names: str) -> str:
    """The first text under one of `names`; numbers are written out."""
    for name in names:
        value = within(row, name)
        if isinstance(value, str) and value:
            return value
        if isinstance(value, int | float) and not isinstance(value, bool):
            return f"{value:g}" if isinstance(value, float) else str(value)
    return ""


def rows(row: object, *names: str) -> list[Json]:
    """The first list of dicts under one of `names`, what is no dict left out."""
    for name in names:
        value = within(row, name)
        if isinstance(value, list | tuple):
            return [inner for inner in value if isinstance(inner, dict)]
    return []


def texts(row: object, *names: str) -> list[str]:
    """The first list of strings under one of `names`."""
    for name in names:
        value = within(row, name)
        if isinstance(value, list | tuple):
            return [str(inner) for inner in value if isinstance(inner, str | int | float)]
        if isinstance(value, str) and value:
            return [value]
    return []


def figures(row: object, *names: str) -> list[float]:
    """The finite numbers of the first list under one of `names`."""
    for name in names:
        value = within(row, name)
        if isinstance(value, list | tuple):
            return [float(each) for each in value if is_figure(each)]
    return []


def inner(row: object, *names: str) -> Json:
    """The first dict under one of `names`, or an empty one."""
    for name in names:
        value = within(row, name)
        if isinstance(value, dict):
            return value
    return {}


def truth(row: object, *names: str) -> bool:
    """Whether one of `names` is true."""
    return any(within(row, name) is True for name in names)


def within(row: object, name: str) -> object:
    """`row["a"]["b"]` for the name "a.b", or None."""
    for key in name.split("."):
        if not isinstance(row, Mapping):
            return None
        row = row.get(key)
    return row


def as_json(value: object) -> Json:
    """`value` where it is a JSON object, else an empty one."""
    return value if isinstance(value, dict) else {}
