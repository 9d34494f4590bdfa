"""Tables for people, in the one look that commands share."""

from collections.abc import Collection, Iterable, Sequence

from rich.console import RenderableType
from rich.table import Table


def make_grid(rows: Iterable[Sequence[RenderableType]], *, gap: int = 1) -> Table:
    """Rows without headings, as wide as what stands in them."""
    table = Table.grid(padding=(0, gap))
    for row in rows:
        table.add_row(*row)
    return table


def make_table(
    heads: Sequence[str], rows: Iterable[Sequence[RenderableType]], *, left_columns: Collection[str] = (), gap: int = 2
) -> Table:
    """Rows under headings: figures on the right, which are never cut, and the columns called `words` on the left."""
    table = Table(box=None, pad_edge=False, padding=(0, gap, 0, 0))
    for head in heads:
        table.add_column(head, justify="left" if head in left_columns else "right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    return table
