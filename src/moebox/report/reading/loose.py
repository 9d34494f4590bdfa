"""Values out of plain dicts that somebody else wrote: the first name that is there, of the right kind, or nothing."""

import math
from collections.abc import Iterable, Mapping
from typing import Any


def figure(row: Any, *names: str) -> float | None:
    """The first finite number under one of `names`."""
    for name in names:
        value = within(row, name)
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            return float(value)
    return None


def words(row: Any, *names: str) -> str:
    """The first text under one of `names`; numbers are written out."""
    for name in names:
        value = within(row, name)
        if isinstance(value, str) and value:
            return value
        if isinstance(value, int | float) and not isinstance(value, bool):
            return f"{value:g}" if isinstance(value, float) else str(value)
    return ""


def rows(row: Any, *names: str) -> list[dict[str, Any]]:
    """The first list of dicts under one of `names`, what is no dict left out."""
    for name in names:
        value = within(row, name)
        if isinstance(value, list | tuple):
            return [inner for inner in value if isinstance(inner, dict)]
    return []


def texts(row: Any, *names: str) -> list[str]:
    """The first list of strings under one of `names`."""
    for name in names:
        value = within(row, name)
        if isinstance(value, list | tuple):
            return [str(inner) for inner in value if isinstance(inner, str | int | float)]
        if isinstance(value, str) and value:
            return [value]
    return []


def inner(row: Any, *names: str) -> dict[str, Any]:
    """The first dict under one of `names`, or an empty one."""
    for name in names:
        value = within(row, name)
        if isinstance(value, dict):
            return value
    return {}


def truth(row: Any, *names: str) -> bool:
    """Whether one of `names` is true."""
    return any(within(row, name) is True for name in names)


def within(row: Any, name: str) -> Any:
    """`row["a"]["b"]` for the name "a.b", or None."""
    for key in name.split("."):
        if not isinstance(row, Mapping):
            return None
        row = row.get(key)
    return row


def first(values: Iterable[Any]) -> Any:
    """The first that is not None or empty."""
    return next((value for value in values if value not in (None, "", (), [])), None)
