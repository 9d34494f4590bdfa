"""What a tuning looks for and found so far, the limit on its time, and the arithmetic of its search."""

import math
import signal
import statistics
import threading
import time
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

from moebox.core.recipe import Flag, Recipe
from moebox.flows.power_sweep import CapMeasurement
from moebox.flows.settings import current_value, with_setting
from moebox.flows.walk import ClimbTrial
from moebox.units import format_seconds, format_tok_s, plural

TUNE_FILE = "tune.json"
Changes = dict[str, Any]  # recipe path -> value
Single = tuple[str, Hashable]
T = TypeVar("T")
BEAM = 256  # combinations kept while settings are added one by one
LEAST_GAIN = 0.01  # logarithm; what gains less alone is not combined: fewer changes are easier to keep
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
    """A limit on time: interrupts the `with` block when it is over, and ends it without an error."""

    def __init__(self, budget_s: float, spent_s: float) -> None:
        self.began, self.spent_s, self.budget_s = time.monotonic(), spent_s, budget_s
        self.is_over = False
        left = budget_s - spent_s - min(STOP_S, budget_s / 10)
        self.timer = threading.Timer(max(0.0, left), self._interrupt)
        self.timer.daemon = True

    def _interrupt(self) -> None:
        self.is_over = True
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell's & ignores it, and the budget needs it
                signal.signal(signal.SIGINT, signal.default_int_handler)
            self.timer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> bool:
        self.timer.cancel()
        return self.is_over and kind is KeyboardInterrupt

    @property
    def used_s(self) -> float:
        return self.spent_s + time.monotonic() - self.began

    def can_afford(self, seconds: float) -> bool:
        return not self.is_over and self.used_s + seconds <= self.budget_s


def change_settings(recipe: Recipe, changes: Changes) -> Recipe:
    for path, value in changes.items():
        recipe = with_setting(recipe, path, value)
    return recipe


def winner_changes(start: Recipe, winner: Recipe, paths: list[str]) -> Changes:
    """The settings among `paths` in which two recipes differ, with the winner's values."""
    values = {path: current_value(winner, path) for path in dict.fromkeys(paths)}
    return {path: value for path, value in values.items() if value != current_value(start, path)}


def log_gain(base: ScreenTrial, row: ScreenTrial) -> float:
    """The logarithm of the gain of the median; -inf if the settings failed."""
    if not row.scores or not base.scores:
        return -math.inf
    return math.log(statistics.median(row.scores) / statistics.median(base.scores))


def single_key(path: str, value: Flag) -> Single:
    return path, repr(value)


def combine_changes(
    settings: Mapping[str, Sequence[Flag]], gains: Mapping[Single, float], *, width: int
) -> list[Changes]:
    """The `width` combinations with the largest sum of gains (logarithms of each change alone), best first.

    Gains of settings seldom add up exactly; that is why the best combinations are measured.
    """
    found: list[tuple[float, Changes]] = [(0.0, {})]
    for path, values in settings.items():
        useful = [(gains.get(single_key(path, value), 0.0), value) for value in values]
        useful = [(gain, value) for gain, value in useful if gain >= LEAST_GAIN]
        found += [(total + gain, {**changes, path: value}) for total, changes in found for gain, value in useful]
        found = sorted(found, key=lambda row: (-row[0], len(row[1])))[:BEAM]
    return [changes for _, changes in found if changes][:width]


def halve_pool(pool: Sequence[T], scores: Sequence[float], *, least: int) -> list[T]:
    """The better half of a pool by its scores, best first, but at least `least` of it."""
    order = sorted(range(len(pool)), key=lambda index: -scores[index])
    return [pool[index] for index in order[: max(least, math.ceil(len(pool) / 2))]]


def pareto_front(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Points (cost, value) that no other one beats in both: less cost, more value; by ascending cost."""
    front: list[tuple[float, float]] = []
    for cost, value in sorted(points, key=lambda point: (point[0], -point[1])):
        if not front or value > front[-1][1]:
            front.append((cost, value))
    return front
