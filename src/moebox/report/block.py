"""What a report consists of before it is HTML or Markdown: sections of blocks.

Sections decide what is shown, templates how it looks. A block's `kind` names its template.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from moebox.assess.assessment import Tone
from moebox.report.table import ReportTable


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    figure: str
    unit: str = ""
    label: str
    detail: str = ""
    tone: Tone = ""
    colour: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Prose:
    kind: str = "prose"
    paragraphs: tuple[str, ...]
    tone: Tone = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bullets:
    kind: str = "bullets"
    title: str = ""
    items: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LegendKey:
    name: str
    colour: int
    dashed: bool = False
    family: str = "s"  # s: runs, m: parts of memory


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportChart:
    """A drawing with its heading, legend and caption; without `svg` there is nothing to draw."""

    title: str
    svg: Markup | None
    legend: Sequence[LegendKey] = ()
    caption: str = ""
    wide: bool = False


@dataclass(frozen=True, slots=True)
class CustomBlock:
    """A block with a template of its own: charts, tiles, checks, attempts, topology, advice, code and others."""

    kind: str
    data: Any


Block = ReportTable | Prose | Bullets | CustomBlock


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A heading, one sentence with the finding, and blocks."""

    id: str
    title: str
    lead: str = ""
    blocks: Sequence[Block] = ()


def bullet_list(title: str, items: Sequence[str]) -> list[Bullets]:
    """A list as blocks; none if it is empty."""
    return [Bullets(title=title, items=tuple(items))] if items else []


def chart_blocks(charts: Iterable[ReportChart | None]) -> list[CustomBlock]:
    """Drawings as one block, two in a row if there is room; none if nothing could be drawn."""
    drawn = [chart for chart in charts if chart and chart.svg]
    return [CustomBlock("charts", drawn)] if drawn else []
