"""Seconds of a step from a calibration: timed with few layers, extrapolated to the depth of the whole model.

Between two boots only the number of layers differs, so the difference is theirs. For every step that the boots have in
common a line is fitted through their depths (with experts on GPUs and in RAM: a plane); the weights of that fit also
carry the noise of each boot to the forecast. Decode steps of engines that work on GPUs alone are extrapolated
differently (`extrapolate_decode`). Steps between measured ones are interpolated, steps beyond them continue the last
two.
"""

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from moebox.core.box import Box
from moebox.core.calibration import Boot, Calibration, DecodeStep, ExpectedStep, gpu_expert_layers
from moebox.core.model import Checkpoint, Model
from moebox.core.recipe import Recipe

Depth = tuple[int, int]  # layers, and how many of them have experts on GPUs
Series = Mapping[Depth, tuple[float, float]]  # seconds and their spread by depth
StepKey = tuple[int, int]  # batch and context

RANGE_SIGMAS = 1.28  # a range holds four of five figures
# How far a load differs from the timed steps, beside their noise (standard deviation of the logarithm: 5 % either
# way): loads that were measured after a calibration differed by 2 to 5 % from its forecast.
FLOOR = 0.04
# The same if the engine uses every core and shares them with its client: 12 loads of the embedded engine on two cores
# differed by 0.5 to 15 %.
CROWDED = 0.08
# How far all prompts of one boot differ from those of another, whatever their length, if the host prepares what GPUs do
# (standard deviation): 1 to 5 ms with vLLM and SGLang on an H200. More layers multiply it.
BOOTS_APART_S = 0.002
LOWEST, LOW = 0.1, 0.3  # shares of the steps below the correction, and below its doubt
GROWN = 1.1  # a deeper boot that takes no longer than this times the shallow one shows the host's time


@dataclass(frozen=True, kw_only=True)
class MeasuredSpeed:
    """A calibration read for one depth."""

    calibration: Calibration
    layers: int
    gpu_experts: int = 0
    chunk: int  # prompt tokens per step

    @cached_property
    def _steps(self) -> dict[StepKey, tuple[float, float]]:
        """Seconds and relative error of every decode step at this depth."""
        table = decode_series(self.calibration.boots, self.layers)
        expected = {(step.batch, step.context): step for step in self.calibration.expected}
        solved = {key: series for key, series in table.items() if len(series) > 1}
        found = extrapolate_decode(solved, expected, self.layers) if expected.keys() & solved.keys() else {}
        depth = (self.layers, self.gpu_experts)
        return {key: found.get(key) or extrapolate_depth(series, depth) for key, series in table.items()}

    @cached_property
    def decode_times(self) -> dict[int, list[tuple[float, float]]]:
        """By batch: (context, seconds) of a decode step at this depth."""
        rows: dict[int, list[tuple[float, float]]] = {}
        for (batch, context), (seconds, _) in self._steps.items():
            rows.setdefault(batch, []).append((float(context), seconds))
        return rows

    @cached_property
    def _prompts(self) -> list[tuple[float, float, float]]:
        """(tokens, seconds, relative error) of new prompts at this depth."""
        depth, found = (self.layers, self.gpu_experts), []
        for tokens, series in prefill_series(self.calibration.boots, self.layers).items():
            seconds, error = extrapolate_depth(series, depth)
            between = math.hypot(*depth_weights(tuple(series), depth)) if len(series) > 1 else 0.0
            apart = BOOTS_APART_S * between if self.calibration.expected else 0.0
            found.append((float(tokens), seconds, math.hypot(error, apart / seconds) if seconds else error))
        return found

    @cached_property
    def prompt_times(self) -> list[tuple[float, float]]:
        """(tokens, seconds) of new prompts at this depth."""
        return [(tokens, seconds) for tokens, seconds, _ in self._prompts]

    @cached_property
    def past_s(self) -> float:
        """Seconds for one prompt token to attend to one token of an earlier chunk, from the longest prompt."""
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

        A step that does both reads its weights once: the prompt's step with the decoded tokens added to it, plus what
        decoding costs for the length of its contexts.
        """
        if not fresh:
            return self.decode_s(batch, context)
        attending = self.decode_s(batch, context) - self.decode_s(batch, 0) if batch else 0.0
        return self.prefill_s(fresh + batch, past) + max(attending, 0.0)

    def prefill_s(self, fresh: float, past: float) -> float:
        whole = [point for point in self.prompt_times if point[0] <= self.chunk] or self.prompt_times
        return interpolate(whole, fresh) + self.past_s * fresh * past

    def decode_s(self, batch: float, context: float) -> float:
        by_batch = [(float(size), interpolate(line, context)) for size, line in sorted(self.decode_times.items())]
        return interpolate(by_batch, batch)

    @property
    def decode_spread(self) -> float:
        """Standard deviation of ln(real / forecast) of decode."""
        return self._combine_errors([error for _, error in self._steps.values()])

    @property
    def prefill_spread(self) -> float:
        """Standard deviation for prompts, of those lengths that fill at least a quarter of a step."""
        long = [error for tokens, _, error in self._prompts if tokens >= self.chunk / 4]
        return self._combine_errors(long or [error for _, _, error in self._prompts])

    def prompt_spread(self, tokens: float) -> float:
        """Standard deviation for prompts of one length."""
        errors = [(length, error) for length, _, error in self._prompts]
        return self._combine_errors([_on_line(errors, min(max(tokens, errors[0][0]), errors[-1][0]))])

    def _combine_errors(self, errors: Sequence[float]) -> float:
        """Standard deviation of ln(real / forecast), of steps with these errors."""
        if not errors:
            return 0.0
        crowded = self.calibration.layout.threads >= self.calibration.place.cores > 0
        return math.hypot(CROWDED if crowded else FLOOR, math.hypot(*errors) / math.sqrt(len(errors)))

    @property
    def decode_error(self) -> float:
        """How far the range of decode reaches above the forecast."""
        return math.expm1(RANGE_SIGMAS * self.decode_spread)

    @property
    def cache_tokens(self) -> int:
        """Tokens that the cache holds at this depth; 0 if the boots do not show it."""
        boots = sorted((boot for boot in self.calibration.boots if boot.cache_tokens), key=lambda boot: boot.layers)
        whole = next((boot.cache_tokens for boot in boots if boot.layers == self.layers), 0)
        if whole or len({boot.layers for boot in boots}) < 2:
            return whole
        few, more = boots[0], boots[-1]
        # A token costs the same in every layer, so tokens × layers is the room for the cache in units of that.
        there, here = few.cache_tokens * few.layers, more.cache_tokens * more.layers
        if self.calibration.layer_bytes and few.weights_bytes < more.weights_bytes and here < there:
            # Its weights alone: activations grow until every kind of layer is there twice, and not after that.
            weights = (more.weights_bytes - few.weights_bytes) / (more.layers - few.layers)
            per_layer = weights / self.calibration.layer_bytes
        else:
            per_layer = (there - here) / (more.layers - few.layers)
        return max(0, math.floor((here - per_layer * (self.layers - more.layers)) / self.layers))

    @property
    def text(self) -> str:
        """Where the forecast comes from, in one line."""
        found = self.calibration
        depths = " and ".join(str(depth) for depth in found.depths)
        whole = found.depths == (self.layers,)
        layers = f"all {self.layers} layers" if whole else f"{self.layers} layers from {depths}"
        where = "measured on the same box" if found.imported else "measured on this box"
        return f"{where} {found.date}, {layers}: ±{self.decode_error:.0%}"


def find_measured_speed(
    box: Box, model: Model, checkpoint: Checkpoint, recipe: Recipe, *, chunk: int
) -> MeasuredSpeed | None:
    """Return the newest calibration of `box` that applies to `recipe`, read for the model's depth, or None.

    Boots must differ in layers with experts on GPUs, or neither they nor the recipe have any.
    """
    gpu_experts = gpu_expert_layers(recipe)
    for found in sorted(box.calibrations, key=lambda calibration: (calibration.date, calibration.id), reverse=True):
        if not found.applies_to(box, model, checkpoint, recipe):
            continue
        measured = MeasuredSpeed(calibration=found, layers=model.layers, gpu_experts=gpu_experts, chunk=chunk)
        booted = {boot.gpu_experts for boot in found.boots}
        covered = len(booted) > 1 or booted == {0} == {gpu_experts}
        if measured.decode_times and measured.prompt_times and covered:
            return measured
    return None


def decode_series(boots: Sequence[Boot], layers: int) -> dict[StepKey, Series]:
    """Every (batch, context) that two depths have in common, or that was timed with all `layers`."""
    table: dict[StepKey, dict[Depth, tuple[float, float]]] = {}
    for boot, steps in zip(boots, bound_by_deeper_boots(boots), strict=True):
        for step in steps:
            rows = table.setdefault((step.batch, step.context), {})
            rows[boot.layers, boot.gpu_experts] = (step.seconds, step.spread)
    return {key: rows for key, rows in sorted(table.items()) if _is_solvable(rows, layers)}


def bound_by_deeper_boots(boots: Sequence[Boot]) -> list[list[DecodeStep]]:
    """Remove disturbances from the steps of every boot, as far as the boots show them of one another.

    A longer context or more sequences cost time in every layer, so with fewer layers they add no more than with more.
    If a shallow boot contradicts this its longer step was disturbed: short steps are more easily disturbed.
    """
    cleaned = [remove_disturbances(boot.decode) for boot in boots]
    bounded: list[list[DecodeStep]] = []
    for boot, here in zip(boots, cleaned, strict=True):
        deeper = [
            {(step.batch, step.context): step.seconds for step in steps}
            for other, steps in zip(boots, cleaned, strict=True)
            if other.layers > boot.layers and other.gpu_experts >= boot.gpu_experts
        ]
        limited = []
        for step in here:
            # At most: a step of the same boot that does less, and what a deeper boot adds from that one to this.
            seconds = step.seconds
            for there in deeper:
                same = there.get((step.batch, step.context))
                for less in here:
                    before = there.get((less.batch, less.context))
                    if same is not None and before is not None and _does_more(step, less):
                        seconds = min(seconds, less.seconds + same - before)
            limited.append(replace(step, seconds=seconds))
        bounded.append(_make_monotone(limited))
    return bounded


def remove_disturbances(steps: Sequence[DecodeStep]) -> list[DecodeStep]:
    """Bound steps by each other: more sequences or a longer context never take less time.

    Disturbances only add time, so a step that took longer than one that does more gets that one's time. And a longer
    context adds no more to a few sequences than to more of them.
    """
    kept = _make_monotone(steps)
    seconds = {(step.batch, step.context): step.seconds for step in kept}
    bounded = []
    for step in kept:
        # At most: as many sequences at a shorter context, and what the length adds to the next larger batch.
        bound = step.seconds
        larger = min((batch for batch, context in seconds if batch > step.batch and context == step.context), default=0)
        for batch, context in seconds:
            if batch == step.batch and context < step.context and (larger, context) in seconds:
                bound = min(bound, seconds[batch, context] + seconds[larger, step.context] - seconds[larger, context])
        bounded.append(replace(step, seconds=bound))
    return _make_monotone(bounded)


def _make_monotone(steps: Sequence[DecodeStep]) -> list[DecodeStep]:
    """Limit each step to the shortest that does more; applied after each bound, which may hold for some only."""
    return [replace(step, seconds=min(more.seconds for more in steps if _does_more(more, step))) for step in steps]


def _does_more(more: DecodeStep, step: DecodeStep) -> bool:
    return more.batch >= step.batch and more.context >= step.context


def _is_solvable(rows: Series, layers: int) -> bool:
    depths = {depth for depth, _ in rows}
    return len(depths) > 1 or layers in depths


def prefill_series(boots: Sequence[Boot], layers: int) -> dict[int, Series]:
    """Every prompt length that two depths have in common, or that was timed with all `layers`.

    A prompt that is as slow with few layers as with more was disturbed: its time that does not depend on the layers is
    then taken to be at most that of the next longer prompt.
    """
    table: dict[int, dict[Depth, tuple[float, float]]] = {}
    for boot in boots:
        for prompt in boot.prefill:
            table.setdefault(prompt.tokens, {})[boot.layers, boot.gpu_experts] = (prompt.seconds, prompt.spread)
    found: dict[int, Series] = {}
    least = math.inf
    for tokens, series in sorted(table.items(), reverse=True):
        if not _is_solvable(series, layers):
            continue
        found[tokens] = series
        few, more = min(series), max(series)
        later = series[more][0]
        if later > GROWN * series[few][0]:
            least = fixed_seconds(series)
        elif few != more and least < later:
            sooner = least + (later - least) * few[0] / more[0]
            found[tokens] = {**series, few: (min(sooner, series[few][0]), series[few][1])}
    return dict(reversed(found.items()))


def extrapolate_decode(
    table: Mapping[StepKey, Series], expected: Mapping[StepKey, ExpectedStep], layers: int
) -> dict[StepKey, tuple[float, float]]:
    """Seconds of every decode step at `layers`, and their relative error, if the host prepares steps beside the GPU.

    Such a step lasts as long as the slower of the two. With few layers that is the host, whose time does not depend on
    layers, and a line through two shallow boots then gives layers that cost next to nothing: Qwen3-235B on an H200 took
    1.56 ms for one stream with 4 layers, 1.55 ms with 8 and 4.73 ms with 36. So the boots are combined with the
    forecast from published rows of the same steps, which is a line in the layers too. The boots correct

    * its fixed seconds by one figure for all steps, the lowest that several of them agree on: in a shallow boot the
      host and any disturbance only add time;
    * its seconds per layer, for every step, by what the deepest boot took; if that boot shows the host as well, because
      it took no longer than the shallow one, by no more than the next larger batch.
    """
    known = {key: table[key] for key in sorted(table, reverse=True) if key in expected}
    moved = sorted(fixed_seconds(series) - expected[key].fixed_s for key, series in known.items())
    correction = _quantile(moved, LOWEST)
    doubt = (_quantile(moved, LOW) - correction) / 2
    factors: dict[StepKey, float] = {}
    found: dict[StepKey, tuple[float, float]] = {}
    for key, series in known.items():
        step = expected[key]
        base = step.fixed_s + correction
        deep, (seconds, spread) = max(series.items())
        factor = (seconds - base) / deep[0] / step.layer_s
        larger = [factors[other] for other in factors if other[1] == key[1]]
        if larger and seconds <= GROWN * min(series.items())[1][0]:
            factor = min(factor, larger[-1])
        factors[key] = factor
        total = max(base + factor * step.layer_s * layers, seconds)  # more layers are never faster
        beyond = doubt * abs(layers / deep[0] - 1)  # fixed time that was counted as the layers' is multiplied with them
        found[key] = (total, math.hypot(spread, beyond / total))
    return found


def fixed_seconds(series: Series) -> float:
    """Seconds of a step with no layers, on the line through the shallowest and the deepest boot."""
    (few, _), (sooner, _) = min(series.items())
    (more, _), (later, _) = max(series.items())
    return (sooner * more - later * few) / (more - few)


def _quantile(ranked: Sequence[float], share: float) -> float:
    """The value below which `share` of the sorted values lie."""
    place = share * (len(ranked) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ranked) - 1)
    return ranked[low] + (ranked[high] - ranked[low]) * (place - low)


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
    """Weight of each measured depth at `target`: least squares on 1, layers, and layers with experts on GPUs."""
    features = 3 if len({gpu for _, gpu in depths}) > 1 else 2
    rows = [[1.0, float(layers), float(gpu)][:features] for layers, gpu in depths]
    columns = list(zip(*rows, strict=True))
    square = [[_dot(column, other) for other in columns] for column in columns]
    solved = _solve_linear(square, [1.0, float(target[0]), float(target[1])][:features])
    return tuple(_dot(solved, row) for row in rows)


def _dot(left: Sequence[float], right: Sequence[float]) -> float:
    return sum(a * b for a, b in zip(left, right, strict=True))


def _solve_linear(square: list[list[float]], right: list[float]) -> list[float]:
    """Solve a small linear system by elimination; an undetermined unknown is 0."""
    rows = [[*row, value] for row, value in zip(square, right, strict=True)]
    for column in range(len(rows)):
        pivot = max(range(column, len(rows)), key=lambda row: abs(rows[row][column]))
        rows[column], rows[pivot] = rows[pivot], rows[column]
        if abs(rows[column][column]) < 1e-9:
            continue
        for row, values in enumerate(rows):
            if row != column:
                factor = values[column] / rows[column][column]
                rows[row] = [here - factor * there for here, there in zip(values, rows[column], strict=True)]
    return [row[-1] / row[at] if abs(row[at]) >= 1e-9 else 0.0 for at, row in enumerate(rows)]


def interpolate(points: Sequence[tuple[float, float]], x: float) -> float:
    """The value at `x` on the line through `points`; it continues beyond them, and below stays above half the first."""
    return max(_on_line(points, x), points[0][1] / 2)


def _on_line(points: Sequence[tuple[float, float]], x: float) -> float:
    if len(points) == 1:
        return points[0][1]
    place = min(max(bisect_left(points, (x,)), 1), len(points) - 1)
    (left, low), (right, high) = points[place - 1], points[place]
    return low + (high - low) * (x - left) / (right - left)
