"""Drawings: well-formed whatever the figures, the same in light and dark, settled for print."""

import re
from xml.etree import ElementTree

from hypothesis import given, settings
from hypothesis import strategies as st

from moebox.assess.devices import DeviceParts
from moebox.report.charts import (
    ChartAxis,
    ChartSeries,
    draw_lines,
    draw_memory,
    draw_phases,
    draw_ranking,
    group_equal_devices,
)
from moebox.report.svg import DARK, LIGHT, axis_ticks, inline_colours

ANY = st.floats(allow_nan=True, allow_infinity=True, width=32)
POINTS = st.lists(st.tuples(ANY, ANY), max_size=6).map(tuple)


@settings(max_examples=120, deadline=None)
@given(st.lists(st.tuples(st.text(max_size=5), POINTS), max_size=3), st.sampled_from([None, True, False]))
def test_any_points_give_well_formed_svg(
    lines: list[tuple[str, tuple[tuple[float, float], ...]]], log: bool | None
) -> None:
    """NaN, infinities, zeros, one point, none: a drawing that parses, or none; never NaN in it."""
    series = [
        ChartSeries(name=clean(name), colour=place + 1, points=points) for place, (name, points) in enumerate(lines)
    ]
    svg = draw_lines(series, x=ChartAxis(title="x", log=log), y=ChartAxis(title="y", log=log), label="test")
    if svg is not None:
        ElementTree.fromstring(svg)  # noqa: S314  (our own)
        assert "nan" not in svg.lower().replace("finance", "")


def clean(name: str) -> str:
    """XML cannot hold control characters at all; names come from files that cannot either."""
    return re.sub(r"[\x00-\x1f\ufffe\uffff\ud800-\udfff]", "", name).replace("nan", "").replace("NaN", "")


@settings(max_examples=80, deadline=None)
@given(st.floats(1e-6, 1e9), st.floats(1.0001, 1e6), st.booleans())
def test_ticks_lie_inside_and_are_few(low: float, ratio: float, log: bool) -> None:
    """Between one and a dozen or so round values, all within the axis."""
    found = axis_ticks(low, low * ratio, log=log)
    assert len(found) <= 14
    assert all(low * 0.99 <= value <= low * ratio * 1.01 for value in found)


def test_the_two_palettes_have_the_same_names_and_enough_contrast() -> None:
    """Every colour of a run has a contrast of 3:1 with its paper, text 4.5:1 (WCAG 2.2)."""
    assert LIGHT.keys() == DARK.keys()
    for palette in (LIGHT, DARK):
        for name in [*(f"s{place}" for place in range(1, 9)), "good", "bad", "warn"]:
            assert contrast(palette[name], palette["panel"]) >= 3, name
        for name in ("ink", "soft"):
            assert contrast(palette[name], palette["paper"]) >= 4.5, name


def contrast(a: str, b: str) -> float:
    """WCAG's contrast ratio."""
    bright, dark = sorted((luminance(a), luminance(b)), reverse=True)
    return (bright + 0.05) / (dark + 0.05)


def luminance(colour: str) -> float:
    """WCAG's relative luminance of #rrggbb."""
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_alike_devices_share_a_bar_and_unlike_ones_do_not() -> None:
    """Eight ranks of one tensor-parallel group are one row; a fuller GPU has its own."""
    alike = [DeviceParts(name=f"gpu{n}", total=100.0, parts={"weights": 70.0 + n * 0.01}) for n in range(7)]
    rows = group_equal_devices([*alike, DeviceParts(name="gpu7", total=100.0, parts={"weights": 80.0})])
    assert [name for name, _ in rows] == ["gpu0 – gpu6, each", "gpu7"]


def test_every_other_drawing_is_well_formed_and_settles() -> None:
    """Bars, ranks and phases parse, and no variable is left once settled for print."""
    device = DeviceParts(name="gpu0", total=96e9, parts={"experts": 67e9, "KV cache": 1e8, "free": 20e9})
    made = [
        draw_memory([("a <b>", "planned", device)], label="m"),
        draw_ranking([("a & b", 1, 0.0, "x")], label="r"),
        draw_phases([("up", 0.0, 5.0), ("up", 5.0, 5.0)], label="p"),
    ]
    for svg in made:
        assert svg is not None
        ElementTree.fromstring(svg)  # noqa: S314
        assert "var(--" not in inline_colours(str(svg))
    assert draw_memory([], label="m") is None
    assert draw_ranking([], label="r") is None
