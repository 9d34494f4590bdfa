"""Every measured figure, as tables that sort and copy."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from moebox.assess.assessment import Tone
from moebox.assess.format import format_ms, format_number, unique_names
from moebox.report.block import ReportTable, Section, TableCell, TableColumn, text_cell
from moebox.report.sections.performance import workload_names
from moebox.report.svg import run_colour
from moebox.runs.record import LoadResult, RunRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class FigureColumn:
    """One column: its heading, the figure it shows, and whether higher or lower is better."""

    title: str
    read: Callable[[LoadResult], float | None]
    latency: bool = False
    better: int = 0  # +1: higher, -1: lower


def plausible_peak(load: LoadResult) -> float | None:
    """The peak rate; None if it is below the mean, because peaks are counted in whole seconds."""
    if load.peak_tok_s is None or load.output_tok_s is None:
        return load.peak_tok_s
    return load.peak_tok_s if load.peak_tok_s >= load.output_tok_s else None


FIGURES = (
    FigureColumn(title="Concurrency", read=lambda load: load.concurrency),
    FigureColumn(title="Rate req/s", read=lambda load: load.request_rate if load.concurrency is None else None),
    FigureColumn(title="Output tok/s", read=lambda load: load.output_tok_s, better=1),
    FigureColumn(title="Total tok/s", read=lambda load: load.total_tok_s, better=1),
    FigureColumn(title="Peak tok/s", read=plausible_peak, better=1),
    FigureColumn(title="TG tok/s", read=lambda load: load.tg_tok_s, better=1),
    FigureColumn(title="PP tok/s", read=lambda load: load.pp_tok_s, better=1),
    FigureColumn(
        title="Per stream tok/s", read=lambda load: load.stream_tok_s if load.tg_tok_s is None else None, better=1
    ),
    FigureColumn(title="Mean TTFT", read=lambda load: load.ttft.mean_or_median, latency=True, better=-1),
    FigureColumn(title="P99 TTFT", read=lambda load: load.ttft.p99, latency=True, better=-1),
    FigureColumn(title="Mean TPOT", read=lambda load: load.tpot.mean_or_median, latency=True, better=-1),
    FigureColumn(title="P99 TPOT", read=lambda load: load.tpot.p99, latency=True, better=-1),
    FigureColumn(title="Mean ITL", read=lambda load: load.itl.mean_or_median, latency=True, better=-1),
    FigureColumn(title="P99 ITL", read=lambda load: load.itl.p99, latency=True, better=-1),
    FigureColumn(title="Mean E2E", read=lambda load: load.e2e.mean_or_median, latency=True, better=-1),
    FigureColumn(title="Requests", read=lambda load: load.completed),
    FigureColumn(title="Failed", read=lambda load: load.failed or None),
    FigureColumn(title="Tokens/J", read=lambda load: load.tokens_per_joule, better=1),
)


def figures_section(records: Sequence[RunRecord]) -> Section:
    """One table for each run and workload; runs with a row or two each share one."""
    blocks: list[ReportTable] = []
    for workload in workload_names(records):
        runs = [[(index, load) for load in record.loads_of(workload)] for index, record in enumerate(records)]
        runs = [*filter(None, runs)]
        together = [row for rows in runs for row in rows]
        if len(runs) > 1 and len(together) <= 2 * len(runs):
            blocks.append(figures_table(records, together, workload, named=True))
        else:
            blocks += [figures_table(records, rows, workload, named=False) for rows in runs]
    lead = "The best figure of each column is set in bold."
    return Section(id="figures", title="Detailed figures", lead=lead, blocks=tuple(blocks))


def figure_cells(figure: FigureColumn, loads: Sequence[LoadResult]) -> list[TableCell]:
    """One figure of each load, the best one marked; empty if no load has it."""
    values = [*map(figure.read, loads)]
    known = [value for value in values if value is not None]
    best = max(known, key=lambda value: figure.better * value) if figure.better and len(known) > 1 else None
    format_value = format_ms if figure.latency else format_number
    tones: dict[float | None, Tone] = {best: "best", None: ""}
    cells = [TableCell(text=format_value(value), value=value, tone=tones.get(value, "")) for value in values]
    return cells if known else []


def figures_table(
    records: Sequence[RunRecord], rows: Sequence[tuple[int, LoadResult]], workload: str, *, named: bool
) -> ReportTable:
    """The loads (run's index, load) of one workload; `named` adds a column of run names. Empty columns are left out."""
    loads = [load for _, load in rows]
    columns: list[tuple[TableColumn, list[TableCell]]] = []
    if named:
        cells = [text_cell(records[index].label, colour=run_colour(index)) for index, _ in rows]
        columns.append((TableColumn(title="Run", numeric=False), cells))
    if len({load.name for load in loads}) > 1 and not all(load.concurrency for load in loads):
        columns.append((TableColumn(title="Measurement", numeric=False), [text_cell(load.name) for load in loads]))
    shown = ((TableColumn(title=figure.title), figure_cells(figure, loads)) for figure in FIGURES)
    columns += [(column, cells) for column, cells in shown if cells]
    if any(map(load_remark, loads)):
        cells = [
            text_cell(
                load_remark(load) or " ",
                tone="warn" if any((load.client_limited, load.flags, load.failed)) else "quiet",
            )
            for load in loads
        ]
        columns.append((TableColumn(title="Remark", numeric=False), cells))
    heads, bodies = zip(*columns, strict=True)
    run = "" if named else records[rows[0][0]].page_label
    caption = " · ".join(filter(None, (run, workload))) or "Measurements"
    sources = unique_names(load.source for load in loads)
    note = f"Source: {'; '.join(sources)}" if sources else ""
    return ReportTable(caption=caption, columns=heads, rows=tuple(zip(*bodies, strict=True)), note=note)


def load_remark(load: LoadResult) -> str:
    """Reasons to read the row with care, and its note."""
    remarks = {
        "limited by the client": load.client_limited,
        **dict.fromkeys(load.flags, True),
        "interrupted, partial": load.partial,
        "simulated": load.simulation,
        "no request completed": load.completed == 0,
        load.note: bool(load.note),
    }
    return "; ".join(text for text, applies in remarks.items() if applies)
