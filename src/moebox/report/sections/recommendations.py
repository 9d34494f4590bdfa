"""Recommendations, each with its rule."""

from collections.abc import Sequence

from moebox.assess.recommend import recommend
from moebox.report.block import CustomBlock, Section
from moebox.report.palette import run_colour
from moebox.runs.record import RunRecord


def recommendations_section(records: Sequence[RunRecord]) -> Section:
    """What to do about these runs."""
    rows = [{"advice": advice, "colours": [*map(run_colour, advice.runs)]} for advice in recommend(records)]
    lead = "Derived from the figures above by the rules given; nothing here is general advice."
    blocks = (CustomBlock(kind="recommendations", data=rows),) if rows else ()
    return Section(id="advice", title="Recommendations", lead=lead, blocks=blocks)
