"""Attempts to start an engine with their outcomes, the known problems that were met, and recommendations."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from moebox import units
from moebox.assess.assessment import Tone
from moebox.assess.format import count_phrase
from moebox.assess.recommend import recommend
from moebox.report.bars import draw_phases
from moebox.report.block import Block, Charts, CustomBlock, Section, titled_chart
from moebox.report.svg import run_colour
from moebox.runs.record import LogProblem, Outcome, RunRecord

OUTCOMES: dict[Outcome, tuple[str, Tone]] = {
    "FAILED": ("failed", "bad"),
    "PARTIAL": ("worked in part", "warn"),
    "SUCCESS": ("succeeded", "good"),
    "RUNNING": ("still running", "quiet"),
    "STOPPED": ("stopped", "quiet"),
}


@dataclass(slots=True)
class ProblemEntry:
    """A problem and the runs that met it, each with its colour; without names on a page of one run."""

    problem: LogProblem
    runs: list[tuple[str, int]] = field(default_factory=list)


def attempts_section(records: Sequence[RunRecord]) -> Section:
    """The attempts of all runs in order of time, and how long each phase of a run took."""
    found = [(record, index, attempt) for index, record in enumerate(records) for attempt in record.attempts]
    found.sort(key=lambda row: (row[2].started, row[2].number))
    rows = []
    for record, index, attempt in found:
        seconds = attempt.ended - attempt.started
        new_row = {
            "attempt": attempt,
            "tone": OUTCOMES[attempt.outcome][1],
            "run": record.page_label,
            "colour": run_colour(index),
            "took": units.format_seconds(seconds) if seconds > 0 else "",
        }
        rows.append(new_row)
    blocks: list[Block] = [CustomBlock(kind="attempts", data=rows)] if rows else []
    for record in records:
        svg = draw_phases(record.phases, label=f"Where the time of {record.label} went")
        chart = titled_chart(f"Where the time went{record.title_suffix}", svg, wide=True)
        blocks += [Charts(charts=(chart,))] if chart else []
    counts = Counter(attempt.outcome for _, _, attempt in found)
    parts = [f"{counts[outcome]} {text}" for outcome, (text, _) in OUTCOMES.items() if counts[outcome]]
    rehearsals = count_phrase(sum(attempt.is_rehearsal for _, _, attempt in found), "rehearsal", "among them.")
    lead = f"{units.plural(len(found), 'attempt')}: {', '.join(parts)}. {rehearsals}".rstrip() if found else ""
    return Section(id="attempts", title="Attempts", lead=lead, blocks=tuple(blocks))


def problems_section(records: Sequence[RunRecord]) -> Section:
    """One entry for each problem, also if several runs met it."""
    entries: dict[str, ProblemEntry] = {}
    for index, record in enumerate(records):
        for problem in record.problems:
            entry = entries.setdefault(problem.title, ProblemEntry(problem))
            entry.runs += [(record.page_label, run_colour(index))] if record.page_label else []
    blocks = (CustomBlock(kind="problems", data=list(entries.values())),) if entries else ()
    return Section(id="problems", title="Problems met", blocks=blocks)


def recommendations_section(records: Sequence[RunRecord]) -> Section:
    rows = [{"advice": advice, "colours": [*map(run_colour, advice.runs)]} for advice in recommend(records)]
    lead = "Derived from the figures above by the rules given; nothing here is general advice."
    blocks = (CustomBlock(kind="recommendations", data=rows),) if rows else ()
    return Section(id="advice", title="Recommendations", lead=lead, blocks=blocks)
