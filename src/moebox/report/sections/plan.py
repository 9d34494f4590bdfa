"""Forecast against measurement, figure by figure, with the forecast's range."""

from collections.abc import Sequence
from statistics import median

from moebox.assess.assessment import Tone
from moebox.assess.figures import PlannedFigure, planned_figures
from moebox.assess.format import format_change, format_gib, format_ms, format_number, group_by, unique_names
from moebox.report.block import (
    Block,
    ReportTable,
    Section,
    TableCell,
    bullet_list,
    drop_empty_columns,
    figure_cell,
    table_columns,
    text_cell,
)
from moebox.report.svg import run_colour
from moebox.runs.record import RunRecord
from moebox.units import plural


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
