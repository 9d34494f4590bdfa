"""Stacked bars of memory, bars of figures by run, and phases along time, as SVG."""

import itertools
from collections.abc import Sequence

from markupsafe import Markup

from moebox import units
from moebox.assess.devices import PARTS, DeviceParts
from moebox.assess.format import format_number
from moebox.report.svg import AxisScale, axis_ticks, svg_picture, svg_tag, svg_text, svg_title

WIDTH = 1080.0
PART_COLOURS = dict(zip(PARTS, (1, 2, 3, 4, 4, 1, 2, 5, 6, 7, 8), strict=True))  # among the colours m1 … m8
LIGHT_PARTS = {"vision", "draft", "activations", "other weights"}  # dark text on these


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
    across = AxisScale(low=0, high=widest, start=left, end=WIDTH - 8)
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
    return svg_picture(body, width=WIDTH, height=y + 24, label=label)


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
    across = AxisScale(low=0, high=end - start, start=120, end=WIDTH - 70)
    body, y = "", 4.0
    for name, opened, closed in spans:
        a, b = across.position(opened - start), across.position(closed - start)
        title = svg_title(f"{name}: {units.format_seconds(closed - opened)}")
        inner = title + svg_text(112, y + 13, name[:18], text_anchor="end", fill="var(--ink)")
        inner += svg_tag("rect", x=a, y=y, width=max(b - a, 1.5), height=17, fill="var(--m2)", rx=1.5)
        inner += svg_text(b + 6, y + 13, units.format_seconds(closed - opened), fill="var(--soft)")
        body += svg_tag("g", inner)
        y += 23
    return svg_picture(body, width=WIDTH, height=y + 2, label=label)
