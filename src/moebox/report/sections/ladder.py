"""Whether it answers right: each check's verdict, its probes and the evidence to unfold."""

from collections.abc import Sequence
from itertools import chain

from moebox.report.block import Block, CustomBlock, ReportTable, Section, TableCell, Tone, table_columns, text_cell
from moebox.report.format import join_names, unique_names
from moebox.report.palette import run_colour
from moebox.report.record import CheckRow, Mark, RunRecord

TONES: dict[Mark, Tone] = {"pass": "good", "fail": "bad", "skip": "quiet", "warn": "warn"}
SIGNS: dict[Mark, str] = {"pass": "✓ pass", "fail": "✗ fail", "skip": "– skipped", "warn": "! warning"}


def section(records: Sequence[RunRecord]) -> Section:
    """A matrix over runs where there are several, then each run's checks."""
    checked = [record for record in records if record.checks]
    blocks: list[Block] = [matrix(checked)] if len(checked) > 1 else []
    blocks += [ladder(record, index) for index, record in enumerate(records) if record.checks]
    lead = " ".join(record.sentence_prefix + counted(record) for record in checked)
    return Section(id="ladder", title="Does it answer right", lead=lead, blocks=tuple(blocks))


def ladder(record: RunRecord, index: int) -> CustomBlock:
    """One run's checks, each with its evidence."""
    data = {"name": record.page_label, "colour": run_colour(index), "checks": record.checks, "signs": SIGNS}
    return CustomBlock(kind="ladder", data=data)


def matrix(records: Sequence[RunRecord]) -> ReportTable:
    """Checks down, runs across."""
    tables = [{check.name: verdict(check) for check in record.checks} for record in records]
    names = unique_names(chain.from_iterable(tables))
    rows = tuple((text_cell(name), *(table.get(name, text_cell("")) for table in tables)) for name in names)
    titles = ("Check", *(record.label for record in records))
    return ReportTable(columns=table_columns(*titles, text=range(len(titles))), rows=rows, sortable=False)


def verdict(check: CheckRow) -> TableCell:
    """One check of one run."""
    return text_cell(SIGNS[check.mark], tone=TONES[check.mark])


def counted(record: RunRecord) -> str:
    """ "15 of 17 checks passed; warnings: json and tools; vision failed."."""
    text = record.check_count_text
    warned, failed = record.check_names("warn"), record.check_names("fail")
    if warned:
        text += f"; warnings: {join_names(warned)}"
    if failed:
        text += f"; {join_names(failed)} failed"
    return f"{text}."
