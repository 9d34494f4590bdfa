"""What the report does not show, and where imported figures come from."""

from collections.abc import Sequence

from moebox.report.block import Block, Bullets, Part, Section
from moebox.report.record import RunRecord


def section(records: Sequence[RunRecord]) -> Section:
    """Sources; remarks; notes of what is missing."""
    sources = list(dict.fromkeys(source for record in records for source in record.sources))
    notes = tuple(dict.fromkeys(note for record in records for note in record.notes))
    blocks: list[Block] = [Part(kind="sources", data=sources)] if sources else []
    blocks += bullets("Remarks on the figures", notes)
    for record in records:
        blocks += bullets(f"Not in {record.named or 'this run'}", gaps(record))
    return Section(id="notes", title="Sources and gaps", blocks=tuple(blocks))


def bullets(title: str, items: tuple[str, ...]) -> list[Bullets]:
    """A list, where there is anything in it."""
    return [Bullets(title=title, items=items)] if items else []


def gaps(record: RunRecord) -> tuple[str, ...]:
    """Its gaps; an import never had files of ours, which is not worth a line."""
    if not record.imported:
        return record.gaps
    return tuple(gap for gap in record.gaps if not gap.endswith(("not there", "unknown")))
