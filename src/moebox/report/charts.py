"""Lines and bands as SVG.

Drawn to be read small: few ticks, hairline grid, the axis title at the top where the eye starts. Each series has its
own colour and its own marker, so colour is never the only difference. What the page's script needs to show a hover box
stands in `data-chart`; without the script every point has its own title.
"""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TypeVar

from markupsafe import Markup

from moebox.assess.format import format_number, short_number
from moebox.report.block import LegendKey
from moebox.report.svg import AxisScale, axis_ticks, svg_picture, svg_tag, svg_text, svg_title, thin_out

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
class ChartSeries:
    """One line: its name, its place in the palette, its points, and a band where it is a forecast."""

    name: str
    colour: int
    points: tuple[Point, ...]
    dashed: bool = False
    markers: bool = True
    band: tuple[tuple[float, float, float], ...] = ()  # x, low, high

    @property
    def y_values(self) -> list[float]:
        """Every value that the upright axis must hold."""
        edges = chain.from_iterable((low, high) for _, low, high in self.band)
        return [*(value for _, value in self.points), *edges]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartAxis:
    """What an axis measures and how its values are written."""

    title: str
    log: bool | None = None  # None: decided by the span of the values
    zero: bool = True  # a linear axis starts at zero
    ticks: tuple[float, ...] = ()
    format: Callable[[float], str] = short_number  # in hover boxes and captions
    tick: Callable[[float], str] | None = None  # on the axis, where that is shorter

    def tick_label(self, value: float) -> str:
        """A value as the axis writes it."""
        return (self.tick or self.format)(value)


def draw_lines(
    series: Sequence[ChartSeries], *, x: ChartAxis, y: ChartAxis, label: str, height: float = HEIGHT
) -> Markup | None:
    """Draw the finite points of lines over a common x; None if there are none."""
    shown = []
    for curve in series:
        points = tuple(point for point in curve.points if all(map(math.isfinite, point)))
        band = tuple(row for row in curve.band if all(map(math.isfinite, row)))
        shown += [replace(curve, points=points, band=band)] if points else []
    if not shown:
        return None
    across = axis_scale([at for curve in shown for at, _ in curve.points], x, LEFT, WIDTH - RIGHT)
    up = axis_scale([*chain.from_iterable(curve.y_values for curve in shown)], y, height - BOTTOM, TOP)
    body = draw_grid(across, up, x, y, height)
    body += "".join(draw_series(curve, across, up, index, x, y) for index, curve in enumerate(shown))
    body += svg_tag(
        "line", class_="cursor", x1=0, x2=0, y1=TOP, y2=height - BOTTOM, stroke="var(--faint)", visibility="hidden"
    )
    return svg_picture(body, width=WIDTH, height=height, label=label, data=hover_data(shown, across, x, y))


def axis_scale(values: Sequence[float], axis: ChartAxis, start: float, end: float) -> AxisScale:
    """A scale that holds all `values`.

    A linear axis starts at zero with a margin above, or has exactly the values' span. A logarithmic one has a margin on
    both sides, or ends exactly at given ticks.
    """
    low, high = min(values), max(values)
    positive = [value for value in values if value > 0]
    is_log = axis.log if axis.log is not None else low > 0 and high / low > LOG_FROM
    if positive and is_log:
        low = min(positive)
        high = max(high, low * 1.0001)
        if not axis.ticks:
            low, high = low / 1.15, high * 1.15
        elif high / low < 1.01:
            low, high = low / 2, high * 2
        return AxisScale(low=low, high=high, start=start, end=end, log=True)
    low = min(0.0, low) if axis.zero else low
    high = high if high > low else low + max(1.0, abs(low))
    return AxisScale(low=low, high=high + (high - low) * 0.06 if axis.zero else high, start=start, end=end)


def draw_grid(across: AxisScale, up: AxisScale, x: ChartAxis, y: ChartAxis, height: float) -> str:
    """Hairlines, tick labels and the two titles. The x axis has its given ticks that lie on it, or round values."""
    base = height - BOTTOM
    parts = [svg_text(LEFT - 46, 13, y.title, fill="var(--soft)", font_weight=600)]
    values = axis_ticks(up.low, up.high, log=up.log)
    if len(values) > 6:
        values = thin_out(values, 22, [*map(up.position, values)])
    for value in values:
        place = up.position(value)
        parts.append(svg_tag("line", x1=LEFT, x2=WIDTH - RIGHT, y1=place, y2=place, stroke="var(--hair)"))
        parts.append(svg_text(LEFT - 8, place + 4, y.tick_label(value), text_anchor="end", fill="var(--soft)"))
    parts.append(svg_tag("line", x1=LEFT, x2=WIDTH - RIGHT, y1=base, y2=base, stroke="var(--rule)"))
    given = [value for value in x.ticks if across.low * 0.999 <= value <= across.high * 1.001]
    values = given or axis_ticks(across.low, across.high, log=across.log, count=6)
    for value in thin_out(values, 46, [*map(across.position, values)]):
        place, label = across.position(value), x.tick_label(value)
        anchor = "end" if place > WIDTH - RIGHT - 12 else "middle"
        parts.append(svg_tag("line", x1=place, x2=place, y1=base, y2=base + 4, stroke="var(--rule)"))
        parts.append(svg_text(min(place, WIDTH - 2), base + 17, label, text_anchor=anchor, fill="var(--soft)"))
    parts.append(svg_text(WIDTH - RIGHT, height - 6, x.title, text_anchor="end", fill="var(--soft)"))
    return "".join(parts)


def draw_series(curve: ChartSeries, across: AxisScale, up: AxisScale, index: int, x: ChartAxis, y: ChartAxis) -> str:
    """A series: its range, its line (a single point has none), and markers with titles."""
    colour = f"var(--s{curve.colour})"
    places = [(across.position(a), up.position(b)) for a, b in curve.points]
    body = ""
    if len(curve.band) > 1:
        edge = [(across.position(load), up.position(high)) for load, _, high in curve.band]
        edge += [(across.position(load), up.position(low)) for load, low, _ in reversed(curve.band)]
        body += svg_tag("path", d=svg_path(edge) + "Z", fill=colour, fill_opacity=0.13)
    if len(places) > 1:
        look = {"fill": "none", "stroke": colour, "stroke_width": 1.8 if curve.markers else 1.4}
        dashes = "5 4" if curve.dashed else None
        body += svg_tag("path", d=svg_path(places), **look, stroke_dasharray=dashes, stroke_linejoin="round")
    if curve.markers:
        for (at, value), place in zip(curve.points, places, strict=True):
            title = svg_title(f"{curve.name}: {y.format(value)} at {x.format(at)}")
            body += svg_tag("g", title + draw_marker(curve.colour, *place, colour=colour, hollow=curve.dashed))
    return svg_tag("g", body, class_="series", data_series=index)


def svg_path(places: Sequence[Point]) -> str:
    return "M" + "L".join(f"{a:.1f} {b:.1f}" for a, b in places)


def draw_marker(shape: int, a: float, b: float, *, colour: str, hollow: bool = False) -> str:
    """One point, in the shape that belongs to the series."""
    size = 3.8
    kind = MARKERS[(shape - 1) % len(MARKERS)]
    look = {"fill": "var(--panel)" if hollow or kind == "ring" else colour, "stroke": colour, "stroke_width": 1.4}
    if kind in ("circle", "ring"):
        return svg_tag("circle", cx=a, cy=b, r=size, **look)
    if kind == "cross":
        look |= {"fill": "none", "stroke_width": 2.2}
    strokes = (svg_path([(a + x * size, b + y * size) for x, y in stroke]) for stroke in STROKES[kind])
    return svg_tag("path", d="".join(strokes) + "Z" * (kind != "cross"), **look)


def hover_data(shown: Sequence[ChartSeries], across: AxisScale, x: ChartAxis, y: ChartAxis) -> str:
    """What the script shows at each x: place, heading, and each series' value there."""
    tables = [{at: y.format(value) for at, value in curve.points} for curve in shown]
    stops = [
        [round(across.position(at), 1), x.format(at), [table.get(at) for table in tables]]
        for at in sorted(set(chain.from_iterable(tables)))
    ]
    names = [[curve.name, curve.colour] for curve in shown]
    return json.dumps(
        {"x": x.title, "y": y.title, "series": names, "stops": stops}, ensure_ascii=False, separators=(",", ":")
    )


def series_legend(series: Sequence[ChartSeries]) -> tuple[LegendKey, ...]:
    drawn = [curve for curve in series if curve.points]
    return tuple(LegendKey(name=curve.name, colour=curve.colour, dashed=curve.dashed) for curve in drawn)


def whole_number(value: float) -> str:
    """Counts on an axis where every digit matters: 128, 1,024."""
    return format_number(value, 0)
