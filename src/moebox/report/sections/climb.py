"""What each setting gained: the climb's table."""

from collections.abc import Sequence

from moebox.assess.format import format_change, format_ms
from moebox.core.event import ClimbStep
from moebox.report.block import ReportTable, Section, TableCell, figure_cell, table_columns, text_cell
from moebox.report.sections.checks import SIGNS, TONES
from moebox.runs.record import RunRecord
from moebox.units import plural

HEADS = ("Change", "Verified", "Output tok/s", "Gain", "TTFT", "KV tokens", "Outcome", "Why")


def climb_section(records: Sequence[RunRecord]) -> Section:
    """One table for each run with a climb: what was changed, the result, and whether it was kept."""
    blocks = []
    for record in records:
        if record.climb_steps:
            note = f"Source: {record.climb_source}" if record.climb_source else ""
            rows = tuple(map(climb_cells, record.climb_steps))
            columns = table_columns(*HEADS, text=(0, 1, 6, 7))
            table = ReportTable(caption=record.page_label, columns=columns, rows=rows, sortable=False, note=note)
            blocks.append(table)
    steps = [step for record in records for step in record.climb_steps]
    lead = f"{plural(len(steps), 'step')}, {sum(step.kept for step in steps)} kept."
    if any(step.output_tok_s for record in records if not record.climb_source for step in record.climb_steps):
        lead += " Speeds here are of short prompts, to compare the steps with each other; loads are measured apart."
    return Section(id="climb", title="What each setting gained", lead=lead, blocks=tuple(blocks))


def climb_cells(step: ClimbStep) -> tuple[TableCell, ...]:
    """One step; a longer context cannot make anything faster, so it shows no gain."""
    gain = step.gain
    if step.change.startswith("context ") and (gain is None or gain.share >= 0):
        gain_cell = text_cell("", title="a longer context is verified, not made faster")
    elif gain is None:
        gain_cell = text_cell("")
    else:
        text = format_change(gain.share)
        has_interval = gain.low != gain.high
        text += f" ({format_change(gain.low)} … {format_change(gain.high)})" if has_interval else ""
        gain_cell = TableCell(text=text, value=gain.share, tone="good" if has_interval and gain.low > 0 else "")
    ttft = step.ttft_ms or None
    return (
        text_cell(step.change),
        text_cell(SIGNS[step.verdict] if step.verdict != "skip" else "", tone=TONES[step.verdict]),
        figure_cell(step.output_tok_s or None),
        gain_cell,
        TableCell(text=format_ms(ttft), value=ttft),
        figure_cell(step.kv_tokens or None, digits=0),
        text_cell("kept", tone="good") if step.kept else text_cell("dropped", tone="quiet"),
        text_cell(step.why or " "),
    )
