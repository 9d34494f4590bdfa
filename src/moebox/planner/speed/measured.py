"""The seconds of a step from a calibration: what was timed with few layers, carried to the depth of the whole model.

Between two boots everything but the layers is the same, so the difference is theirs. For every step that the boots
have in common a line is drawn through their depths (with experts on GPUs and in RAM: a plane); the weights of that
line also carry the noise of each boot to the forecast. Decode steps of an engine that works on GPUs alone are read
otherwise (`deeper`). Steps between measured ones are interpolated, steps beyond them go on as the last two did.
"""

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from moebox.core.box import Box
from moebox.core.calibration import Boot, Calibration, DecodeStep, gpu_expert_layers
from moebox.core.model import Checkpoint, Model
from moebox.core.recipe import Recipe
from moebox.planner.speed.deeper import GROWN, Depth, Key, Series, extrapolate_decode, fixed_seconds

RANGE_SIGMAS = 1.28  # a band holds four of five figures
# What a load differs by from the steps that were timed, beside their noise (standard deviation of the logarithm: 5 %
# either way): loads that were measured after a calibration lay 2 to 5 % beside its forecast.
FLOOR = 0.04
# The same where the engine takes every core and shares them with its client: 12 loads of the embedded engine on two
# cores lay 0.5 to 15 % beside.
CROWDED = 0.08
# By how much all prompts of one boot differ from those of another, whatever their length, where the host prepares what
# GPUs do (standard deviation): 1 to 5 ms with vLLM and SGLang on an H200. More layers multiply it.
BOOTS_APART_S = 0.002


@dataclass(frozen=True, kw_only=True)
class MeasuredSpeed:
    """A calibration read for one depth."""

    calibration: Calibration
    layers: int
    gpu_experts: int = 0
    chunk: int  # prompt tokens a step

    @cached_property
    def decode_times(self) -> dict[int, list[tuple[float, float]]]:
        """By batch: (context, seconds) of a decode step at this depth."""
        rows: dict[int, list[tuple[float, float]]] = {}
        for (batch, context), (seconds, _) in self._steps.items():
            rows.setdefault(batch, []).append((float(context), seconds))
        return rows

    @cached_property
    def _steps(self) -> dict[Key, tuple[float, float]]:
        """Seconds and relative error of every decode step at this depth."""
        table = decode_series(self.calibration.boots, self.layers)
        expected = {(step.batch, step.context): step for step in self.calibration.expected}
        solved = {key: series for key, series in table.items() if len(series) > 1}
        read = extrapolate_decode(solved, expected, self.layers) if expected.keys() & solved.keys() else {}
        return {key: read.get(key) or extrapolate_depth(series, self._depth) for key, series in table.items()}

    @cached_property
    def prompt_times(self) -> list[tuple[float, float]]:
        """(tokens, seconds) of new prompts at this depth."""
        series = prefill_series(self.calibration.boots, self.layers)
        return [(float(tokens), extrapolate_depth(depths, self._depth)[0]) for tokens, depths in series.items()]

    @cached_property
    def past_s(self) -> float:
        """Seconds for one prompt token to attend to one token of an earlier chunk: from the longest prompt."""
        whole = [point for point in self.prompt_times if point[0] <= self.chunk]
        tokens, seconds = self.prompt_times[-1] if self.prompt_times else (0.0, 0.0)
        if not whole or tokens <= self.chunk:
            return 0.0
        count, rest = divmod(tokens, self.chunk)
        alone = count * interpolate(whole, self.chunk) + (interpolate(whole, rest) if rest else 0.0)
        pairs = self.chunk**2 * count * (count - 1) / 2 + rest * count * self.chunk
        return max(0.0, (seconds - alone) / pairs) if pairs else 0.0

    def step_s(self, batch: float, context: float, fresh: float = 0.0, past: float = 0.0) -> float:
        """Seconds of a step that decodes `batch` sequences at `context` and reads `fresh` prompt tokens after `past`.

        A step that does both passes its weights once: the prompt's step with the decoded tokens added to it, and on
        top what decoding costs for the length of its contexts.
        """
        if not fresh:
            return self.decode_s(batch, context)
        attending = self.decode_s(batch, context) - self.decode_s(batch, 0) if batch else 0.0
        return self.prefill_s(fresh + batch, past) + max(attending, 0.0)

    def decode_s(self, batch: float, context: float) -> float:
        """Seconds of a decode step."""
        return interpolate(
            [(float(size), interpolate(line, context)) for size, line in sorted(self.decode_times.items())], batch
        )

    def prefill_s(self, fresh: float, past: float) -> float:
        """Seconds of one step of a prompt."""
        whole = [point for point in self.prompt_times if point[0] <= self.chunk] or self.prompt_times
        return interpolate(whole, fresh) + self.past_s * fresh * past

    @property
    def decode_spread(self) -> float:
        """Standard deviation of ln(real / forecast) of decode."""
        return self._spread([error for _, error in self._steps.values()])

    @property
    def prefill_spread(self) -> float:
        """The same for prompts, of those lengths that fill a step at least by a quarter."""
        long = [error for tokens, error in self._prompt_errors if tokens >= self.chunk / 4]
        return self._spread(long or [error for _, error in self._prompt_errors])

    def prompt_spread(self, tokens: float) -> float:
        """The same for prompts of that length."""
        first, last = self._prompt_errors[0][0], self._prompt_errors[-1][0]
        return self._spread([_on_line(self._prompt_errors, min(max(tokens, first), last))])

    def _spread(self, errors: Sequence[float]) -> float:
        """Standard deviation of ln(real / forecast), of steps with these errors."""
        if not errors:
            return 0.0
        found = self.calibration
        crowded = found.layout.threads >= found.place.cores > 0
        return math.hypot(CROWDED if crowded else FLOOR, math.hypot(*errors) / math.sqrt(len(errors)))

    @cached_property
    def _prompt_errors(self) -> list[tuple[float, float]]:
        """(tokens, relative error) of new prompts at this depth."""
        found = []
        for tokens, depths in prefill_series(self.calibration.boots, self.layers).items():
            seconds, error = extrapolate_depth(depths, self._depth)
            between = math.hypot(*depth_weights(tuple(depths), self._depth)) if len(depths) > 1 else 0.0
            apart = BOOTS_APART_S * between if self.calibration.expected else 0.0
            found.append((float(tokens), math.hypot(error, apart / seconds) if seconds else error))
        return found

    @property
    def decode_error(self) -> float:
        """How far the band of decode reaches above the forecast."""
        return math.expm1(RANGE_SIGMAS * self.decode_spread)

    @property
    def cache_tokens(self) -> int:
        """Tokens the cache holds at this depth; 0 where the boots do not tell."""
        boots = sorted((boot for boot in self.calibration.boots if boot.cache_tokens), key=lambda boot: boot.layers)
        whole = next((boot.cache_tokens for boot in boots if boot.layers == self.layers), 0)
        if whole or len({boot.layers for boot in boots}) < 2:
            return whole
        few, more = boots[0], boots[-1]
        room = more.cache_tokens * more.layers - self._taken(few, more) * (self.layers - more.layers)
        return max(0, math.floor(room / self.layers))

    def _taken(self, few: Boot, more: Boot) -> float:
        """What each layer between two boots takes of the room for the cache, in tokens of one layer."""
        # A token costs the same in every layer, so tokens × layers is the room for the cache in units of that.
        there, here = few.cache_tokens * few.layers, more.cache_tokens * more.layers
        if self.calibration.layer_bytes and few.weights_bytes < more.weights_bytes and here < there:
            # Its weights alone: activations grow until every kind of layer is there twice, and no more from then on.
            weights = (more.weights_bytes - few.weights_bytes) / (more.layers - few.layers)
            return weights / self.calibration.layer_bytes
        return (there - here) / (more.layers - few.layers)

    @property
    def text(self) -> str:
        """Where the forecast comes from, in one line."""
        found = self.calibration
        depths = " and ".join(str(depth) for depth in found.depths)
        whole = found.depths == (self.layers,)
        layers = f"all {self.layers} layers" if whole else f"{self.layers} layers from {depths}"
        where = "measured on the same box" if found.imported else "measured on this box"
        return f"{where} {found.date}, {layers}: ±{self.decode_error:.0%}"

    @property
    def _depth(self) -> Depth:
        return self.layers, self.gpu_experts


def find_measured(
    box: Box, model: Model, checkpoint: Checkpoint, recipe: Recipe, *, chunk: int
) -> MeasuredSpeed | None:
    """The newest calibration of `box` that holds for `recipe`, read for the model's depth and the engine's chunk."""
    for found in sorted(box.calibrations, key=lambda one: (one.date, one.id), reverse=True):
        if not found.applies_to(box, model, checkpoint, recipe):
            continue
        reading = MeasuredSpeed(
            calibration=found, layers=model.layers, gpu_experts=gpu_expert_layers(recipe), chunk=chunk
        )
        if reading.decode_times and reading.prompt_times and covers_gpu_experts(found.boots, reading.gpu_experts):
            return reading
    return None


def covers_gpu_experts(boots: Sequence[Boot], gpu_experts: int) -> bool:
    """Whether the boots tell layers with experts on GPUs from others, or neither they nor the recipe have any."""
    seen = {boot.gpu_experts for boot in boots}
    return len(seen) > 1 or seen == {0} == {gpu_experts}


def decode_series(boots: Sequence[Boot], layers: int) -> dict[tuple[int, int], Series]:
    """Every (batch, context) that two depths have in common, or that was timed with all `layers`."""
    table: dict[tuple[int, int], dict[Depth, tuple[float, float]]] = {}
    for boot, steps in zip(boots, bound_by_deeper_boots(boots), strict=True):
        for step in steps:
            rows = table.setdefault((step.batch, step.context), {})
            rows[boot.layers, boot.gpu_experts] = (step.seconds, step.spread)
    return {key: rows for key, rows in sorted(table.items()) if _solvable(rows, layers)}


def bound_by_deeper_boots(boots: Sequence[Boot]) -> list[list[DecodeStep]]:
    """The steps of every boot without what came between, as far as the boots show it of one another.

    A longer context or more sequences cost time in every layer, so with fewer layers they add no more than with more.
    Where a shallow boot says otherwise its longer step was disturbed: short steps are, before long ones.
    """
    steps = [remove_disturbances(boot.decode) for boot in boots]
    kept: list[list[DecodeStep]] = []
    for boot, here in zip(boots, steps, strict=True):
        deeper = [there for other, there in zip(boots, steps, strict=True) if _has_more(other, boot)]
        bounds = [min([step.seconds, *_added(step, here, deeper)]) for step in here]
        kept.append(_in_step([replace(step, seconds=bound) for step, bound in zip(here, bounds, strict=True)]))
    return kept


def _has_more(other: Boot, boot: Boot) -> bool:
    return other.layers > boot.layers and other.gpu_experts >= boot.gpu_experts


def _added(step: DecodeStep, here: Sequence[DecodeStep], deeper: Sequence[Sequence[DecodeStep]]) -> Iterator[float]:
    """What `step` takes at most: one of the same boot that does less, and what a deeper boot adds from that to this."""
    for there in deeper:
        seconds = {(other.batch, other.context): other.seconds for other in there}
        same = seconds.get((step.batch, step.context))
        for less in here:
            before = seconds.get((less.batch, less.context))
            if same is not None and before is not None and _does_more(step, less):
                yield less.seconds + same - before


def remove_disturbances(steps: Sequence[DecodeStep]) -> list[DecodeStep]:
    """Steps without what came between: more sequences or a longer context never take less time.

    Disturbances only ever add time, so a step that took longer than one that does more is set to that one's time. And
    a longer context adds no more to a few sequences than to more of them.
    """
    kept = _in_step(steps)
    return _in_step([replace(step, seconds=min([step.seconds, *_lengthened(step, kept)])) for step in kept])


def _in_step(steps: Sequence[DecodeStep]) -> list[DecodeStep]:
    """None takes longer than one that does more; again after each bound, which holds for some and not for others."""
    return [replace(step, seconds=min(more.seconds for more in steps if _does_more(more, step))) for step in steps]


def _lengthened(step: DecodeStep, steps: Sequence[DecodeStep]) -> Iterator[float]:
    """What `step` takes at most: as many sequences at a shorter context, and what the length adds to the next more."""
    seconds = {(other.batch, other.context): other.seconds for other in steps}
    more = min((batch for batch, context in seconds if batch > step.batch and context == step.context), default=0)
    for batch, context in seconds:
        if batch == step.batch and context < step.context and (more, context) in seconds:
            yield seconds[batch, context] + seconds[more, step.context] - seconds[more, context]


def _does_more(more: DecodeStep, step: DecodeStep) -> bool:
    return more.batch >= step.batch and more.context >= step.context


def prefill_series(boots: Sequence[Boot], layers: int) -> dict[int, Series]:
    """Every prompt length that two depths have in common, or that was timed with all `layers`."""
    table: dict[int, dict[Depth, tuple[float, float]]] = {}
    for boot in boots:
        for prompt in boot.prefill:
            table.setdefault(prompt.tokens, {})[boot.layers, boot.gpu_experts] = (prompt.seconds, prompt.spread)
    return _in_order({key: rows for key, rows in sorted(table.items()) if _solvable(rows, layers)})


def _in_order(table: dict[int, Series]) -> dict[int, Series]:
    """Prompts by length, none with few layers as slow as with more: such a one was disturbed.

    What does not depend on the layers is then taken to be no more than with the next longer prompt.
    """
    found: dict[int, Series] = {}
    least = math.inf
    for tokens, series in reversed(table.items()):
        found[tokens] = series
        few, more = min(series), max(series)
        later = series[more][0]
        if later > GROWN * series[few][0]:
            least = fixed_seconds(series)
        elif few != more and least < later:
            sooner = least + (later - least) * few[0] / more[0]
            found[tokens] = {**series, few: (min(sooner, series[few][0]), series[few][1])}
    return dict(reversed(found.items()))


def _solvable(rows: Series, layers: int) -> bool:
    depths = {depth for depth, _ in rows}
    return len(depths) > 1 or layers in depths


def extrapolate_depth(series: Series, depth: Depth) -> tuple[float, float]:
    """Seconds at `depth`, and the relative error that the noise of the measured depths leaves there."""
    times, spreads = zip(*series.values(), strict=True)
    shares = depth_weights(tuple(series), depth)
    # More layers are never faster: below that the difference was noise.
    shallower = [time for at, (time, _) in series.items() if at[0] <= depth[0] and at[1] <= depth[1]]
    seconds = max([_dot(shares, times), *shallower])
    noise = math.hypot(*map(math.prod, zip(shares, times, spreads, strict=True)))
    return seconds, noise / seconds if seconds else 0.0


@lru_cache(maxsize=256)
def depth_weights(depths: tuple[Depth, ...], target: Depth) -> tuple[float, ...]:
    """What each measured depth counts for at `target`: least squares on 1, layers and layers with experts on GPUs."""
    both = len({gpu for _, gpu in depths}) > 1
    rows = [_features(depth, both=both) for depth in depths]
    columns = list(zip(*rows, strict=True))
    square = [[_dot(one, other) for other in columns] for one in columns]
    solved = solve_linear(square, _features(target, both=both))
    return tuple(_dot(solved, row) for row in rows)


def _features(depth: Depth, *, both: bool) -> list[float]:
    layers, on_gpus = map(float, depth)
    return [1.0, layers, on_gpus] if both else [1.0, layers]


def _dot(one: Sequence[float], other: Sequence[float]) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True))


def solve_linear(square: list[list[float]], right: list[float]) -> list[float]:
    """The solution of a small linear system, by elimination; an unknown nothing tells of is 0."""
    rows = [[*row, value] for row, value in zip(square, right, strict=True)]
    for column in range(len(rows)):
        _eliminate(rows, column)
    return [row[-1] / row[at] if abs(row[at]) >= 1e-9 else 0.0 for at, row in enumerate(rows)]


def _eliminate(rows: list[list[float]], column: int) -> None:
    """Take one unknown out of all rows but its own, which comes to stand at its place."""
    pivot = max(range(column, len(rows)), key=lambda row: abs(rows[row][column]))
    rows[column], rows[pivot] = rows[pivot], rows[column]
    if abs(rows[column][column]) < 1e-9:
        return
    for row, values in enumerate(rows):
        if row != column:
            factor = values[column] / rows[column][column]
            rows[row] = [here - factor * there for here, there in zip(values, rows[column], strict=True)]


def interpolate(points: Sequence[tuple[float, float]], x: float) -> float:
    """The value at `x` on the line through `points`; beyond them it goes on, below them it does not fall under half."""
    return max(_on_line(points, x), points[0][1] / 2)


def _on_line(points: Sequence[tuple[float, float]], x: float) -> float:
    if len(points) == 1:
        return points[0][1]
    place = min(max(bisect_left(points, (x,)), 1), len(points) - 1)
    (left, low), (right, high) = points[place - 1], points[place]
    return low + (high - low) * (x - left) / (right - left)
