"""Whether it answers right: each check's verdict, its probes and the evidence to unfold."""

from collections.abc import Sequence

from moebox.report.block import Block, Cell, Column, Part, Section, Table, Tone, words
from moebox.report.format import listed
from moebox.report.palette import colour
from moebox.report.record import CheckResult, Mark, RunRecord

TONES: dict[Mark, Tone] = {"pass": "good", "fail": "bad", "skip": "quiet", "warn": "warn"}
SIGNS: dict[Mark, str] = {"pass": "✓ pass", "fail": "✗ fail", "skip": "– skipped", "warn": "! warning"}


def section(records: Sequence[RunRecord]) -> Section | None:
    """A matrix over runs where there are several, then each run's checks."""
    checked = [(index, record) for index, record in enumerate(records) if record.checks]
    if not checked:
        return None
    blocks: list[Block] = [matrix(checked)] if len(checked) > 1 else []
    blocks += [ladder(record, index, alone=len(records) == 1) for index, record in checked]
    text = lead([record for _, record in checked])
    return Section(id="ladder", title="Does it answer right", lead=text, blocks=tuple(blocks))


def ladder(record: RunRecord, index: int, *, alone: bool) -> Part:
    """One run's checks, each with its evidence."""
    name = "" if alone else record.label
    data = {"name": name, "colour": colour(index), "checks": record.checks, "signs": SIGNS}
    return Part(kind="ladder", data=data)


def matrix(checked: Sequence[tuple[int, RunRecord]]) -> Table:
    """Checks down, runs across."""
    names = list(dict.fromkeys(check.name for _, record in checked for check in record.checks))
    tables = [{check.name: check for check in record.checks} for _, record in checked]
    rows = tuple((words(name), *(verdict(table.get(name)) for table in tables)) for name in names)
    titles = ("Check", *(record.label for _, record in checked))
    return Table(columns=tuple(Column(title=title, numeric=False) for title in titles), rows=rows, sortable=False)


def verdict(check: CheckResult | None) -> Cell:
    """One check of one run; a dash where that run did not make it."""
    return words(SIGNS[check.mark], tone=TONES[check.mark]) if check else words("")


def lead(records: Sequence[RunRecord]) -> str:
    """How many passed, and which did not."""
    if len(records) == 1:
        return counted(records[0])
    return " ".join(f"{record.label}: {counted(record)}" for record in records)


def counted(record: RunRecord) -> str:
    """ "15 of 17 checks passed; warnings: json and tools; vision failed."."""
    text = f"{len(record.marked('pass'))} of {len(record.tried)} checks passed"
    warned, failed = record.marked("warn"), record.marked("fail")
    if warned:
        text += f"; warnings: {listed(warned)}"
    if failed:
        text += f"; {listed(failed)} failed"
    return f"{text}."
