"""Numbers, dates and lists of names as the report writes them: short on axes, exact in tables, a dash if unknown."""

import time
from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

from moebox import units
from moebox.loose import is_number
from moebox.units import join_names as join_names

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)
DASH = "–"
YEAR_10000 = 253_402_300_800.0  # seconds; a later time is not a time
# Latencies: upper limit in ms, divisor, decimals, unit.
LATENCY_UNITS = ((10, 1, 2, "ms"), (100, 1, 1, "ms"), (1000, 1, 0, "ms"), (10e3, 1000, 2, "s"), (120e3, 1000, 1, "s"))


def unique_names(names: Iterable[str]) -> list[str]:
    """Names in the order they first occur; empty ones are dropped."""
    return list(filter(None, dict.fromkeys(names)))


def group_by(items: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """Items by key, in the order the keys first occur."""
    groups: dict[K, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def capitalize(text: str) -> str:
    """The text with its first letter in upper case and the rest unchanged."""
    return text[:1].upper() + text[1:]


def count_phrase(count: int, noun: str, rest: str) -> str:
    """ "2 requests failed"; "" if the count is 0."""
    return f"{units.plural(count, noun)} {rest}" if count else ""


def format_number(value: object, digits: int | None = None) -> str:
    """A number for a table, with thousands separators and about three significant digits; a dash if there is none."""
    if not is_number(value):
        return DASH
    if digits is None:
        digits = 0 if value == int(value) or abs(value) >= 100 else 1 if abs(value) >= 10 else 2
    return f"{value:,.{digits}f}"


def short_number(value: float) -> str:
    """A number for an axis: 0.5, 20, 1,500, 20k, 1.5M."""
    size = abs(value)
    if size >= 1e6:
        return f"{value / 1e6:.3g}M"
    if size >= 1e4:
        return f"{value / 1e3:.4g}k"
    return f"{value:,.0f}" if size >= 100 or value == int(value) else f"{value:.3g}"


def format_ms(value: object) -> str:
    """A latency in a suitable unit: 0.42 ms, 363 ms, 2.26 s, 1 min 26 s."""
    if not is_number(value):
        return DASH
    for limit, divisor, digits, unit in LATENCY_UNITS:
        if abs(value) < limit:
            return f"{value / divisor:.{digits}f} {unit}"
    return units.format_seconds(value / 1e3)


def tick_ms(value: float) -> str:
    """A latency on an axis: 0, 50 ms, 3 s, 2 min."""
    if not value:
        return "0"
    if abs(value) < 1000:
        return f"{value:.3g} ms"
    return f"{value / 1e3:.3g} s" if abs(value) < 180_000 else f"{value / 60e3:.3g} min"


def format_gib(value: object, digits: int = 1) -> str:
    """Bytes as GiB, or as MiB below 0.1 GiB."""
    if not is_number(value):
        return DASH
    if 0 < abs(value) < 2**30 / 10:
        return f"{value / 2**20:,.{digits}f} MiB"
    return f"{value / 2**30:,.{digits}f} GiB"


def format_change(value: float) -> str:
    """A relative change with its sign: +12.5%, −3.0%."""
    sign, digits = "+" if value >= 0 else "−", 0 if abs(value) >= 1 else 1
    return f"{sign}{abs(value) * 100:.{digits}f}%"


def format_ratio(value: float) -> str:
    """A ratio: 2.1×, 39×."""
    return f"{value:.0f}×" if value >= 10 else f"{value:.1f}×" if value >= 1.05 else f"{value:.2f}×"


def format_date(moment: float) -> str:
    """A date: 29 January 2026."""
    return _format_moment(moment, "%d %B %Y").lstrip("0")


def format_time(moment: float) -> str:
    """A moment: 2026-01-29 14:05:09 UTC."""
    return _format_moment(moment, "%Y-%m-%d %H:%M:%S UTC")


def _format_moment(moment: float, pattern: str) -> str:
    return time.strftime(pattern, time.gmtime(moment)) if 0 < moment < YEAR_10000 else "undated"
