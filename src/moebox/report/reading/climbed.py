"""climb.json, or the climb's events, to the table of steps."""

from collections.abc import Sequence

from moebox.core.event import ClimbStep
from moebox.loose import Json, figure, rows, truth, words
from moebox.report.record import Step
from moebox.store import Entry
from moebox.store.summary import mark_of


def steps_of(document: object, entries: Sequence[Entry]) -> list[Step]:
    """Every step in order: from the finished table, else from the journal."""
    table = rows(document, "steps")
    if not table:
        table = [entry.event.data for entry in entries if isinstance(entry.event, ClimbStep)]
    return [step_of(row) for row in table]


def interval_of(row: Json) -> tuple[float, float] | None:
    """Between what the gain lies; None where it was measured once."""
    low, high = figure(row, "gain.low", "gain_low"), figure(row, "gain.high", "gain_high")
    return None if low is None or high is None else (low, high)


def step_of(row: Json) -> Step:
    """One step."""
    return Step(
        change=words(row, "change"),
        mark=mark_of(row) if "verdict" in row else "skip",
        kept=truth(row, "kept"),
        why=words(row, "why"),
        output_tok_s=figure(row, "output_tok_s"),
        ttft_ms=figure(row, "ttft_ms"),
        kv_tokens=figure(row, "kv_tokens"),
        gain=figure(row, "gain.share", "gain"),
        interval=interval_of(row),
        source=words(row, "source"),
    )
