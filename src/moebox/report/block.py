"""What a report is made of, before it is HTML or Markdown: sections of blocks.

Sections decide what to say; templates decide how it looks. A block knows its own kind, which names its template.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from markupsafe import Markup

from moebox.report.format import DASH, format_number

Tone = Literal["", "best", "good", "bad", "warn", "quiet"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableCell:
    """One field of a table: what is shown, what it sorts by, how it stands out."""

    text: str
    value: float | str | None = None
    tone: Tone = ""
    title: str = ""
    aside: str = ""  # said smaller, after the text
    colour: int = 0  # a run's place in the palette: shown as its swatch


@dataclass(frozen=True, slots=True, kw_only=True)
class TableColumn:
    """One column's heading."""

    title: str
    numeric: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportTable:
    """Rows that sort and copy as CSV."""

    kind: str = "table"
    caption: str = ""
    columns: tuple[TableColumn, ...]
    rows: tuple[tuple[TableCell, ...], ...]
    note: str = ""
    sortable: bool = True
    folded: bool = False  # shown as one line until asked for


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """One headline figure."""

    figure: str
    unit: str = ""
    label: str
    detail: str = ""
    tone: Tone = ""
    colour: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiles:
    """Headline figures in a row."""

    kind: str = "tiles"
    tiles: tuple[Tile, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prose:
    """Paragraphs."""

    kind: str = "prose"
    paragraphs: tuple[str, ...]
    tone: Tone = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bullets:
    """A list of remarks."""

    kind: str = "bullets"
    title: str = ""
    items: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LegendKey:
    """One entry of a legend."""

    name: str
    colour: int
    dashed: bool = False
    family: str = "s"  # s: runs, m: parts of memory


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportChart:
    """A drawing with its heading, legend and what to read from it."""

    title: str
    svg: Markup
    legend: tuple[LegendKey, ...] = ()
    caption: str = ""
    wide: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Charts:
    """Drawings, two in a row where there is room."""

    kind: str = "charts"
    charts: tuple[ReportChart, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CustomBlock:
    """A block whose look is its own template's business: ladder, attempts, topology, advice, code …"""

    kind: str
    data: Any


Block = ReportTable | Tiles | Prose | Bullets | Charts | CustomBlock


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A heading, one sentence that says what was found, and the blocks."""

    id: str
    title: str
    lead: str = ""
    blocks: tuple[Block, ...] = field(default=())


def figure_cell(value: float | None, *, digits: int | None = None, tone: Tone = "", title: str = "") -> TableCell:
    """A figure as a cell."""
    return TableCell(text=format_number(value, digits), value=value, tone=tone, title=title)


def text_cell(text: str, *, tone: Tone = "", colour: int = 0, title: str = "") -> TableCell:
    """Text as a cell."""
    return TableCell(text=text or DASH, value=text, tone=tone, colour=colour, title=title)


def table_columns(*titles: str, text: Sequence[int] = (0,)) -> tuple[TableColumn, ...]:
    """Headings; those at the places in `text` hold words, the others figures."""
    return tuple(TableColumn(title=title, numeric=place not in text) for place, title in enumerate(titles))


def bullet_list(title: str, items: Sequence[str]) -> list[Bullets]:
    """A list, where there is anything in it."""
    return [Bullets(title=title, items=tuple(items))] if items else []


def titled_chart(
    title: str, svg: Markup | None, *, legend: Sequence[LegendKey] = (), caption: str = "", wide: bool = False
) -> ReportChart | None:
    """A drawing with its heading, where there is anything to draw."""
    return ReportChart(title=title, svg=svg, legend=tuple(legend), caption=caption, wide=wide) if svg else None


def drop_empty_columns(table: ReportTable, *, single_run: bool) -> ReportTable:
    """The table without columns that nobody filled, and without the runs' names where there is only one run."""
    columns = zip(table.columns, zip(*table.rows, strict=True), strict=True)
    hidden = "Run" if single_run else ""
    kept = [(head, cells) for head, cells in columns if filled(cells) and head.title != hidden]
    rows = zip(*(cells for _, cells in kept), strict=True)
    return replace(table, columns=tuple(head for head, _ in kept), rows=tuple(rows))


def filled(cells: Sequence[TableCell]) -> bool:
    """Whether any of a column's cells says something."""
    return any(cell.text != DASH for cell in cells)
