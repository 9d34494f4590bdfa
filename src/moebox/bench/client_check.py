"""Was the client, and not the server, the limit? What the client measured of itself, and the verdict.

Of tokens that were read late and together only the last one's time is known (see docs/metrics.md). However they
arrived, so many tokens share so much time, and that bounds how many of their gaps were longer than a given one. If the
bounds leave the P99 of gaps too uncertain, that is one of the result's reasons.
"""

import math
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby
from operator import attrgetter
from typing import Any

from moebox.bench.generator import LATE_NS, WorkerGauge
from moebox.bench.metrics import percentiles_of_counts
from moebox.bench.samples import BYTES_PER_CHUNK, COMPLETED, Samples
from moebox.core.result import ClientCheck
from moebox.stream.events import ESTIMATED_TIME

P99_TOLERANCE = 0.08  # error of a P99 beyond which the client counts as the limit
MAX_CPU_SHARE = 0.9  # of a core over the whole run: beyond it a queue builds up in front of the client
MAX_SEND_LAG_MS = 10.0  # at P99, in an open loop without a limit
MAX_MERGED_SHARE = 0.01  # of tokens that shared a read with the previous one


def is_p99_certain(samples: Samples, p99_ms: float | None) -> bool:
    """True if the true P99 of gaps between tokens is within P99_TOLERANCE of `p99_ms`, whenever tokens arrived."""
    if not p99_ms or not any(kind & ESTIMATED_TIME for kind in samples.kind):
        return True
    known, shared = collect_gaps(samples)
    total = len(known) + sum(tokens * count for (_, tokens), count in shared.items())
    rank = (total - 1) * 0.99
    over = total - 1 - math.ceil(rank)  # gaps that may be longer than the P99
    upto = total - math.floor(rank)  # gaps that are no shorter
    above, below = p99_ms * 1e6 / (1 - P99_TOLERANCE), p99_ms * 1e6 / (1 + P99_TOLERANCE)
    # At most so many gaps are above: each takes more than `above` of the shared time
    most = len(known) - bisect_right(known, above)
    most += sum(count * min(tokens, int(ns / above)) for (ns, tokens), count in shared.items())
    # At least so many gaps are not below: one of those that share a time, if even equal shares reach it
    least = len(known) - bisect_left(known, below)
    least += sum(count for (ns, tokens), count in shared.items() if ns >= below * tokens)
    return most <= over and least >= upto


def collect_gaps(samples: Samples) -> tuple[list[float], "Counter[tuple[int, int]]"]:
    """Return gaps in ns: the known ones in order, and times that several tokens share as (ns, tokens), counted."""
    known, shared = list[float](), Counter[tuple[int, int]]()
    time, tokens, kind = samples.time, samples.tokens, samples.kind
    for request in samples.requests():
        if request.outcome != COMPLETED or request.last <= request.first:
            continue
        estimated = bool(kind[request.first] & ESTIMATED_TIME)
        since, count = (request.sent if estimated else time[request.first]), 0  # nothing arrived before it was sent
        for i in range(request.first + 1, request.last):
            count += tokens[i]
            if kind[i] & ESTIMATED_TIME:
                estimated = True
            elif count:  # a chunk that completed no token adds its gap to the next one's
                if estimated:
                    shared[time[i] - since, count] += 1
                else:
                    known += [(time[i] - since) / count] * count
                since, count, estimated = time[i], 0, False
            elif estimated:
                since, estimated = time[i], False
    return sorted(known), shared


def check_client(
    samples: Samples, gauges: list[WorkerGauge], *, open_loop: bool, itl_ms: float | None, p99_ms: float | None = None
) -> ClientCheck:
    """Return what the client measured of itself; `reasons` is empty if it did not limit the result.

    `open_loop` means one without a limit on requests in flight: there a late request is the client's fault. `itl_ms` is
    the mean gap between events, `p99_ms` the P99 of gaps between tokens.
    """

    def each(name: str) -> Iterator[Any]:
        return map(attrgetter(name), gauges)

    tokens, cpu_s = max(1, len(samples.time)), sum(each("cpu_s"))
    lag = list(map(sum, zip(*each("lag"), strict=True)))
    sends = zip(samples.columns["sent"], samples.columns["due"], strict=True)
    send_lags: Counter[float] = Counter(max(0, sent - due) / 1e6 for sent, due in sends)
    check = ClientCheck(
        clock="kernel" if set(each("clock")) <= {"kernel"} else "user",
        workers=len(gauges),
        cpu_s=cpu_s,
        cpu_share=max((gauge.cpu_s / gauge.wall_s for gauge in gauges if gauge.wall_s), default=0.0),
        peak_cpu_share=max(each("peak_cpu_share"), default=0.0),
        cpu_us_per_token=cpu_s / tokens * 1e6,
        read_lag_p50_ms=lag_percentile_ms(lag, 0.5),
        read_lag_p99_ms=lag_percentile_ms(lag, 0.99),
        read_lag_max_ms=lag_percentile_ms(lag, 1.0),
        send_lag_p99_ms=percentiles_of_counts(send_lags, [99])[0] if send_lags else 0.0,
        merged_share=merged_share(samples),
        estimated_share=sum(each("estimated")) / tokens,
        peak_ready=max(each("peak_batch"), default=0),
        retried=sum(each("retried")),
        bytes_per_chunk=BYTES_PER_CHUNK,
        peak_rss_bytes=sum(each("peak_rss_bytes")),
    )
    itl, read_lag, joined = itl_ms or 0.0, check.read_lag_p99_ms, check.estimated_share + joined_share(samples)
    reasons = []
    if check.cpu_share > MAX_CPU_SHARE:
        reasons.append(
            f"a client process used {check.cpu_share:.0%} of a core; more processes would help (--set load.workers=4)"
        )
    if check.clock == "user" and read_lag > max(1.0, 0.05 * itl):
        reasons.append(f"reads were up to {read_lag:.1f} ms late (P99) and the kernel gave no receive times")
    if check.clock == "kernel" and joined > MAX_MERGED_SHARE and 0 < itl / 2 < read_lag:
        reasons.append(f"reads were {read_lag:.1f} ms late (P99): {joined:.1%} of tokens were read together")
    elif not is_p99_certain(samples, p99_ms):
        share = f"{check.estimated_share:.1%} of tokens were read late and together"
        reasons.append(f"{share}: P99 ITL may be more than {P99_TOLERANCE:.0%} off")
    if open_loop and check.send_lag_p99_ms > MAX_SEND_LAG_MS:
        reasons.append(f"requests were sent {check.send_lag_p99_ms:.0f} ms late (P99)")
    return replace(check, reasons=tuple(reasons))


def lag_percentile_ms(lag: list[int], share: float) -> float:
    """Return the longest wait of this share of reads in ms (upper edge of its quarter octave)."""
    total, seen = sum(lag), 0
    for bucket, count in enumerate(lag):
        seen += count
        if total and seen >= share * total:
            return float(2 ** ((bucket + 1) / 4) - 1) / 1e3
    return 0.0


def merged_share(samples: Samples) -> float:
    """Return the share of events that came out of the same read as the previous one."""
    return sum(tokens - 1 for tokens, _ in group_reads(samples)) / max(1, len(samples.time))


def joined_share(samples: Samples) -> float:
    """Return the share of events that a late read may have joined.

    The reader never leaves a stream unread for longer than LATE_NS unnoticed (such tokens are estimated). So if tokens
    at an even pace would have taken longer than that, they were sent together: a server that leaves Nagle's algorithm
    on sends what it wrote since the last acknowledgement in one segment.
    """
    late = sum(tokens - 1 for tokens, ns in group_reads(samples) if ns * (tokens - 1) / tokens <= LATE_NS)
    return late / max(1, len(samples.time))


def group_reads(samples: Samples) -> Iterator[tuple[int, int]]:
    """Yield how many events arrived at one time, and how long after those before or after the request was sent."""
    for request in samples.requests():
        before = request.sent
        for came, events in groupby(samples.time[request.first : request.last]):
            yield sum(1 for _ in events), came - before
            before = came
