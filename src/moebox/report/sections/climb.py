"""What each setting gained: the climb's table."""

from collections.abc import Sequence
from itertools import chain

from moebox.report.block import ReportTable, Section, TableCell, figure_cell, table_columns, text_cell
from moebox.report.format import format_change, format_ms
from moebox.report.record import ClimbRow, RunRecord
from moebox.report.sections.ladder import SIGNS, TONES
from moebox.report.sections.tables import sources_note
from moebox.units import plural


def section(records: Sequence[RunRecord]) -> Section:
    """One table per run that climbed."""
    blocks = tuple(climb_table(record, name=record.page_label) for record in records if record.steps)
    steps = list(chain.from_iterable(record.steps for record in records))
    lead = f"{plural(len(steps), 'step')}, {sum(step.kept for step in steps)} kept."
    if any(step.output_tok_s and not step.source for step in steps):
        lead += " Speeds here are of short prompts, to compare the steps with each other; loads are measured apart."
    return Section(id="climb", title="What each setting gained", lead=lead, blocks=blocks)


def climb_table(record: RunRecord, *, name: str) -> ReportTable:
    """Every step: what was changed, what came of it, kept or dropped and why."""
    rows = tuple(map(climb_cells, record.steps))
    heads = ("Change", "Verified", "Output tok/s", "Gain", "TTFT", "KV tokens", "Outcome", "Why")
    note = sources_note(record.steps)
    return ReportTable(
        caption=name, columns=table_columns(*heads, text=(0, 1, 6, 7)), rows=rows, sortable=False, note=note
    )


def climb_cells(step: ClimbRow) -> tuple[TableCell, ...]:
    """One step."""
    outcome = text_cell("kept", tone="good") if step.kept else text_cell("dropped", tone="quiet")
    return (
        text_cell(step.change),
        text_cell(SIGNS[step.mark] if step.mark != "skip" else "", tone=TONES[step.mark]),
        figure_cell(step.output_tok_s),
        gain_cell(step),
        TableCell(text=format_ms(step.ttft_ms), value=step.ttft_ms),
        figure_cell(step.kv_tokens, digits=0),
        outcome,
        text_cell(step.reason or " "),
    )


def gain_cell(step: ClimbRow) -> TableCell:
    """The gain with its interval; a longer context cannot make anything faster, so it shows none."""
    if step.change.startswith("context ") and (step.gain or 0.0) >= 0:
        return text_cell("", title="a longer context is verified, not made faster")
    if step.interval is None:
        return TableCell(text=format_change(step.gain), value=step.gain)
    low, high = step.interval
    text = f"{format_change(step.gain)} ({format_change(low)} … {format_change(high)})"
    return TableCell(text=text, value=step.gain, tone="good" if low > 0 else "")
