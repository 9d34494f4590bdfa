"""The report's chapters, in reading order; each is a function of the records that gives a section or nothing."""

from collections.abc import Callable, Sequence

from moebox.report.block import Section
from moebox.report.record import RunRecord
from moebox.report.sections import (
    advice,
    attempts,
    climb,
    compare,
    gaps,
    hardware,
    kernels,
    ladder,
    memory,
    models,
    performance,
    plan,
    problems,
    reproduce,
    summary,
    tables,
    tasks,
)

Chapter = Callable[[Sequence[RunRecord]], Section | None]
CHAPTERS: tuple[Chapter, ...] = (
    summary.section,
    compare.section,
    hardware.section,
    models.section,
    performance.section,
    tables.section,
    memory.section,
    plan.section,
    kernels.section,
    ladder.section,
    tasks.section,
    attempts.section,
    climb.section,
    problems.section,
    advice.section,
    reproduce.section,
    gaps.section,
)


def make_sections(records: Sequence[RunRecord], chapters: Sequence[Chapter] = CHAPTERS) -> list[Section]:
    """Every chapter that has something to say."""
    return [found for chapter in chapters if (found := chapter(records)) and found.blocks]
