"""What each setting gained: the climb's table."""

from collections.abc import Sequence

from moebox.report.block import Block, Cell, Section, Table, cell, columns, words
from moebox.report.format import change, milliseconds
from moebox.report.record import RunRecord, Step
from moebox.report.sections.ladder import SIGNS, TONES
from moebox.units import plural


def section(records: Sequence[RunRecord]) -> Section | None:
    """One table per run that climbed."""
    blocks: list[Block] = [
        table(record, name="" if len(records) == 1 else record.label) for record in records if record.steps
    ]
    if not blocks:
        return None
    steps = [step for record in records for step in record.steps]
    kept = sum(step.kept for step in steps)
    lead = f"{plural(len(steps), 'step')}, {kept} kept."
    return Section(id="climb", title="What each setting gained", lead=lead, blocks=tuple(blocks))


def table(record: RunRecord, *, name: str) -> Table:
    """Every step: what was changed, what came of it, kept or dropped and why."""
    rows = [row(step) for step in record.steps]
    heads = ("Change", "Verified", "Output tok/s", "Gain", "TTFT", "KV tokens", "Outcome", "Why")
    sources = list(dict.fromkeys(step.source for step in record.steps if step.source))
    note = f"Source: {'; '.join(sources)}" if sources else ""
    return Table(caption=name, columns=columns(*heads, text=(0, 1, 6, 7)), rows=tuple(rows), sortable=False, note=note)


def row(step: Step) -> tuple[Cell, ...]:
    """One step."""
    return (
        words(step.change),
        words(SIGNS[step.mark] if step.mark != "skip" else "", tone=TONES[step.mark]),
        cell(step.output_tok_s),
        gain(step),
        Cell(text=milliseconds(step.ttft_ms), value=step.ttft_ms),
        cell(step.kv_tokens, digits=0),
        words("kept" if step.kept else "dropped", tone="good" if step.kept else "quiet"),
        words(step.why or " "),
    )


def gain(step: Step) -> Cell:
    """The gain with its interval; a longer context cannot make anything faster, so it shows none."""
    if step.change.startswith("context ") and (step.gain or 0.0) >= 0:
        return words("", title="a longer context is verified, not made faster")
    sure = step.low is not None and step.low > 0
    band = f" ({change(step.low)} … {change(step.high)})" if step.low is not None and step.high is not None else ""
    return Cell(text=change(step.gain) + band, value=step.gain, tone="good" if sure else "")
