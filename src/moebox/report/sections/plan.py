"""What was expected against what was measured, row by row, with the band."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import median

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
from moebox.report.record import DeviceParts, ForecastRow, LoadResult, RunRecord
from moebox.report.sections.memory import weight_bytes
from moebox.units import plural

Candidate = tuple[str, float | None, float | None, str]  # what, planned, measured, unit


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedFigure:
    """One figure, planned and measured."""

    run: int
    what: str
    planned: float
    measured: float
    expected_range: tuple[float, float] | None = None
    unit: str = "tok/s"
    load: str = ""  # under which load; "" for what does not depend on one

    @property
    def relative_error(self) -> float:
        """Measured against planned."""
        return self.measured / self.planned - 1

    @property
    def in_range(self) -> bool | None:
        """Whether the measurement lies in the band; None without one."""
        if self.expected_range is None:
            return None
        low, high = self.expected_range
        return low <= self.measured <= high


def section(records: Sequence[RunRecord]) -> Section:
    """Memory, then every load with its figures; the reasons and warnings the plan gave."""
    found = planned_figures(records)
    blocks: list[Block] = list(filter(None, (sizes(records, found), loads(records, found))))
    for record in records:
        blocks += said(record)
    return Section(id="plan", title="Plan against measurement", lead=lead(found), blocks=tuple(blocks))


def planned_figures(records: Sequence[RunRecord]) -> list[PlannedFigure]:
    """Every figure that was both planned and measured."""
    found: list[PlannedFigure] = []
    for index, record in enumerate(records):
        found += capacity(index, record)
        for level in record.loads:
            found += compare_load(index, level, find_forecast(level, record.plan.rows))
    return found


def capacity(index: int, record: RunRecord) -> list[PlannedFigure]:
    """Weights on the fullest device, and KV tokens."""
    plan = record.plan
    candidates = (
        ("Weights per GPU", fullest(plan.devices), fullest(record.reported_devices), "B"),
        ("KV cache", plan.kv_tokens, record.kv_tokens, "tokens"),
    )
    return paired(index, candidates)


def paired(index: int, candidates: Iterable[Candidate], *, load: str = "") -> list[PlannedFigure]:
    """Those that were both planned and measured."""
    return [
        PlannedFigure(run=index, what=what, planned=planned, measured=measured, unit=unit, load=load)
        for what, planned, measured, unit in candidates
        if planned and measured
    ]


def fullest(devices: Sequence[DeviceParts]) -> float:
    """Weights of the device that holds most, RAM aside."""
    return max((weight_bytes(device) for device in devices if not device.on_host), default=0.0)


def find_forecast(level: LoadResult, rows: Sequence[ForecastRow]) -> ForecastRow | None:
    """The forecast for this load."""
    return next((row for row in rows if answers(row, level)), None)


def answers(row: ForecastRow, level: LoadResult) -> bool:
    """Whether a forecast is of this load; decode-only rows answer only for single streams."""
    load = level.concurrency or (1.0 if level.is_single_stream else None)
    if row.concurrency != load or row.workload not in ("", level.workload):
        return False
    return bool(level.tg_tok_s) or not row.decode_only


def compare_load(index: int, level: LoadResult, row: ForecastRow | None) -> list[PlannedFigure]:
    """What both the level and the forecast for it have."""
    if row is None:
        return []
    served = ForecastRow() if row.decode_only else row
    candidates = (
        ("Output tok/s", served.output_tok_s, level.output_tok_s, "tok/s"),
        ("Token generation", generation(row), level.tg_tok_s, "tok/s"),
        ("Prompt processing", row.pp_tok_s, level.pp_tok_s, "tok/s"),
        ("Mean TTFT", served.ttft_ms, level.ttft.mean_or_median, "ms"),
        ("Mean TPOT", row.tpot_ms, level.tpot.mean_or_median, "ms"),
    )
    load = f"concurrency {level.concurrency:,.0f}" if level.concurrency else level.name
    load += f", {row.lengths}" if row.lengths else ""
    both = paired(index, candidates, load=load)
    return [replace(pair, expected_range=band(row, pair.planned, pair.unit)) for pair in both]


def generation(row: ForecastRow) -> float | None:
    """One stream's decode rate: its own figure, or that of a row that only decodes."""
    if row.tg_tok_s is not None:
        return row.tg_tok_s
    return row.output_tok_s if row.decode_only else None


def band(row: ForecastRow, planned: float, unit: str) -> tuple[float, float] | None:
    """The forecast's relative band around a figure: as given for a rate, turned round for a time."""
    rate = row.tg_tok_s or row.output_tok_s
    if not rate or not row.low_tok_s or not row.high_tok_s:
        return None
    low, high = row.low_tok_s / rate, row.high_tok_s / rate
    return (planned / high, planned / low) if unit == "ms" else (planned * low, planned * high)


def sizes(records: Sequence[RunRecord], found: Sequence[PlannedFigure]) -> ReportTable | None:
    """Weights and cache, planned beside measured."""
    rows = tuple(size_row(records, pair) for pair in found if not pair.load)
    if not rows:
        return None
    heads = ("Run", "Figure", "Planned", "Measured", "Off by")
    table = ReportTable(caption="Memory", columns=table_columns(*heads, text=(0, 1)), rows=rows)
    return drop_empty_columns(table, single_run=len(records) == 1)


def size_row(records: Sequence[RunRecord], pair: PlannedFigure) -> tuple[TableCell, ...]:
    """One size, planned, measured and how far off."""
    return (
        text_cell(records[pair.run].label, colour=run_colour(pair.run)),
        text_cell(pair.what),
        written(pair.planned, pair.unit),
        written(pair.measured, pair.unit),
        TableCell(text=format_change(pair.relative_error), value=pair.relative_error),
    )


def loads(records: Sequence[RunRecord], found: Sequence[PlannedFigure]) -> ReportTable | None:
    """One row a load: each figure as forecast → measured, and how far off that is."""
    loaded = [pair for pair in found if pair.load]
    if not loaded:
        return None
    figures = unique_names(pair.what for pair in loaded)
    by_load = group_by(loaded, lambda pair: (pair.run, pair.load))
    named = len(records) > 1
    rows = [
        (*name(records, run, load, named=named), *compared(pairs, figures)) for (run, load), pairs in by_load.items()
    ]
    first = ("Run", "Load") if named else ("Load",)
    heads = table_columns(*first, *figures, "In its band", text=(0, len(first) - 1, len(figures) + len(first)))
    return ReportTable(caption="Forecast → measured", columns=heads, rows=tuple(rows), sortable=False)


def name(records: Sequence[RunRecord], run: int, load: str, *, named: bool) -> list[TableCell]:
    """Which row it is: the load, after the run where there are several."""
    cell = text_cell(load.replace(" ", "\u00a0"))
    return [text_cell(records[run].label, colour=run_colour(run)), cell] if named else [cell]


def compared(pairs: Sequence[PlannedFigure], figures: Sequence[str]) -> list[TableCell]:
    """Each figure of one load, and whether they lie in their bands."""
    last = {pair.what: pair for pair in pairs}
    verdict, tone = judged([pair for pair in last.values() if pair.expected_range])
    return [*(both(last.get(what)) for what in figures), text_cell(verdict, tone=tone)]


def both(pair: PlannedFigure | None) -> TableCell:
    """Forecast and measurement in one field."""
    if pair is None:
        return text_cell("")
    form = {"B": format_gib, "ms": format_ms}.get(pair.unit, format_number)
    band = f"band {' to '.join(map(form, pair.expected_range))}" if pair.expected_range else ""
    text = f"{form(pair.planned)} → {form(pair.measured)}"
    return TableCell(text=text, aside=format_change(pair.relative_error), value=pair.relative_error, title=band)


def judged(banded: Sequence[PlannedFigure]) -> tuple[str, Tone]:
    """Whether the rates lie in their bands."""
    if not banded:
        return "", "quiet"
    outside = [pair.what for pair in banded if not pair.in_range]
    if not outside:
        return "yes", "good"
    return f"no: {', '.join(what.removeprefix('Mean ').removesuffix(' tok/s') for what in outside)}", "warn"


def written(value: float, unit: str) -> TableCell:
    """A figure in its unit."""
    return TableCell(text=format_gib(value), value=value) if unit == "B" else figure_cell(value)


def lead(found: Sequence[PlannedFigure]) -> str:
    """The median error, and how many lie in their bands."""
    speeds = [abs(pair.relative_error) for pair in found if pair.unit == "tok/s"]
    if not speeds:
        return ""
    text = f"Median error of the forecast rates: {median(speeds):.0%} over {plural(len(speeds), 'figure')}"
    banded = [pair.in_range for pair in found if pair.in_range is not None]
    if banded:
        text += f"; {sum(banded)} of {len(banded)} figures, latencies included, lie in their band"
    return f"{text}."


def said(record: RunRecord) -> list[Block]:
    """The plan's reasons, warnings and runners-up."""
    plan = record.plan
    return [
        *bullet_list(f"Why this plan{record.title_suffix}", plan.reasons),
        *bullet_list(
            f"What it warned of{record.title_suffix}",
            [join_texts(text, " – ", remedy) for text, remedy in plan.warnings],
        ),
        *bullet_list(
            f"Runners-up{record.title_suffix}", [join_texts(title, ": ", loses) for title, loses in plan.alternatives]
        ),
    ]


def join_texts(text: str, mark: str, more: str) -> str:
    """Two texts with a mark between them; the first alone where there is no second."""
    return f"{text}{mark}{more}" if more else text
