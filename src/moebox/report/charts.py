"""Lines and bands, stacked bars of memory, bars of figures by run, and phases along time, as SVG.

Drawn to be read small: few ticks, hairline grid, the axis title at the top where the eye starts. Each series has its
own colour and its own marker, so colour is never the only difference. What the page's script needs to show a hover box
stands in `data-chart`; without the script every point has its own title.
"""

import itertools
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from markupsafe import Markup

from moebox import units
from moebox.assess.devices import PARTS, DeviceParts
from moebox.assess.format import format_number, short_number
from moebox.report.block import LegendKey, ReportChart
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

PAGE_WIDTH = 1080.0  # of drawings over the whole width of the page
PART_COLOURS = dict(zip(PARTS, (1, 2, 3, 4, 4, 1, 2, 5, 6, 7, 8), strict=True))  # among the colours m1 … m8
LIGHT_PARTS = {"vision", "draft", "activations", "other weights"}  # dark text on these

Point = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartSeries:
    """One line: its name, its place in the palette, its points, and a band where it is a forecast."""

    name: str
    colour: int
    points: tuple[Point, ...]
    dashed: bool = False
    markers: bool = True
    band: tuple[tuple[float, float, float], ...] = ()  # x, low, high


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartAxis:
    """What an axis measures and how its values are written."""

    title: str
    log: bool | None = None  # None: decided by the span of the values
    zero: bool = True  # a linear axis starts at zero
    ticks: tuple[float, ...] = ()
    format: Callable[[float], str] = short_number  # in hover boxes and captions
    tick: Callable[[float], str] | None = None  # on the axis, where that is shorter


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
    values = [value for curve in shown for _, value in curve.points]
    values += [edge for curve in shown for _, low, high in curve.band for edge in (low, high)]
    up = axis_scale(values, y, height - BOTTOM, TOP)
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
    write_x, write_y = x.tick or x.format, y.tick or y.format
    values = axis_ticks(up.low, up.high, log=up.log)
    if len(values) > 6:
        values = thin_out(values, 22, [*map(up.position, values)])
    for value in values:
        place = up.position(value)
        parts.append(svg_tag("line", x1=LEFT, x2=WIDTH - RIGHT, y1=place, y2=place, stroke="var(--hair)"))
        parts.append(svg_text(LEFT - 8, place + 4, write_y(value), text_anchor="end", fill="var(--soft)"))
    parts.append(svg_tag("line", x1=LEFT, x2=WIDTH - RIGHT, y1=base, y2=base, stroke="var(--rule)"))
    given = [value for value in x.ticks if across.low * 0.999 <= value <= across.high * 1.001]
    values = given or axis_ticks(across.low, across.high, log=across.log, count=6)
    for value in thin_out(values, 46, [*map(across.position, values)]):
        place, label = across.position(value), write_x(value)
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
        for at in sorted(set(itertools.chain.from_iterable(tables)))
    ]
    names = [[curve.name, curve.colour] for curve in shown]
    return json.dumps(
        {"x": x.title, "y": y.title, "series": names, "stops": stops}, ensure_ascii=False, separators=(",", ":")
    )


def line_chart(
    title: str, series: Sequence[ChartSeries], *, x: ChartAxis, y: ChartAxis, label: str, caption: str = ""
) -> ReportChart:
    """Lines over a common x with their legend."""
    svg = draw_lines(series, x=x, y=y, label=label)
    drawn = [curve for curve in series if curve.points]
    legend = [LegendKey(name=curve.name, colour=curve.colour, dashed=curve.dashed) for curve in drawn]
    return ReportChart(title=title, svg=svg, legend=legend, caption=caption)


def group_equal_devices(devices: Sequence[DeviceParts]) -> list[tuple[str, DeviceParts]]:
    """Neighbours that are equal within half a percent as one row: "gpu0 – gpu7, each"."""
    groups: list[list[DeviceParts]] = []
    for device in devices:
        first = groups[-1][0] if groups else None
        tolerance = 0.005 * device.total
        if (
            first
            and first.parts.keys() == device.parts.keys()
            and abs(first.total - device.total) <= tolerance
            and all(abs(first.parts[name] - size) <= tolerance for name, size in device.parts.items())
        ):
            groups[-1].append(device)
        else:
            groups.append([device])
    return [
        (f"{group[0].name} – {group[-1].name}, each" if len(group) > 1 else group[0].name, group[0]) for group in groups
    ]


def draw_memory(rows: Sequence[tuple[str, str, DeviceParts]], *, label: str) -> Markup | None:
    """One bar for each row (heading, kind, device) on one scale; rows with the same heading share it."""
    if not rows:
        return None
    bar, left, y = 24.0, 74.0, -8.0
    widest = max(device.total for _, _, device in rows)
    unit_bytes, unit = (2**30, "GiB") if widest >= 2**30 else (2**20, "MiB")
    across = AxisScale(low=0, high=widest, start=left, end=PAGE_WIDTH - 8)
    body = ""
    for heading, group in itertools.groupby(rows, key=lambda row: row[0]):
        body += svg_text(0, y + 23, heading, fill="var(--ink)", font_size=13, font_weight=600)
        y += 30
        for _, kind, device in group:
            body += svg_text(0, y + 16, kind, fill="var(--soft)")
            body += draw_device(device, across, y, bar, kind, unit_bytes)
            y += bar + 4
    base = y + 4
    for value in axis_ticks(0, widest / unit_bytes, count=8):
        x = across.position(value * unit_bytes)
        body += svg_tag("line", x1=x, x2=x, y1=base - 4, y2=base + 2, stroke="var(--rule)")
        text = f"{value:g}" if value else f"0 {unit}"
        body += svg_text(x, base + 15, text, text_anchor="middle", fill="var(--soft)")
    return svg_picture(body, width=PAGE_WIDTH, height=y + 24, label=label)


def draw_device(device: DeviceParts, across: AxisScale, y: float, height: float, kind: str, unit_bytes: float) -> str:
    """One device's parts side by side, each labelled if it is wide enough, and an outline of the device's size."""
    body, offset = "", 0.0
    for name, size in device.parts.items():
        start, end = across.position(offset), across.position(offset + size)
        share = f"{size / device.total * 100:.1f}% of {units.format_gib(device.total)}"
        look = {"fill": f"var(--m{PART_COLOURS.get(name, 7)})", "stroke": "var(--panel)", "stroke_width": 1}
        inner = svg_title(f"{name} {units.format_gib(size)} ({share}, {kind})")
        inner += svg_tag("rect", x=start, y=y, width=max(end - start, 0.5), height=height, **look)
        if end - start > 30:
            ink = "var(--ink)" if name == "free" else "#1b1e23" if name in LIGHT_PARTS else "#ffffff"
            text = f"{size / unit_bytes:.1f}" if end - start < 92 else f"{name} {size / unit_bytes:.1f}"
            middle = ((start + end) / 2, y + height / 2 + 4)
            inner += svg_text(*middle, text, text_anchor="middle", fill=ink, font_size=11.5)
        body += svg_tag("g", inner, class_="part", data_part=name)
        offset += size
    outline = {"fill": "none", "stroke": "var(--faint)", "stroke_width": 0.8}
    width = across.position(device.total) - across.start
    return body + svg_tag("rect", x=across.start, y=y, width=width, height=height, **outline)


def draw_ranking(rows: Sequence[tuple[str, int, float, str]], *, label: str, unit: str = "") -> Markup | None:
    """Horizontal bars (name, colour, value, remark) on one scale, the name above, the value at the end."""
    if not rows:
        return None
    width, bar = 540.0, 13.0
    across = AxisScale(low=0, high=max(value for _, _, value, _ in rows) or 1.0, start=0, end=width - 70)
    body, y = "", 2.0
    for name, colour, value, remark in rows:
        end = across.position(value)
        title = svg_title(f"{name}: {format_number(value)} {unit} {remark}".strip())
        inner = title + svg_text(0, y + 11, f"{name}{', ' + remark if remark else ''}", fill="var(--ink)")
        inner += svg_tag("rect", x=0, y=y + 16, width=max(end, 1), height=bar, fill=f"var(--s{colour})", rx=1.5)
        inner += svg_text(end + 6, y + 27, format_number(value), fill="var(--ink)", font_weight=600)
        body += svg_tag("g", inner)
        y += bar + 25
    return svg_picture(body, width=width, height=y, label=label)


def draw_phases(spans: Sequence[tuple[str, float, float]], *, label: str) -> Markup | None:
    """Named spans of time along one clock."""
    spans = [(name, opened, closed) for name, opened, closed in spans if closed > opened]
    if not spans:
        return None
    _, starts, ends = zip(*spans, strict=True)
    start, end = min(starts), max(ends)
    across = AxisScale(low=0, high=end - start, start=120, end=PAGE_WIDTH - 70)
    body, y = "", 4.0
    for name, opened, closed in spans:
        a, b = across.position(opened - start), across.position(closed - start)
        title = svg_title(f"{name}: {units.format_seconds(closed - opened)}")
        inner = title + svg_text(112, y + 13, name[:18], text_anchor="end", fill="var(--ink)")
        inner += svg_tag("rect", x=a, y=y, width=max(b - a, 1.5), height=17, fill="var(--m2)", rx=1.5)
        inner += svg_text(b + 6, y + 13, units.format_seconds(closed - opened), fill="var(--soft)")
        body += svg_tag("g", inner)
        y += 23
    return svg_picture(body, width=PAGE_WIDTH, height=y + 2, label=label)
