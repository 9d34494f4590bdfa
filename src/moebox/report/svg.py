"""SVG elements, scales, ticks and colours.

s1 to s8 distinguish runs: the colour-blind safe set of Okabe and Ito (jfly.uni-koeln.de/color, 2008) without yellow and
black, darkened for light paper and lightened for dark until each has a contrast of 3:1 (WCAG 2.2).
m1 to m8 are the parts of a memory bar: four blues for weights, two oranges for what grows with use, greys for the rest.
Neighbours differ in lightness, so they can be distinguished without colour.
Colours are CSS variables (`var(--s1)`), so one drawing serves light, dark and print; `inline_colours` replaces them
with the light palette for programs without CSS variables (WeasyPrint).
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from moebox.escape import escape_invisible

SERIES = 8
NAMES = ["paper", "panel", "ink", "soft", "faint", "rule", "hair", "good", "bad", "warn"]
NAMES += [f"{family}{number}" for family in "sm" for number in range(1, SERIES + 1)]
_LIGHT = """
    #fcfcfa #ffffff #1b1e23 #535a63 #656c75 #d9dce0 #eaecef #00704f #b3261e #8a5a00
    #0067a5 #c24a00 #00805c #a8568a #9a6a00 #2b8cbe #5b5f97 #6b6b6b
    #0b4f7d #2f7fb5 #78aed3 #b5d3e7 #d55e00 #eaa955 #9aa0a6 #e4e7ea
"""
_DARK = """
    #121519 #181c21 #e8eaed #a9b0b8 #7c848d #333a42 #262c33 #4fd1a0 #ff8a80 #f0c060
    #5eb3ee #ff8a4c #3fc79a #e08fc0 #e8b93f #8fd0f5 #a9adf0 #b4b4b4
    #25669a #3f86b8 #8cc0e3 #c3dcee #c8581c #ffc078 #6f7780 #2a3037
"""
LIGHT: dict[str, str] = dict(zip(NAMES, _LIGHT.split(), strict=True))
DARK: dict[str, str] = dict(zip(NAMES, _DARK.split(), strict=True))


def css_variables(palette: dict[str, str]) -> str:
    return "".join(f"--{name}:{colour};" for name, colour in palette.items())


def run_colour(index: int) -> int:
    """The palette's number for the run with this index; it starts again after eight runs."""
    return index % SERIES + 1


FONT = "Inter, 'Segoe UI', system-ui, -apple-system, 'Helvetica Neue', 'Liberation Sans', Arial, sans-serif"


def svg_tag(name: str, body: str = "", /, **attributes: object) -> str:
    """One element; `class_` is class, underscores are hyphens, None is left out, floats are kept short."""
    words = []
    for key, value in attributes.items():
        if value is None:
            continue
        text = f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
        words.append(f'{key.rstrip("_").replace("_", "-")}="{escape(escape_invisible(text))}"')
    opened = " ".join([name, *words])
    return f"<{opened}>{body}</{name}>" if body else f"<{opened}/>"


def svg_text(x: float, y: float, words: str, /, **attributes: object) -> str:
    return svg_tag("text", str(escape(escape_invisible(words))), x=x, y=y, **attributes)


def svg_title(words: str) -> str:
    """The text that is shown while the pointer rests on the element."""
    return svg_tag("title", str(escape(escape_invisible(words))))


def svg_picture(body: str, *, width: float, height: float, label: str, data: str = "") -> Markup:
    """The whole drawing; `label` is for screen readers, `data` for the page's script."""
    return Markup(  # noqa: S704  (every part went through tag or text, which escape)
        svg_tag(
            "svg",
            body,
            xmlns="http://www.w3.org/2000/svg",
            viewBox=f"0 0 {width:g} {height:g}",
            role="img",
            class_="chart",
            aria_label=label,
            font_family=FONT,
            font_size=12,
            tabindex=0 if data else None,
            data_chart=data or None,
        )
    )


def inline_colours(html: str) -> str:
    """`html` with the light palette's colours in place of variables."""
    return re.sub(r"var\(--(\w+)\)", lambda found: LIGHT.get(found[1], found[0]), html)


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisScale:
    """Maps values to positions along one axis."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def position(self, value: float) -> float:
        low, high = self.low, self.high
        if self.log:
            value, low, high = (math.log(max(number, 1e-12)) for number in (value, low, high))
        share = (value - low) / (high - low) if high > low else 0.5
        return self.start + share * (self.end - self.start)


def axis_ticks(low: float, high: float, *, log: bool = False, count: int = 5) -> list[float]:
    """Round values between `low` and `high`: powers of ten (and steps between few of them) on a log axis.

    On a linear one about `count` steps of 1, 2, 2.5 or 5 times a power of ten.
    """
    if log:
        first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
        steps = (1,) if last - first > 3 else (1, 3) if last - first > 1 else (1, 2, 5)
        ticks = [step * 10.0**power for power in range(first, last + 1) for step in steps]
        return [value for value in ticks if low * 0.999 <= value <= high * 1.001]
    step, rough = 1.0, (high - low) / count
    if 0 < rough < math.inf:
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(part * power for part in (1, 2, 2.5, 5, 10) if part * power >= rough * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(place * step, 12) for place in range(first, last + 1)]


def thin_out(values: Sequence[float], room: float, places: Sequence[float]) -> list[float]:
    """Those of `values` whose `places` leave at least `room` between them, the first and last kept."""
    if not values:
        return []
    kept, last = [0], places[0]
    for index in range(1, len(values) - 1):
        if abs(places[index] - last) >= room and abs(places[-1] - places[index]) >= room:
            kept.append(index)
            last = places[index]
    if len(values) > 1:
        kept.append(len(values) - 1)
    return [values[index] for index in kept]
