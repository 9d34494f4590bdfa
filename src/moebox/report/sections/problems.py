"""What went wrong, why, and what mends it."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from moebox.report.block import Part, Section
from moebox.report.palette import colour
from moebox.report.record import Problem, RunRecord


@dataclass(slots=True)
class Card:
    """A problem and the runs that met it, each with its colour; none are named where there is only one run."""

    problem: Problem
    runs: list[tuple[str, int]] = field(default_factory=list)


def section(records: Sequence[RunRecord]) -> Section:
    """One card per problem, the same one of several runs once."""
    cards = met(records)
    blocks = (Part(kind="problems", data=cards),) if cards else ()
    return Section(id="problems", title="Problems met", blocks=blocks)


def met(records: Sequence[RunRecord]) -> list[Card]:
    """Every problem with the runs that met it."""
    cards: dict[str, Card] = {}
    for index, record in enumerate(records):
        for problem in record.problems:
            card = cards.setdefault(problem.title, Card(problem))
            card.runs += [(record.named, colour(index))] if record.named else []
    return list(cards.values())
