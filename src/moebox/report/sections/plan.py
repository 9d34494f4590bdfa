"""What was expected against what was measured, row by row, with the band."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

from moebox.report.block import Block, Bullets, Cell, Section, Table, Tone, cell, columns, without_empty, words
from moebox.report.format import change, gib, milliseconds, number
from moebox.report.palette import colour
from moebox.report.record import Device, ForecastRow, Level, RunRecord
from moebox.report.sections.memory import weights
from moebox.units import plural


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One figure, planned and measured."""

    run: int
    what: str
    planned: float
    measured: float
    low: float | None = None
    high: float | None = None
    unit: str = "tok/s"
    load: str = ""  # under which load; "" for what does not depend on one

    @property
    def error(self) -> float:
        """Measured against planned."""
        return self.measured / self.planned - 1

    @property
    def inside(self) -> bool | None:
        """Whether the measurement lies in the band; None without one."""
        if self.low is None or self.high is None:
            return None
        return self.low <= self.measured <= self.high


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
            found += figures(index, level, match(level, record.forecast))
    return found


def capacity(index: int, record: RunRecord) -> list[Pair]:
    """Weights on the fullest device, and KV tokens."""
    found: list[Pair] = []
    plan = record.planned
    if not plan:
        return found
    expected, seen = fullest(plan.devices), fullest(record.real)
    if expected and seen:
        found.append(Pair(run=index, what="Weights per GPU", planned=expected, measured=seen, unit="B"))
    if plan.kv_tokens and record.kv_tokens:
        found.append(Pair(run=index, what="KV cache", planned=plan.kv_tokens, measured=record.kv_tokens, unit="tokens"))
    return found


def fullest(devices: Sequence[Device]) -> float:
    """Weights of the device that holds most, RAM aside."""
    return max((weights(device) for device in devices if device.name != "ram"), default=0.0)


def match(level: Level, rows: Sequence[ForecastRow]) -> ForecastRow | None:
    """The forecast for this load."""
    return next((row for row in rows if answers(row, level)), None)


def answers(row: ForecastRow, level: Level) -> bool:
    """Whether a forecast is of this load; decode-only rows answer only for single streams."""
    alone = bool(level.tg_tok_s or level.pp_tok_s)
    load = level.concurrency or (1.0 if alone else None)
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
        ("Mean TTFT", served.ttft_ms, level.ttft.middle, "ms"),
        ("Mean TPOT", row.tpot_ms, level.tpot.middle, "ms"),
    )
    load = f"concurrency {level.concurrency:,.0f}" if level.concurrency else level.name
    pairs = []
    for what, planned, measured, unit in candidates:
        if planned and measured:
            low, high = band(row, planned, unit)
            pair = Pair(run=index, what=what, planned=planned, measured=measured, unit=unit, load=load)
            pairs.append(replace(pair, low=low, high=high))
    return pairs


def generation(row: ForecastRow) -> float | None:
    """One stream's decode rate: its own figure, or that of a row that only decodes."""
    if row.tg_tok_s is not None:
        return row.tg_tok_s
    return row.output_tok_s if row.decode_only else None


def band(row: ForecastRow, planned: float, unit: str) -> tuple[float | None, float | None]:
    """The forecast's relative band around a figure: as given for a rate, turned round for a time."""
    rate = row.tg_tok_s or row.output_tok_s
    if not rate or not row.low_tok_s or not row.high_tok_s:
        return None, None
    low, high = row.low_tok_s / rate, row.high_tok_s / rate
    return (planned / high, planned / low) if unit == "ms" else (planned * low, planned * high)


def sizes(records: Sequence[RunRecord], found: Sequence[Pair]) -> Table | None:
    """Weights and cache, planned beside measured."""
    rows = [
        (
            words(records[pair.run].label, colour=colour(pair.run)),
            words(pair.what),
            written(pair.planned, pair.unit),
            written(pair.measured, pair.unit),
            Cell(text=change(pair.error), value=pair.error),
        )
        for pair in found
        if not pair.load
    ]
    if not rows:
        return None
    heads = ("Run", "Figure", "Planned", "Measured", "Off by")
    table = Table(caption="Memory", columns=columns(*heads, text=(0, 1)), rows=tuple(rows))
    return without_empty(table, alone=len(records) == 1)


def loads(records: Sequence[RunRecord], found: Sequence[Pair]) -> Table | None:
    """One row a load: each figure as forecast → measured, and how far off that is."""
    loaded = [pair for pair in found if pair.load]
    if not loaded:
        return None
    figures = list(dict.fromkeys(pair.what for pair in loaded))
    by_load: dict[tuple[int, str], dict[str, Pair]] = {}
    for pair in loaded:
        by_load.setdefault((pair.run, pair.load), {})[pair.what] = pair
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


def compared(pairs: dict[str, Pair], figures: Sequence[str]) -> list[Cell]:
    """Each figure of one load, and whether they lie in their bands."""
    verdict, tone = judged([pair for pair in pairs.values() if pair.inside is not None])
    fields = [both(pairs[what]) if what in pairs else words("") for what in figures]
    return [*fields, words(verdict, tone=tone)]


def both(pair: Pair) -> Cell:
    """Forecast and measurement in one field."""
    form = {"B": gib, "ms": milliseconds}.get(pair.unit, number)
    known = pair.low is not None and pair.high is not None
    band = f"band {form(pair.low)} to {form(pair.high)}" if known else ""
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
    if plan is None:
        return []
    lists = {
        "Why this plan": plan.reasons,
        "What it warned of": tuple(joined(text, " – ", remedy) for _, text, remedy in plan.warnings),
        "Runners-up": tuple(joined(title, ": ", loses) for title, loses in plan.alternatives),
    }
    return [Bullets(title=title + record.of, items=items) for title, items in lists.items() if items]


def joined(text: str, mark: str, more: str) -> str:
    """Two texts with a mark between them; the first alone where there is no second."""
    return f"{text}{mark}{more}" if more else text
