"""Numbers as the report writes them: short on axes, exact in tables, a dash where there is none."""

import math
import time

from moebox import units

DASH = "–"
LAST_MOMENT = 253_402_300_800.0  # the year 10000: whoever wrote that had no clock


def number(value: object, digits: int | None = None) -> str:
    """A figure for a table: thousands separated, as many decimals as it deserves; a dash where there is none."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return DASH
    if digits is None:
        digits = 0 if abs(value) >= 100 or value == int(value) else 1 if abs(value) >= 10 else 2
    return f"{value:,.{digits}f}"


def short(value: float) -> str:
    """A figure for an axis: 0.5, 20, 1,500, 20k, 1.5M."""
    size = abs(value)
    if size >= 1e6:
        return f"{value / 1e6:.3g}M"
    if size >= 1e4:
        return f"{value / 1e3:.4g}k"
    return f"{value:,.0f}" if size >= 100 or value == int(value) else f"{value:.3g}"


def milliseconds(value: object) -> str:
    """A latency in the unit that suits it: 0.42 ms, 363 ms, 2.26 s, 1 min 26 s."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return DASH
    if abs(value) < 1000:
        return f"{value:.0f} ms" if abs(value) >= 100 else f"{value:.1f} ms" if abs(value) >= 10 else f"{value:.2f} ms"
    return (
        f"{value / 1e3:.2f} s"
        if abs(value) < 10_000
        else f"{value / 1e3:.1f} s"
        if abs(value) < 120_000
        else units.seconds(value / 1e3)
    )


def tick_ms(value: float) -> str:
    """A latency on an axis: 0, 50 ms, 3 s, 2 min."""
    if abs(value) < 1000:
        return f"{value:.3g} ms" if value else "0"
    return f"{value / 1e3:.3g} s" if abs(value) < 180_000 else f"{value / 60e3:.3g} min"


def gib(value: object, digits: int = 1) -> str:
    """Bytes as GiB, or as MiB where that would be nought point nothing."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return DASH
    if 0 < abs(value) < 2**30 / 10:
        return f"{value / 2**20:,.{digits}f} MiB"
    return f"{value / 2**30:,.{digits}f} GiB"


def change(value: float | None) -> str:
    """A relative change with its sign: +12.5%, −3.0%."""
    if value is None or not math.isfinite(value):
        return DASH
    return f"{'+' if value >= 0 else '−'}{abs(value) * 100:.{0 if abs(value) >= 1 else 1}f}%"


def times(value: float) -> str:
    """A ratio: 2.1×, 39×."""
    return f"{value:.0f}×" if value >= 10 else f"{value:.1f}×" if value >= 1.05 else f"{value:.2f}×"


def day(moment: float) -> str:
    """A date: 29 January 2026."""
    return _written(moment, "%d %B %Y").lstrip("0")


def clock(moment: float) -> str:
    """A moment: 2026-01-29 14:05:09 UTC."""
    return _written(moment, "%Y-%m-%d %H:%M:%S UTC")


def _written(moment: float, form: str) -> str:
    """A moment that a calendar of four digits has."""
    return time.strftime(form, time.gmtime(moment)) if 0 < moment < LAST_MOMENT else "undated"


def listed(words: list[str]) -> str:
    """Words as a sentence lists them: "a", "a and b", "a, b and c"."""
    return " and ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else "".join(words)
