"""Every try at a launch, what it was, what came of it and why."""

from collections import Counter
from collections.abc import Sequence

from moebox import units
from moebox.report.bars import draw_phases
from moebox.report.block import Block, Charts, CustomBlock, ReportChart, Section, Tone, titled_chart
from moebox.report.format import count_phrase
from moebox.report.palette import run_colour
from moebox.report.record import LaunchAttempt, Outcome, RunRecord
from moebox.units import plural

TONES: dict[Outcome, Tone] = {
    "SUCCESS": "good",
    "PARTIAL": "warn",
    "FAILED": "bad",
    "RUNNING": "quiet",
    "STOPPED": "quiet",
}
CAME: dict[Outcome, str] = {
    "FAILED": "failed",
    "PARTIAL": "worked in part",
    "SUCCESS": "succeeded",
    "RUNNING": "still running",
    "STOPPED": "stopped",
}


def section(records: Sequence[RunRecord]) -> Section:
    """The timeline over all runs, and where the time went."""
    tries = in_order(records)
    rows = [attempt_entry(records[index], index, attempt) for index, attempt in tries]
    blocks: list[Block] = [CustomBlock(kind="attempts", data=rows)] if rows else []
    blocks += [Charts(charts=(chart,)) for chart in map(time_spent, records) if chart]
    return Section(
        id="attempts", title="Attempts", lead=attempts_lead([attempt for _, attempt in tries]), blocks=tuple(blocks)
    )


def in_order(records: Sequence[RunRecord]) -> list[tuple[int, LaunchAttempt]]:
    """Every try with its run's place, as they were started."""
    found = [(index, attempt) for index, record in enumerate(records) for attempt in record.attempts]
    return sorted(found, key=lambda entry: (entry[1].started, entry[1].number))


def time_spent(record: RunRecord) -> ReportChart | None:
    """Where one run's time went."""
    svg = draw_phases(record.phases, label=f"Where the time of {record.label} went")
    return titled_chart(f"Where the time went{record.title_suffix}", svg, wide=True)


def attempt_entry(record: RunRecord, index: int, attempt: LaunchAttempt) -> dict[str, object]:
    """One try as the template shows it."""
    took = attempt.ended - attempt.started
    return {
        "attempt": attempt,
        "tone": TONES[attempt.outcome],
        "run": record.page_label,
        "colour": run_colour(index),
        "took": units.format_seconds(took) if took > 0 else "",
    }


def attempts_lead(attempts: Sequence[LaunchAttempt]) -> str:
    """How many it took."""
    if not attempts:
        return ""
    counts = Counter(attempt.outcome for attempt in attempts)
    named = [f"{counts[outcome]} {words}" for outcome, words in CAME.items() if counts[outcome]]
    rehearsed = count_phrase(sum(attempt.is_rehearsal for attempt in attempts), "rehearsal", "among them.")
    return f"{plural(len(attempts), 'attempt')}: {', '.join(named)}. {rehearsed}".rstrip()
