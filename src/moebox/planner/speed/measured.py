"""Seconds of a step from a calibration: timed with few layers, extrapolated to the depth of the whole model.

`boots` extrapolates timed steps and combines them with the forecast from published rows. Steps between timed ones are
interpolated, steps beyond them continue the last two.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import starmap
from operator import itemgetter

from moebox.core import registry
from moebox.core.box import Box
from moebox.core.calibration import Calibration, gpu_expert_layers
from moebox.core.model import Checkpoint, Model
from moebox.core.recipe import Recipe
from moebox.planner.speed.boots import (
    Estimate,
    StepKey,
    combine_with_fit,
    decode_series,
    depth_weights,
    drift_errors,
    extrapolate_decode,
    extrapolate_depth,
    prefill_series,
)
from moebox.units import plural

RANGE_SIGMAS = 1.28  # a range holds four of five figures
# How far a load differs from the timed steps, beside their noise (standard deviation of the logarithm: 5 % either
# way): loads that were measured after a calibration differed by 2 to 5 % from its forecast.
FLOOR = 0.04
# The same if the engine and its client use every core: 36 figures of the embedded engine on two cores differed by 0.4
# to 17 %, in the mean square by 6 %.
CROWDED = 0.08
# How far all prompts of one boot differ from those of another, whatever their length, if the host prepares what GPUs do
# (standard deviation): 1 to 5 ms with vLLM and SGLang on an H200. More layers multiply it.
BOOTS_APART_S = 0.002
# How far the same load differs between two machines of a kind, if the host prepares what GPUs do (standard deviation):
# Kimi with 8 layers on two H200s took 2.40 and 2.61 ms for one stream, 14.15 and 14.15 for 32 (November 2026).
MACHINES_APART_S = 0.00015
UNTIMED = 0.05  # of a step, for each doubling of streams or context from the nearest timed one (test_calibrated.py)


@dataclass(frozen=True, kw_only=True)
class MeasuredSpeed:
    """A calibration read for one depth."""

    calibration: Calibration
    layers: int
    gpu_experts: int = 0
    chunk: int  # prompt tokens per step
    fitted: Callable[[float, float], float] | None = None  # seconds of a decode step by published rows
    slots: int = 0  # of an engine that decodes only neighbouring slots together; 0: any batch is one step

    @cached_property
    def _fitted(self) -> dict[StepKey, float]:
        """Seconds of the expected steps at this depth, by published rows alone."""
        return {
            (step.batch, step.context): step.fixed_s + step.layer_s * self.layers for step in self.calibration.expected
        }

    @cached_property
    def _steps(self) -> dict[StepKey, Estimate]:
        """Seconds and error of every decode step at this depth."""
        boots, depth = self.calibration.boots, (self.layers, self.gpu_experts)
        table = decode_series(boots, self.layers)
        expected = {(step.batch, step.context): step for step in self.calibration.expected}
        solved = {key: series for key, series in table.items() if len(series) > 1}
        found: dict[StepKey, Estimate] = {}
        if expected.keys() & solved.keys():
            found = extrapolate_decode(solved, expected, self.layers, drift_errors(boots))
        timed = {key: found.get(key) or extrapolate_depth(series, depth) for key, series in table.items()}
        combined = combine_with_fit(self._doubt_if_disturbed(timed), self._fitted, self.calibration.fit_spread)
        # More layers, sequences or tokens never take less time.
        slowest = {key: max(seconds for seconds, _ in series.values()) for key, series in table.items()}
        for key in combined:
            less = [combined[other][0] for other in combined if other[0] <= key[0] and other[1] <= key[1]]
            combined[key] = (max(slowest[key], *less), combined[key][1])
        return combined

    def _doubt_if_disturbed(self, timed: dict[StepKey, Estimate]) -> dict[StepKey, Estimate]:
        doubt = self.calibration.doubt if self.calibration.disturbed else 0.0
        return {key: (seconds, math.hypot(error, doubt)) for key, (seconds, error) in timed.items()}

    @cached_property
    def decode_times(self) -> dict[int, list[tuple[float, float]]]:
        """By batch: (context, seconds) of a decode step at this depth."""
        rows: dict[int, list[tuple[float, float]]] = {}
        for (batch, context), (seconds, _) in self._steps.items():
            rows.setdefault(batch, []).append((float(context), seconds))
        return rows

    @cached_property
    def _prompts(self) -> list[tuple[float, float, float]]:
        """(tokens, seconds, error) of new prompts at this depth."""
        depth, timed = (self.layers, self.gpu_experts), {}
        for tokens, series in prefill_series(self.calibration.boots, self.layers).items():
            seconds, error = extrapolate_depth(series, depth)
            between = math.hypot(*depth_weights(tuple(series), depth)) if len(series) > 1 else 0.0
            apart = BOOTS_APART_S * between if self.calibration.expected else 0.0
            timed[0, tokens] = (seconds, math.hypot(error, apart / seconds) if seconds else error)
        combined = combine_with_fit(self._doubt_if_disturbed(timed), self._fitted, self.calibration.prompt_fit_spread)
        return [(float(tokens), *estimate) for (_, tokens), estimate in combined.items()]

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
        """Seconds to decode a token of every sequence.

        Requests that take slots in turn are neighbours until they reach beyond the last slot; then those at the end and
        those at the beginning are a step each.
        """
        if not 1 < batch < self.slots:
            return self._step_s(batch, context)
        seconds = (self.slots - int(batch) + 1) * self._step_s(batch, context)
        for at_end in range(1, int(batch)):
            seconds += self._step_s(at_end, context) + self._step_s(batch - at_end, context)
        return seconds / self.slots

    def _step_s(self, batch: float, context: float) -> float:
        """Seconds of a decode step.

        A longer context adds in proportion. Between batches the published rows give the shape, if they are combined
        with timed steps: a straight line from 8 to 64 streams would be 19 % too fast at 32.
        """
        lines = sorted(self.decode_times.items())
        if self.fitted is None or not self._fitted:
            return interpolate(self._seconds_by_batch(context), batch)
        place = max(bisect_left(lines, batch, key=itemgetter(0)), 1)
        ratios = []
        for size, line in lines[place - 1 : place + 1]:  # the neighbours
            at = context if len(line) > 1 else line[0][0]
            ratios.append((math.log2(size), math.log(interpolate(line, at) / self.fitted(size, at))))
        nearest = min(max(math.log2(max(batch, 1.0)), ratios[0][0]), ratios[-1][0])
        return self.fitted(batch, context) * math.exp(_on_line(ratios, nearest))

    def _seconds_by_batch(self, context: float) -> list[tuple[float, float]]:
        """(batch, seconds) of a decode step; a batch timed at one context follows the context as its neighbours do."""
        lines = sorted(self.decode_times.items())
        whole = [(float(size), line) for size, line in lines if len(line) > 1]
        found, slowest = [], 0.0
        for size, line in lines:
            seconds = interpolate(line, context)
            if len(line) == 1 and whole:
                here, timed = (
                    interpolate([(other, interpolate(each, at)) for other, each in whole], size)
                    for at in (context, line[0][0])
                )
                seconds *= here / timed
            slowest = max(slowest, seconds)  # more sequences never take less time
            found.append((float(size), slowest))
        return found

    def step_spread(self, batch: float, context: float | None = None) -> float:
        """Standard deviation of ln(real / forecast) of a decode step, wider if it is far from those that were timed."""
        errors, far = [], []
        for size, line in sorted(self.decode_times.items()):
            own = [self._steps[size, int(at)][1] for at, _ in line]
            errors.append((math.log2(size), math.hypot(*own) / math.sqrt(len(own))))
            wanted, contexts = max(context or line[0][0], 1.0), [max(at, 1.0) for at, _ in line]
            outside = max(math.log2(wanted / contexts[-1]), math.log2(contexts[0] / wanted), 0.0)
            far.append(abs(math.log2(max(batch, 1.0) / size)) + outside)
        place = min(max(math.log2(max(batch, 1.0)), errors[0][0]), errors[-1][0])
        seconds = self.decode_s(batch, context or min(at for at, _ in next(iter(self.decode_times.values()))))
        apart = MACHINES_APART_S / seconds if self._fitted else 0.0
        return self._combine_errors([math.hypot(_on_line(errors, place), UNTIMED * min(far), apart)])

    @property
    def decode_spread(self) -> float:
        """Standard deviation of ln(real / forecast) of decode, of all timed steps together."""
        spreads = list(starmap(self.step_spread, self._steps))
        return math.hypot(*spreads) / math.sqrt(len(spreads)) if spreads else 0.0

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
        crowded = self.calibration.layout.threads + 1 >= self.calibration.place.cores > 0
        return math.hypot(CROWDED if crowded else FLOOR, math.hypot(*errors) / math.sqrt(len(errors)))

    @property
    def decode_error(self) -> float:
        """How far the range of decode reaches above the forecast, for the number of streams that is known least."""
        return max(map(self.error_at, self.decode_times), default=0.0)

    def error_at(self, batch: int) -> float:
        """How far the range of decode with `batch` streams reaches above the forecast."""
        return math.expm1(RANGE_SIGMAS * self.step_spread(batch))

    @property
    def error_text(self) -> str:
        """The error, for the fewest and the most streams if it differs."""
        least, most = min(self.decode_times), max(self.decode_times)
        low, high = f"±{self.error_at(least):.0%}", f"±{self.error_at(most):.0%}"
        return low if low == high else f"{low} for {plural(least, 'stream')}, {high} for {most}"

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
        depths = " and ".join(map(str, found.depths))
        whole = found.depths == (self.layers,)
        layers = f"all {self.layers} layers" if whole else f"{self.layers} layers from {depths}"
        where = "measured on the same box" if found.imported else "measured on this box"
        disturbed = f"; the machine was disturbed: {found.disturbed[0]}" if found.disturbed else ""
        return f"{where} {found.date}, {layers}: {self.error_text} where timed{disturbed}"


def find_measured_speed(
    box: Box,
    model: Model,
    checkpoint: Checkpoint,
    recipe: Recipe,
    *,
    chunk: int,
    fitted: Callable[[float, float], float] | None = None,
) -> MeasuredSpeed | None:
    """Return the newest calibration of `box` that applies to `recipe`, read for the model's depth, or None.

    One of a quiet machine is preferred to one of a disturbed machine. Boots must differ in layers with experts on GPUs,
    or neither they nor the recipe have any.
    """
    gpu_experts = gpu_expert_layers(recipe)
    is_unified = any(recipe.flags.get(name, False) is not False for name in ("kv-unified", "kvu"))
    is_split = registry.engine_traits(recipe.engine).joins_neighbours and not is_unified
    slots = recipe.slots if is_split else 0
    newest = sorted(box.calibrations, key=lambda each: (not each.disturbed, each.date, each.id), reverse=True)
    for found in newest:
        if not found.applies_to(box, model, checkpoint, recipe):
            continue
        measured = MeasuredSpeed(
            calibration=found, layers=model.layers, gpu_experts=gpu_experts, chunk=chunk, fitted=fitted, slots=slots
        )
        booted = {boot.gpu_experts for boot in found.boots}
        covered = len(booted) > 1 or booted == {0} == {gpu_experts}
        if measured.decode_times and measured.prompt_times and covered:
            return measured
    return None


def interpolate(points: Sequence[tuple[float, float]], x: float) -> float:
    """The value at `x` on the line through `points`; it continues beyond them, and below stays above half the first."""
    return max(_on_line(points, x), points[0][1] / 2)


def _on_line(points: Sequence[tuple[float, float]], x: float) -> float:
    if len(points) == 1:
        return points[0][1]
    place = min(max(bisect_left(points, (x,)), 1), len(points) - 1)
    (left, low), (right, high) = points[place - 1], points[place]
    share = (x - left) / (right - left)
    return low * (1 - share) + high * share  # exact at both ends
