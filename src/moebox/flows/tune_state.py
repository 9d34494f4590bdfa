"""What a tuning looks for and found so far: options, budget and arithmetic, the sweep of power caps, its picture."""

import math
import signal
import statistics
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

from markupsafe import Markup

from moebox.core.recipe import Flag, Recipe
from moebox.core.verdict import Gain
from moebox.errors import is_interrupt
from moebox.flows.pace import SpeedRounds, bracketing_gain
from moebox.flows.trials import TrialRunner
from moebox.flows.walk import ClimbTrial, with_setting
from moebox.report.charts import ChartAxis, ChartSeries, draw_lines
from moebox.serve import power
from moebox.units import format_seconds, format_tok_s, plural

SHARES = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5)  # of the default power cap
COST = -0.02  # speed that a lower cap may cost, over its whole interval


@dataclass(frozen=True, slots=True, kw_only=True)
class CapMeasurement:
    """The winner under a power cap."""

    cap_w: int
    tok_s: float
    tokens_per_joule: float
    gain: Gain | None  # in speed, over the default cap


TUNE_FILE = "tune.json"
Changes = dict[str, Any]  # recipe path -> value
Gains = dict[tuple[str, str], float]  # logarithms, by `single_key`
BEAM = 256  # combinations kept while settings are added one by one
LEAST_GAIN = 0.01  # logarithm; what gains less is not combined: fewer changes are easier to keep
Goal = Literal["throughput", "latency", "efficiency"]
STREAMS: dict[Goal, int] = {"throughput": 16, "latency": 1, "efficiency": 16}  # concurrent requests, unless set
STOP_S = 20.0  # of the budget kept to stop an engine; at most a tenth of it


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneOptions:
    """What a tuning looks for, and how far it goes."""

    goal: Goal = "throughput"
    budget_s: float = 7200.0
    only: tuple[str, ...] = ()  # settings to try; all that the engine declares if empty
    layers: int = 4  # of a screening; 0 screens with the whole model
    combinations: int = 8  # that are screened after the settings alone
    finalists: int = 2
    power: bool = False  # sweep the power cap of the winner's GPUs


@dataclass(frozen=True, slots=True, kw_only=True)
class ScreenTrial:
    """Settings that were measured without checks."""

    changes: Changes
    stage: int  # 0: a setting alone
    scores: tuple[float, ...] = ()
    tok_s: float = 0.0
    ttft_ms: float = 0.0
    watts: float = 0.0
    seconds: float = 0.0
    why: str = ""  # it failed


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingGain:
    """A setting of the winner: what it gained alone, and what it does."""

    path: str
    value: Any
    gain: float  # share, of the setting alone
    source: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneState:
    """Everything that a tuning found so far: the content of tune.json."""

    options: TuneOptions
    layers: int = 0  # of the screening; 0: the whole model
    spent_s: float = 0.0
    screened: tuple[ScreenTrial, ...] = ()
    finalists: tuple[ClimbTrial, ...] = ()
    reasons: tuple[SettingGain, ...] = ()
    caps: tuple[CapMeasurement, ...] = ()
    best_cap_w: int = 0  # the lowest cap that costs less than 2% speed; 0 if not swept
    result: str = ""

    @property
    def findings(self) -> list[str]:
        """What was measured, the result, the reason of each setting, and the power sweep, line by line."""
        screened = f"{plural(len(self.screened), 'measurement')} with {self.layers or 'all'} layers"
        used = f"{format_seconds(self.spent_s)} of {format_seconds(self.options.budget_s)} used"
        lines = [f"screened: {screened}; {used}", *[f"result: {self.result}"] * bool(self.result)]
        lines += [f"  {row.path} = {row.value}: {row.gain:+.1%}, {row.source}; {row.why}" for row in self.reasons]
        for row in self.caps:
            cost = f", {row.gain}" if row.gain else ""
            energy = f", {row.tokens_per_joule:.2f} tokens per joule" if row.tokens_per_joule else ""
            lines.append(f"  power cap {row.cap_w} W: {format_tok_s(row.tok_s)}{energy}{cost}")
        if cap := self.best_cap_w:
            lines.append(f"lowest cap that costs less than 2%: {cap} W (nvidia-smi -pl {cap})")
        return lines


class Budget:
    """A limit on time: interrupts the `with` block of the main thread when it is over, and ends it without an error."""

    def __init__(self, budget_s: float, spent_s: float) -> None:
        self.began, self.spent_s, self.budget_s = time.monotonic(), spent_s, budget_s
        self.is_over = self.was_short = False
        self.left_s = budget_s - spent_s - min(STOP_S, budget_s / 10)
        self.timer = threading.Timer(self.left_s, self._interrupt)
        self.timer.daemon = True

    def _interrupt(self) -> None:
        self.is_over = self.was_short = True
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    def __enter__(self) -> Self:
        if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell's & ignores it, and the budget needs it
            signal.signal(signal.SIGINT, signal.default_int_handler)
        self.timer.start()
        return self

    def __exit__(self, _: object, problem: BaseException | None, *__: object) -> bool:
        self.timer.cancel()
        return self.is_over and problem is not None and is_interrupt(problem)

    @property
    def used_s(self) -> float:
        return self.spent_s + time.monotonic() - self.began

    def can_afford(self, seconds: float) -> bool:
        enough = not self.is_over and self.used_s + seconds <= self.budget_s
        self.was_short |= not enough
        return enough


def change_settings(recipe: Recipe, changes: Changes) -> Recipe:
    for path, value in changes.items():
        recipe = with_setting(recipe, path, value)
    return recipe


def log_gain(base: ScreenTrial, row: ScreenTrial) -> float:
    """The logarithm of the gain of the median; -inf if the settings failed."""
    if not row.scores or not base.scores:
        return -math.inf
    return math.log(statistics.median(row.scores) / statistics.median(base.scores))


def single_key(path: str, value: Flag) -> tuple[str, str]:
    return path, repr(value)


def combine_changes(settings: Mapping[str, Sequence[Flag]], gains: Gains, *, width: int) -> list[Changes]:
    """The `width` combinations with the largest sum of gains (logarithms of each change), best first.

    Gains of settings seldom add up exactly; that is why the best combinations are measured.
    """
    found: list[tuple[float, Changes]] = [(0.0, {})]
    for path, values in settings.items():
        known = [(gains.get(single_key(path, value), 0.0), value) for value in values]
        useful = [row for row in known if row[0] >= LEAST_GAIN]
        found += [(total + gain, {**changes, path: value}) for total, changes in found for gain, value in useful]
        found = sorted(found, key=lambda row: (-row[0], len(row[1])))[:BEAM]
    return [changes for _, changes in found if changes][:width]


def pareto_front(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Points (cost, value) that no other one beats in both: less cost, more value; by ascending cost."""
    front: list[tuple[float, float]] = []
    for cost, value in sorted(points, key=lambda point: (point[0], -point[1])):
        if not front or value > front[-1][1]:
            front.append((cost, value))
    return front


def sweep_caps(runner: TrialRunner, recipe: Recipe) -> tuple[tuple[CapMeasurement, ...], int]:
    """Measure a recipe under each cap. Return the rows and the lowest cap in watts that costs less than COST.

    The default cap is measured first and last, so that a machine that became slower meanwhile widens the intervals.
    """
    rows: list[tuple[int, SpeedRounds, float]] = []
    with (
        runner.live_engine(recipe, f"climb/{runner.run.id}-power") as (live, folder),
        power.PowerCaps(live.prepared.gpus, folder.path) as caps,
    ):
        steps = caps.list_watts(SHARES)
        for cap in (*steps, steps[0]):
            caps.set_watts(cap)
            runner.notify("news", f"measuring with a power cap of {cap} W")
            rows.append((cap, *runner.measure_speed(live, folder)))
    first, last = rows[0][1].tok_s, rows[-1][1].tok_s
    found = []
    for cap, speed, watts in rows[:-1]:
        gain = bracketing_gain(first, speed.tok_s, last) if cap != steps[0] else None
        energy = speed.output_tok_s / watts if watts else 0.0
        found.append(CapMeasurement(cap_w=cap, tok_s=speed.output_tok_s, tokens_per_joule=energy, gain=gain))
    return tuple(found), min((row.cap_w for row in found[1:] if row.gain and row.gain.low >= COST), default=steps[0])


START, WHOLE, SCREENED, FRONT = 1, 2, 3, 4  # places in the palette
Measured = tuple[float, float, float]  # tok/s, TTFT in ms, watts


def pareto_charts(trials: Sequence[ClimbTrial], screened: Sequence[ScreenTrial]) -> list[tuple[str, Markup]]:
    """Two charts with titles, the second if energy is known. Each point is relative to the start with as many layers.

    Filled points are whole models, hollow ones were screened; the line joins what nothing beats in both respects.
    """
    points: list[tuple[str, int, tuple[float, float, float]]] = []  # name, colour; speed, TTFT, joules: shares

    def add_point(name: str, colour: int, measured: Measured, base: Measured) -> None:
        (rate, ttft, watts), (rate0, ttft0, watts0) = measured, base
        energy = watts / rate / (watts0 / rate0) if watts and watts0 else 0.0
        points.append((name, colour, (rate / rate0, ttft / ttft0 if ttft0 else 1.0, energy)))

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
    for column, title in ((1, "time to first token, start = 1"), (2, "joules per token, start = 1")):
        shown = [(name, colour, (shares[column], shares[0])) for name, colour, shares in points if shares[column] > 0]
        series = [
            ChartSeries(name=name, colour=colour, points=(place,), dashed=colour == SCREENED)
            for name, colour, place in shown
        ]
        best = tuple(pareto_front([place for _, _, place in shown]))
        front = ChartSeries(name="best", colour=FRONT, points=best, markers=False)
        axis = ChartAxis(title=title, zero=False, log=False)
        if shown and (chart := draw_lines([front, *series], x=axis, y=speed, label=f"Speed against {title}")):
            charts.append((f"Speed against {title.partition(',')[0]}", chart))
    return charts
