"""What went wrong, why, and what mends it."""

from collections.abc import Sequence

from moebox.report.block import Part, Section
from moebox.report.palette import colour
from moebox.report.record import RunRecord


def section(records: Sequence[RunRecord]) -> Section | None:
    """One card per problem, the same one of several runs once."""
    cards: dict[str, dict[str, object]] = {}
    for index, record in enumerate(records):
        for problem in record.problems:
            card = cards.setdefault(problem.title, {"problem": problem, "runs": []})
            runs = card["runs"]
            if isinstance(runs, list) and len(records) > 1:
                runs.append((record.label, colour(index)))
    if not cards:
        return None
    return Section(id="problems", title="Problems met", blocks=(Part(kind="problems", data=list(cards.values())),))
