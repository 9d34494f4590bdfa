"""Recommendations, each with its rule."""

from collections.abc import Sequence

from moebox.report.block import CustomBlock, Section
from moebox.report.palette import run_colour
from moebox.report.record import RunRecord
from moebox.report.rules import make_advice


def section(records: Sequence[RunRecord]) -> Section | None:
    """Every rule that applies."""
    found = [{"advice": advice, "colours": [*map(run_colour, advice.runs)]} for advice in make_advice(records)]
    if not found:
        return None
    lead = "Derived from the figures above by the rules given; nothing here is general advice."
    return Section(id="advice", title="Recommendations", lead=lead, blocks=(CustomBlock(kind="advice", data=found),))
