"""What the measurements say along the way: speed by how far a reply has come, and the server's own view."""

from collections.abc import Iterator, Sequence

from moebox.loose import Json, get_number, get_numbers, get_object, get_objects
from moebox.report.block import ReportChart, titled_chart
from moebox.report.charts import ChartAxis, ChartSeries, draw_lines, series_legend
from moebox.report.palette import run_colour
from moebox.report.record import LoadResult, RunRecord

LONG = 512  # tokens; shorter replies do not sag
ENOUGH = 5  # looks at the server that make a line worth drawing


def extra_charts(records: Sequence[RunRecord]) -> list[ReportChart]:
    """Both drawings, where there is data for them."""
    return list(filter(None, (sag(records), server(records))))


def sag(records: Sequence[RunRecord]) -> ReportChart | None:
    """Tokens per second of one stream by position in the reply, for the longest replies of each run."""
    tables = [longest(record) for record in records]
    series = [
        ChartSeries(name=records[index].label, colour=run_colour(index), points=positions(table), markers=False)
        for index, table in enumerate(tables)
        if reach(table) >= LONG
    ]
    x, y = ChartAxis(title="tokens into the reply"), ChartAxis(title="tok/s of one stream")
    return titled_chart(
        "Does it sag", draw_lines(series, x=x, y=y, label="Speed by position"), legend=series_legend(series)
    )


def longest(record: RunRecord) -> list[Json]:
    """The speed by position of the run's longest replies."""
    return max((get_objects(level.raw, "speed_by_position") for level in record.loads), key=reach, default=[])


def positions(table: Sequence[Json]) -> tuple[tuple[float, float], ...]:
    """Tokens into the reply, and the speed there."""
    return tuple((get_number(row, "to") or 0.0, get_number(row, "tok_s") or 0.0) for row in table)


def reach(table: Sequence[Json]) -> float:
    """How far the replies went."""
    return max((get_number(row, "to") or 0.0 for row in table), default=0.0)


def server(records: Sequence[RunRecord]) -> ReportChart | None:
    """Requests running and waiting as the server counted them, at the highest load of a single run."""
    levels = [level for level in records[0].loads if looks(level) >= ENOUGH]
    if not levels or len(records) > 1:
        return None
    return seen_by_server(max(levels, key=lambda level: level.load_value))


def seen_by_server(level: LoadResult) -> ReportChart | None:
    """One load as the server counted it."""
    series = list(queues(get_object(level.raw, "server.series")))
    x, y = ChartAxis(title="seconds", zero=False), ChartAxis(title="requests")
    svg = draw_lines(series, x=x, y=y, label="Requests running and waiting")
    used = get_number(level.raw, "server.peak_kv_use")
    caption = f"At most {used:.0%} of the KV cache in use." if used is not None else ""
    at = f" at {level.concurrency:,.0f}" if level.concurrency else ""
    return titled_chart(f"On the server{at}", svg, legend=series_legend(series), caption=caption)


def queues(table: Json) -> Iterator[ChartSeries]:
    """A line each for what ran and what waited, where the server counts it."""
    times = get_numbers(table, "time_s")
    for place, name in enumerate(("running", "waiting"), 1):
        points = paired(times, table.get(name))
        if points is not None:
            yield ChartSeries(name=name, colour=place, points=points, markers=False)


def paired(times: Sequence[float], values: object) -> tuple[tuple[float, float], ...] | None:
    """A column of the server's figures against the clock; None where the two do not belong together."""
    if not isinstance(values, list) or len(values) != len(times):
        return None
    pairs = zip(times, values, strict=True)
    return tuple((float(at), float(value)) for at, value in pairs if isinstance(value, int | float))


def looks(level: LoadResult) -> int:
    """How often the server was asked during the measurement."""
    times = get_object(level.raw, "server.series").get("time_s")
    return len(times) if isinstance(times, list) else 0
