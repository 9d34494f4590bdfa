"""The memory of every device, planned beside measured."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from moebox import units
from moebox.assess.devices import DeviceParts, planned_parts, reported_parts
from moebox.assess.format import DASH, capitalize, format_change, format_gib, unique_names
from moebox.report.bars import PART_COLOURS, draw_memory, group_equal_devices
from moebox.report.block import (
    Charts,
    LegendKey,
    ReportChart,
    ReportTable,
    Section,
    TableCell,
    drop_empty_columns,
    figure_cell,
    table_columns,
    text_cell,
    titled_chart,
)
from moebox.report.svg import run_colour
from moebox.runs.record import RunRecord

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
    planned = [*map(planned_parts, memory.devices)] if memory else []
    reported = [device for device in map(reported_parts, record.reported_devices) if device.total > 0]
    sides = [
        MemorySide(kind="planned", devices=planned, kv_tokens=memory.kv_tokens if memory else None),
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
    charts = tuple(filter(None, (memory_chart(title, gpus), memory_chart("Host memory", host))))
    cells = [memory_cells(record, index, side) for index, record in enumerate(records) for side in memory_sides(record)]
    table = ReportTable(
        caption="The fullest GPU" if has_gpu else "Host memory",
        columns=table_columns(*HEADS, text=(0, 1)),
        rows=tuple(cells),
        note=" ".join(unique_names(record.memory_note for record in records)),
    )
    blocks = (Charts(charts=charts), drop_empty_columns(table, single_run=len(records) == 1))
    return Section(id="memory", title="Memory", lead=memory_lead(records), blocks=blocks)


def memory_chart(title: str, rows: Sequence[tuple[str, str, DeviceParts]]) -> ReportChart | None:
    """Bars (heading, kind, device) with a legend of the parts that occur."""
    shown = {name for _, _, device in rows for name in device.parts}
    legend = [LegendKey(name=name, colour=colour, family="m") for name, colour in PART_COLOURS.items() if name in shown]
    return titled_chart(title, draw_memory(rows, label=f"{title} by part"), legend=legend, wide=True)


def memory_cells(record: RunRecord, index: int, side: MemorySide) -> tuple[TableCell, ...]:
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
    requests = side.kv_tokens / context if side.kv_tokens and context else None
    return (
        text_cell(record.label, colour=run_colour(index)),
        text_cell(side.kind),
        *(TableCell(text=format_gib(size) if size else DASH, value=size) for size in sizes),
        figure_cell(side.kv_tokens, digits=0),
        figure_cell(requests, digits=1),
    )


def memory_lead(records: Sequence[RunRecord]) -> str:
    """How many tokens of KV cache were planned, and how many the engine has."""
    sentences = []
    for record in records:
        planned, actual = record.planned_memory.kv_tokens if record.planned_memory else 0, record.kv_tokens
        if planned and actual:
            change = format_change(actual / planned - 1)
            text = f"the plan promised {units.format_count(planned)} tokens of KV cache, the engine has "
            text += f"{units.format_count(actual)} ({change})."
            sentences.append(capitalize(text) if len(records) == 1 else f"{record.label}: {text}")
    return " ".join(sentences)
