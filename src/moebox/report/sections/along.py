"""What the measurements say along the way: speed by how far a reply has come, and the server's own view."""

from collections.abc import Sequence

from moebox.loose import Json, figure, figures, inner, rows
from moebox.report.block import Chart, Key
from moebox.report.charts import Axis, Series, line
from moebox.report.palette import colour
from moebox.report.record import Level, RunRecord

LONG = 512  # tokens; shorter replies do not sag
ENOUGH = 5  # looks at the server that make a line worth drawing


def along(records: Sequence[RunRecord]) -> list[Chart]:
    """Both drawings, where there is data for them."""
    return list(filter(None, (sag(records), server(records))))


def sag(records: Sequence[RunRecord]) -> Chart | None:
    """Tokens per second of one stream by position in the reply, for the longest replies of each run."""
    series = []
    for index, record in enumerate(records):
        tables = [rows(level.raw, "speed_by_position") for level in record.levels]
        longest = max(tables, key=reach, default=[])
        if reach(longest) >= LONG:
            points = [(figure(row, "to") or 0.0, figure(row, "tok_s") or 0.0) for row in longest]
            series.append(Series(name=record.label, colour=colour(index), points=tuple(points), markers=False))
    svg = line(
        series, x=Axis(title="tokens into the reply"), y=Axis(title="tok/s of one stream"), label="Speed by position"
    )
    keys = legend(series)
    return Chart(title="Does it sag", svg=svg, legend=keys) if svg else None


def reach(table: Sequence[Json]) -> float:
    """How far the replies went."""
    return max((figure(row, "to") or 0.0 for row in table), default=0.0)


def server(records: Sequence[RunRecord]) -> Chart | None:
    """Requests running and waiting as the server counted them, at the highest load of a single run."""
    levels = [level for level in records[0].levels if looks(level) >= ENOUGH] if len(records) == 1 else []
    if not levels:
        return None
    level = max(levels, key=lambda level: level.concurrency or level.rate or 0.0)
    table = inner(level.raw, "server.series")
    times = figures(table, "time_s")
    series = [
        Series(name=name, colour=place, points=points, markers=False)
        for place, name in enumerate(("running", "waiting"), 1)
        if (points := paired(times, table.get(name))) is not None
    ]
    svg = line(
        series, x=Axis(title="seconds", zero=False), y=Axis(title="requests"), label="Requests running and waiting"
    )
    if not svg:
        return None
    used = figure(level.raw, "server.peak_kv_use")
    caption = f"At most {used:.0%} of the KV cache in use." if used is not None else ""
    keys = legend(series)
    at = f" at {level.concurrency:,.0f}" if level.concurrency else ""
    return Chart(title=f"On the server{at}", svg=svg, legend=keys, caption=caption)


def paired(times: Sequence[float], values: object) -> tuple[tuple[float, float], ...] | None:
    """A column of the server's figures against the clock; None where the two do not belong together."""
    if not isinstance(values, list) or len(values) != len(times):
        return None
    pairs = zip(times, values, strict=True)
    return tuple((float(at), float(value)) for at, value in pairs if isinstance(value, int | float))


def legend(series: Sequence[Series]) -> tuple[Key, ...]:
    """A key for each line."""
    return tuple(Key(name=curve.name, colour=curve.colour) for curve in series)


def looks(level: Level) -> int:
    """How often the server was asked during the measurement."""
    times = inner(level.raw, "server.series").get("time_s")
    return len(times) if isinstance(times, list) else 0
