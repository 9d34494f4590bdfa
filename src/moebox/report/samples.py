"""Millions of token times as the few hundred numbers that a drawing needs.

The page contains classes and seconds, never samples. Gaps are counted in steps of 20 µs, finer than any clock at the
other end of a network.
"""

import math
from collections import Counter
from dataclasses import dataclass
from operator import sub
from pathlib import Path

from moebox.bench import samples as columns
from moebox.errors import BadInput

CLASSES = 48  # logarithmic classes of the distribution
POINTS = 240  # points along the clock
GRAIN = 20_000  # ns
NS, MS = 1e9, 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleDigest:
    edges: tuple[float, ...]  # ms
    counts: tuple[int, ...]
    marks: tuple[tuple[str, float], ...]  # P50 and P99, ms
    over_time: tuple[tuple[float, float], ...]  # second, tokens per second in it


def digest_samples(path: Path) -> SampleDigest | None:
    """The digest of a sample file, or None if it cannot be read or has no gap."""
    try:
        samples = columns.read_samples(path)
    except BadInput:
        return None
    gaps = count_gaps(samples)
    if not gaps:
        return None
    edges, counts = count_classes(gaps)
    marks = tuple((f"P{share}", quantile(gaps, share / 100)) for share in (50, 99))
    return SampleDigest(edges=edges, counts=counts, marks=marks, over_time=tokens_over_time(samples))


def count_gaps(samples: columns.Samples) -> Counter[int]:
    """Gaps between tokens in grains; several tokens in one chunk share its gap, as speculative decoding needs."""
    found: Counter[int] = Counter()
    time, tokens = samples.time, samples.tokens
    plain = not tokens or max(tokens) <= 1
    first = 0
    for number in samples.columns["chunks"]:
        last = first + number
        times = time[first:last]
        if plain:
            found.update(map(GRAIN.__rfloordiv__, map(sub, times[1:], times)))
        else:
            for gap, count in zip(map(sub, times[1:], times), tokens[first + 1 : last], strict=False):
                found[gap // (GRAIN * max(count, 1))] += max(count, 1)
        first = last
    return found


def count_classes(gaps: Counter[int]) -> tuple[tuple[float, ...], tuple[int, ...]]:
    """Counts between logarithmic edges, the outermost gaps folded into the last classes."""
    low, high = (max(quantile(gaps, share), GRAIN / MS) for share in (0.005, 0.999))
    low, high = low * 0.97, max(high * 1.03, low * 1.2)
    step = math.log(high / low) / CLASSES
    counts = [0] * CLASSES
    for gap, count in gaps.items():
        place = int(math.log(max((gap + 0.5) * GRAIN / MS, low) / low) / step)
        counts[min(place, CLASSES - 1)] += count
    return tuple(low * math.exp(step * place) for place in range(CLASSES + 1)), tuple(counts)


def quantile(gaps: Counter[int], share: float) -> float:
    """The gap in ms that this share of all does not exceed."""
    left = share * gaps.total()
    for gap in sorted(gaps):
        left -= gaps[gap]
        if left <= 0:
            return (gap + 0.5) * GRAIN / MS
    return 0.0


def tokens_over_time(samples: columns.Samples) -> tuple[tuple[float, float], ...]:
    """Tokens per second along the measurement, in steps of a second or more, the unfinished last step left out."""
    if not samples.time:
        return ()
    start = min(samples.columns["sent"], default=min(samples.time))
    width = max(round(NS), math.ceil((max(samples.time) - start) / POINTS / NS) * round(NS))
    found: Counter[int] = Counter()
    if max(samples.tokens) <= 1:
        found.update(map(width.__rfloordiv__, map(start.__rsub__, samples.time)))
    else:
        for moment, count in zip(samples.time, samples.tokens, strict=False):
            found[(moment - start) // width] += count
    return tuple(((place + 0.5) * width / NS, found[place] * NS / width) for place in range(max(found)))
