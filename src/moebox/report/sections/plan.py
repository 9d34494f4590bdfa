"""Forecast against measurement, figure by figure, with the forecast's range."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from moebox.report.bars import planned_parts, reported_parts
from moebox.report.block import (
    Block,
    ReportTable,
    Section,
    TableCell,
    Tone,
    bullet_list,
    drop_empty_columns,
    figure_cell,
    table_columns,
    text_cell,
)
from moebox.report.format import format_change, format_gib, format_ms, format_number, group_by, unique_names
from moebox.report.palette import run_colour
from moebox.runs.record import ForecastRow, LoadResult, RunRecord
from moebox.units import plural


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedFigure:
    """One figure, planned and measured."""

    run: int
    what: str
    planned: float
    measured: float
    expected_range: tuple[float, float] | None = None
    unit: str = "tok/s"
    load: str = ""  # the load it was measured under; "" for memory

    @property
    def relative_error(self) -> float:
        """Measured against planned: 0.1 is 10% more."""
        return self.measured / self.planned - 1

    @property
    def in_range(self) -> bool | None:
        """True if the measurement lies in the forecast's range; None without a range."""
        return (
            None if self.expected_range is None else self.expected_range[0] <= self.measured <= self.expected_range[1]
        )


def plan_section(records: Sequence[RunRecord]) -> Section:
    """Memory, then a row for each load; then reasons, warnings and runners-up of the plans."""
    figures = planned_figures(records)
    blocks: list[Block] = list(filter(None, (memory_table(records, figures), loads_table(records, figures))))
    for record in records:
        plan, suffix = record.plan, record.title_suffix
        reasons = unique_names((*(plan.reasons if plan else ()), record.forecast_basis))
        warnings = [join_texts(warning.text, " – ", warning.remedy) for warning in plan.warnings] if plan else []
        others = [join_texts(other.title, ": ", other.loses) for other in plan.alternatives] if plan else []
        blocks += bullet_list(f"Why this plan{suffix}", reasons)
        blocks += bullet_list(f"What it warned of{suffix}", warnings)
        blocks += bullet_list(f"Runners-up{suffix}", others)
    return Section(id="plan", title="Plan against measurement", lead=plan_lead(figures), blocks=tuple(blocks))


def planned_figures(records: Sequence[RunRecord]) -> list[PlannedFigure]:
    """Every figure that was both planned and measured: weights, KV cache, and each load."""
    figures: list[PlannedFigure] = []
    for index, record in enumerate(records):
        memory = record.planned_memory
        planned = [planned_parts(device) for device in memory.devices] if memory else []
        reported = map(reported_parts, record.reported_devices)
        weights = [
            max((device.weight_bytes for device in devices if not device.on_host), default=0.0)
            for devices in (planned, reported)
        ]
        pairs = (
            ("Weights per GPU", weights[0], weights[1], "B"),
            ("KV cache", memory.kv_tokens if memory else None, record.kv_tokens, "tokens"),
        )
        figures += [
            PlannedFigure(run=index, what=what, planned=expected, measured=actual, unit=unit)
            for what, expected, actual, unit in pairs
            if expected and actual
        ]
        for load in record.loads:
            figures += compare_load(index, load, find_forecast(load, record.forecast))
    return figures


def find_forecast(load: LoadResult, rows: Sequence[ForecastRow]) -> ForecastRow | None:
    """The forecast for this load; a row that only decodes counts for single streams alone."""
    concurrency = load.concurrency or (1.0 if load.is_single_stream else None)
    for row in rows:
        same_load = row.concurrency == concurrency and row.workload in ("", load.workload)
        if same_load and (load.tg_tok_s or not row.decode_only):
            return row
    return None


def compare_load(index: int, load: LoadResult, row: ForecastRow | None) -> list[PlannedFigure]:
    """Figures that both the load and its forecast have, each with its range.

    The forecast has one relative range, of the rate; for a time it is inverted.
    """
    if row is None:
        return []
    generation = row.tg_tok_s if row.tg_tok_s is not None else row.output_tok_s if row.decode_only else None
    pairs = (
        ("Output tok/s", None if row.decode_only else row.output_tok_s, load.output_tok_s, "tok/s"),
        ("Token generation", generation, load.tg_tok_s, "tok/s"),
        ("Prompt processing", row.pp_tok_s, load.pp_tok_s, "tok/s"),
        ("Mean TTFT", None if row.decode_only else row.ttft_ms, load.ttft.mean_or_median, "ms"),
        ("Mean TPOT", row.tpot_ms, load.tpot.mean_or_median, "ms"),
    )
    name = f"concurrency {load.concurrency:,.0f}" if load.concurrency else load.name
    name += f", {row.lengths}" if row.lengths else ""
    rate = row.tg_tok_s or row.output_tok_s
    figures: list[PlannedFigure] = []
    for what, planned, measured, unit in pairs:
        if not planned or not measured:
            continue
        expected_range = None
        if rate and row.low_tok_s and row.high_tok_s:
            low, high = row.low_tok_s / rate, row.high_tok_s / rate
            expected_range = (planned / high, planned / low) if unit == "ms" else (planned * low, planned * high)
        figures.append(
            PlannedFigure(
                run=index,
                what=what,
                planned=planned,
                measured=measured,
                unit=unit,
                load=name,
                expected_range=expected_range,
            )
        )
    return figures


def memory_table(records: Sequence[RunRecord], figures: Sequence[PlannedFigure]) -> ReportTable | None:
    """Weights and cache, planned beside measured."""
    rows = []
    for figure in figures:
        if not figure.load:
            sizes = [
                TableCell(text=format_gib(size), value=size) if figure.unit == "B" else figure_cell(size)
                for size in (figure.planned, figure.measured)
            ]
            error = TableCell(text=format_change(figure.relative_error), value=figure.relative_error)
            run = text_cell(records[figure.run].label, colour=run_colour(figure.run))
            rows.append((run, text_cell(figure.what), *sizes, error))
    if not rows:
        return None
    heads = table_columns("Run", "Figure", "Planned", "Measured", "Off by", text=(0, 1))
    table = ReportTable(caption="Memory", columns=heads, rows=tuple(rows))
    return drop_empty_columns(table, single_run=len(records) == 1)


def loads_table(records: Sequence[RunRecord], figures: Sequence[PlannedFigure]) -> ReportTable | None:
    """A row for each load: every figure as forecast → measured, and whether they lie in their ranges."""
    of_loads = [figure for figure in figures if figure.load]
    if not of_loads:
        return None
    names = unique_names(figure.what for figure in of_loads)
    rows = []
    for (run, load), group in group_by(of_loads, lambda figure: (figure.run, figure.load)).items():
        by_name = {figure.what: figure for figure in group}
        ranged = [figure for figure in by_name.values() if figure.expected_range]
        outside = [figure.what.removeprefix("Mean ").removesuffix(" tok/s") for figure in ranged if not figure.in_range]
        tone: Tone = "warn" if outside else "good" if ranged else "quiet"
        verdict = f"no: {', '.join(outside)}" if outside else "yes" if ranged else ""
        first = [text_cell(records[run].label, colour=run_colour(run))] if len(records) > 1 else []
        cells = [forecast_cell(by_name.get(name)) for name in names]
        rows.append((*first, text_cell(load.replace(" ", "\u00a0")), *cells, text_cell(verdict, tone=tone)))
    first_heads = ("Run", "Load") if len(records) > 1 else ("Load",)
    text_positions = (0, len(first_heads) - 1, len(names) + len(first_heads))
    heads = table_columns(*first_heads, *names, "In its range", text=text_positions)
    return ReportTable(caption="Forecast → measured", columns=heads, rows=tuple(rows), sortable=False)


def forecast_cell(figure: PlannedFigure | None) -> TableCell:
    """Forecast and measurement in one cell, the range as its title."""
    if figure is None:
        return text_cell("")
    write = {"B": format_gib, "ms": format_ms}.get(figure.unit, format_number)
    title = f"range {' to '.join(map(write, figure.expected_range))}" if figure.expected_range else ""
    text = f"{write(figure.planned)} → {write(figure.measured)}"
    return TableCell(text=text, aside=format_change(figure.relative_error), value=figure.relative_error, title=title)


def plan_lead(figures: Sequence[PlannedFigure]) -> str:
    """The median error of the rates, and how many figures lie in their ranges."""
    errors = [abs(figure.relative_error) for figure in figures if figure.unit == "tok/s"]
    if not errors:
        return ""
    text = f"Median error of the forecast rates: {median(errors):.0%} over {plural(len(errors), 'figure')}"
    ranged = [figure.in_range for figure in figures if figure.in_range is not None]
    if ranged:
        text += f"; {sum(ranged)} of {len(ranged)} figures, latencies included, lie in their range"
    return f"{text}."


def join_texts(text: str, mark: str, more: str) -> str:
    """Two texts with a mark between them, or the first alone."""
    return f"{text}{mark}{more}" if more else text
