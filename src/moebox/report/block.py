"""What a report is made of, before it is HTML or Markdown: sections of blocks.

Sections decide what to say; templates decide how it looks. A block knows its own kind, which names its template.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from markupsafe import Markup

from moebox.report.format import DASH, number

Tone = Literal["", "best", "good", "bad", "warn", "quiet"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One field of a table: what is shown, what it sorts by, how it stands out."""

    text: str
    value: float | str | None = None
    tone: Tone = ""
    title: str = ""
    aside: str = ""  # said smaller, after the text
    colour: int = 0  # a run's place in the palette: shown as its swatch


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column's heading."""

    title: str
    numeric: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows that sort and copy as CSV."""

    kind: str = "table"
    caption: str = ""
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
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
class Key:
    """One entry of a legend."""

    name: str
    colour: int
    dashed: bool = False
    family: str = "s"  # s: runs, m: parts of memory


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A drawing with its heading, legend and what to read from it."""

    title: str
    svg: Markup
    legend: tuple[Key, ...] = ()
    caption: str = ""
    wide: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Charts:
    """Drawings, two in a row where there is room."""

    kind: str = "charts"
    charts: tuple[Chart, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A block whose look is its own template's business: ladder, attempts, topology, advice, code …"""

    kind: str
    data: Any


Block = Table | Tiles | Prose | Bullets | Charts | Part


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A heading, one sentence that says what was found, and the blocks."""

    id: str
    title: str
    lead: str = ""
    blocks: tuple[Block, ...] = field(default=())


def cell(value: float | None, *, digits: int | None = None, tone: Tone = "", title: str = "") -> Cell:
    """A figure as a cell."""
    return Cell(text=number(value, digits), value=value, tone=tone, title=title)


def words(text: str, *, tone: Tone = "", colour: int = 0, title: str = "") -> Cell:
    """Text as a cell."""
    return Cell(text=text or DASH, value=text, tone=tone, colour=colour, title=title)


def columns(*titles: str, text: Sequence[int] = (0,)) -> tuple[Column, ...]:
    """Headings; those at the places in `text` hold words, the others figures."""
    return tuple(Column(title=title, numeric=place not in text) for place, title in enumerate(titles))


def bullets(title: str, items: Sequence[str]) -> list[Bullets]:
    """A list, where there is anything in it."""
    return [Bullets(title=title, items=tuple(items))] if items else []


def drawing(
    title: str, svg: Markup | None, *, legend: Sequence[Key] = (), caption: str = "", wide: bool = False
) -> Chart | None:
    """A drawing with its heading, where there is anything to draw."""
    return Chart(title=title, svg=svg, legend=tuple(legend), caption=caption, wide=wide) if svg else None


def without_empty(table: Table, *, alone: bool) -> Table:
    """The table without columns that nobody filled, and without the runs' names where there is only one run."""
    columns = zip(table.columns, zip(*table.rows, strict=True), strict=True)
    hidden = "Run" if alone else ""
    kept = [(head, cells) for head, cells in columns if filled(cells) and head.title != hidden]
    rows = zip(*(cells for _, cells in kept), strict=True)
    return replace(table, columns=tuple(head for head, _ in kept), rows=tuple(rows))


def filled(cells: Sequence[Cell]) -> bool:
    """Whether any of a column's cells says something."""
    return any(cell.text != DASH for cell in cells)
