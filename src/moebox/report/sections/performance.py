"""Throughput and latency over load, gaps between tokens, throughput over time, and every figure in tables."""

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import NamedTuple

from moebox.assess.assessment import Tone
from moebox.assess.format import DASH, capitalize, format_ms, tick_ms, unique_names
from moebox.report.block import ReportChart, Section, chart_blocks
from moebox.report.charts import ChartAxis, ChartSeries, draw_ranking, line_chart
from moebox.report.samples import SampleDigest, digest_samples
from moebox.report.svg import run_colour
from moebox.report.table import ComparedFigure, ReportTable, TableCell, run_cell, table_blocks, text_cell
from moebox.runs.record import LoadResult, RunRecord

SINGLE_RUN = "measured"  # name of the line in a drawing of one run
MAX_TESTS = 8  # bars of one run
MAX_DISTRIBUTIONS = 4  # lines in one drawing that can still be distinguished
LOG_FROM = 4  # loads whose highest is this many times the lowest have a logarithmic axis
LONG_REPLY = 512  # tokens; shorter replies do not slow down
MIN_SERVER_SAMPLES = 5  # counts of the server that make a line worth drawing


class LoadCurve(NamedTuple):
    """One drawing over load: its title, its axis, the measured figure, and the forecast's field for it."""

    title: str
    y: ChartAxis
    read: Callable[[LoadResult], float | None]
    forecast: str = ""


TTFT_AXIS, TPOT_AXIS = (ChartAxis(title=f"mean {name}", format=format_ms, tick=tick_ms) for name in ("TTFT", "TPOT"))
CURVES = (
    LoadCurve("Output throughput", ChartAxis(title="output tok/s"), lambda load: load.output_tok_s, "output_tok_s"),
    LoadCurve("Total throughput", ChartAxis(title="input + output tok/s"), lambda load: load.total_tok_s),
    LoadCurve("Time to first token", TTFT_AXIS, lambda load: load.ttft.mean_or_median, "ttft_ms"),
    LoadCurve("Time per output token", TPOT_AXIS, lambda load: load.tpot.mean_or_median, "tpot_ms"),
)


def performance_section(records: Sequence[RunRecord]) -> Section:
    """Every drawing there is data for, workload by workload."""
    groups: list[Sequence[ReportChart | None]] = []
    for workload in workload_names(records):
        groups += [load_charts(records, workload, by_rate=by_rate) for by_rate in (False, True)]
    single = (("Token generation, one stream", "tg_tok_s"), ("Prompt processing", "pp_tok_s"))
    groups.append([rate_chart(records, title, field) for title, field in single])
    groups.append([*sample_charts(records), position_chart(records), server_chart(records)])
    blocks = tuple(block for charts in groups for block in chart_blocks(charts))
    loads = [load for record in records for load in record.loads]
    lead = ""
    if any(load.flags for load in loads):
        lead = "Some figures are not to be trusted, by their own measurement: see the remarks in the tables."
    elif any(load.client_limited for load in loads):
        lead = "Some loads were limited by the measuring client, not by the server: they are marked in the tables."
    return Section(id="performance", title="Performance", lead=lead, blocks=blocks)


def workload_names(records: Sequence[RunRecord]) -> list[str]:
    """Workloads in order of occurrence; "" if figures do not name theirs."""
    return list(dict.fromkeys(load.workload for record in records for load in record.loads))


def load_charts(records: Sequence[RunRecord], workload: str, *, by_rate: bool) -> list[ReportChart]:
    """Throughput, TTFT and TPOT of one workload against concurrency, with forecasts, or against the request rate."""
    loads = [[load for load in record.loads_of(workload) if by_rate != bool(load.concurrency)] for record in records]
    values = {load.load_value for own in loads for load in own} - {0.0}
    if len(values) < 2:
        return []
    x = ChartAxis(
        title="requests per second offered" if by_rate else "concurrent requests",
        log=max(values) / min(values) >= LOG_FROM,
        ticks=tuple(sorted(values)),
        format=("{:,g}/s" if by_rate else "{:,g}").format,
        zero=False,
    )
    suffix = f", {workload}" if workload else ""
    charts = []
    for curve in CURVES:
        series = []
        for index, (record, own) in enumerate(zip(records, loads, strict=True)):
            points = [(load.load_value, value) for load in own if (value := curve.read(load)) is not None]
            name = record.page_label or SINGLE_RUN
            series.append(ChartSeries(name=name, colour=run_colour(index), points=tuple(sorted(points))))
        if curve.forecast and not by_rate:
            series += forecast_series(records, workload, curve.forecast)
        label, caption = f"{curve.title} against {x.title}{suffix}", best_points(series, x, curve.y)
        charts.append(line_chart(curve.title + suffix, series, x=x, y=curve.y, label=label, caption=caption))
    return charts


def forecast_series(records: Sequence[RunRecord], workload: str, field: str) -> list[ChartSeries]:
    """A dashed line for each run with forecasts of this workload; the range belongs to the output rate alone."""
    series = []
    for index, record in enumerate(records):
        rows = [row for row in record.forecast if row.workload in ("", workload) and not row.decode_only]
        loads = sorted(((row.concurrency, row) for row in rows if row.concurrency), key=lambda pair: pair[0])
        if loads:
            points = [(load, value) for load, row in loads if (value := getattr(row, field)) is not None]
            ranges = [(load, *row.tok_s_range) for load, row in loads if row.tok_s_range]
            new_line = ChartSeries(
                name=", ".join(filter(None, (record.page_label, "forecast"))),
                colour=run_colour(index),
                points=tuple(points),
                dashed=True,
                band=tuple(ranges) if field == "output_tok_s" else (),
            )
            series.append(new_line)
    return series


def best_points(series: Sequence[ChartSeries], x: ChartAxis, y: ChartAxis) -> str:
    """The highest rate or lowest latency of each measured line, as a sentence."""
    is_rate = "tok/s" in y.title
    texts = []
    for curve in [curve for curve in series if curve.points and not curve.dashed][:4]:
        at, value = (max if is_rate else min)(curve.points, key=lambda point: point[1])
        name = "" if curve.name == SINGLE_RUN else f"{curve.name}: "
        texts.append(f"{name}{'highest' if is_rate else 'lowest'} {y.format(value)} at {x.format(at)}")
    return f"{capitalize('; '.join(texts))}." if texts else ""


def rate_chart(records: Sequence[RunRecord], title: str, field: str) -> ReportChart:
    """Bars of TG or PP, one for each test."""
    bars = []
    for index, record in enumerate(records):
        loads = [load for load in record.loads if getattr(load, field)]
        for load in loads[:MAX_TESTS]:
            test = load.name if len(loads) > 1 else ""
            name = ", ".join(filter(None, (record.page_label, test))) or load.name
            bars.append((name, run_colour(index), float(getattr(load, field)), ""))
    svg = draw_ranking(bars, label=f"{title} in tokens per second", unit="tok/s")
    return ReportChart(title=f"{title} (tok/s)", svg=svg)


def sample_charts(records: Sequence[RunRecord]) -> list[ReportChart]:
    """Gaps between tokens as cumulative shares, and tokens per second over time, from the samples."""
    digests = sample_digests(records)
    gaps = []
    for name, colour, digest, _ in digests:
        total, sums = sum(digest.counts), accumulate(digest.counts)
        points = tuple((edge, share / total) for edge, share in zip(digest.edges[1:], sums, strict=True))
        gaps.append(ChartSeries(name=name, colour=colour, points=points, markers=False))
    gap_chart = line_chart(
        "Gaps between tokens (ITL)",
        gaps,
        x=ChartAxis(title="time between tokens", log=True, format=format_ms, tick=tick_ms),
        y=ChartAxis(title="share of gaps not longer", log=False, format=lambda share: f"{share * 100:.3g}%"),
        label="Time between tokens: share of gaps not longer",
        caption=f"P50 and P99: {'; '.join(f'{name} {marks}' for name, _, _, marks in digests)}.",
    )
    lines = [
        ChartSeries(name=name, colour=colour, points=digest.over_time, markers=False)
        for name, colour, digest, _ in digests
        if len(digest.over_time) > 2
    ]
    x, y = ChartAxis(title="seconds into the measurement", log=False), ChartAxis(title="output tok/s")
    label = "Output tokens per second over time"
    return [gap_chart, line_chart("Throughput over time", lines, x=x, y=y, label=label)]


def sample_digests(records: Sequence[RunRecord]) -> list[tuple[str, int, SampleDigest, str]]:
    """Name, colour, digest, P50 and P99 of some loads of a single run, or of the fastest load of each of several.

    The percentiles are those of the tables if the measurement has them; a digest counts coarsely.
    """
    count = MAX_DISTRIBUTIONS if len(records) == 1 else 1
    chosen = [(index, load) for index, record in enumerate(records) for load in sampled_loads(record, count)]
    digests = []
    for place, (index, load) in enumerate(chosen[:MAX_DISTRIBUTIONS]):
        digest = digest_samples(load.samples) if load.samples else None
        if digest:
            label = records[index].page_label
            name = ", ".join(filter(None, (label, f"{'concurrency ' * bool(load.concurrency)}{load.load_name}")))
            p50, p99 = load.itl.p50, load.itl.p99
            marks = (p50, p99) if p50 and p99 else [value for _, value in digest.marks]
            digests.append((name, run_colour(index if label else place), digest, " and ".join(map(format_ms, marks))))
    return digests


def sampled_loads(record: RunRecord, count: int) -> list[LoadResult]:
    """At most `count` loads with samples: the fastest if one, else from the lowest load to the highest."""
    loads = [load for load in record.loads if load.samples]
    if len(loads) <= count:
        return loads
    if count == 1:
        return [max(loads, key=lambda load: load.output_tok_s or 0.0)]
    ordered = sorted(loads, key=lambda load: load.load_value)
    return [ordered[round(place * (len(ordered) - 1) / (count - 1))] for place in range(count)]


def position_chart(records: Sequence[RunRecord]) -> ReportChart:
    """Tokens per second of one stream by position in the reply, for the longest replies of each run."""
    series = []
    for index, record in enumerate(records):
        tables = [load.measurement.speed_by_position for load in record.loads if load.measurement]
        table = max(tables, key=lambda table: max((part.last for part in table), default=0), default=())
        if max((part.last for part in table), default=0) >= LONG_REPLY:
            points = tuple((float(part.last), part.tok_s) for part in table)
            series.append(ChartSeries(name=record.label, colour=run_colour(index), points=points, markers=False))
    x, y = ChartAxis(title="tokens into the reply"), ChartAxis(title="tok/s of one stream")
    return line_chart("Does it sag", series, x=x, y=y, label="Speed by position")


def server_chart(records: Sequence[RunRecord]) -> ReportChart | None:
    """Requests running and waiting as the server counted them, at the highest load of a single run."""
    views = [(load, load.measurement.server) for load in records[0].loads if load.measurement]
    counted = [
        (load, view) for load, view in views if view and len(view.series.get("time_s", ())) >= MIN_SERVER_SAMPLES
    ]
    if not counted or len(records) > 1:
        return None
    load, view = max(counted, key=lambda pair: pair[0].load_value)
    times = view.series["time_s"]
    series = []
    for place, name in enumerate(("running", "waiting"), 1):
        values = view.series.get(name, ())
        if len(values) == len(times):
            pairs = [
                (at, value) for at, value in zip(times, values, strict=True) if at is not None and value is not None
            ]
            series.append(ChartSeries(name=name, colour=place, points=tuple(pairs), markers=False))
    x, y = ChartAxis(title="seconds", zero=False), ChartAxis(title="requests")
    used = view.figures.get("peak_kv_use")
    caption = f"At most {used:.0%} of the KV cache in use." if used is not None else ""
    at = f" at {load.load_name}" if load.load_value else ""
    return line_chart(f"On the server{at}", series, x=x, y=y, label="Requests running and waiting", caption=caption)


def plausible_peak(load: LoadResult) -> float | None:
    """The peak rate; None if it is below the mean, because peaks are counted in whole seconds."""
    if load.peak_tok_s is None or load.output_tok_s is None:
        return load.peak_tok_s
    return load.peak_tok_s if load.peak_tok_s >= load.output_tok_s else None


FIGURES: tuple[ComparedFigure[LoadResult], ...] = (
    ComparedFigure("Concurrency", lambda load: load.concurrency, None),
    ComparedFigure("Rate req/s", lambda load: load.request_rate, None),
    ComparedFigure("Output tok/s", lambda load: load.output_tok_s),
    ComparedFigure("Total tok/s", lambda load: load.total_tok_s),
    ComparedFigure("Peak tok/s", plausible_peak),
    ComparedFigure("TG tok/s", lambda load: load.tg_tok_s),
    ComparedFigure("PP tok/s", lambda load: load.pp_tok_s),
    ComparedFigure("Per stream tok/s", lambda load: load.stream_tok_s if load.tg_tok_s is None else None),
    ComparedFigure("Mean TTFT", lambda load: load.ttft.mean_or_median, min, format_ms),
    ComparedFigure("P99 TTFT", lambda load: load.ttft.p99, min, format_ms),
    ComparedFigure("Mean TPOT", lambda load: load.tpot.mean_or_median, min, format_ms),
    ComparedFigure("P99 TPOT", lambda load: load.tpot.p99, min, format_ms),
    ComparedFigure("Mean ITL", lambda load: load.itl.mean_or_median, min, format_ms),
    ComparedFigure("P99 ITL", lambda load: load.itl.p99, min, format_ms),
    ComparedFigure("Mean E2E", lambda load: load.e2e.mean_or_median, min, format_ms),
    ComparedFigure("Met the SLO", lambda load: load.slo_share, None, "{:.0%}".format),
    ComparedFigure("Requests", lambda load: load.completed, None),
    ComparedFigure("Failed", lambda load: load.failed or None, None),
    ComparedFigure("Tokens/J", lambda load: load.tokens_per_joule),
)


def figures_section(records: Sequence[RunRecord]) -> Section:
    """One table for each run and workload; runs with a row or two each share one."""
    blocks: list[ReportTable] = []
    for workload in workload_names(records):
        found = [[(index, load) for load in record.loads_of(workload)] for index, record in enumerate(records)]
        runs = [*filter(None, found)]
        together = [row for rows in runs for row in rows]
        named = len(runs) > 1 and len(together) <= 2 * len(runs)
        for rows in [together] if named else runs:
            blocks += figures_table(records, rows, workload, named=named)
    lead = "The best figure of each column is set in bold."
    return Section(id="figures", title="Detailed figures", lead=lead, blocks=blocks)


def figure_cells(figure: ComparedFigure[LoadResult], loads: Sequence[LoadResult]) -> list[TableCell]:
    """One figure of each load, the best one marked."""
    values = [*map(figure.read, loads)]
    known = [value for value in values if value is not None]
    best = figure.best(known) if figure.best and len(known) > 1 else None
    tones: dict[float | None, Tone] = {best: "best", None: ""}
    return [
        TableCell(text=DASH if value is None else figure.write(value), value=value, tone=tones.get(value, ""))
        for value in values
    ]


def figures_table(
    records: Sequence[RunRecord], rows: Sequence[tuple[int, LoadResult]], workload: str, *, named: bool
) -> list[ReportTable]:
    """The loads (run's index, load) of one workload; `named` adds a column of run names. Empty columns are left out."""
    loads = [load for _, load in rows]
    has_names = len({load.name for load in loads}) > 1 and not all(load.load_value for load in loads)
    no_remark = " " if any(map(load_remark, loads)) else ""
    lines = []
    for (index, load), *figures in zip(rows, *(figure_cells(figure, loads) for figure in FIGURES), strict=True):
        remark_tone: Tone = "warn" if load.client_limited or load.flags or load.failed else "quiet"
        name = run_cell(records[index], index) if named else ""
        remark = text_cell(load_remark(load) or no_remark, tone=remark_tone)
        lines.append((name, load.name if has_names else "", *figures, remark))
    heads = ("Run", "Measurement", *(figure.title for figure in FIGURES), "Remark")
    run = "" if named else records[rows[0][0]].page_label
    caption = " · ".join(filter(None, (run, workload))) or "Measurements"
    sources = unique_names(load.source for load in loads)
    note = f"Source: {'; '.join(sources)}" if sources else ""
    return table_blocks(heads, lines, text=(0, 1, len(heads) - 1), drop_empty=True, caption=caption, note=note)


def load_remark(load: LoadResult) -> str:
    """Reasons to read the row with care, and its note."""
    remarks = {
        "limited by the client": load.client_limited,
        **dict.fromkeys(load.flags, True),
        "interrupted, partial": load.partial,
        "simulated": load.simulation,
        "no request completed": load.completed == 0,
        load.note: bool(load.note),
    }
    return "; ".join(text for text, applies in remarks.items() if applies)
