"""What was expected against what was measured, row by row, with the band."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import median

from moebox.report.block import Block, Cell, Section, Table, Tone, bullets, cell, columns, without_empty, words
from moebox.report.format import change, gib, milliseconds, number
from moebox.report.order import grouped, once
from moebox.report.palette import colour
from moebox.report.record import Device, ForecastRow, Level, RunRecord
from moebox.report.sections.memory import weights
from moebox.units import plural

Candidate = tuple[str, float | None, float | None, str]  # what, planned, measured, unit


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One figure, planned and measured."""

    run: int
    what: str
    planned: float
    measured: float
    band: tuple[float, float] | None = None
    unit: str = "tok/s"
    load: str = ""  # under which load; "" for what does not depend on one

    @property
    def error(self) -> float:
        """Measured against planned."""
        return self.measured / self.planned - 1

    @property
    def inside(self) -> bool | None:
        """Whether the measurement lies in the band; None without one."""
        if self.band is None:
            return None
        low, high = self.band
        return low <= self.measured <= high


def section(records: Sequence[RunRecord]) -> Section:
    """Memory, then every load with its figures; the reasons and warnings the plan gave."""
    found = pairs(records)
    blocks: list[Block] = list(filter(None, (sizes(records, found), loads(records, found))))
    for record in records:
        blocks += said(record)
    return Section(id="plan", title="Plan against measurement", lead=lead(found), blocks=tuple(blocks))


def pairs(records: Sequence[RunRecord]) -> list[Pair]:
    """Every figure that was both planned and measured."""
    found: list[Pair] = []
    for index, record in enumerate(records):
        found += capacity(index, record)
        for level in record.levels:
            found += figures(index, level, match(level, record.planned.rows))
    return found


def capacity(index: int, record: RunRecord) -> list[Pair]:
    """Weights on the fullest device, and KV tokens."""
    plan = record.planned
    candidates = (
        ("Weights per GPU", fullest(plan.devices), fullest(record.real), "B"),
        ("KV cache", plan.kv_tokens, record.kv_tokens, "tokens"),
    )
    return paired(index, candidates)


def paired(index: int, candidates: Iterable[Candidate], *, load: str = "") -> list[Pair]:
    """Those that were both planned and measured."""
    return [
        Pair(run=index, what=what, planned=planned, measured=measured, unit=unit, load=load)
        for what, planned, measured, unit in candidates
        if planned and measured
    ]


def fullest(devices: Sequence[Device]) -> float:
    """Weights of the device that holds most, RAM aside."""
    return max((weights(device) for device in devices if not device.on_host), default=0.0)


def match(level: Level, rows: Sequence[ForecastRow]) -> ForecastRow | None:
    """The forecast for this load."""
    return next((row for row in rows if answers(row, level)), None)


def answers(row: ForecastRow, level: Level) -> bool:
    """Whether a forecast is of this load; decode-only rows answer only for single streams."""
    load = level.concurrency or (1.0 if level.alone else None)
    if row.concurrency != load or row.workload not in ("", level.workload):
        return False
    return bool(level.tg_tok_s) or not row.decode_only


def figures(index: int, level: Level, row: ForecastRow | None) -> list[Pair]:
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
    return [replace(pair, band=band(row, pair.planned, pair.unit)) for pair in both]


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


def sizes(records: Sequence[RunRecord], found: Sequence[Pair]) -> Table | None:
    """Weights and cache, planned beside measured."""
    rows = tuple(size_row(records, pair) for pair in found if not pair.load)
    if not rows:
        return None
    heads = ("Run", "Figure", "Planned", "Measured", "Off by")
    table = Table(caption="Memory", columns=columns(*heads, text=(0, 1)), rows=rows)
    return without_empty(table, alone=len(records) == 1)


def size_row(records: Sequence[RunRecord], pair: Pair) -> tuple[Cell, ...]:
    """One size, planned, measured and how far off."""
    return (
        words(records[pair.run].label, colour=colour(pair.run)),
        words(pair.what),
        written(pair.planned, pair.unit),
        written(pair.measured, pair.unit),
        Cell(text=change(pair.error), value=pair.error),
    )


def loads(records: Sequence[RunRecord], found: Sequence[Pair]) -> Table | None:
    """One row a load: each figure as forecast → measured, and how far off that is."""
    loaded = [pair for pair in found if pair.load]
    if not loaded:
        return None
    figures = once(pair.what for pair in loaded)
    by_load = grouped(loaded, lambda pair: (pair.run, pair.load))
    named = len(records) > 1
    rows = [
        (*name(records, run, load, named=named), *compared(pairs, figures)) for (run, load), pairs in by_load.items()
    ]
    first = ("Run", "Load") if named else ("Load",)
    heads = columns(*first, *figures, "In its band", text=(0, len(first) - 1, len(figures) + len(first)))
    return Table(caption="Forecast → measured", columns=heads, rows=tuple(rows), sortable=False)


def name(records: Sequence[RunRecord], run: int, load: str, *, named: bool) -> list[Cell]:
    """Which row it is: the load, after the run where there are several."""
    cell = words(load.replace(" ", "\u00a0"))
    return [words(records[run].label, colour=colour(run)), cell] if named else [cell]


def compared(pairs: Sequence[Pair], figures: Sequence[str]) -> list[Cell]:
    """Each figure of one load, and whether they lie in their bands."""
    last = {pair.what: pair for pair in pairs}
    verdict, tone = judged([pair for pair in last.values() if pair.band])
    return [*(both(last.get(what)) for what in figures), words(verdict, tone=tone)]


def both(pair: Pair | None) -> Cell:
    """Forecast and measurement in one field."""
    if pair is None:
        return words("")
    form = {"B": gib, "ms": milliseconds}.get(pair.unit, number)
    band = f"band {' to '.join(map(form, pair.band))}" if pair.band else ""
    text = f"{form(pair.planned)} → {form(pair.measured)}"
    return Cell(text=text, aside=change(pair.error), value=pair.error, title=band)


def judged(banded: Sequence[Pair]) -> tuple[str, Tone]:
    """Whether the rates lie in their bands."""
    if not banded:
        return "", "quiet"
    outside = [pair.what for pair in banded if not pair.inside]
    if not outside:
        return "yes", "good"
    return f"no: {', '.join(what.removeprefix('Mean ').removesuffix(' tok/s') for what in outside)}", "warn"


def written(value: float, unit: str) -> Cell:
    """A figure in its unit."""
    return Cell(text=gib(value), value=value) if unit == "B" else cell(value)


def lead(found: Sequence[Pair]) -> str:
    """The median error, and how many lie in their bands."""
    speeds = [abs(pair.error) for pair in found if pair.unit == "tok/s"]
    if not speeds:
        return ""
    text = f"Median error of the forecast rates: {median(speeds):.0%} over {plural(len(speeds), 'figure')}"
    banded = [pair.inside for pair in found if pair.inside is not None]
    if banded:
        text += f"; {sum(banded)} of {len(banded)} figures, latencies included, lie in their band"
    return f"{text}."


def said(record: RunRecord) -> list[Block]:
    """The plan's reasons, warnings and runners-up."""
    plan = record.planned
    return [
        *bullets(f"Why this plan{record.of}", plan.reasons),
        *bullets(f"What it warned of{record.of}", [joined(text, " – ", remedy) for text, remedy in plan.warnings]),
        *bullets(f"Runners-up{record.of}", [joined(title, ": ", loses) for title, loses in plan.alternatives]),
    ]


def joined(text: str, mark: str, more: str) -> str:
    """Two texts with a mark between them; the first alone where there is no second."""
    return f"{text}{mark}{more}" if more else text
