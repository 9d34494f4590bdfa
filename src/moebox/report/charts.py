"""Lines and bands as SVG.

Drawn to be read small: few ticks, hairline grid, the axis title at the top where the eye starts. Each series has its
own colour and its own marker, so colour is never the only difference. What the page's script needs to show a hover box
stands in `data-chart`; without the script every point has its own title.
"""

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TypeVar

from markupsafe import Markup

from moebox.report.block import Key
from moebox.report.format import number, short
from moebox.report.svg import Scale, hint, picture, spread, tag, text, ticks

WIDTH, HEIGHT = 540, 300
LEFT, RIGHT, TOP, BOTTOM = 56, 16, 26, 40
LOG_FROM = 40.0  # axes whose values span more than this factor are logarithmic
MARKERS = ("circle", "square", "triangle", "diamond", "cross", "ring")
STROKES = {  # in sizes of the marker, from its middle
    "square": (((-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)),),
    "triangle": (((0, -1.2), (1.15, 0.9), (-1.15, 0.9)),),
    "diamond": (((0, -1.3), (1.3, 0), (0, 1.3), (-1.3, 0)),),
    "cross": (((-1, -1), (1, 1)), ((-1, 1), (1, -1))),
}

Point = tuple[float, float]
Row = TypeVar("Row", tuple[float, float], tuple[float, float, float])


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One line: its name, its place in the palette, its points, and a band where it is a forecast."""

    name: str
    colour: int
    points: tuple[Point, ...]
    dashed: bool = False
    markers: bool = True
    band: tuple[tuple[float, float, float], ...] = ()  # x, low, high

    @property
    def heights(self) -> list[float]:
        """Every value that the upright axis must hold."""
        edges = chain.from_iterable((low, high) for _, low, high in self.band)
        return [*(value for _, value in self.points), *edges]


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """What an axis measures and how its values are written."""

    title: str
    log: bool | None = None  # None: decided by the span of the values
    zero: bool = True  # a linear axis starts at zero
    ticks: tuple[float, ...] = ()
    format: Callable[[float], str] = short  # in hover boxes and captions
    tick: Callable[[float], str] | None = None  # on the axis, where that is shorter

    def label(self, value: float) -> str:
        """A value as the axis writes it."""
        return (self.tick or self.format)(value)


def usable(series: Sequence[Series]) -> list[Series]:
    """The series with their finite points only, those without any left out."""
    finite = [replace(curve, points=_finite(curve.points), band=_finite(curve.band)) for curve in series]
    return [curve for curve in finite if curve.points]


def _finite(rows: tuple[Row, ...]) -> tuple[Row, ...]:
    return tuple(row for row in rows if all(map(math.isfinite, row)))


def line(series: Sequence[Series], *, x: Axis, y: Axis, label: str, height: float = HEIGHT) -> Markup | None:
    """Lines over a common x; None when there is nothing to draw."""
    shown = usable(series)
    if not shown:
        return None
    across = axis_scale([at for curve in shown for at, _ in curve.points], x, LEFT, WIDTH - RIGHT)
    up = axis_scale([*chain.from_iterable(curve.heights for curve in shown)], y, height - BOTTOM, TOP)
    body = grid(across, up, x, y, height)
    body += "".join(draw(curve, across, up, index, x, y) for index, curve in enumerate(shown))
    body += tag(
        "line", class_="cursor", x1=0, x2=0, y1=TOP, y2=height - BOTTOM, stroke="var(--faint)", visibility="hidden"
    )
    return picture(body, width=WIDTH, height=height, label=label, data=hover(shown, across, x, y))


def axis_scale(values: Sequence[float], axis: Axis, start: float, end: float) -> Scale:
    """A scale that holds all `values`, rounded outward on linear axes."""
    positive = [value for value in values if value > 0]
    if positive and _logarithmic(values, axis):
        low, high = _log_ends(min(positive), max(values), exact=bool(axis.ticks))
        return Scale(low=low, high=high, start=start, end=end, log=True)
    low, high = _linear_ends(min(values), max(values), zero=axis.zero)
    return Scale(low=low, high=high, start=start, end=end)


def _linear_ends(low: float, high: float, *, zero: bool) -> tuple[float, float]:
    """The ends of a linear axis: from zero with a little room above, or just what is there."""
    low = min(0.0, low) if zero else low
    high = high if high > low else low + max(1.0, abs(low))
    return low, high + (high - low) * 0.06 if zero else high


def _logarithmic(values: Sequence[float], axis: Axis) -> bool:
    """As the axis says, or by the span of its values."""
    if axis.log is not None:
        return axis.log
    low, high = min(values), max(values)
    return low > 0 and high / low > LOG_FROM


def _log_ends(low: float, high: float, *, exact: bool) -> tuple[float, float]:
    """The ends of a logarithmic axis: a little outside, or exactly at given ticks unless they fall together."""
    high = max(high, low * 1.0001)
    if not exact:
        return low / 1.15, high * 1.15
    return (low / 2, high * 2) if high / low < 1.01 else (low, high)


def grid(across: Scale, up: Scale, x: Axis, y: Axis, height: float) -> str:
    """Hairlines, tick labels and the two titles."""
    base = height - BOTTOM
    parts = [text(LEFT - 46, 13, y.title, fill="var(--soft)", font_weight=600), *_rows(up, y)]
    parts.append(tag("line", x1=LEFT, x2=WIDTH - RIGHT, y1=base, y2=base, stroke="var(--rule)"))
    parts += _columns(across, x, base)
    parts.append(text(WIDTH - RIGHT, height - 6, x.title, text_anchor="end", fill="var(--soft)"))
    return "".join(parts)


def _rows(up: Scale, y: Axis) -> Iterator[str]:
    """A hairline and a label for each tick of the upright axis."""
    values = ticks(up.low, up.high, log=up.log)
    if len(values) > 6:
        values = spread(values, 22, [up.at(value) for value in values])
    for value in values:
        place = up.at(value)
        yield tag("line", x1=LEFT, x2=WIDTH - RIGHT, y1=place, y2=place, stroke="var(--hair)")
        yield text(LEFT - 8, place + 4, y.label(value), text_anchor="end", fill="var(--soft)")


def _columns(across: Scale, x: Axis, base: float) -> Iterator[str]:
    """A mark and a label for each tick of the lower axis: the given ones that lie on it, or round values."""
    given = [value for value in x.ticks if across.low * 0.999 <= value <= across.high * 1.001]
    values = given or ticks(across.low, across.high, log=across.log, count=6)
    for value in spread(values, 46, [across.at(value) for value in values]):
        place = across.at(value)
        anchor = "end" if place > WIDTH - RIGHT - 12 else "middle"
        yield tag("line", x1=place, x2=place, y1=base, y2=base + 4, stroke="var(--rule)")
        yield text(min(place, WIDTH - 2), base + 17, x.label(value), text_anchor=anchor, fill="var(--soft)")


def draw(curve: Series, across: Scale, up: Scale, index: int, x: Axis, y: Axis) -> str:
    """A series: band, line, markers with their titles."""
    colour = f"var(--s{curve.colour})"
    places = [(across.at(a), up.at(b)) for a, b in curve.points]
    body = _band(curve, across, up, colour) + _stroke(curve, places, colour)
    if curve.markers:
        body += "".join(_marked(curve, point, place, x, y) for point, place in zip(curve.points, places, strict=True))
    return tag("g", body, class_="series", data_series=index)


def _band(curve: Series, across: Scale, up: Scale, colour: str) -> str:
    """The forecast's band as an area."""
    if len(curve.band) < 2:
        return ""
    edge = [(across.at(load), up.at(high)) for load, _, high in curve.band]
    edge += [(across.at(load), up.at(low)) for load, low, _ in reversed(curve.band)]
    return tag("path", d=path(edge) + "Z", fill=colour, fill_opacity=0.13)


def _stroke(curve: Series, places: Sequence[Point], colour: str) -> str:
    """The line itself; a single point has none."""
    if len(places) < 2:
        return ""
    look = {"fill": "none", "stroke": colour, "stroke_width": 1.8 if curve.markers else 1.4}
    dashes = "5 4" if curve.dashed else None
    return tag("path", d=path(places), **look, stroke_dasharray=dashes, stroke_linejoin="round")


def _marked(curve: Series, point: Point, place: Point, x: Axis, y: Axis) -> str:
    """One point with what it says when the mouse rests on it."""
    title = hint(f"{curve.name}: {y.format(point[1])} at {x.format(point[0])}")
    return tag("g", title + marker(curve.colour, *place, colour=f"var(--s{curve.colour})", hollow=curve.dashed))


def path(places: Sequence[Point]) -> str:
    """Points as a path."""
    return "M" + "L".join(f"{a:.1f} {b:.1f}" for a, b in places)


def marker(shape: int, a: float, b: float, *, colour: str, hollow: bool = False, size: float = 3.8) -> str:
    """One point, in the shape that belongs to the series."""
    kind = MARKERS[(shape - 1) % len(MARKERS)]
    look = {"fill": "var(--panel)" if hollow or kind == "ring" else colour, "stroke": colour, "stroke_width": 1.4}
    if kind in ("circle", "ring"):
        return tag("circle", cx=a, cy=b, r=size, **look)
    if kind == "cross":
        look |= {"fill": "none", "stroke_width": 2.2}
    strokes = (path([(a + x * size, b + y * size) for x, y in stroke]) for stroke in STROKES[kind])
    return tag("path", d="".join(strokes) + "Z" * (kind != "cross"), **look)


def hover(shown: Sequence[Series], across: Scale, x: Axis, y: Axis) -> str:
    """What the script shows at each x: place, heading, and each series' value there."""
    tables = [{at: y.format(value) for at, value in curve.points} for curve in shown]
    stops = [
        [round(across.at(at), 1), x.format(at), [table.get(at) for table in tables]]
        for at in sorted(set(chain.from_iterable(tables)))
    ]
    names = [[curve.name, curve.colour] for curve in shown]
    return json.dumps(
        {"x": x.title, "y": y.title, "series": names, "stops": stops}, ensure_ascii=False, separators=(",", ":")
    )


def legend(series: Sequence[Series]) -> tuple[Key, ...]:
    """Keys for the series that are drawn."""
    drawn = [curve for curve in series if curve.points]
    return tuple(Key(name=curve.name, colour=curve.colour, dashed=curve.dashed) for curve in drawn)


def thousands(value: float) -> str:
    """Counts on an axis where every digit matters: 128, 1,024."""
    return number(value, 0)
