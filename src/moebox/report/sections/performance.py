"""Throughput and latency drawn over load, token gaps, and throughput over time."""

import itertools
from collections.abc import Callable, Iterator, Sequence

from moebox.report import samples
from moebox.report.bars import ranked
from moebox.report.block import Block, Chart, Charts, Key, Section
from moebox.report.charts import Axis, Series, line, thousands
from moebox.report.palette import colour
from moebox.report.sections.along import along
from moebox.report.story import Level, Story
from moebox.report.words import milliseconds, short, tick_ms

ALONE = "measured"  # what a run is called in a drawing that holds no other
MOST_TESTS = 8  # bars of one run
MOST_DISTRIBUTIONS = 4  # outlines in one drawing that the eye still tells apart


def section(stories: Sequence[Story]) -> Section | None:
    """Every drawing there is data for, workload by workload."""
    blocks: list[Block] = []
    for workload in workloads(stories):
        drawn = by_load(stories, workload)
        if drawn:
            blocks.append(Charts(charts=tuple(drawn)))
    single = rates(stories)
    if single:
        blocks.append(Charts(charts=tuple(single)))
    timed = over_time(stories) + along(stories)
    if timed:
        blocks.append(Charts(charts=tuple(timed)))
    return Section(id="performance", title="Performance", lead=lead(stories), blocks=tuple(blocks)) if blocks else None


def lead(stories: Sequence[Story]) -> str:
    """What the drawings are of."""
    if any(level.flags for story in stories for level in story.levels):
        return "Some figures are not to be trusted, by their own measurement: the remarks in the tables say why."
    if any(level.client_limited for story in stories for level in story.levels):
        return "Some loads were limited by the measuring client, not by the server: they are marked in the tables."
    return ""


def workloads(stories: Sequence[Story]) -> list[str]:
    """Workloads in the order they were met."""
    return list(dict.fromkeys(level.workload for story in stories for level in story.levels))


def by_load(stories: Sequence[Story], workload: str) -> list[Chart]:
    """Throughput, TTFT and TPOT against concurrency (or request rate) for one workload."""
    levels = [[level for level in story.levels if level.workload == workload] for story in stories]
    loads = {load(level) for some in levels for level in some if load(level)}
    if len(loads) < 2:
        return []
    x = load_axis(loads, rate=all(level.concurrency is None for some in levels for level in some))
    suffix = f", {workload}" if workload else ""
    figures: list[tuple[str, str, Callable[[Level], float | None], Callable[[float], str]]] = [
        ("Output throughput", "output tok/s", lambda level: level.output_tok_s, short),
        ("Total throughput", "input + output tok/s", lambda level: level.total_tok_s, short),
        ("Time to first token", "mean TTFT", lambda level: level.ttft.middle, milliseconds),
        ("Time per output token", "mean TPOT", lambda level: level.tpot.middle, milliseconds),
    ]
    drawn = []
    for title, name, figure, form in figures:
        series = [
            run_series(story.label if len(stories) > 1 else ALONE, index, some, figure)
            for index, (story, some) in enumerate(zip(stories, levels, strict=True))
        ]
        series += expected(stories, workload, name)
        y = Axis(title=name, format=form, tick=tick_ms if form is milliseconds else None)
        svg = line(series, x=x, y=y, label=f"{title} against {x.title}{suffix}")
        if svg:
            drawn.append(Chart(title=title + suffix, svg=svg, legend=legend(series), caption=best_of(series, x, y)))
    return drawn


def load(level: Level) -> float:
    """Where a level stands on the load axis."""
    return level.concurrency or level.rate or 0.0


def load_axis(loads: set[float], *, rate: bool) -> Axis:
    """Concurrency doubles from step to step, so its axis is logarithmic."""
    title = "requests per second offered" if rate else "concurrent requests"
    return Axis(
        title=title,
        log=min(loads) > 0 and max(loads) / min(loads) >= 4,
        ticks=tuple(sorted(loads)),
        format=thousands,
        zero=False,
    )


def run_series(name: str, index: int, levels: Sequence[Level], figure: Callable[[Level], float | None]) -> Series:
    """One run's measured line."""
    points = [(load(level), value) for level in levels if (value := figure(level)) is not None]
    return Series(name=name, colour=colour(index), points=tuple(sorted(points)))


def expected(stories: Sequence[Story], workload: str, name: str) -> list[Series]:
    """The plan's lines with their bands, where it forecast this workload."""
    found = []
    for index, story in enumerate(stories):
        rows = [row for row in (story.planned.rows if story.planned else ()) if not row.decode_only and row.concurrency]
        rows = sorted((row for row in rows if row.workload in ("", workload)), key=lambda row: row.concurrency or 0)
        pick = {"output tok/s": "output_tok_s", "mean TTFT": "ttft_ms", "mean TPOT": "tpot_ms"}.get(name)
        if not pick or not rows:
            continue
        points = [(row.concurrency or 0.0, value) for row in rows if (value := getattr(row, pick)) is not None]
        band = [
            (row.concurrency or 0.0, row.low_tok_s, row.high_tok_s)
            for row in rows
            if pick == "output_tok_s" and row.low_tok_s is not None and row.high_tok_s is not None
        ]
        title = f"{story.label}, forecast" if len(stories) > 1 else "forecast"
        found.append(Series(name=title, colour=colour(index), points=tuple(points), dashed=True, band=tuple(band)))
    return found


def legend(series: Sequence[Series]) -> tuple[Key, ...]:
    """Keys for the series that are drawn."""
    return tuple(Key(name=one.name, colour=one.colour, dashed=one.dashed) for one in series if one.points)


def best_of(series: Sequence[Series], x: Axis, y: Axis) -> str:
    """The extreme of each measured line, in words."""
    high = "tok/s" in y.title
    found = []
    for one in series:
        if one.points and not one.dashed:
            at, value = (max if high else min)(one.points, key=lambda point: point[1])
            who = "" if one.name == ALONE else f"{one.name}: "
            found.append(f"{who}{'highest' if high else 'lowest'} {y.format(value)} at {x.format(at)}")
    said = "; ".join(found[:4])
    return f"{said[:1].upper()}{said[1:]}." if said else ""


def rates(stories: Sequence[Story]) -> list[Chart]:
    """TG and PP by run, as llama.cpp people report them."""
    drawn = []
    for title, name in (("Token generation, one stream", "tg_tok_s"), ("Prompt processing", "pp_tok_s")):
        rows = []
        for index, story in enumerate(stories):
            found = [(getattr(level, name), level) for level in story.levels if getattr(level, name)]
            for value, level in found[:MOST_TESTS]:
                label = ", ".join(
                    word for word in (story.label * (len(stories) > 1), level.name * (len(found) > 1)) if word
                )
                label = label or level.name
                rows.append((label, colour(index), float(value), ""))
        if rows:
            svg = ranked(rows, label=f"{title} in tokens per second", unit="tok/s")
            if svg:
                drawn.append(Chart(title=f"{title} (tok/s)", svg=svg))
    return drawn


def over_time(stories: Sequence[Story]) -> list[Chart]:
    """Gaps between tokens as cumulative shares, and tokens per second along the clock, from the samples."""
    digests = list(digested(stories))
    gaps = [
        Series(name=name, colour=place, points=cumulative(digest), markers=False) for name, place, digest in digests
    ]
    lines = [
        Series(name=name, colour=place, points=digest.over_time, markers=False)
        for name, place, digest in digests
        if len(digest.over_time) > 2
    ]
    return [chart for chart in (gap_chart(gaps, digests), clock_chart(lines)) if chart]


def digested(stories: Sequence[Story]) -> Iterator[tuple[str, int, samples.Digest]]:
    """Samples of a few loads of a single run, or of the fastest load of each of several: name, colour, digest."""
    single = len(stories) == 1
    picked = [
        (story, index, level)
        for index, story in enumerate(stories)
        for level in spaced([level for level in story.levels if level.samples], MOST_DISTRIBUTIONS if single else 1)
    ]
    for number, (story, index, level) in enumerate(picked[:MOST_DISTRIBUTIONS]):
        found = samples.summarise(level.samples) if level.samples else None
        if found:
            name = f"concurrency {load(level):g}"
            yield (name if single else f"{story.label}, {name}"), colour(number if single else index), found


def cumulative(digest: samples.Digest) -> tuple[tuple[float, float], ...]:
    """Gap in ms, and the share of gaps that are not longer."""
    total = sum(digest.counts)
    sums = itertools.accumulate(digest.counts)
    return tuple((edge, share / total) for edge, share in zip(digest.edges[1:], sums, strict=True))


def gap_chart(gaps: Sequence[Series], digests: Sequence[tuple[str, int, samples.Digest]]) -> Chart | None:
    """How long tokens keep a reader waiting: the further right a line rises, the slower."""
    svg = line(
        gaps,
        x=Axis(title="time between tokens", log=True, format=milliseconds, tick=tick_ms),
        y=Axis(title="share of gaps not longer", log=False, format=in_percent),
        label="Time between tokens: share of gaps not longer",
    )
    marks = [f"{name} {' and '.join(milliseconds(at) for _, at in digest.marks)}" for name, _, digest in digests]
    caption = f"P50 and P99: {'; '.join(marks)}."
    return Chart(title="Gaps between tokens (ITL)", svg=svg, legend=legend(gaps), caption=caption) if svg else None


def in_percent(share: float) -> str:
    """0.5 as 50%."""
    return f"{share * 100:.3g}%"


def clock_chart(lines: Sequence[Series]) -> Chart | None:
    """Tokens a second along the measurement."""
    svg = line(
        lines,
        x=Axis(title="seconds into the measurement", log=False),
        y=Axis(title="output tok/s"),
        label="Output tokens per second over time",
    )
    return Chart(title="Throughput over time", svg=svg, legend=legend(lines)) if svg else None


def spaced(levels: Sequence[Level], count: int) -> list[Level]:
    """At most `count` levels: the one with the highest output if one, else from the lowest load to the highest."""
    if len(levels) <= count:
        return list(levels)
    if count == 1:
        return [max(levels, key=lambda level: level.output_tok_s or 0.0)]
    ordered = sorted(levels, key=load)
    return [ordered[round(place * (len(ordered) - 1) / (count - 1))] for place in range(count)]
