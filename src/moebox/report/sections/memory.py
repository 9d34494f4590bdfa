"""Planned beside measured: the memory of every device, and every load with the range of its forecast."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from moebox import units
from moebox.assess.assessment import Tone
from moebox.assess.devices import DeviceParts, planned_parts, reported_parts
from moebox.assess.figures import PlannedFigure, planned_figures
from moebox.assess.format import (
    DASH,
    capitalize,
    format_change,
    format_gib,
    format_ms,
    format_number,
    group_by,
    unique_names,
)
from moebox.report.block import Block, LegendKey, ReportChart, Section, bullet_list, chart_blocks
from moebox.report.charts import PART_COLOURS, draw_memory, group_equal_devices
from moebox.report.table import CellValue, ReportTable, TableCell, figure_cell, run_cell, table_blocks, text_cell
from moebox.runs.record import RunRecord
from moebox.units import plural

HEADS = ("Run", "Source", "Weights", "KV cache", "Room left", "KV capacity, tokens", "Requests at full context")


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySide:
    """Memory as it was planned, or as the engine reported it."""

    kind: str  # planned or measured
    devices: list[DeviceParts]
    kv_tokens: float | None


def memory_sides(record: RunRecord) -> list[MemorySide]:
    """Planned and measured memory, as far as they are known."""
    memory = record.planned_memory
    planned = [*map(planned_parts, memory.devices)]
    reported = [device for device in map(reported_parts, record.reported_devices) if device.total > 0]
    sides = [
        MemorySide(kind="planned", devices=planned, kv_tokens=memory.kv_tokens),
        MemorySide(kind="measured", devices=reported, kv_tokens=record.kv_tokens),
    ]
    return [side for side in sides if side.devices or side.kv_tokens]


def memory_section(records: Sequence[RunRecord]) -> Section | None:
    """GPUs in one drawing, host memory in another, whose scale differs, and a table of the sums."""
    rows: list[tuple[str, str, DeviceParts]] = []
    for record in records:
        groups = [(side.kind, group_equal_devices(side.devices)) for side in memory_sides(record) if side.devices]
        same_row = len(groups) == 2 and all(len(devices) == 1 for _, devices in groups)
        for kind, devices in groups:
            for name, device in devices:
                heading = groups[0][1][0][0] if same_row else name
                rows.append((record.sentence_prefix + heading, kind, device))
    if not rows:
        return None
    has_gpu = any(record.gpus for record in records)
    gpus, host = [row for row in rows if not row[2].on_host], [row for row in rows if row[2].on_host]
    title = "Memory per GPU" if has_gpu else "As the engine reports it"
    lines = [memory_cells(record, index, side) for index, record in enumerate(records) for side in memory_sides(record)]
    caption = "The fullest GPU" if has_gpu else "Host memory"
    note = " ".join(unique_names(record.memory_note for record in records))
    blocks: list[Block] = [*chart_blocks((memory_chart(title, gpus), memory_chart("Host memory", host)))]
    blocks += table_blocks(HEADS, lines, text=(0, 1), drop_empty=True, caption=caption, note=note)
    return Section(id="memory", title="Memory", lead=memory_lead(records), blocks=blocks)


def memory_chart(title: str, rows: Sequence[tuple[str, str, DeviceParts]]) -> ReportChart:
    """Bars (heading, kind, device) with a legend of the parts that occur."""
    shown = {name for _, _, device in rows for name in device.parts}
    legend = [LegendKey(name=name, colour=colour, family="m") for name, colour in PART_COLOURS.items() if name in shown]
    return ReportChart(title=title, svg=draw_memory(rows, label=f"{title} by part"), legend=legend, wide=True)


def memory_cells(record: RunRecord, index: int, side: MemorySide) -> tuple[CellValue, ...]:
    """A row about the fullest GPU; without a GPU, about all of the host's memory."""
    if record.gpus:
        gpus = [device for device in side.devices if not device.on_host]
        device = max(gpus, key=lambda gpu: gpu.used_bytes, default=None)
    else:  # an engine may list mapped and allocated memory of the host as two devices
        parts: Counter[str] = Counter()
        for part_of_host in side.devices:
            parts.update(part_of_host.parts)
        total = sum(part_of_host.total for part_of_host in side.devices)
        device = DeviceParts(name="ram", total=total, parts=dict(parts)) if side.devices else None
    sizes = (device.weight_bytes, device.parts.get("KV cache"), device.parts.get("free")) if device else (None,) * 3
    context = record.recipe.context if record.recipe else 0
    return (
        run_cell(record, index),
        side.kind,
        *(TableCell(text=format_gib(size) if size else DASH, value=size) for size in sizes),
        figure_cell(side.kv_tokens, digits=0),
        figure_cell(side.kv_tokens / context if side.kv_tokens and context else None, digits=1),
    )


def memory_lead(records: Sequence[RunRecord]) -> str:
    """How many tokens of KV cache were planned, and how many the engine has."""
    sentences = []
    for record in records:
        planned, actual = record.planned_memory.kv_tokens, record.kv_tokens
        if planned and actual:
            text = f"the plan promised {units.format_count(planned)} tokens of KV cache, the engine has "
            text += f"{units.format_count(actual)} ({format_change(actual / planned - 1)})."
            sentences.append(capitalize(text) if len(records) == 1 else f"{record.label}: {text}")
    return " ".join(sentences)


def plan_section(records: Sequence[RunRecord]) -> Section:
    """Memory, then a row for each load; then reasons, warnings and runners-up of the plans."""
    figures = planned_figures(records)
    blocks: list[Block] = [*memory_table(records, figures), *loads_table(records, figures)]
    for record in records:
        plan, suffix = record.plan, record.title_suffix
        reasons = unique_names((*(plan.reasons if plan else ()), record.forecast_basis))
        warnings = [join_texts(warning.text, " – ", warning.remedy) for warning in plan.warnings] if plan else []
        others = [join_texts(other.title, ": ", other.loses) for other in plan.alternatives] if plan else []
        blocks += bullet_list(f"Why this plan{suffix}", reasons)
        blocks += bullet_list(f"What it warned of{suffix}", warnings)
        blocks += bullet_list(f"Runners-up{suffix}", others)
    return Section(id="plan", title="Plan against measurement", lead=plan_lead(figures), blocks=blocks)


def memory_table(records: Sequence[RunRecord], figures: Sequence[PlannedFigure]) -> list[ReportTable]:
    """Weights and cache, planned beside measured."""
    rows: list[Sequence[CellValue]] = []
    for figure in figures:
        if not figure.load:
            sizes = [
                TableCell(text=format_gib(size), value=size) if figure.unit == "B" else figure_cell(size)
                for size in (figure.planned, figure.measured)
            ]
            error = TableCell(text=format_change(figure.relative_error), value=figure.relative_error)
            rows.append((run_cell(records[figure.run], figure.run), figure.what, *sizes, error))
    heads = ("Run", "Figure", "Planned", "Measured", "Off by")
    return table_blocks(heads, rows, text=(0, 1), drop_empty=True, caption="Memory")


def loads_table(records: Sequence[RunRecord], figures: Sequence[PlannedFigure]) -> list[ReportTable]:
    """A row for each load: every figure as forecast → measured, and whether they lie in their ranges."""
    of_loads = [figure for figure in figures if figure.load]
    names = unique_names(figure.what for figure in of_loads)
    start = 0 if len(records) > 1 else 1  # without the name of the only run
    rows: list[Sequence[CellValue]] = []
    for (run, load), group in group_by(of_loads, lambda figure: (figure.run, figure.load)).items():
        by_name = {figure.what: figure for figure in group}
        ranged = [figure for figure in by_name.values() if figure.expected_range]
        outside = [figure.what.removeprefix("Mean ").removesuffix(" tok/s") for figure in ranged if not figure.in_range]
        tone: Tone = "warn" if outside else "good" if ranged else "quiet"
        verdict = f"no: {', '.join(outside)}" if outside else "yes" if ranged else ""
        line: list[CellValue] = [run_cell(records[run], run), load.replace(" ", "\u00a0")]
        line += [*(forecast_cell(by_name.get(name)) for name in names), text_cell(verdict, tone=tone)]
        rows.append(line[start:])
    heads = ("Run", "Load", *names, "In its range")[start:]
    text = (0, 1 - start, len(heads) - 1)
    return table_blocks(heads, rows, text=text, caption="Forecast → measured", sortable=False)


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
