"""Every figure that was measured, as tables that sort and copy."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from moebox.report.block import ReportTable, Section, TableCell, TableColumn, Tone, figure_cell, text_cell
from moebox.report.format import format_ms, unique_names
from moebox.report.palette import run_colour
from moebox.report.record import ClimbRow, LoadResult, RunRecord
from moebox.report.sections.performance import workload_names

Read = Callable[[LoadResult], float | None]
Filled = tuple[TableColumn, list[TableCell]]  # a heading, and its field in every row


@dataclass(frozen=True, slots=True, kw_only=True)
class FigureColumn:
    """One column: its heading, where it is read, how it is written, which end is better."""

    title: str
    read: Read
    latency: bool = False
    better: int = 0  # +1: higher, -1: lower


def _peak(level: LoadResult) -> float | None:
    """The peak, unless the run was too short to have one: peaks are counted in whole seconds."""
    if level.peak_tok_s is None or level.output_tok_s is None:
        return level.peak_tok_s
    return level.peak_tok_s if level.peak_tok_s >= level.output_tok_s else None


FIGURES = (
    FigureColumn(title="Concurrency", read=lambda level: level.concurrency),
    FigureColumn(title="Rate req/s", read=lambda level: level.request_rate if level.concurrency is None else None),
    FigureColumn(title="Output tok/s", read=lambda level: level.output_tok_s, better=1),
    FigureColumn(title="Total tok/s", read=lambda level: level.total_tok_s, better=1),
    FigureColumn(title="Peak tok/s", read=_peak, better=1),
    FigureColumn(title="TG tok/s", read=lambda level: level.tg_tok_s, better=1),
    FigureColumn(title="PP tok/s", read=lambda level: level.pp_tok_s, better=1),
    FigureColumn(
        title="Per stream tok/s", read=lambda level: level.stream_tok_s if level.tg_tok_s is None else None, better=1
    ),
    FigureColumn(title="Mean TTFT", read=lambda level: level.ttft.mean_or_median, latency=True, better=-1),
    FigureColumn(title="P99 TTFT", read=lambda level: level.ttft.p99, latency=True, better=-1),
    FigureColumn(title="Mean TPOT", read=lambda level: level.tpot.mean_or_median, latency=True, better=-1),
    FigureColumn(title="P99 TPOT", read=lambda level: level.tpot.p99, latency=True, better=-1),
    FigureColumn(title="Mean ITL", read=lambda level: level.itl.mean_or_median, latency=True, better=-1),
    FigureColumn(title="P99 ITL", read=lambda level: level.itl.p99, latency=True, better=-1),
    FigureColumn(title="Mean E2E", read=lambda level: level.e2e.mean_or_median, latency=True, better=-1),
    FigureColumn(title="Requests", read=lambda level: level.completed),
    FigureColumn(title="Failed", read=lambda level: level.failed or None),
    FigureColumn(title="Tokens/J", read=lambda level: level.tokens_per_joule, better=1),
)


RunLoad = tuple[int, LoadResult]  # the run's place, and one of its measurements


def section(records: Sequence[RunRecord]) -> Section:
    """One table per run and workload; runs with a row or two each share one."""
    blocks = tuple(chain.from_iterable(of_workload(records, workload) for workload in workload_names(records)))
    lead = "The best figure of each column is set in bold."
    return Section(id="figures", title="Detailed figures", lead=lead, blocks=blocks)


def of_workload(records: Sequence[RunRecord], workload: str) -> list[ReportTable]:
    """All that was measured under one workload."""
    found = ([(index, level) for level in record.loads_of(workload)] for index, record in enumerate(records))
    runs: list[list[RunLoad]] = list(filter(None, found))
    together = list(chain.from_iterable(runs))
    if len(runs) > 1 and len(together) <= 2 * len(runs):
        return [table(records, together, workload, named=True)]
    return [table(records, rows, workload, named=False) for rows in runs]


def table(records: Sequence[RunRecord], rows: Sequence[RunLoad], workload: str, *, named: bool) -> ReportTable:
    """The figures under one workload; columns nobody filled are left out, runs named where there are several."""
    levels = [level for _, level in rows]
    heads, cells = zip(*names(records, rows, named=named), *measured(levels), *remarks(levels), strict=True)
    whose = "" if named else records[rows[0][0]].page_label
    title = " · ".join(filter(None, (whose, workload))) or "Measurements"
    return ReportTable(caption=title, columns=heads, rows=tuple(zip(*cells, strict=True)), note=sources_note(levels))


def names(records: Sequence[RunRecord], rows: Sequence[RunLoad], *, named: bool) -> Iterator[Filled]:
    """The columns that say which row is which."""
    if named:
        yield _text("Run"), [text_cell(records[index].label, colour=run_colour(index)) for index, _ in rows]
    if _named_apart([level for _, level in rows]):
        yield _text("Measurement"), [text_cell(level.name) for _, level in rows]


def measured(levels: Sequence[LoadResult]) -> Iterator[Filled]:
    """The columns of figures that any row has."""
    for figure in FIGURES:
        values = [*map(figure.read, levels)]
        known = [value for value in values if value is not None]
        if known:
            top = best(figure, known)
            yield TableColumn(title=figure.title), [entry(figure, value, top) for value in values]


def remarks(levels: Sequence[LoadResult]) -> Iterator[Filled]:
    """What must be known to read the rows right, where there is anything."""
    if any(map(load_remark, levels)):
        yield _text("Remark"), [remarked(level) for level in levels]


def _text(title: str) -> TableColumn:
    return TableColumn(title=title, numeric=False)


def _named_apart(levels: Sequence[LoadResult]) -> bool:
    """Whether rows are told apart by their names, because not all have a concurrency."""
    return len({level.name for level in levels}) > 1 and not all(level.concurrency for level in levels)


def remarked(level: LoadResult) -> TableCell:
    """The remark as a cell; one that questions the row stands out."""
    doubtful = level.client_limited or level.flags or level.failed
    return text_cell(load_remark(level) or " ", tone="warn" if doubtful else "quiet")


def entry(figure: FigureColumn, value: float | None, top: float | None) -> TableCell:
    """One figure, bold where it is the best of its column."""
    tone: Tone = "best" if value is not None and value == top else ""
    if figure.latency:
        return TableCell(text=format_ms(value), value=value, tone=tone)
    return figure_cell(value, tone=tone)


def best(figure: FigureColumn, values: Sequence[float]) -> float | None:
    """The best value of a column; None where there is nothing to choose from, or no end is better."""
    if not figure.better or len(values) < 2:
        return None
    return max(values) if figure.better > 0 else min(values)


def load_remark(level: LoadResult) -> str:
    """What must be known to read the row right."""
    known = {
        "limited by the client": level.client_limited,
        **dict.fromkeys(level.flags, True),
        "interrupted, partial": level.partial,
        "simulated": level.simulation,
        "no request completed": level.completed == 0,
        level.note: bool(level.note),
    }
    return "; ".join(text for text, holds in known.items() if holds)


def sources_note(rows: Sequence[LoadResult] | Sequence[ClimbRow]) -> str:
    """Where imported figures come from."""
    named = unique_names(row.source for row in rows)
    return f"Source: {'; '.join(named)}" if named else ""
