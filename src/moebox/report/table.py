"""Tables of a report: cells with the value they sort by, columns, and figures of which the best is marked."""

from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

from moebox.assess.assessment import Tone
from moebox.assess.format import DASH, format_number
from moebox.report.svg import run_colour
from moebox.runs.record import RunRecord

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class TableCell:
    """One field of a table: its text, the value it sorts by, and how it stands out."""

    text: str
    value: float | str | None = None
    tone: Tone = ""
    title: str = ""
    aside: str = ""  # in smaller letters after the text
    colour: int = 0  # a run's number in the palette, shown as a swatch


class TableColumn(NamedTuple):
    title: str
    numeric: bool = True


CellValue = TableCell | str | float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportTable:
    """A table that sorts and copies as CSV."""

    kind: str = "table"
    caption: str = ""
    columns: Sequence[TableColumn]
    rows: Sequence[Sequence[TableCell]]
    note: str = ""
    sortable: bool = True
    folded: bool = False  # one line until it is opened


@dataclass(frozen=True, slots=True)
class ComparedFigure(Generic[T]):
    """One figure of several loads or runs: how it is read and written, and which of its values is the best, if any."""

    title: str
    read: Callable[[T], float | None]
    best: Callable[[Sequence[float]], float] | None = max
    write: Callable[[float], str] = format_number


def figure_cell(value: float | None, *, digits: int | None = None, tone: Tone = "") -> TableCell:
    return TableCell(text=format_number(value, digits), value=value, tone=tone)


def text_cell(text: str, *, tone: Tone = "", colour: int = 0, title: str = "") -> TableCell:
    """Text as a cell; a dash if it is empty."""
    return TableCell(text=text or DASH, value=text, tone=tone, colour=colour, title=title)


def run_cell(record: RunRecord, index: int) -> TableCell:
    """A run's name and colour; a dash on a page of one run."""
    return text_cell(record.page_label, colour=run_colour(index))


def table_blocks(
    heads: Sequence[str],
    rows: Iterable[Sequence[CellValue]],
    *,
    text: Container[int] = (0,),
    drop_empty: bool = False,
    **look: Any,
) -> list[ReportTable]:
    """A table as blocks; none without rows. Columns at the positions in `text` hold text, the others numbers.

    A cell may be given as text, as a number, or as an int, which is a count with all its digits. `drop_empty` leaves
    out columns in which no row has anything.
    """
    lines = [[*map(_make_cell, row)] for row in rows]
    shown = [i for i in range(len(heads)) if not drop_empty or any(line[i].text != DASH for line in lines)]
    columns = [TableColumn(heads[place], place not in text) for place in shown]
    cells = [[line[place] for place in shown] for line in lines]
    return [ReportTable(columns=columns, rows=cells, **look)] if cells else []


def _make_cell(value: CellValue) -> TableCell:
    if isinstance(value, TableCell):
        return value
    if isinstance(value, str):
        return text_cell(value)
    return figure_cell(float(value), digits=0) if isinstance(value, int) else figure_cell(value)
