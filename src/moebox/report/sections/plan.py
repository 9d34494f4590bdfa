"""What was expected against what was measured, row by row, with the band."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from moebox.report.block import Block, Bullets, Cell, Section, Table, Tone, cell, columns, words
from moebox.report.format import change, gib, milliseconds, number
from moebox.report.palette import colour
from moebox.report.record import Device, ForecastRow, Level, RunRecord
from moebox.report.sections.memory import weights


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


def section(records: Sequence[RunRecord]) -> Section | None:
    """Memory, then every load with its figures; the reasons and warnings the plan gave."""
    found = pairs(records)
    blocks: list[Block] = [table for table in (sizes(records, found), loads(records, found)) if table]
    for record in records:
        if record.planned:
            blocks += said(record, alone=len(records) == 1)
    if not blocks:
        return None
    return Section(id="plan", title="Plan against measurement", lead=lead(found), blocks=tuple(blocks))


def pairs(records: Sequence[RunRecord]) -> list[Pair]:
    """Every figure that was both planned and measured."""
    found: list[Pair] = []
    for index, record in enumerate(records):
        plan = record.planned
        if not plan:
            continue
        found += capacity(index, record)
        for level in record.levels:
            row = match(level, plan.rows)
            if row:
                found += figures(index, level, row)
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
    """The forecast for this load; decode-only rows answer only for single streams."""
    for row in rows:
        same = row.concurrency == (level.concurrency or (1.0 if level.tg_tok_s or level.pp_tok_s else None))
        if same and row.workload in ("", level.workload) and (not row.decode_only or level.tg_tok_s):
            return row
    return None


def figures(index: int, level: Level, row: ForecastRow) -> list[Pair]:
    """What both the level and the row have."""
    at = f"concurrency {level.concurrency:,.0f}" if level.concurrency else level.name
    tg = row.tg_tok_s if row.tg_tok_s is not None else row.output_tok_s if row.decode_only else None
    candidates = [
        ("Output tok/s", None if row.decode_only else row.output_tok_s, level.output_tok_s, "tok/s"),
        ("Token generation", tg, level.tg_tok_s, "tok/s"),
        ("Prompt processing", row.pp_tok_s, level.pp_tok_s, "tok/s"),
        ("Mean TTFT", row.ttft_ms if not row.decode_only else None, level.ttft.middle, "ms"),
        ("Mean TPOT", row.tpot_ms, level.tpot.middle, "ms"),
    ]
    return [
        Pair(
            run=index,
            what=what,
            planned=planned,
            measured=measured,
            unit=unit,
            load=at,
            low=low,
            high=high,
        )
        for what, planned, measured, unit in candidates
        if planned and measured
        for low, high in (band(row, planned, unit),)
    ]


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
    heads = ("Run", "Figure", "Planned", "Measured", "Off by")
    return Table(caption="Memory", columns=columns(*heads, text=(0, 1)), rows=tuple(rows)) if rows else None


def loads(records: Sequence[RunRecord], found: Sequence[Pair]) -> Table | None:
    """One row a load: each figure as forecast → measured, and how far off that is."""
    figures = list(dict.fromkeys(pair.what for pair in found if pair.load))
    places = list(dict.fromkeys((pair.run, pair.load) for pair in found if pair.load))
    if not places:
        return None
    rows = []
    for run, load in places:
        mine = {pair.what: pair for pair in found if (pair.run, pair.load) == (run, load)}
        row = [words(records[run].label, colour=colour(run))] if len(records) > 1 else []
        row.append(words(load.replace(" ", "\u00a0")))
        row += [both(mine[what]) if what in mine else words("") for what in figures]
        verdict, tone = judged([pair for pair in mine.values() if pair.inside is not None])
        rows.append((*row, words(verdict, tone=tone)))
    first = ("Run", "Load") if len(records) > 1 else ("Load",)
    heads = columns(*first, *figures, "In its band", text=(0, len(first) - 1, len(figures) + len(first)))
    return Table(caption="Forecast → measured", columns=heads, rows=tuple(rows), sortable=False)


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
    banded = [pair.inside for pair in found if pair.inside is not None]
    plural = "s" * (len(speeds) != 1)
    words_ = (
        f"Median error of the forecast rates: {median(speeds):.0%} over {len(speeds)} figure{plural}" if speeds else ""
    )
    words_ += (
        f"; {sum(banded)} of {len(banded)} figures, latencies included, lie in their band" if speeds and banded else ""
    )
    return words_ + "." if words_ else ""


def said(record: RunRecord, *, alone: bool) -> list[Block]:
    """The plan's reasons, warnings and runners-up."""
    plan = record.planned
    assert plan is not None
    of = "" if alone else f": {record.label}"
    blocks: list[Block] = []
    if plan.reasons:
        blocks.append(Bullets(title=f"Why this plan{of}", items=plan.reasons))
    if plan.warnings:
        items = tuple(f"{text}{' – ' + remedy if remedy else ''}" for _, text, remedy in plan.warnings)
        blocks.append(Bullets(title=f"What it warned of{of}", items=items))
    if plan.alternatives:
        items = tuple(f"{title}: {loses}" if loses else title for title, loses in plan.alternatives)
        blocks.append(Bullets(title=f"Runners-up{of}", items=items))
    return blocks
