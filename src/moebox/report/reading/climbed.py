"""climb.json, or the climb's events, to the table of steps."""

from collections.abc import Sequence

from moebox.core.event import ClimbStep
from moebox.loose import Json, figure, inner, rows, truth, words
from moebox.report.reading.verified import mark_of
from moebox.report.record import Step
from moebox.store import Entry


def steps_of(document: object, entries: Sequence[Entry]) -> list[Step]:
    """Every step in order: from the finished table, else from the journal."""
    table = rows(document, "steps", "table", "rows")
    if not table:
        table = [entry.event.data for entry in entries if isinstance(entry.event, ClimbStep)]
    return [step_of(row) for row in table]


def step_of(row: Json) -> Step:
    """One step."""
    bench, gain = inner(row, "bench", "measurement"), inner(row, "gain")
    kept = truth(row, "kept") or words(row, "decision", "outcome", "kept").lower() in ("kept", "keep", "yes")
    shift = figure(gain, "share", "value", "gain") if gain else figure(row, "gain", "gain_share")
    return Step(
        change=words(row, "change", "title", "what", "step", "setting", "name"),
        mark=mark_of(row) if any(key in row for key in ("verdict", "passed", "ok")) else "skip",
        kept=kept,
        why=words(row, "why", "reason", "detail"),
        output_tok_s=figure(row, "output_tok_s", "output_throughput", "tok_s")
        or figure(bench, "output_throughput", "output_tok_s"),
        ttft_ms=figure(row, "ttft_ms", "mean_ttft_ms") or figure(bench, "mean_ttft_ms"),
        kv_tokens=figure(row, "kv_tokens"),
        gain=shift,
        low=figure(gain, "low") if gain else figure(row, "gain_low"),
        high=figure(gain, "high") if gain else figure(row, "gain_high"),
        source=words(row, "source"),
    )
