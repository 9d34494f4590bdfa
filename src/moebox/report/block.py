"""What a report consists of before it is HTML or Markdown: sections of blocks.

Sections decide what is shown, templates how it looks. A block's `kind` names its template.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from markupsafe import Markup

from moebox.assess.assessment import Tone
from moebox.assess.format import DASH, format_number


@dataclass(frozen=True, slots=True, kw_only=True)
class TableCell:
    """One field of a table: its text, the value it sorts by, and how it stands out."""

    text: str
    value: float | str | None = None
    tone: Tone = ""
    title: str = ""
    aside: str = ""  # in smaller letters after the text
    colour: int = 0  # a run's number in the palette, shown as a swatch


@dataclass(frozen=True, slots=True, kw_only=True)
class TableColumn:
    title: str
    numeric: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportTable:
    """A table that sorts and copies as CSV."""

    kind: str = "table"
    caption: str = ""
    columns: tuple[TableColumn, ...]
    rows: tuple[tuple[TableCell, ...], ...]
    note: str = ""
    sortable: bool = True
    folded: bool = False  # one line until it is opened


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    figure: str
    unit: str = ""
    label: str
    detail: str = ""
    tone: Tone = ""
    colour: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiles:
    kind: str = "tiles"
    tiles: tuple[Tile, ...]


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
    """A drawing with its heading, legend and caption."""

    title: str
    svg: Markup
    legend: tuple[LegendKey, ...] = ()
    caption: str = ""
    wide: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Charts:
    """Drawings, two in a row if there is room."""

    kind: str = "charts"
    charts: tuple[ReportChart, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CustomBlock:
    """A block with a template of its own: checks, attempts, topology, advice, code and others."""

    kind: str
    data: Any


Block = ReportTable | Tiles | Prose | Bullets | Charts | CustomBlock


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A heading, one sentence with the finding, and blocks."""

    id: str
    title: str
    lead: str = ""
    blocks: tuple[Block, ...] = field(default=())


def figure_cell(value: float | None, *, digits: int | None = None, tone: Tone = "") -> TableCell:
    return TableCell(text=format_number(value, digits), value=value, tone=tone)


def text_cell(text: str, *, tone: Tone = "", colour: int = 0, title: str = "") -> TableCell:
    """Text as a cell; a dash if it is empty."""
    return TableCell(text=text or DASH, value=text, tone=tone, colour=colour, title=title)


def table_columns(*titles: str, text: Sequence[int] = (0,)) -> tuple[TableColumn, ...]:
    """Headings; columns at the positions in `text` hold text, the others numbers."""
    return tuple(TableColumn(title=title, numeric=place not in text) for place, title in enumerate(titles))


def bullet_list(title: str, items: Sequence[str]) -> list[Bullets]:
    """A list as blocks; none if it is empty."""
    return [Bullets(title=title, items=tuple(items))] if items else []


def titled_chart(
    title: str, svg: Markup | None, *, legend: Sequence[LegendKey] = (), caption: str = "", wide: bool = False
) -> ReportChart | None:
    """A drawing with its heading, or None without a drawing."""
    return ReportChart(title=title, svg=svg, legend=tuple(legend), caption=caption, wide=wide) if svg else None


def chart_blocks(charts: Iterable[ReportChart | None]) -> list[Charts]:
    """Drawings as one block; none if nothing could be drawn."""
    drawn = tuple(filter(None, charts))
    return [Charts(charts=drawn)] if drawn else []


def drop_empty_columns(table: ReportTable, *, single_run: bool) -> ReportTable:
    """The table without empty columns, and without the column of run names if there is only one run."""
    hidden = "Run" if single_run else ""
    kept = [
        (head, cells)
        for head, cells in zip(table.columns, zip(*table.rows, strict=True), strict=True)
        if head.title != hidden and any(cell.text != DASH for cell in cells)
    ]
    rows = zip(*(cells for _, cells in kept), strict=True)
    return replace(table, columns=tuple(head for head, _ in kept), rows=tuple(rows))
