"""What the report does not show, and where imported figures come from."""

from collections.abc import Sequence
from itertools import chain

from moebox.report.block import Block, CustomBlock, Section, bullet_list
from moebox.report.format import unique_names
from moebox.report.record import RunRecord


def section(records: Sequence[RunRecord]) -> Section:
    """Sources; remarks; notes of what is missing."""
    sources = list(dict.fromkeys(chain.from_iterable(record.sources for record in records)))
    notes = unique_names(chain.from_iterable(record.notes for record in records))
    blocks: list[Block] = [CustomBlock(kind="sources", data=sources)] if sources else []
    blocks += bullet_list("Remarks on the figures", notes)
    for record in records:
        blocks += bullet_list(f"Not in {record.page_label or 'this run'}", gaps(record))
    return Section(id="notes", title="Sources and gaps", blocks=tuple(blocks))


def gaps(record: RunRecord) -> tuple[str, ...]:
    """Its gaps; an import never had files of ours, which is not worth a line."""
    if not record.imported:
        return record.gaps
    return tuple(gap for gap in record.gaps if not gap.endswith(("not there", "unknown")))
