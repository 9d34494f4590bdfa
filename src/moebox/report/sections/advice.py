"""Recommendations, each with its rule."""

from collections.abc import Sequence

from moebox.report.block import Part, Section
from moebox.report.palette import colour
from moebox.report.record import RunRecord
from moebox.report.rules import advise


def section(records: Sequence[RunRecord]) -> Section | None:
    """Every rule that applies."""
    found = [{"advice": advice, "colours": [*map(colour, advice.runs)]} for advice in advise(records)]
    if not found:
        return None
    lead = "Derived from the figures above by the rules given; nothing here is general advice."
    return Section(id="advice", title="Recommendations", lead=lead, blocks=(Part(kind="advice", data=found),))
