"""Kullback-Leibler divergence of two readings of the same texts, with intervals and the bounds of truncation.

Servers give the most likely tokens only. All tokens that are not known on both sides are counted as one: by the
log-sum inequality that can only lower the divergence, so the sum is a lower bound, and it is the figure that is shown.
The upper bound assumes that the unknown tokens differ no more than the most different 1% of the known ones.
"""

import itertools
import math
import operator
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from moebox.quality.reading import TextReading
from moebox.quality.wire import NextToken

BLOCK = 16  # neighbouring positions that are drawn together: they share a context, so they are not independent
RESAMPLES = 200
SMALLEST = 1e-6  # of the probability outside the known tokens: less is rounding
DEPTH_EDGES = (0, 64, 256, 1024, 4096, 16384, 1 << 30)


@dataclass(frozen=True, slots=True, kw_only=True)
class PositionDivergence:
    """Two servers at one position, in nats."""

    kind: str
    block: str  # text and part of it
    depth: int
    low: float  # lower bound of KL(reference || measured)
    rest: float  # probability that the reference gives to tokens not known on both sides
    widest: float  # largest difference of a known token's log-probability
    same_top: bool
    surprise: float | None  # log-probability of the text's token, reference minus measured; None if not known


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A figure with its 95% interval by bootstrap."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityFigures:
    """How far a server is from a reference, over all positions of one kind or depth."""

    name: str
    positions: int
    mean_kl: Estimate  # nats; a lower bound, see `mean_kl_most`
    mean_kl_most: float
    p99_kl: Estimate
    same_top: Estimate  # share of positions with the same most likely token
    perplexity_ratio: Estimate | None  # above 1: the text surprises the measured server more


def divergences(reference: Sequence[TextReading], measured: Sequence[TextReading]) -> list[PositionDivergence]:
    """Divergence at each position that both readings have."""
    rows = []
    known = {reading.name: reading for reading in measured}
    for text in reference:
        other = known.get(text.name)
        theirs = {position.depth: position for position in other.positions} if other else {}
        for position in text.positions:
            if position.depth in theirs:
                block = f"{text.name} {position.depth // BLOCK}"
                rows.append(compare_positions(position, theirs[position.depth], kind=text.kind, block=block))
    return rows


def compare_positions(left: NextToken, right: NextToken, *, kind: str = "", block: str = "") -> PositionDivergence:
    """KL(left || right) at one position, the tokens that are not known on both sides taken as one."""
    shared = [key for key in left.top if key in right.top]
    values, others = [left.top[key] for key in shared], [right.top[key] for key in shared]
    steps, chances = [*map(operator.sub, values, others)], [*map(math.exp, values)]
    low = math.fsum(map(operator.mul, chances, steps))
    rest = max(SMALLEST, 1.0 - math.fsum(chances))
    other_rest = max(SMALLEST, 1.0 - math.fsum(map(math.exp, others)))
    own, other = left.logprob, right.logprob
    return PositionDivergence(
        kind=kind,
        block=block,
        depth=left.depth,
        low=max(0.0, low + rest * math.log(rest / other_rest)),
        rest=rest,
        widest=max(map(abs, steps), default=0.0),
        same_top=next(iter(left.top), None) == next(iter(right.top), None),
        surprise=None if own is None or other is None else own - other,
    )


def summarize_by(
    rows: Sequence[PositionDivergence], group: Callable[[PositionDivergence], str]
) -> tuple[QualityFigures, ...]:
    """Figures of each group, in the order of appearance."""
    names = dict.fromkeys(map(group, rows))
    return tuple(summarize_rows(name, [row for row in rows if group(row) == name]) for name in names)


def depth_label(row: PositionDivergence) -> str:
    """Range of depths that a position belongs to: "256 to 1,023"."""
    low, high = next(pair for pair in itertools.pairwise(DEPTH_EDGES) if row.depth < pair[1])
    return f"{low:,} and deeper" if high == DEPTH_EDGES[-1] else f"{low:,} to {high - 1:,}"


def summarize_rows(name: str, rows: Sequence[PositionDivergence]) -> QualityFigures:
    """Figures of some positions; intervals by drawing blocks of neighbouring positions again."""
    numbers = {block: number for number, block in enumerate(dict.fromkeys(row.block for row in rows))}
    blocks = [numbers[row.block] for row in rows]
    rng = random.Random(len(rows))
    once = [1] * len(numbers)
    draws = []  # how often each block was drawn
    for _ in range(RESAMPLES):
        times = [0] * len(numbers)
        for _ in numbers:
            times[int(rng.random() * len(numbers))] += 1
        draws.append(times)

    def estimate_mean(values: Sequence[float | None], shape: Callable[[float], float] = float) -> Estimate:
        totals, counts = [0.0] * len(numbers), [0] * len(numbers)
        for block, value in zip(blocks, values, strict=True):
            if value is not None:
                totals[block] += value
                counts[block] += 1
        means = [_weighted(times, totals) / max(1.0, _weighted(times, counts)) for times in (once, *draws)]
        return _with_interval([*map(shape, means)])

    deepest = sorted(zip((row.low for row in rows), blocks, strict=True), reverse=True)
    sizes = list(Counter(blocks).values())  # both in the order of appearance

    def high_percentile(times: Sequence[int]) -> float:
        left = 0.01 * _weighted(times, sizes)
        for value, block in deepest:
            left -= times[block]
            if left < 0:
                return value
        return 0.0

    mean_kl = estimate_mean([row.low for row in rows])
    widest = sorted(row.widest for row in rows)[int(0.99 * (len(rows) - 1))]
    known = any(row.surprise is not None for row in rows)
    return QualityFigures(
        name=name,
        positions=len(rows),
        mean_kl=mean_kl,
        mean_kl_most=mean_kl.value + math.fsum(row.rest for row in rows) / len(rows) * widest,
        p99_kl=_with_interval([*map(high_percentile, (once, *draws))]),
        same_top=estimate_mean([float(row.same_top) for row in rows]),
        perplexity_ratio=estimate_mean([row.surprise for row in rows], math.exp) if known else None,
    )


def _weighted(times: Sequence[int], values: Sequence[float]) -> float:
    return float(sum(map(operator.mul, times, values)))


def _with_interval(values: Sequence[float]) -> Estimate:
    """The first value is the figure, the others are those of the draws."""
    drawn = sorted(values[1:])
    return Estimate(value=values[0], low=drawn[int(0.025 * len(drawn))], high=drawn[int(0.975 * len(drawn))])
