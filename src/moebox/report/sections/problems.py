"""What went wrong, why, and what mends it."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from moebox.report.block import CustomBlock, Section
from moebox.report.palette import run_colour
from moebox.report.record import LogProblem, RunRecord


@dataclass(slots=True)
class ProblemEntry:
    """A problem and the runs that met it, each with its colour; none are named where there is only one run."""

    problem: LogProblem
    runs: list[tuple[str, int]] = field(default_factory=list)


def section(records: Sequence[RunRecord]) -> Section:
    """One card per problem, the same one of several runs once."""
    cards = met(records)
    blocks = (CustomBlock(kind="problems", data=cards),) if cards else ()
    return Section(id="problems", title="Problems met", blocks=blocks)


def met(records: Sequence[RunRecord]) -> list[ProblemEntry]:
    """Every problem with the runs that met it."""
    cards: dict[str, ProblemEntry] = {}
    for index, record in enumerate(records):
        for problem in record.problems:
            card = cards.setdefault(problem.title, ProblemEntry(problem))
            card.runs += [(record.page_label, run_colour(index))] if record.page_label else []
    return list(cards.values())
