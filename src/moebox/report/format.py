"""Numbers as the report writes them: short on axes, exact in tables, a dash where there is none."""

import math
import time

from moebox import units

DASH = "–"
LAST_MOMENT = 253_402_300_800.0  # the year 10000: whoever wrote that had no clock


def finite_or_none(value: object) -> float | None:
    """A figure that can be written; None for anything else, which a table shows as a dash."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if math.isfinite(value) else None


def capitalize(text: str) -> str:
    """A sentence with its first letter large."""
    return text[:1].upper() + text[1:]


def format_number(value: object, digits: int | None = None) -> str:
    """A figure for a table: thousands separated, as many decimals as it deserves; a dash where there is none."""
    figure = finite_or_none(value)
    if figure is None:
        return DASH
    return f"{figure:,.{_decimals(figure) if digits is None else digits}f}"


def _decimals(figure: float) -> int:
    """Three digits in all are enough to compare figures."""
    if figure == int(figure):
        return 0
    size = abs(figure)
    if size >= 100:
        return 0
    return 1 if size >= 10 else 2


def count_phrase(count: int, noun: str, rest: str) -> str:
    """So many of something with what is to be said of them; "" where there are none."""
    return f"{units.plural(count, noun)} {rest}" if count else ""


def short_number(value: float) -> str:
    """A figure for an axis: 0.5, 20, 1,500, 20k, 1.5M."""
    size = abs(value)
    if size >= 1e6:
        return f"{value / 1e6:.3g}M"
    if size >= 1e4:
        return f"{value / 1e3:.4g}k"
    whole = size >= 100 or value == int(value)
    return f"{value:,.0f}" if whole else f"{value:.3g}"


# Latencies: below so many ms, divided by, decimals, unit.
_LATENCIES = (
    (10.0, 1.0, 2, "ms"),
    (100.0, 1.0, 1, "ms"),
    (1e3, 1.0, 0, "ms"),
    (10e3, 1e3, 2, "s"),
    (120e3, 1e3, 1, "s"),
)


def format_ms(value: object) -> str:
    """A latency in the unit that suits it: 0.42 ms, 363 ms, 2.26 s, 1 min 26 s."""
    latency = finite_or_none(value)
    if latency is None:
        return DASH
    for below, divisor, digits, unit in _LATENCIES:
        if abs(latency) < below:
            return f"{latency / divisor:.{digits}f} {unit}"
    return units.format_seconds(latency / 1e3)


def tick_ms(value: float) -> str:
    """A latency on an axis: 0, 50 ms, 3 s, 2 min."""
    if not value:
        return "0"
    if abs(value) < 1000:
        return f"{value:.3g} ms"
    return f"{value / 1e3:.3g} s" if abs(value) < 180_000 else f"{value / 60e3:.3g} min"


def format_gib(value: object, digits: int = 1) -> str:
    """Bytes as GiB, or as MiB where that would be nought point nothing."""
    size = finite_or_none(value)
    if size is None:
        return DASH
    if 0 < abs(size) < 2**30 / 10:
        return f"{size / 2**20:,.{digits}f} MiB"
    return f"{size / 2**30:,.{digits}f} GiB"


def format_change(value: float | None) -> str:
    """A relative change with its sign: +12.5%, −3.0%."""
    share = finite_or_none(value)
    if share is None:
        return DASH
    sign = "+" if share >= 0 else "−"
    digits = 0 if abs(share) >= 1 else 1
    return f"{sign}{abs(share) * 100:.{digits}f}%"


def format_ratio(value: float) -> str:
    """A ratio: 2.1×, 39×."""
    if value >= 10:
        return f"{value:.0f}×"
    return f"{value:.1f}×" if value >= 1.05 else f"{value:.2f}×"


def format_date(moment: float) -> str:
    """A date: 29 January 2026."""
    return _written(moment, "%d %B %Y").lstrip("0")


def format_time(moment: float) -> str:
    """A moment: 2026-01-29 14:05:09 UTC."""
    return _written(moment, "%Y-%m-%d %H:%M:%S UTC")


def _written(moment: float, form: str) -> str:
    """A moment that a calendar of four digits has."""
    return time.strftime(form, time.gmtime(moment)) if 0 < moment < LAST_MOMENT else "undated"


def join_names(names: list[str]) -> str:
    """Names as a sentence lists them: "a", "a and b", "a, b and c"."""
    if len(names) < 2:
        return "".join(names)
    return f"{', '.join(names[:-1])} and {names[-1]}"
