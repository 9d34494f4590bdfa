"""Every try at a launch, what it was, what came of it and why."""

from collections import Counter
from collections.abc import Sequence

from moebox import units
from moebox.report.bars import phases
from moebox.report.block import Block, Chart, Charts, Part, Section, Tone
from moebox.report.palette import colour
from moebox.report.record import Attempt, Outcome, RunRecord
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


def section(records: Sequence[RunRecord]) -> Section | None:
    """The timeline over all runs, and where the time went."""
    found = [(index, attempt) for index, record in enumerate(records) for attempt in record.attempts]
    found.sort(key=lambda entry: (entry[1].started, entry[1].number))
    blocks: list[Block] = []
    if found:
        rows = [entry(records, index, attempt) for index, attempt in found]
        blocks.append(Part(kind="attempts", data=rows))
    blocks += [Charts(charts=(chart,)) for record in records if (chart := time_spent(record, len(records) == 1))]
    if not blocks:
        return None
    return Section(id="attempts", title="Attempts", lead=lead([attempt for _, attempt in found]), blocks=tuple(blocks))


def time_spent(record: RunRecord, alone: bool) -> Chart | None:
    """Where one run's time went."""
    svg = phases(record.phases, label=f"Where the time of {record.label} went")
    of = "" if alone else f": {record.label}"
    return Chart(title=f"Where the time went{of}", svg=svg, wide=True) if svg else None


def entry(records: Sequence[RunRecord], index: int, attempt: Attempt) -> dict[str, object]:
    """One try as the template shows it."""
    took = attempt.ended - attempt.started
    return {
        "attempt": attempt,
        "tone": TONES[attempt.outcome],
        "run": records[index].label if len(records) > 1 else "",
        "colour": colour(index),
        "took": units.seconds(took) if took > 0 else "",
    }


def lead(attempts: Sequence[Attempt]) -> str:
    """How many it took."""
    if not attempts:
        return ""
    counts = Counter(attempt.outcome for attempt in attempts)
    named = [f"{counts[outcome]} {words}" for outcome, words in CAME.items() if counts[outcome]]
    return f"{plural(len(attempts), 'attempt')}: {', '.join(named)}."
