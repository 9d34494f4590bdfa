"""What the measurements say along the way: speed by how far a reply has come, and the server's own view."""

from collections.abc import Sequence

from moebox.loose import Json, figure, figures, inner, rows
from moebox.report.block import Chart, Key
from moebox.report.charts import Axis, Series, line
from moebox.report.palette import colour
from moebox.report.story import Level, Story

LONG = 512  # tokens; shorter replies do not sag
ENOUGH = 5  # looks at the server that make a line worth drawing


def along(stories: Sequence[Story]) -> list[Chart]:
    """Both drawings, where there is data for them."""
    return [chart for chart in (sag(stories), server(stories)) if chart]


def sag(stories: Sequence[Story]) -> Chart | None:
    """Tokens per second of one stream by position in the reply, for the longest replies of each run."""
    series = []
    for index, story in enumerate(stories):
        tables = [rows(level.raw, "speed_by_position") for level in story.levels]
        longest = max(tables, key=reach, default=[])
        if reach(longest) >= LONG:
            points = [(figure(row, "to") or 0.0, figure(row, "tok_s") or 0.0) for row in longest]
            series.append(Series(name=story.label, colour=colour(index), points=tuple(points), markers=False))
    svg = line(
        series, x=Axis(title="tokens into the reply"), y=Axis(title="tok/s of one stream"), label="Speed by position"
    )
    keys = tuple(Key(name=one.name, colour=one.colour) for one in series)
    return Chart(title="Does it sag", svg=svg, legend=keys) if svg else None


def reach(table: Sequence[Json]) -> float:
    """How far the replies went."""
    return max((figure(row, "to") or 0.0 for row in table), default=0.0)


def server(stories: Sequence[Story]) -> Chart | None:
    """Requests running and waiting as the server counted them, at the highest load of a single run."""
    levels = [level for level in stories[0].levels if looks(level) >= ENOUGH] if len(stories) == 1 else []
    if not levels:
        return None
    level = max(levels, key=lambda one: one.concurrency or one.rate or 0.0)
    table = inner(level.raw, "server.series")
    times = figures(table, "time_s")
    series = []
    for place, name in enumerate(("running", "waiting")):
        values = table.get(name)
        if isinstance(values, list) and len(values) == len(times):
            points = [
                (float(at), float(value))
                for at, value in zip(times, values, strict=True)
                if isinstance(value, int | float)
            ]
            series.append(Series(name=name, colour=place + 1, points=tuple(points), markers=False))
    svg = line(
        series, x=Axis(title="seconds", zero=False), y=Axis(title="requests"), label="Requests running and waiting"
    )
    if not svg:
        return None
    used = figure(level.raw, "server.peak_kv_use")
    caption = f"At most {used:.0%} of the KV cache in use." if used is not None else ""
    keys = tuple(Key(name=one.name, colour=one.colour) for one in series)
    at = f" at {level.concurrency:,.0f}" if level.concurrency else ""
    return Chart(title=f"On the server{at}", svg=svg, legend=keys, caption=caption)


def looks(level: Level) -> int:
    """How often the server was asked during the measurement."""
    times = inner(level.raw, "server.series").get("time_s")
    return len(times) if isinstance(times, list) else 0
