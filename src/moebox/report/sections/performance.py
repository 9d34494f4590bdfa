"""Throughput and latency drawn over load, token gaps, and throughput over time."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain

from moebox.report import samples
from moebox.report.bars import draw_ranking
from moebox.report.block import Block, Charts, ReportChart, Section, titled_chart
from moebox.report.charts import ChartAxis, ChartSeries, draw_lines, series_legend, whole_number
from moebox.report.format import capitalize, format_ms, short_number, tick_ms
from moebox.report.palette import run_colour
from moebox.report.record import ForecastRow, LoadResult, RunRecord
from moebox.report.sections.along import extra_charts

ALONE = "measured"  # what a run is called in a drawing that holds no other
MOST_TESTS = 8  # bars of one run
MOST_DISTRIBUTIONS = 4  # outlines in one drawing that the eye still tells apart
Digested = tuple[str, int, samples.SampleDigest]  # name, colour, the samples in short
LOG_FROM = 4  # loads whose highest is this many times the lowest stand on a logarithmic axis


@dataclass(frozen=True, slots=True)
class LoadCurve:
    """One drawing over load: its title, the axis, where the figure is read, and the forecast's field for it."""

    title: str
    axis: str
    read: Callable[[LoadResult], float | None]
    forecast: str = ""
    latency: bool = False


CURVES = (
    LoadCurve("Output throughput", "output tok/s", lambda level: level.output_tok_s, "output_tok_s"),
    LoadCurve("Total throughput", "input + output tok/s", lambda level: level.total_tok_s),
    LoadCurve("Time to first token", "mean TTFT", lambda level: level.ttft.mean_or_median, "ttft_ms", latency=True),
    LoadCurve("Time per output token", "mean TPOT", lambda level: level.tpot.mean_or_median, "tpot_ms", latency=True),
)


def section(records: Sequence[RunRecord]) -> Section:
    """Every drawing there is data for, workload by workload."""
    groups = [by_load(records, workload) for workload in workload_names(records)]
    groups += [rates(records), over_time(records) + extra_charts(records)]
    blocks: tuple[Block, ...] = tuple(Charts(charts=tuple(charts)) for charts in groups if charts)
    return Section(id="performance", title="Performance", lead=lead(records), blocks=blocks)


def lead(records: Sequence[RunRecord]) -> str:
    """Why not all of it is to be trusted."""
    levels = all_loads(records)
    if any(level.flags for level in levels):
        return "Some figures are not to be trusted, by their own measurement: the remarks in the tables say why."
    if any(level.client_limited for level in levels):
        return "Some loads were limited by the measuring client, not by the server: they are marked in the tables."
    return ""


def all_loads(records: Sequence[RunRecord]) -> list[LoadResult]:
    """Every measurement, run by run."""
    return list(chain.from_iterable(record.loads for record in records))


def workload_names(records: Sequence[RunRecord]) -> list[str]:
    """Workloads in the order they were met; "" where figures do not say theirs."""
    return list(dict.fromkeys(level.workload for level in all_loads(records)))


def by_load(records: Sequence[RunRecord], workload: str) -> list[ReportChart]:
    """Throughput, TTFT and TPOT against concurrency (or request rate) for one workload."""
    levels = [record.loads_of(workload) for record in records]
    every = list(chain.from_iterable(levels))
    loads = {level.load_value for level in every} - {0.0}
    if len(loads) < 2:
        return []
    x = load_axis(loads, rate=all(level.concurrency is None for level in every))
    charts = (over_load(curve, records, levels, x, workload) for curve in CURVES)
    return list(filter(None, charts))


def over_load(
    curve: LoadCurve, records: Sequence[RunRecord], levels: Sequence[Sequence[LoadResult]], x: ChartAxis, workload: str
) -> ReportChart | None:
    """One curve of every run, and its forecast."""
    series = [
        run_series(record.page_label or ALONE, index, own, curve.read)
        for index, (record, own) in enumerate(zip(records, levels, strict=True))
    ]
    series += expected(records, workload, curve.forecast)
    latency = ChartAxis(title=curve.axis, format=format_ms, tick=tick_ms)
    y = latency if curve.latency else ChartAxis(title=curve.axis, format=short_number)
    suffix = f", {workload}" if workload else ""
    svg = draw_lines(series, x=x, y=y, label=f"{curve.title} against {x.title}{suffix}")
    return titled_chart(curve.title + suffix, svg, legend=series_legend(series), caption=best_of(series, x, y))


def load_axis(loads: set[float], *, rate: bool) -> ChartAxis:
    """Concurrency doubles from step to step, so its axis is logarithmic."""
    title = "requests per second offered" if rate else "concurrent requests"
    log = max(loads) / min(loads) >= LOG_FROM
    return ChartAxis(title=title, log=log, ticks=tuple(sorted(loads)), format=whole_number, zero=False)


def run_series(
    name: str, index: int, levels: Sequence[LoadResult], read: Callable[[LoadResult], float | None]
) -> ChartSeries:
    """One run's measured line."""
    points = [(level.load_value, value) for level in levels if (value := read(level)) is not None]
    return ChartSeries(name=name, colour=run_colour(index), points=tuple(sorted(points)))


def expected(records: Sequence[RunRecord], workload: str, field: str) -> list[ChartSeries]:
    """The plans' lines with their bands, where they forecast this figure of this workload."""
    if not field:
        return []
    rows = [served_rows(record, workload) for record in records]
    names = [", ".join(filter(None, (record.page_label, "forecast"))) for record in records]
    return [forecast_series(names[index], index, own, field) for index, own in enumerate(rows) if own]


def served_rows(record: RunRecord, workload: str) -> list[ForecastRow]:
    """The forecasts of serving this workload, by concurrency."""
    rows = [row for row in record.plan.rows if row.concurrency and not row.decode_only]
    return sorted((row for row in rows if row.workload in ("", workload)), key=lambda row: row.concurrency or 0)


def forecast_series(name: str, index: int, rows: Sequence[ForecastRow], field: str) -> ChartSeries:
    """One run's forecast; its band is of the rate alone."""
    points = [(row.concurrency or 0.0, value) for row in rows if (value := getattr(row, field)) is not None]
    band = banded(rows) if field == "output_tok_s" else ()
    return ChartSeries(name=name, colour=run_colour(index), points=tuple(points), dashed=True, band=band)


def banded(rows: Sequence[ForecastRow]) -> tuple[tuple[float, float, float], ...]:
    """Concurrency, low and high of every row that has both."""
    return tuple((row.concurrency or 0.0, *row.tok_s_range) for row in rows if row.tok_s_range)


def best_of(series: Sequence[ChartSeries], x: ChartAxis, y: ChartAxis) -> str:
    """The extreme of each measured line, in words."""
    measured = [curve for curve in series if curve.points and not curve.dashed]
    text = "; ".join(extreme(curve, x, y) for curve in measured[:4])
    return f"{capitalize(text)}." if text else ""


def extreme(curve: ChartSeries, x: ChartAxis, y: ChartAxis) -> str:
    """Where a line is at its best: a rate at its highest, a latency at its lowest."""
    rate = "tok/s" in y.title
    at, value = (max if rate else min)(curve.points, key=lambda point: point[1])
    who = "" if curve.name == ALONE else f"{curve.name}: "
    return f"{who}{'highest' if rate else 'lowest'} {y.format(value)} at {x.format(at)}"


def rates(records: Sequence[RunRecord]) -> list[ReportChart]:
    """TG and PP by run, as llama.cpp people report them."""
    generation = rate_chart(records, "Token generation, one stream", "tg_tok_s")
    return list(filter(None, (generation, rate_chart(records, "Prompt processing", "pp_tok_s"))))


def rate_chart(records: Sequence[RunRecord], title: str, field: str) -> ReportChart | None:
    """One of the two, as bars."""
    bars = list(chain.from_iterable(rate_bars(record, index, field) for index, record in enumerate(records)))
    return titled_chart(f"{title} (tok/s)", draw_ranking(bars, label=f"{title} in tokens per second", unit="tok/s"))


def rate_bars(record: RunRecord, index: int, field: str) -> Iterator[tuple[str, int, float, str]]:
    """A bar for each test of one run, named by the run where there are several, by the test where it has several."""
    levels = [level for level in record.loads if getattr(level, field)]
    for level in levels[:MOST_TESTS]:
        test = level.name if len(levels) > 1 else ""
        name = ", ".join(filter(None, (record.page_label, test))) or level.name
        yield name, run_colour(index), float(getattr(level, field)), ""


def over_time(records: Sequence[RunRecord]) -> list[ReportChart]:
    """Gaps between tokens as cumulative shares, and tokens per second along the clock, from the samples."""
    digests = list(digested(records))
    return list(filter(None, (gap_chart(digests), clock_chart(digests))))


def digested(records: Sequence[RunRecord]) -> Iterator[Digested]:
    """Samples of a few loads of a single run, or of the fastest load of each of several."""
    for place, (index, level) in enumerate(picked(records)):
        digest = samples.digest_samples(level.samples) if level.samples else None
        if digest:
            name = ", ".join(filter(None, (records[index].page_label, f"concurrency {level.load_value:g}")))
            yield name, run_colour(index if records[index].page_label else place), told(digest, level)


def picked(records: Sequence[RunRecord]) -> list[tuple[int, LoadResult]]:
    """The loads whose samples are drawn, each with its run's place."""
    each = MOST_DISTRIBUTIONS if len(records) == 1 else 1
    found = [(index, level) for index, record in enumerate(records) for level in sampled(record, each)]
    return found[:MOST_DISTRIBUTIONS]


def told(digest: samples.SampleDigest, level: LoadResult) -> samples.SampleDigest:
    """With the percentiles of the tables, where the measurement has them: drawings count coarsely."""
    p50, p99 = level.itl.p50, level.itl.p99
    return replace(digest, marks=(("P50", p50), ("P99", p99))) if p50 and p99 else digest


def sampled(record: RunRecord, count: int) -> list[LoadResult]:
    """At most `count` levels whose samples were kept."""
    return spaced([level for level in record.loads if level.samples], count)


def cumulative(digest: samples.SampleDigest) -> tuple[tuple[float, float], ...]:
    """Gap in ms, and the share of gaps that are not longer."""
    total = sum(digest.counts)
    sums = accumulate(digest.counts)
    return tuple((edge, share / total) for edge, share in zip(digest.edges[1:], sums, strict=True))


def gap_chart(digests: Sequence[Digested]) -> ReportChart | None:
    """How long tokens keep a reader waiting: the further right a line rises, the slower."""
    gaps = [
        ChartSeries(name=name, colour=place, points=cumulative(digest), markers=False)
        for name, place, digest in digests
    ]
    svg = draw_lines(
        gaps,
        x=ChartAxis(title="time between tokens", log=True, format=format_ms, tick=tick_ms),
        y=ChartAxis(title="share of gaps not longer", log=False, format=in_percent),
        label="Time between tokens: share of gaps not longer",
    )
    marks = [f"{name} {' and '.join(format_ms(at) for _, at in digest.marks)}" for name, _, digest in digests]
    caption = f"P50 and P99: {'; '.join(marks)}."
    return titled_chart("Gaps between tokens (ITL)", svg, legend=series_legend(gaps), caption=caption)


def in_percent(share: float) -> str:
    """0.5 as 50%."""
    return f"{share * 100:.3g}%"


def clock_chart(digests: Sequence[Digested]) -> ReportChart | None:
    """Tokens a second along the measurement."""
    lines = [
        ChartSeries(name=name, colour=place, points=digest.over_time, markers=False)
        for name, place, digest in digests
        if len(digest.over_time) > 2
    ]
    svg = draw_lines(
        lines,
        x=ChartAxis(title="seconds into the measurement", log=False),
        y=ChartAxis(title="output tok/s"),
        label="Output tokens per second over time",
    )
    return titled_chart("Throughput over time", svg, legend=series_legend(lines))


def spaced(levels: Sequence[LoadResult], count: int) -> list[LoadResult]:
    """At most `count` levels: the one with the highest output if one, else from the lowest load to the highest."""
    if len(levels) <= count:
        return list(levels)
    if count == 1:
        return [max(levels, key=lambda level: level.output_tok_s or 0.0)]
    ordered = sorted(levels, key=lambda level: level.load_value)
    return [ordered[round(place * (len(ordered) - 1) / (count - 1))] for place in range(count)]
