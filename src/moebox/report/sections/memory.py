"""Where every byte of every device went: planned beside measured."""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain

from moebox import units
from moebox.core.recipe import Recipe
from moebox.errors import MoeboxError
from moebox.report.bars import PART_COLOURS, group_equal_devices
from moebox.report.bars import draw_memory as draw
from moebox.report.block import (
    Block,
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
from moebox.report.format import DASH, capitalize, format_change, format_gib, unique_names
from moebox.report.palette import run_colour
from moebox.report.record import DeviceParts, RunRecord
from moebox.report.sections.models import find_model

WEIGHTS = ("weights", "experts", "attention", "other weights", "vision", "draft")
HEADS = ("Run", "Source", "Weights", "KV cache", "Room left", "KV capacity, tokens", "Requests at full context")
Bar = tuple[str, str, DeviceParts]  # heading, planned or measured, its parts


def section(records: Sequence[RunRecord]) -> Section | None:
    """GPUs in one drawing, host memory in another (their scales differ), and one table of the sums."""
    rows = list(chain.from_iterable(map(bars, records)))
    if not rows:
        return None
    title = "Memory per GPU" if any_gpu(records) else "As the engine reports it"
    host = [row for row in rows if row[2].on_host]
    gpus = [row for row in rows if not row[2].on_host]
    charts = filter(None, (memory_chart(title, gpus), memory_chart("Host memory", host)))
    blocks: tuple[Block, ...] = (Charts(charts=tuple(charts)), table(records))
    return Section(id="memory", title="Memory", lead=lead(records), blocks=blocks)


def memory_chart(title: str, rows: Sequence[Bar]) -> ReportChart | None:
    """Some of the bars as one drawing."""
    return titled_chart(title, draw(rows, label=f"{title} by part"), legend=legend(rows), wide=True)


def any_gpu(records: Sequence[RunRecord]) -> bool:
    """Whether any run had a GPU."""
    return any(record.gpus for record in records)


def legend(rows: Sequence[Bar]) -> tuple[LegendKey, ...]:
    """Keys for the parts that are drawn."""
    parts = {name for _, _, device in rows for name in device.parts}
    return tuple(
        LegendKey(name=name, colour=PART_COLOURS.get(name, 7), family="m") for name in PART_COLOURS if name in parts
    )


def bars(record: RunRecord) -> list[Bar]:
    """A run's bars: each group of devices planned, then as the engine reported it."""
    planned, real = group_equal_devices(record.plan.devices), group_equal_devices(record.reported_devices)
    if len(real) == len(planned) == 1:
        real = [(planned[0][0], real[0][1])]
    rows = [(record.sentence_prefix + name, "planned", device) for name, device in planned]
    return rows + [(record.sentence_prefix + name, "measured", device) for name, device in real]


def table(records: Sequence[RunRecord]) -> ReportTable:
    """Weights, KV and room of the fullest device, and the cache in tokens, planned against measured."""
    told = [(record, index, side) for index, record in enumerate(records) for side in sides(record)]
    notes = unique_names(record.memory_note for record in records)
    caption = "The fullest GPU" if any_gpu(records) else "Host memory"
    rows = tuple(line(record, index, *side) for record, index, side in told)
    table = ReportTable(caption=caption, columns=table_columns(*HEADS, text=(0, 1)), rows=rows, note=" ".join(notes))
    return drop_empty_columns(table, single_run=len(records) == 1)


def sides(record: RunRecord) -> Iterator[tuple[str, Sequence[DeviceParts], float | None]]:
    """Planned and measured, as far as they are known: the devices, and the cache in tokens."""
    plan = record.plan
    if plan.devices or plan.kv_tokens:
        yield "planned", plan.devices, plan.kv_tokens
    if record.reported_devices or record.kv_tokens:
        yield "measured", record.reported_devices, record.kv_tokens


def line(
    record: RunRecord, index: int, kind: str, devices: Sequence[DeviceParts], tokens: float | None
) -> tuple[TableCell, ...]:
    """One row, of the fullest device."""
    fullest = fullest_of(record, devices)
    sizes = (
        (weight_bytes(fullest), fullest.parts.get("KV cache"), free_bytes(fullest)) if fullest else (None, None, None)
    )
    return (
        text_cell(record.label, colour=run_colour(index)),
        text_cell(kind),
        *map(size, sizes),
        figure_cell(tokens, digits=0),
        figure_cell(at_once(record, tokens), digits=1),
    )


def at_once(record: RunRecord, tokens: float | None) -> float | None:
    """Requests of full context that a cache holds."""
    context = record.recipe.context if record.recipe else 0
    return tokens / context if tokens and context else None


def fullest_of(record: RunRecord, devices: Sequence[DeviceParts]) -> DeviceParts | None:
    """The fullest GPU; all of the host's memory where there is no GPU at all."""
    if not any_gpu([record]):
        return together(devices)
    return max((device for device in devices if not device.on_host), key=used_bytes, default=None)


def together(devices: Sequence[DeviceParts]) -> DeviceParts | None:
    """One device of what an engine calls several: mapped and allocated memory of the host."""
    if not devices:
        return None
    parts: Counter[str] = Counter()
    for device in devices:
        parts.update(device.parts)
    return DeviceParts(name="ram", total=sum(device.total for device in devices), parts=dict(parts))


def weight_bytes(device: DeviceParts) -> float:
    """Bytes of all weights on a device."""
    return sum(device.parts.get(name, 0.0) for name in WEIGHTS)


def used_bytes(device: DeviceParts) -> float:
    """Bytes that something holds."""
    return sum(size for name, size in device.parts.items() if name not in ("free", "unused"))


def free_bytes(device: DeviceParts) -> float:
    """Bytes that nothing uses."""
    return device.parts.get("free", 0.0) + device.parts.get("unused", 0.0)


def size(value: float | None) -> TableCell:
    """Bytes as GiB."""
    return TableCell(text=format_gib(value) if value else DASH, value=value)


def bytes_per_token(recipe: Recipe | None) -> float | None:
    """What one cached token costs on each GPU, where model and type are known."""
    model = find_model(recipe.model) if recipe else None
    if not recipe or not model:
        return None
    kv = "bf16" if recipe.kv == "auto" else recipe.kv
    try:
        return model.kv_bytes_per_token(kv) / recipe.parallel.dcp
    except (KeyError, MoeboxError, AssertionError):
        return None


def lead(records: Sequence[RunRecord]) -> str:
    """How far plan and engine agree."""
    sentences = [(record, agreement(record)) for record in records]
    if len(records) == 1:
        return capitalize(sentences[0][1])
    return " ".join(f"{record.label}: {text}" for record, text in sentences if text)


def agreement(record: RunRecord) -> str:
    """The cache that was planned and the one there is; "" where either is unknown."""
    expected, seen = record.plan.kv_tokens, record.kv_tokens
    if not expected or not seen:
        return ""
    off = format_change(seen / expected - 1)
    promised = f"the plan promised {units.format_count(expected)} tokens of KV cache"
    return f"{promised}, the engine has {units.format_count(seen)} ({off})."
