"""Stacked bars of memory, bars of figures by run, and phases along time, as SVG."""

import itertools
from collections.abc import Sequence

from markupsafe import Markup

from moebox import units
from moebox.report.format import format_number
from moebox.report.record import DeviceParts
from moebox.report.svg import AxisScale, axis_ticks, svg_picture, svg_tag, svg_text, svg_title

WIDTH = 1080.0
# part -> place among m1 … m8
PART_COLOURS = {
    "weights": 1,
    "in use": 2,
    "experts": 1,
    "attention": 2,
    "other weights": 3,
    "vision": 4,
    "draft": 4,
    "KV cache": 5,
    "activations": 6,
    "overhead": 7,
    "unused": 8,
    "free": 8,
}
LIGHT_PARTS = {"vision", "draft", "activations", "other weights"}  # dark words on these


def group_equal_devices(devices: Sequence[DeviceParts]) -> list[tuple[str, DeviceParts]]:
    """Devices with the same bar as one row: "gpu0 – gpu7 (each)"."""
    groups: list[list[DeviceParts]] = []
    for device in devices:
        if groups and equal_devices(groups[-1][0], device):
            groups[-1].append(device)
        else:
            groups.append([device])
    return [(_names(group), group[0]) for group in groups]


def _names(group: Sequence[DeviceParts]) -> str:
    return f"{group[0].name} – {group[-1].name}, each" if len(group) > 1 else group[0].name


def equal_devices(a: DeviceParts, b: DeviceParts) -> bool:
    """The same within half a percent of the device."""
    same = a.parts.keys() == b.parts.keys() and abs(a.total - b.total) <= 0.005 * a.total
    return same and all(abs(a.parts[name] - b.parts[name]) <= 0.005 * a.total for name in a.parts)


def draw_memory(rows: Sequence[tuple[str, str, DeviceParts]], *, label: str) -> Markup | None:
    """One bar per row (heading, kind, device), all to one scale; a heading stands above the bars that share it."""
    if not rows:
        return None
    bar, left, y = 24.0, 74.0, -8.0
    widest = max(device.total for _, _, device in rows)
    across = AxisScale(low=0, high=widest, start=left, end=WIDTH - 8)
    body = ""
    for heading, group in itertools.groupby(rows, key=lambda row: row[0]):
        body += svg_text(0, y + 23, heading, fill="var(--ink)", font_size=13, font_weight=600)
        y += 30
        for _, kind, device in group:
            body += svg_text(0, y + 16, kind, fill="var(--soft)")
            body += draw_device(device, across, y, bar, kind, widest)
            y += bar + 4
    return svg_picture(body + scale_below(across, widest, y + 4), width=WIDTH, height=y + 24, label=label)


def scale_below(across: AxisScale, widest: float, base: float) -> str:
    """Marks and sizes under the bars."""
    body = ""
    size, unit = scale_of(widest)
    for value in axis_ticks(0, widest / size, count=8):
        place = across.position(value * size)
        body += svg_tag("line", x1=place, x2=place, y1=base - 4, y2=base + 2, stroke="var(--rule)")
        words = f"{value:g}" if value else f"0 {unit}"
        body += svg_text(place, base + 15, words, text_anchor="middle", fill="var(--soft)")
    return body


def scale_of(widest: float) -> tuple[float, str]:
    """The unit that the axis of such a drawing is in."""
    return (2**30, "GiB") if widest >= 2**30 else (2**20, "MiB")


def draw_device(device: DeviceParts, across: AxisScale, y: float, height: float, kind: str, widest: float) -> str:
    """One device's parts side by side, an outline to its full size."""
    body, place = "", 0.0
    unit = scale_of(widest)[0]
    for name, size in device.parts.items():
        start, end = across.position(place), across.position(place + size)
        share = f"{size / device.total * 100:.1f}% of {units.format_gib(device.total)}"
        words = f"{name} {units.format_gib(size)} ({share}, {kind})"
        look = {"fill": f"var(--m{PART_COLOURS.get(name, 7)})", "stroke": "var(--panel)", "stroke_width": 1}
        inner = svg_title(words) + svg_tag("rect", x=start, y=y, width=max(end - start, 0.5), height=height, **look)
        inner += part_label(name, size / unit, start, end, y + height / 2 + 4)
        body += svg_tag("g", inner, class_="part", data_part=name)
        place += size
    outline = {"fill": "none", "stroke": "var(--faint)", "stroke_width": 0.8}
    return body + svg_tag(
        "rect", x=across.start, y=y, width=across.position(device.total) - across.start, height=height, **outline
    )


def part_label(name: str, size: float, start: float, end: float, base: float) -> str:
    """A part's name and size as far as it has room for them."""
    if end - start <= 30:
        return ""
    words = f"{size:.1f}" if end - start < 92 else f"{name} {size:.1f}"
    return svg_text((start + end) / 2, base, words, text_anchor="middle", fill=part_ink(name), font_size=11.5)


def part_ink(name: str) -> str:
    """A colour that can be read on the part's own."""
    if name in ("free", "unused"):
        return "var(--ink)"
    return "#1b1e23" if name in LIGHT_PARTS else "#ffffff"


def draw_ranking(rows: Sequence[tuple[str, int, float, str]], *, label: str, unit: str = "") -> Markup | None:
    """Horizontal bars (name, colour, value, remark) to one scale, the name above, the value at the end."""
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
    """What took how long, along one clock."""
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
