"""Whether it answers right: each check's verdict, its probes and the evidence to unfold."""

from collections.abc import Sequence
from itertools import chain

from moebox.report.block import Block, Cell, Part, Section, Table, Tone, columns, words
from moebox.report.format import listed
from moebox.report.order import once
from moebox.report.palette import colour
from moebox.report.record import CheckResult, Mark, RunRecord

TONES: dict[Mark, Tone] = {"pass": "good", "fail": "bad", "skip": "quiet", "warn": "warn"}
SIGNS: dict[Mark, str] = {"pass": "✓ pass", "fail": "✗ fail", "skip": "– skipped", "warn": "! warning"}


def section(records: Sequence[RunRecord]) -> Section:
    """A matrix over runs where there are several, then each run's checks."""
    checked = [record for record in records if record.checks]
    blocks: list[Block] = [matrix(checked)] if len(checked) > 1 else []
    blocks += [ladder(record, index) for index, record in enumerate(records) if record.checks]
    lead = " ".join(record.start + counted(record) for record in checked)
    return Section(id="ladder", title="Does it answer right", lead=lead, blocks=tuple(blocks))


def ladder(record: RunRecord, index: int) -> Part:
    """One run's checks, each with its evidence."""
    data = {"name": record.named, "colour": colour(index), "checks": record.checks, "signs": SIGNS}
    return Part(kind="ladder", data=data)


def matrix(records: Sequence[RunRecord]) -> Table:
    """Checks down, runs across."""
    tables = [{check.name: verdict(check) for check in record.checks} for record in records]
    names = once(chain.from_iterable(tables))
    rows = tuple((words(name), *(table.get(name, words("")) for table in tables)) for name in names)
    titles = ("Check", *(record.label for record in records))
    return Table(columns=columns(*titles, text=range(len(titles))), rows=rows, sortable=False)


def verdict(check: CheckResult) -> Cell:
    """One check of one run."""
    return words(SIGNS[check.mark], tone=TONES[check.mark])


def counted(record: RunRecord) -> str:
    """ "15 of 17 checks passed; warnings: json and tools; vision failed."."""
    text = record.check_count
    warned, failed = record.marked("warn"), record.marked("fail")
    if warned:
        text += f"; warnings: {listed(warned)}"
    if failed:
        text += f"; {listed(failed)} failed"
    return f"{text}."
