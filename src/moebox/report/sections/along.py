"""What the measurements say along the way: speed by how far a reply has come, and the server's own view."""

from collections.abc import Iterator, Sequence

from moebox.loose import Json, get_number, get_numbers, get_object, get_objects
from moebox.report.block import Chart, drawing
from moebox.report.charts import Axis, Series, legend, line
from moebox.report.palette import colour
from moebox.report.record import Level, RunRecord

LONG = 512  # tokens; shorter replies do not sag
ENOUGH = 5  # looks at the server that make a line worth drawing


def along(records: Sequence[RunRecord]) -> list[Chart]:
    """Both drawings, where there is data for them."""
    return list(filter(None, (sag(records), server(records))))


def sag(records: Sequence[RunRecord]) -> Chart | None:
    """Tokens per second of one stream by position in the reply, for the longest replies of each run."""
    tables = [longest(record) for record in records]
    series = [
        Series(name=records[index].label, colour=colour(index), points=positions(table), markers=False)
        for index, table in enumerate(tables)
        if reach(table) >= LONG
    ]
    x, y = Axis(title="tokens into the reply"), Axis(title="tok/s of one stream")
    return drawing("Does it sag", line(series, x=x, y=y, label="Speed by position"), legend=legend(series))


def longest(record: RunRecord) -> list[Json]:
    """The speed by position of the run's longest replies."""
    return max((get_objects(level.raw, "speed_by_position") for level in record.levels), key=reach, default=[])


def positions(table: Sequence[Json]) -> tuple[tuple[float, float], ...]:
    """Tokens into the reply, and the speed there."""
    return tuple((get_number(row, "to") or 0.0, get_number(row, "tok_s") or 0.0) for row in table)


def reach(table: Sequence[Json]) -> float:
    """How far the replies went."""
    return max((get_number(row, "to") or 0.0 for row in table), default=0.0)


def server(records: Sequence[RunRecord]) -> Chart | None:
    """Requests running and waiting as the server counted them, at the highest load of a single run."""
    levels = [level for level in records[0].levels if looks(level) >= ENOUGH]
    if not levels or len(records) > 1:
        return None
    return seen_by_server(max(levels, key=lambda level: level.load))


def seen_by_server(level: Level) -> Chart | None:
    """One load as the server counted it."""
    series = list(queues(get_object(level.raw, "server.series")))
    x, y = Axis(title="seconds", zero=False), Axis(title="requests")
    svg = line(series, x=x, y=y, label="Requests running and waiting")
    used = get_number(level.raw, "server.peak_kv_use")
    caption = f"At most {used:.0%} of the KV cache in use." if used is not None else ""
    at = f" at {level.concurrency:,.0f}" if level.concurrency else ""
    return drawing(f"On the server{at}", svg, legend=legend(series), caption=caption)


def queues(table: Json) -> Iterator[Series]:
    """A line each for what ran and what waited, where the server counts it."""
    times = get_numbers(table, "time_s")
    for place, name in enumerate(("running", "waiting"), 1):
        points = paired(times, table.get(name))
        if points is not None:
            yield Series(name=name, colour=place, points=points, markers=False)


def paired(times: Sequence[float], values: object) -> tuple[tuple[float, float], ...] | None:
    """A column of the server's figures against the clock; None where the two do not belong together."""
    if not isinstance(values, list) or len(values) != len(times):
        return None
    pairs = zip(times, values, strict=True)
    return tuple((float(at), float(value)) for at, value in pairs if isinstance(value, int | float))


def looks(level: Level) -> int:
    """How often the server was asked during the measurement."""
    times = get_object(level.raw, "server.series").get("time_s")
    return len(times) if isinstance(times, list) else 0
