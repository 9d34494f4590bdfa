"""How sure the P99 of gaps between tokens is, where some tokens were read late and together.

Of such tokens only the last one's time is known (see docs/metrics.md): how the time since the token before was shared
among them is anybody's guess. However it was, so many tokens share so much time, and that bounds how many of their gaps
were longer than any given one. The bounds hold for every way the tokens may have come.
"""

import math
from bisect import bisect_left, bisect_right
from collections import Counter
from dataclasses import dataclass, field

from moebox.bench.samples import COMPLETED, SampledRequest, Samples
from moebox.stream.events import ESTIMATED_TIME

P99_TOLERANCE = 0.08  # by which a P99 may be off before the client is called its limit


@dataclass(slots=True)
class TokenGaps:
    """Gaps in ns: those that are known, and times that several tokens share as (ns, tokens), counted."""

    known: list[float] = field(default_factory=list)
    shared: "Counter[tuple[int, int]]" = field(default_factory=Counter)

    @property
    def total_count(self) -> int:
        """Gaps of both kinds."""
        return len(self.known) + sum(tokens * count for (_, tokens), count in self.shared.items())

    def max_longer_than(self, limit: float) -> int:
        """Gaps longer than `limit`, at most: each takes more than that of the time they share."""
        known = len(self.known) - bisect_right(self.known, limit)
        return known + sum(count * min(tokens, int(ns / limit)) for (ns, tokens), count in self.shared.items())

    def min_at_least(self, limit: float) -> int:
        """Gaps of `limit` or longer, at least: one where even shares would be."""
        known = len(self.known) - bisect_left(self.known, limit)
        return known + sum(count for (ns, tokens), count in self.shared.items() if ns >= limit * tokens)


def is_p99_certain(samples: Samples, p99_ms: float | None) -> bool:
    """The true P99 of gaps between tokens is within TOLERANCE of `p99_ms`, however those read together came."""
    if not p99_ms or not any(kind & ESTIMATED_TIME for kind in samples.kind):
        return True
    gaps = collect_gaps(samples)
    rank = (gaps.total_count - 1) * 0.99
    over = gaps.total_count - 1 - math.ceil(rank)  # gaps that may be longer than the P99
    upto = gaps.total_count - math.floor(rank)  # gaps that are no shorter
    p99 = p99_ms * 1e6
    not_above = gaps.max_longer_than(p99 / (1 - P99_TOLERANCE)) <= over
    not_below = gaps.min_at_least(p99 / (1 + P99_TOLERANCE)) >= upto
    return not_above and not_below


def collect_gaps(samples: Samples) -> TokenGaps:
    """The gaps of all completed requests."""
    gaps = TokenGaps()
    for request in samples.requests():
        if request.outcome == COMPLETED and request.last > request.first:
            _add(gaps, samples, request)
    gaps.known.sort()
    return gaps


def _add(gaps: TokenGaps, samples: Samples, request: SampledRequest) -> None:
    """A request's gaps; nothing of its reply came before it was sent."""
    time, tokens, kind = samples.time, samples.tokens, samples.kind
    estimated = bool(kind[request.first] & ESTIMATED_TIME)
    since, count = (request.sent if estimated else time[request.first]), 0
    for i in range(request.first + 1, request.last):
        count += tokens[i]
        if kind[i] & ESTIMATED_TIME:
            estimated = True
        elif count:  # a chunk that completed no token adds its gap to the next one's
            if estimated:
                gaps.shared[time[i] - since, count] += 1
            else:
                gaps.known += [(time[i] - since) / count] * count
            since, count, estimated = time[i], 0, False
        elif estimated:
            since, estimated = time[i], False
