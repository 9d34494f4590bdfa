"""What the report does not show, and where imported figures come from."""

from collections.abc import Sequence

from moebox.report.block import Block, Bullets, Part, Section
from moebox.report.record import RunRecord


def section(records: Sequence[RunRecord]) -> Section | None:
    """Notes of what is missing; sources; remarks."""
    blocks: list[Block] = []
    sources = list(dict.fromkeys(source for record in records for source in record.sources))
    if sources:
        blocks.append(Part(kind="sources", data=sources))
    notes = list(dict.fromkeys(note for record in records for note in record.notes))
    if notes:
        blocks.append(Bullets(title="Remarks on the figures", items=tuple(notes)))
    for record in records:
        gaps = [gap for gap in record.gaps if not (record.imported and gap.endswith(("not there", "unknown")))]
        if gaps:
            name = f"Not in {record.label}" if len(records) > 1 else "Not in this run"
            blocks.append(Bullets(title=name, items=tuple(gaps)))
    return Section(id="notes", title="Sources and gaps", blocks=tuple(blocks)) if blocks else None
