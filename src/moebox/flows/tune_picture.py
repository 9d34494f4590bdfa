"""The picture of a tuning: speed against time to the first token and joules per token, relative to the start."""

from collections.abc import Sequence

from markupsafe import Markup

from moebox.flows.tune_state import ScreenTrial, pareto_front
from moebox.flows.walk import ClimbTrial
from moebox.report.charts import HEIGHT, WIDTH, ChartAxis, ChartSeries, draw_lines
from moebox.report.svg import inline_colours, svg_tag

START, WHOLE, SCREENED, FRONT = 1, 2, 3, 4  # places in the palette
Measured = tuple[float, float, float]  # tok/s, TTFT in ms, watts


def draw_pareto(trials: Sequence[ClimbTrial], screened: Sequence[ScreenTrial]) -> str:
    """The charts as one file, one below the other."""
    charts = pareto_charts(trials, screened)
    parts = (
        svg_tag("svg", str(svg), y=HEIGHT * row, width=WIDTH, height=HEIGHT) for row, (_, svg) in enumerate(charts)
    )
    view = {"xmlns": "http://www.w3.org/2000/svg", "viewBox": f"0 0 {WIDTH:g} {HEIGHT * len(charts):g}"}
    return inline_colours(svg_tag("svg", "".join(parts), **view, font_size=12))


def pareto_charts(trials: Sequence[ClimbTrial], screened: Sequence[ScreenTrial]) -> list[tuple[str, Markup]]:
    """Two charts with titles, the second if energy is known. Each point is relative to the start with as many layers.

    Filled points are whole models, hollow ones were screened; the line joins what nothing beats in both respects.
    """
    points: list[tuple[str, int, float, float, float]] = []  # name, colour, speed, TTFT, joules: shares of the start's

    def add_point(name: str, colour: int, measured: Measured, base: Measured) -> None:
        (rate, ttft, watts), (rate0, ttft0, watts0) = measured, base
        energy = watts / rate / (watts0 / rate0) if watts and watts0 else 0.0
        points.append((name, colour, rate / rate0, ttft / ttft0 if ttft0 else 1.0, energy))

    start: Measured = (trials[0].output_tok_s, trials[0].ttft_ms, trials[0].watts)
    add_point("start", START, start, start)
    for trial in trials[1:]:
        if trial.verdict != "fail" and trial.output_tok_s:
            add_point(trial.change, WHOLE, (trial.output_tok_s, trial.ttft_ms, trial.watts), start)
    bases = {row.stage: (row.tok_s, row.ttft_ms, row.watts) for row in screened if not row.changes and row.tok_s}
    for row in screened:
        if row.changes and row.tok_s and row.stage in bases:
            name = ", ".join(f"{path} {value}" for path, value in row.changes.items())
            add_point(name, SCREENED, (row.tok_s, row.ttft_ms, row.watts), bases[row.stage])
    speed = ChartAxis(title="speed, start = 1", zero=False, log=False)
    charts: list[tuple[str, Markup]] = []
    for column, title in ((3, "time to first token, start = 1"), (4, "joules per token, start = 1")):
        shown = [point for point in points if point[column] > 0]  # type: ignore[operator]
        if not shown:
            continue
        places = [(float(point[column]), point[2]) for point in shown]
        series = [
            ChartSeries(name=point[0], colour=point[1], points=(place,), dashed=point[1] == SCREENED)
            for point, place in zip(shown, places, strict=True)
        ]
        front = ChartSeries(name="best", colour=FRONT, points=tuple(pareto_front(places)), markers=False)
        axis = ChartAxis(title=title, zero=False, log=False)
        if chart := draw_lines([front, *series], x=axis, y=speed, label=f"Speed against {title}"):
            charts.append((f"Speed against {title.partition(',')[0]}", chart))
    return charts
