"""Judge a server against references: how far it is, and whether that is more than references differ themselves.

The distance is the Kullback-Leibler divergence of two readings of the same texts, with intervals and bounds.

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
from dataclasses import dataclass, replace
from typing import NamedTuple

from moebox.errors import refuse_if
from moebox.quality.texts import CACHED_KINDS
from moebox.quality.wire import NextToken, TextReading

BLOCK = 16  # neighbouring positions that are drawn together: they share a context, so they are not independent
RESAMPLES = 200
SMALLEST = 1e-6  # of the probability outside the known tokens: less is rounding
DEPTH_EDGES = (0, 64, 256, 1024, 4096, 16384, 1 << 30)
# times the noise between references: what is measured is one more variant, and of three variants the next one is the
# farthest every fourth time
BEYOND_NOISE = 1.5
# Nats that healthy variants of the phantom differ by: less is no difference, even if references are closer together
HEALTHY = 0.003
FEWEST_BLOCKS = 8  # of neighbouring positions: an interval from fewer is too narrow
# Nats more than before that a change may cost, unless another limit is set. The phantom's healthy variants differ by up
# to 0.003, a q8_0 cache by 0.03 (benchmarks/README.md, 2026-11-17).
DEFAULT_LIMIT = 0.02


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
    theirs = {(text.name, position.depth): position for text in measured for position in text.positions}
    return [
        compare_positions(position, theirs[text.name, position.depth], text)
        for text in reference
        for position in text.positions
        if (text.name, position.depth) in theirs
    ]


def compare_positions(left: NextToken, right: NextToken, text: TextReading) -> PositionDivergence:
    """KL(left || right) at one position of a text, the tokens that are not known on both sides taken as one."""
    shared = [key for key in left.top if key in right.top]
    values, others = [left.top[key] for key in shared], [right.top[key] for key in shared]
    steps, chances = [*map(operator.sub, values, others)], [*map(math.exp, values)]
    low = math.fsum(map(operator.mul, chances, steps))
    rest = max(SMALLEST, 1.0 - math.fsum(chances))
    other_rest = max(SMALLEST, 1.0 - math.fsum(map(math.exp, others)))
    own, other = left.logprob, right.logprob
    return PositionDivergence(
        kind=text.kind,
        block=f"{text.name} {left.depth // BLOCK}",
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


def format_nats(value: float) -> str:
    """Four decimals below a tenth, two above: "0.0031", "0.42"."""
    return f"{value:.4f}" if value < 0.1 else f"{value:.2f}"


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityVerdict:
    """Figures against the nearest reference, by kind of text and by depth, and whether they show a difference."""

    figures: QualityFigures
    by_kind: tuple[QualityFigures, ...]
    by_depth: tuple[QualityFigures, ...]
    nearest: int  # number of the reference that the figures are against
    noise: float | None  # nats between references; None with one reference
    different: bool
    verdict: str
    keeps_limit: bool | None = None  # None without a limit, or if its interval contains the limit


class _Part(NamedTuple):
    """All positions, or those after a cached prefix: how far away they are, and what follows from it."""

    where: str
    change: Estimate
    noise: float | None
    keeps_limit: bool | None
    different: bool


def judge_quality(
    references: Sequence[Sequence[TextReading]],
    measured: Sequence[TextReading],
    *,
    limit: float | None = None,
    before: Sequence[TextReading] | None = None,
) -> QualityVerdict:
    """Compare with every reference and judge by the nearest: all positions, and those after a cached prefix.

    `limit` in nats replaces the noise between references. With `before`, another server's reading, it limits how much
    farther away this one is, position by position.
    """
    distances = [divergences(reference, measured) for reference in references]
    refuse_if(not all(distances), "no position in common with the reference", hint="both must be made by one version")
    means = [*map(_mean_kl, distances)]
    nearest = means.index(min(means))
    rows = changes = distances[nearest]
    if before is not None:
        earlier = {(row.block, row.depth): row.low for row in divergences(references[nearest], before)}
        pairs = [(row, earlier[row.block, row.depth]) for row in rows if (row.block, row.depth) in earlier]
        refuse_if(not pairs, "no position in common with the server before the change")
        changes = [replace(row, low=row.low - low) for row, low in pairs]
    between = [divergences(a, b) for a in references for b in references if a is not b]
    parts = [_judge_part("", changes, between, limit)]
    cached = [row for row in changes if row.kind in CACHED_KINDS]
    if len({row.block for row in cached}) >= FEWEST_BLOCKS:
        noises = [[row for row in some if row.kind in CACHED_KINDS] for some in between]
        parts.append(_judge_part(" after cached prefixes", cached, list(filter(None, noises)), limit))

    def rank(part: _Part) -> tuple[bool, bool, bool]:
        """A part that differs decides, then one that is not decided, then one that is clearly farther away."""
        return part.different, limit is not None and part.keeps_limit is None, part.change.low > parts[0].change.high

    where, change, noise, keeps_limit, different = max(parts, key=rank)
    more = "" if before is None else " more than before"
    amount = f"{format_nats(change.value)} nats{more}{where}"
    amount += f" ({format_nats(change.low)} to {format_nats(change.high)})"
    if limit is not None:
        states = {True: "within the limit of", False: "above the limit of", None: "not decided for a limit of"}
        verdict = f"{amount}: {states[keeps_limit]} {limit:g}"
    elif noise is None:
        verdict = f"{amount} from one reference: a second one would show how much healthy servers differ"
    else:
        noun = f"the noise between {len(references)} references, {format_nats(noise)}"
        noun = noun if BEYOND_NOISE * noise >= HEALTHY else f"what healthy servers differ by, {HEALTHY:g}"
        verdict = f"different: {amount}, beyond {noun}"
        verdict = verdict if different else f"no difference: {amount}, inside {noun}"
    if len(parts) == 1 and not different:
        verdict += "; no text was read from the cache, so what it costs is not known"
    return QualityVerdict(
        figures=summarize_rows("all", rows),
        by_kind=summarize_by(rows, lambda row: row.kind),
        by_depth=summarize_by(sorted(rows, key=lambda row: row.depth), depth_label),
        nearest=nearest,
        noise=parts[0].noise,
        different=different,
        verdict=verdict,
        keeps_limit=keeps_limit,
    )


def _mean_kl(rows: Sequence[PositionDivergence]) -> float:
    return sum(row.low for row in rows) / len(rows)


def _judge_part(
    where: str, rows: Sequence[PositionDivergence], between: Sequence[Sequence[PositionDivergence]], limit: float | None
) -> _Part:
    """Judge some positions by a limit, or else by what they differ by between references."""
    change = summarize_rows("change", rows).mean_kl
    noise = max(map(_mean_kl, between), default=None)
    keeps_limit = None
    if limit is not None and not change.low <= limit < change.high:
        keeps_limit = change.high <= limit
    different = keeps_limit is False
    if limit is None and noise is not None:
        different = change.low > max(BEYOND_NOISE * noise, HEALTHY)
    return _Part(where, change, noise, keeps_limit, different)
