"""What the report does not show, and where imported figures come from."""

from collections.abc import Sequence

from moebox.report.block import Block, Bullets, Part, Section
from moebox.report.record import RunRecord


def section(records: Sequence[RunRecord]) -> Section | None:
    """Sources; remarks; notes of what is missing."""
    blocks: list[Block] = []
    sources = list(dict.fromkeys(source for record in records for source in record.sources))
    if sources:
        blocks.append(Part(kind="sources", data=sources))
    notes = tuple(dict.fromkeys(note for record in records for note in record.notes))
    if notes:
        blocks.append(Bullets(title="Remarks on the figures", items=notes))
    blocks += [missing(record, alone=len(records) == 1) for record in records if gaps(record)]
    return Section(id="notes", title="Sources and gaps", blocks=tuple(blocks)) if blocks else None


def missing(record: RunRecord, *, alone: bool) -> Bullets:
    """What one run does not hold."""
    return Bullets(title="Not in this run" if alone else f"Not in {record.label}", items=gaps(record))


def gaps(record: RunRecord) -> tuple[str, ...]:
    """Its gaps; an import never had files of ours, which is not worth a line."""
    if not record.imported:
        return record.gaps
    return tuple(gap for gap in record.gaps if not gap.endswith(("not there", "unknown")))
