"""The ratio of two sets of measurements, with its confidence interval."""

import functools
import itertools
import math
import statistics
from collections.abc import Sequence

from moebox.core.verdict import Gain

CONFIDENCE = 0.95
RANKED_PAIRS = 10  # with fewer, ranks give wider intervals than Student's t
# Student's t, two-sided 95%, by degrees of freedom; any table of the distribution.
_T95 = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262, 10: 2.228}
_T95 |= {12: 2.179, 15: 2.131, 20: 2.086, 30: 2.042, 60: 2.000, 10**9: 1.960}


def welch_gain(before: Sequence[float], after: Sequence[float]) -> Gain | None:
    """Welch's interval on the logarithms, or None if there are too few measurements."""
    if min(len(before), len(after)) < 2 or min(*before, *after) <= 0:
        return None
    old, new = list(map(math.log, before)), list(map(math.log, after))
    middle = statistics.fmean(new) - statistics.fmean(old)
    parts = [statistics.variance(values) / len(values) for values in (old, new)]
    spread = math.sqrt(sum(parts))
    weights = sum(part**2 / (len(values) - 1) for part, values in zip(parts, (old, new), strict=True))
    freedom = sum(parts) ** 2 / weights if weights > 0 else 10**9
    # the table's value for the next lower degree of freedom: rather too wide than too narrow
    reach = _T95[max((known for known in _T95 if known <= freedom), default=1)] * spread
    return Gain(share=math.expm1(middle), low=math.expm1(middle - reach), high=math.expm1(middle + reach))


def bracketing_gain(before: Sequence[float], after: Sequence[float], again: Sequence[float]) -> Gain | None:
    """Compare `after` with a setting measured before it and `again` after it: the hull of both intervals.

    A machine that became faster or slower meanwhile widens the interval.
    """
    sides = [welch_gain(before, after), welch_gain(again, after)]
    known = list(filter(None, sides))
    if len(known) < len(sides):
        return None
    middle = statistics.fmean(math.log1p(side.share) for side in known)
    return Gain(share=math.expm1(middle), low=min(side.low for side in known), high=max(side.high for side in known))


def paired_gain(before: Sequence[float], after: Sequence[float], *, confidence: float = CONFIDENCE) -> Gain | None:
    """The interval on the ratio of measurements made in pairs, in which a drift cancels out.

    From RANKED_PAIRS on it is Wilcoxon's (Hodges and Lehmann 1963), which a few pairs that another program disturbed
    hardly change: with a tenth of the streams up to three times slower, 24 pairs give +-5% instead of +-14%.
    None if there are too few measurements.
    """
    if len(before) != len(after) or len(before) < 2 or min(*before, *after) <= 0:
        return None
    ratios = [math.log(new / old) for old, new in zip(before, after, strict=True)]
    averages = sorted((x + y) / 2 for place, x in enumerate(ratios) for y in ratios[place:])
    cut = signed_rank_cut(len(ratios), confidence) if len(ratios) >= RANKED_PAIRS else 0
    if cut:
        middle, low, high = statistics.median(averages), averages[cut - 1], averages[-cut]
    else:
        middle = statistics.fmean(ratios)
        reach = student_t(len(ratios) - 1, confidence) * statistics.stdev(ratios) / math.sqrt(len(ratios))
        low, high = middle - reach, middle + reach
    return Gain(share=math.expm1(middle), low=math.expm1(low), high=math.expm1(high))


@functools.cache
def signed_rank_cut(count: int, confidence: float) -> int:
    """Rank, from either end, of the pairwise average that bounds Wilcoxon's interval; 0 if `count` is too small."""
    ways = [1] + [0] * (count * (count + 1) // 2)  # subsets of the ranks 1 to `count` with each sum
    for rank in range(1, count + 1):
        for total in range(len(ways) - 1, rank - 1, -1):
            ways[total] += ways[total - rank]
    tail = itertools.accumulate(ways)
    return sum(1 for below in tail if 2 * below <= (1 - confidence) * 2**count)


def student_t(freedom: int, confidence: float) -> float:
    """Student's t, two-sided; exact for one and two degrees of freedom, from three on by Fisher's expansion.

    Abramowitz and Stegun 26.7.5: within 1.5% at three degrees of freedom and 99%, better elsewhere.
    """
    if freedom == 1:
        return math.tan(math.pi * confidence / 2)
    if freedom == 2:
        return confidence * math.sqrt(2 / (1 - confidence**2))
    z = statistics.NormalDist().inv_cdf((1 + confidence) / 2)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + math.fsum(term / float(freedom) ** power for power, term in enumerate(terms, 1))
