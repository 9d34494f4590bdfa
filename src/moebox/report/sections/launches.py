"""Attempts to start an engine, the known problems that were met, what each setting of a climb gained, advice."""

from collections import Counter
from collections.abc import Sequence

from moebox import units
from moebox.assess.assessment import Tone
from moebox.assess.format import count_phrase, format_change, format_ms, group_by
from moebox.assess.recommend import recommend
from moebox.core.event import ClimbStep
from moebox.report.block import Block, CustomBlock, ReportChart, Section, chart_blocks
from moebox.report.charts import draw_phases
from moebox.report.sections.checks import SIGNS, TONES
from moebox.report.svg import run_colour
from moebox.report.table import CellValue, TableCell, figure_cell, table_blocks, text_cell
from moebox.runs.record import Outcome, RunRecord
from moebox.units import plural

OUTCOMES: dict[Outcome, tuple[str, Tone]] = {
    "FAILED": ("failed", "bad"),
    "PARTIAL": ("worked in part", "warn"),
    "SUCCESS": ("succeeded", "good"),
    "RUNNING": ("still running", "quiet"),
    "STOPPED": ("stopped", "quiet"),
}


def attempts_section(records: Sequence[RunRecord]) -> Section:
    """The attempts of all runs in order of time, and how long each phase of a run took."""
    found = [(record, index, attempt) for index, record in enumerate(records) for attempt in record.attempts]
    found.sort(key=lambda row: (row[2].started, row[2].number))
    rows = [
        {
            "attempt": attempt,
            "tone": OUTCOMES[attempt.outcome][1],
            "run": record.page_label,
            "colour": run_colour(index),
            "took": units.format_seconds(attempt.ended - attempt.started) if attempt.ended > attempt.started else "",
        }
        for record, index, attempt in found
    ]
    blocks: list[Block] = [CustomBlock("attempts", rows)] if rows else []
    for record in records:
        svg = draw_phases(record.phases, label=f"Where the time of {record.label} went")
        blocks += chart_blocks([ReportChart(title=f"Where the time went{record.title_suffix}", svg=svg, wide=True)])
    counts = Counter(attempt.outcome for _, _, attempt in found)
    parts = [f"{counts[outcome]} {text}" for outcome, (text, _) in OUTCOMES.items() if counts[outcome]]
    rehearsals = count_phrase(sum(attempt.is_rehearsal for _, _, attempt in found), "rehearsal", "among them.")
    lead = f"{units.plural(len(found), 'attempt')}: {', '.join(parts)}. {rehearsals}".rstrip() if found else ""
    return Section(id="attempts", title="Attempts", lead=lead, blocks=blocks)


def problems_section(records: Sequence[RunRecord]) -> Section:
    """One entry for each problem with the runs that met it, each with its colour; no names on a page of one run."""
    met = [(problem, index) for index, record in enumerate(records) for problem in record.problems]
    entries = []
    for group in group_by(met, lambda row: row[0].title).values():
        runs = [(records[index].page_label, run_colour(index)) for _, index in group if records[index].page_label]
        entries.append({"problem": group[0][0], "runs": runs})
    blocks = (CustomBlock("problems", entries),) if entries else ()
    return Section(id="problems", title="Problems met", blocks=blocks)


def recommendations_section(records: Sequence[RunRecord]) -> Section:
    rows = [{"advice": advice, "colours": [*map(run_colour, advice.runs)]} for advice in recommend(records)]
    lead = "Derived from the figures above by the rules given; nothing here is general advice."
    blocks = (CustomBlock("recommendations", rows),) if rows else ()
    return Section(id="advice", title="Recommendations", lead=lead, blocks=blocks)


HEADS = ("Change", "Verified", "Output tok/s", "Gain", "TTFT", "KV tokens", "Outcome", "Why")


def climb_section(records: Sequence[RunRecord]) -> Section:
    """One table for each run with a climb: what was changed, the result, and whether it was kept."""
    blocks: list[Block] = []
    for record in records:
        if record.climb_steps:
            note = f"Source: {record.climb_source}" if record.climb_source else ""
            rows = map(climb_cells, record.climb_steps)
            blocks += table_blocks(HEADS, rows, text=(0, 1, 6, 7), caption=record.page_label, sortable=False, note=note)
    steps = [step for record in records for step in record.climb_steps]
    lead = f"{plural(len(steps), 'step')}, {sum(step.kept for step in steps)} kept."
    if any(step.output_tok_s for record in records if not record.climb_source for step in record.climb_steps):
        lead += " Speeds here are of short prompts, to compare the steps with each other; loads are measured apart."
    return Section(id="climb", title="What each setting gained", lead=lead, blocks=blocks)


def climb_cells(step: ClimbStep) -> tuple[CellValue, ...]:
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
        step.change,
        text_cell(SIGNS[step.verdict] if step.verdict != "skip" else "", tone=TONES[step.verdict]),
        figure_cell(step.output_tok_s or None),
        gain_cell,
        TableCell(text=format_ms(ttft), value=ttft),
        figure_cell(step.kv_tokens or None, digits=0),
        text_cell("kept", tone="good") if step.kept else text_cell("dropped", tone="quiet"),
        step.why or " ",
    )
