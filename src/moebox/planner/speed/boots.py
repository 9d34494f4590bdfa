"""Steps of a model from boots with fewer layers: cleaned of disturbances, extrapolated in depth, combined with the fit.

Between two boots only the number of layers differs, so the difference is theirs. For every step that the boots have in
common a line is fitted through their depths (with experts on GPUs and in RAM: a plane); the weights of that fit also
carry the noise of each boot to the forecast. Decode steps of engines that work on GPUs alone are extrapolated
differently (`extrapolate_decode`).
"""

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TypeVar

from moebox.core.calibration import Boot, DecodeStep, ExpectedStep

Depth = tuple[int, int]  # layers, and how many of them have experts on GPUs
Estimate = tuple[float, float]  # seconds, and the standard deviation of their logarithm
Series = Mapping[Depth, Estimate]  # by depth
StepKey = tuple[int, int]  # batch and context
KeyT = TypeVar("KeyT", bound=Hashable)

LOWEST, LOW = 0.1, 0.3  # shares of the steps below the correction, and below its doubt
GROWN = 1.1  # a deeper boot that takes no longer than this times the shallow one shows the host's time
# Doubt about the seconds of a step that do not depend on layers, which more layers multiply. Five sets of boots on an
# H200 (tests/planner/h200, 15 and 16 November 2026) were off by 0.01 to 0.12 ms.
FIXED_S = 1e-4
# Share of a boot's drift that such seconds may be off by: all steps of those five were timed again, and a drift of 20
# to 32 % left them within 0.12 ms of 1.5. If time was up before that (MiniMax-M2.5, 3 and 6 layers, 17 November 2026:
# 22 % drift, 13 of 24 kinds of step) they were off by 0.25 ms.
DRIFT_LEFT, DRIFT_LEFT_HURRIED = 0.2, 1.0
FIXED_UNKNOWN_S, FEW_GROWN = 3e-4, 3  # the same if fewer steps than that took longer with more layers
HIDDEN = 0.3  # error of a step whose layers do not show, because the host takes as long with few as with more of them
# Errors of steps have common causes, so a fit is thought to be wrong only by what lies beyond this many of them.
CONTRADICTED = 1.5
CLEAR = 2.5  # errors: a smaller difference from the fit counts in proportion, because it may well be the timing's own
LEAST_ERROR = 0.02  # errors below it do not make a step more important to the judgement of the fit


def decode_series(boots: Sequence[Boot], layers: int) -> dict[StepKey, Series]:
    """Every (batch, context) that two depths have in common, or that was timed with all `layers`."""
    table: dict[StepKey, dict[Depth, Estimate]] = {}
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
    table: dict[int, dict[Depth, Estimate]] = {}
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
    table: Mapping[StepKey, Series],
    expected: Mapping[StepKey, ExpectedStep],
    layers: int,
    drifts: Mapping[Depth, float] | None = None,
) -> dict[StepKey, Estimate]:
    """Seconds of every decode step at `layers`, and their error, if the host prepares steps beside the GPU.

    Such a step lasts as long as the slower of the two. With few layers that is the host, whose time does not depend on
    layers, and a line through two shallow boots then gives layers that cost next to nothing: Qwen3-235B on an H200 took
    1.56 ms for one stream with 4 layers, 1.55 ms with 8 and 4.73 ms with 36. So the boots are combined with the
    forecast from published rows of the same steps, which is a line in the layers too. The boots correct

    * its fixed seconds by one figure for all steps that grew with the layers, the lowest that several of them agree on:
      in a shallow boot the host and any disturbance only add time;
    * its seconds per layer, for every step, by what the deepest boot took; if that boot shows the host as well, because
      it took no longer than the shallow one, by no more than the next larger batch.

    The error is the noise of the deepest boot, and the doubt about the fixed seconds: what is wrong about them (by
    `drifts`, as a share of the shortest step) was counted as the layers' and is multiplied with them.
    """
    known = {key: table[key] for key in sorted(table, reverse=True) if key in expected}
    hidden = {key for key, series in known.items() if max(series.items())[1][0] <= GROWN * min(series.items())[1][0]}
    grown = [key for key in known if key not in hidden]
    moved = sorted(fixed_seconds(known[key]) - expected[key].fixed_s for key in grown)
    correction, doubt = 0.0, FIXED_UNKNOWN_S
    if len(moved) >= FEW_GROWN:
        correction = _quantile(moved, LOWEST)
        # More fixed seconds than expected may as well be the host's, which deeper boots do not show.
        doubt = max((_quantile(moved, LOW) - correction) / 2, FIXED_S, correction)
    shortest = min(known, key=lambda key: max(known[key].values()), default=None)
    if shortest and drifts:
        (few, (sooner, _)), (more, (later, _)) = min(known[shortest].items()), max(known[shortest].items())
        moves = drifts.get(few, 0.0) * sooner * more[0], drifts.get(more, 0.0) * later * few[0]
        doubt = math.hypot(doubt, *(move / (more[0] - few[0]) for move in moves))
    factors: dict[StepKey, float] = {}
    found: dict[StepKey, Estimate] = {}
    for key, series in known.items():
        step = expected[key]
        base = step.fixed_s + correction
        deep, (seconds, spread) = max(series.items())
        factor = (seconds - base) / deep[0] / step.layer_s
        larger = [factors[other] for other in factors if other[1] == key[1]]
        if larger and key in hidden:
            factor = min(factor, larger[-1])
        factors[key] = factor
        total = max(base + factor * step.layer_s * layers, seconds)  # more layers are never faster
        times = layers / deep[0]
        off = math.hypot(spread * seconds * times, doubt * (times - 1))
        off /= min(total, max(step.fixed_s + step.layer_s * layers, seconds))
        found[key] = (total, math.hypot(off, HIDDEN) if key in hidden and layers > deep[0] else off)
    return found


def drift_errors(boots: Sequence[Boot]) -> dict[Depth, float]:
    """How far drift may have moved all steps of each boot, as a share."""
    shares = {boot: DRIFT_LEFT_HURRIED if boot.left_out else DRIFT_LEFT for boot in boots}
    return {(boot.layers, boot.gpu_experts): abs(boot.drift) * share for boot, share in shares.items()}


def combine_with_fit(
    timed: Mapping[KeyT, Estimate], fitted: Mapping[KeyT, float], fit_spread: float
) -> dict[KeyT, Estimate]:
    """Combine timed seconds with fitted ones by inverse variance of their logarithms.

    The fit's standard deviation on this box is `fit_spread`, or what well timed steps show if that is more.
    """
    known = {key: math.log(timed[key][0] / fitted[key]) for key in timed if fitted.get(key, 0.0) > 0}
    if not known:
        return dict(timed)
    weights = {key: max(timed[key][1], LEAST_ERROR) ** -2 for key in known}
    beyond = {key: max(abs(off) - CONTRADICTED * timed[key][1], 0.0) for key, off in known.items()}
    excess = sum(weights[key] * beyond[key] ** 2 for key in known) / sum(weights.values())
    width = max(fit_spread, math.sqrt(excess))
    found = dict(timed)
    for key, off in known.items():
        error = timed[key][1]
        share = width**2 / (width**2 + error**2)
        doubted = min(1.0, abs(off) / (CLEAR * error)) if error else 1.0
        found[key] = (fitted[key] * math.exp(share * doubted * off), math.sqrt(share) * error)
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


def extrapolate_depth(series: Series, depth: Depth) -> Estimate:
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
