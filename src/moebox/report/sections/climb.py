"""What each setting gained: the climb's table."""

from collections.abc import Sequence
from itertools import chain

from moebox.report.block import Cell, Section, Table, cell, columns, words
from moebox.report.format import change, milliseconds
from moebox.report.record import RunRecord, Step
from moebox.report.sections.ladder import SIGNS, TONES
from moebox.report.sections.tables import sources
from moebox.units import plural


def section(records: Sequence[RunRecord]) -> Section:
    """One table per run that climbed."""
    blocks = tuple(table(record, name=record.named) for record in records if record.steps)
    steps = list(chain.from_iterable(record.steps for record in records))
    lead = f"{plural(len(steps), 'step')}, {sum(step.kept for step in steps)} kept."
    if any(step.output_tok_s and not step.source for step in steps):
        lead += " Speeds here are of short prompts, to compare the steps with each other; loads are measured apart."
    return Section(id="climb", title="What each setting gained", lead=lead, blocks=blocks)


def table(record: RunRecord, *, name: str) -> Table:
    """Every step: what was changed, what came of it, kept or dropped and why."""
    rows = tuple(map(row, record.steps))
    heads = ("Change", "Verified", "Output tok/s", "Gain", "TTFT", "KV tokens", "Outcome", "Why")
    note = sources(record.steps)
    return Table(caption=name, columns=columns(*heads, text=(0, 1, 6, 7)), rows=rows, sortable=False, note=note)


def row(step: Step) -> tuple[Cell, ...]:
    """One step."""
    outcome = words("kept", tone="good") if step.kept else words("dropped", tone="quiet")
    return (
        words(step.change),
        words(SIGNS[step.mark] if step.mark != "skip" else "", tone=TONES[step.mark]),
        cell(step.output_tok_s),
        gain(step),
        Cell(text=milliseconds(step.ttft_ms), value=step.ttft_ms),
        cell(step.kv_tokens, digits=0),
        outcome,
        words(step.why or " "),
    )


def gain(step: Step) -> Cell:
    """The gain with its interval; a longer context cannot make anything faster, so it shows none."""
    if step.change.startswith("context ") and (step.gain or 0.0) >= 0:
        return words("", title="a longer context is verified, not made faster")
    if step.interval is None:
        return Cell(text=change(step.gain), value=step.gain)
    low, high = step.interval
    text = f"{change(step.gain)} ({change(low)} … {change(high)})"
    return Cell(text=text, value=step.gain, tone="good" if low > 0 else "")
