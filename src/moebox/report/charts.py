"""Lines and bands as SVG.

Drawn to be read small: few ticks, hairline grid, the axis title at the top where the eye starts. Each series has its
own colour and its own marker, so colour is never the only difference. What the page's script needs to show a hover box
stands in `data-chart`; without the script every point has its own title.
"""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from moebox.report.svg import Scale, picture, spread, tag, text, ticks
from moebox.report.words import number, short

WIDTH, HEIGHT = 540, 300
LEFT, RIGHT, TOP, BOTTOM = 56, 16, 26, 40
LOG_FROM = 40.0  # axes whose values span more than this factor are logarithmic
MARKERS = ("circle", "square", "triangle", "diamond", "cross", "ring")

Point = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One line: its name, its place in the palette, its points, and a band where it is a forecast."""

    name: str
    colour: int
    points: tuple[Point, ...]
    dashed: bool = False
    markers: bool = True
    band: tuple[tuple[float, float, float], ...] = ()  # x, low, high


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """What an axis measures and how its values are written."""

    title: str
    log: bool | None = None  # None: decided by the span of the values
    zero: bool = True  # a linear axis starts at zero
    ticks: tuple[float, ...] = ()
    format: Callable[[float], str] = short  # in hover boxes and captions
    tick: Callable[[float], str] | None = None  # on the axis, where that is shorter


def usable(series: Sequence[Series]) -> list[Series]:
    """The series with their finite points only, those without any left out."""
    kept = []
    for one in series:
        points = tuple(point for point in one.points if all(math.isfinite(value) for value in point))
        if points:
            kept.append(
                Series(
                    name=one.name,
                    colour=one.colour,
                    points=points,
                    dashed=one.dashed,
                    markers=one.markers,
                    band=tuple(row for row in one.band if all(math.isfinite(value) for value in row)),
                )
            )
    return kept


def line(series: Sequence[Series], *, x: Axis, y: Axis, label: str, height: float = HEIGHT) -> Markup | None:
    """Lines over a common x; None when there is nothing to draw."""
    shown = usable(series)
    if not shown:
        return None
    across = axis_scale([point[0] for one in shown for point in one.points], x, LEFT, WIDTH - RIGHT)
    values = [point[1] for one in shown for point in one.points]
    values += [edge for one in shown for row in one.band for edge in row[1:]]
    up = axis_scale(values, y, height - BOTTOM, TOP)
    body = grid(across, up, x, y, height)
    for index, one in enumerate(shown):
        body += draw(one, across, up, index, x, y)
    body += tag(
        "line", class_="cursor", x1=0, x2=0, y1=TOP, y2=height - BOTTOM, stroke="var(--faint)", visibility="hidden"
    )
    return picture(body, width=WIDTH, height=height, label=label, data=hover(shown, across, x, y))


def axis_scale(values: Sequence[float], axis: Axis, start: float, end: float) -> Scale:
    """A scale that holds all `values`, rounded outward on linear axes."""
    low, high = min(values), max(values)
    positive = [value for value in values if value > 0]
    log = axis.log if axis.log is not None else bool(positive) and low > 0 and high / low > LOG_FROM
    if log and positive:
        low = min(positive)
        high = max(high, low * 1.0001)
        if not axis.ticks:
            low, high = low / 1.15, high * 1.15
        elif low == high or high / low < 1.01:
            low, high = low / 2, high * 2
        return Scale(low=low, high=high, start=start, end=end, log=True)
    low = min(0.0, low) if axis.zero else low
    high = high if high > low else low + max(1.0, abs(low))
    return Scale(low=low, high=high + (high - low) * 0.06 * axis.zero, start=start, end=end)


def grid(across: Scale, up: Scale, x: Axis, y: Axis, height: float) -> str:
    """Hairlines, tick labels and the two titles."""
    parts = [text(LEFT - 46, 13, y.title, fill="var(--soft)", font_weight=600)]
    rows = ticks(up.low, up.high, log=up.log)
    rows = spread(rows, 22, [up.at(value) for value in rows]) if len(rows) > 6 else rows
    for value in rows:
        place = up.at(value)
        parts.append(tag("line", x1=LEFT, x2=WIDTH - RIGHT, y1=place, y2=place, stroke="var(--hair)"))
        parts.append(text(LEFT - 8, place + 4, (y.tick or y.format)(value), text_anchor="end", fill="var(--soft)"))
    base = height - BOTTOM
    parts.append(tag("line", x1=LEFT, x2=WIDTH - RIGHT, y1=base, y2=base, stroke="var(--rule)"))
    given = [value for value in x.ticks if across.low * 0.999 <= value <= across.high * 1.001]
    columns = given or ticks(across.low, across.high, log=across.log, count=6)
    columns = spread(columns, 46, [across.at(value) for value in columns])
    for value in columns:
        place = across.at(value)
        parts.append(tag("line", x1=place, x2=place, y1=base, y2=base + 4, stroke="var(--rule)"))
        anchor = "end" if place > WIDTH - RIGHT - 12 else "middle"
        parts.append(
            text(min(place, WIDTH - 2), base + 17, (x.tick or x.format)(value), text_anchor=anchor, fill="var(--soft)")
        )
    parts.append(text(WIDTH - RIGHT, height - 6, x.title, text_anchor="end", fill="var(--soft)"))
    return "".join(parts)


def draw(one: Series, across: Scale, up: Scale, index: int, x: Axis, y: Axis) -> str:
    """A series: band, line, markers with their titles."""
    colour = f"var(--s{one.colour})"
    parts = []
    if len(one.band) > 1:
        edge = [(across.at(row[0]), up.at(row[2])) for row in one.band]
        edge += [(across.at(row[0]), up.at(row[1])) for row in reversed(one.band)]
        parts.append(tag("path", d=path(edge) + "Z", fill=colour, fill_opacity=0.13))
    places = [(across.at(a), up.at(b)) for a, b in one.points]
    dash = "5 4" if one.dashed else None
    width = 1.8 if one.markers else 1.4
    if len(places) > 1:
        parts.append(
            tag(
                "path",
                d=path(places),
                fill="none",
                stroke=colour,
                stroke_width=width,
                stroke_dasharray=dash,
                stroke_linejoin="round",
            )
        )
    if one.markers:
        for place, point in zip(places, one.points, strict=True):
            words = f"{one.name}: {y.format(point[1])} at {x.format(point[0])}"
            parts.append(
                tag(
                    "g", tag("title", str(escape(words))) + marker(one.colour, *place, colour=colour, hollow=one.dashed)
                )
            )
    return tag("g", "".join(parts), class_="series", data_series=index)


def path(places: Sequence[Point]) -> str:
    """Points as a path."""
    return "M" + "L".join(f"{a:.1f} {b:.1f}" for a, b in places)


def marker(shape: int, a: float, b: float, *, colour: str, hollow: bool = False, size: float = 3.8) -> str:
    """One point, in the shape that belongs to the series."""
    look = {"fill": "var(--panel)" if hollow else colour, "stroke": colour, "stroke_width": 1.4}
    kind = MARKERS[(shape - 1) % len(MARKERS)]
    s = size
    if kind == "square":
        return tag("rect", x=a - s * 0.9, y=b - s * 0.9, width=s * 1.8, height=s * 1.8, **look)
    if kind == "triangle":
        return tag(
            "path", d=path([(a, b - s * 1.2), (a + s * 1.15, b + s * 0.9), (a - s * 1.15, b + s * 0.9)]) + "Z", **look
        )
    if kind == "diamond":
        return tag(
            "path", d=path([(a, b - s * 1.3), (a + s * 1.3, b), (a, b + s * 1.3), (a - s * 1.3, b)]) + "Z", **look
        )
    if kind == "cross":
        strokes = path([(a - s, b - s), (a + s, b + s)]) + path([(a - s, b + s), (a + s, b - s)])
        return tag("path", d=strokes, fill="none", stroke=colour, stroke_width=2.2)
    return tag("circle", cx=a, cy=b, r=s, **({**look, "fill": "var(--panel)"} if kind == "ring" else look))


def hover(shown: Sequence[Series], across: Scale, x: Axis, y: Axis) -> str:
    """What the script shows at each x: place, heading, and each series' value there."""
    xs = sorted({point[0] for one in shown for point in one.points})
    tables = [dict(one.points) for one in shown]
    stops = [
        [
            round(across.at(value), 1),
            x.format(value),
            [y.format(table[value]) if value in table else None for table in tables],
        ]
        for value in xs
    ]
    names = [[one.name, one.colour] for one in shown]
    return json.dumps(
        {"x": x.title, "y": y.title, "series": names, "stops": stops}, ensure_ascii=False, separators=(",", ":")
    )


def thousands(value: float) -> str:
    """Counts on an axis where every digit matters: 128, 1,024."""
    return number(value, 0)
