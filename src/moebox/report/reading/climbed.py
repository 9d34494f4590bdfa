"""climb.json, or the climb's events, to the table of steps."""

from collections.abc import Sequence

from moebox.core.event import ClimbStep
from moebox.loose import Json, get_number, get_objects, get_text, is_true
from moebox.report.record import ClimbRow
from moebox.store import JournalEntry
from moebox.store.summary import read_mark


def steps_of(document: object, entries: Sequence[JournalEntry]) -> list[ClimbRow]:
    """Every step in order: from the finished table, else from the journal."""
    table = get_objects(document, "steps")
    if not table:
        table = [entry.event.data for entry in entries if isinstance(entry.event, ClimbStep)]
    return [step_of(row) for row in table]


def interval_of(row: Json) -> tuple[float, float] | None:
    """Between what the gain lies; None where it was measured once."""
    low, high = get_number(row, "gain.low", "gain_low"), get_number(row, "gain.high", "gain_high")
    return None if low is None or high is None else (low, high)


def step_of(row: Json) -> ClimbRow:
    """One step."""
    return ClimbRow(
        change=get_text(row, "change"),
        mark=read_mark(row) if "verdict" in row else "skip",
        kept=is_true(row, "kept"),
        reason=get_text(row, "why"),
        output_tok_s=get_number(row, "output_tok_s"),
        ttft_ms=get_number(row, "ttft_ms"),
        kv_tokens=get_number(row, "kv_tokens"),
        gain=get_number(row, "gain.share", "gain"),
        interval=interval_of(row),
        source=get_text(row, "source"),
    )
