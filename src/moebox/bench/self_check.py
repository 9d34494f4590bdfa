"""Was the client, and not the server, the limit? What it measured of itself, and the verdict."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby
from operator import attrgetter
from typing import Any

from moebox.bench.certainty import P99_TOLERANCE, is_p99_certain
from moebox.bench.generator import LATE_NS, WorkerGauge
from moebox.bench.metrics import percentiles_of_counts
from moebox.bench.samples import BYTES_PER_CHUNK, Samples
from moebox.core.result import ClientCheck

MAX_CPU_SHARE = 0.9  # of a core, over the whole run: beyond it a queue builds up in front of the client
MAX_SEND_LAG_MS = 10.0  # at P99, in an open loop without a limit
MAX_MERGED_SHARE = 0.01  # of tokens that shared a read with the one before them


def check_client(
    samples: Samples, gauges: list[WorkerGauge], *, open_loop: bool, itl_ms: float | None, p99_ms: float | None = None
) -> ClientCheck:
    """What the client measured of itself; `reasons` is empty when it kept up.

    `open_loop` is one without a limit on what is in flight: there a late request is the client's fault. `itl_ms` is the
    mean gap between events, `p99_ms` the P99 of gaps between tokens.
    """

    def each(name: str) -> Iterator[Any]:
        return map(attrgetter(name), gauges)

    tokens, cpu_s = max(1, len(samples.time)), sum(each("cpu_s"))
    lag = [sum(counts) for counts in zip(*each("lag"), strict=True)]
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
        send_lag_p99_ms=_send_lag_p99_ms(samples),
        merged_share=merged_share(samples),
        estimated_share=sum(each("estimated")) / tokens,
        peak_ready=max(each("peak_batch"), default=0),
        retried=sum(each("retried")),
        bytes_per_chunk=BYTES_PER_CHUNK,
        peak_rss_bytes=sum(each("peak_rss_bytes")),
    )
    sure = is_p99_certain(samples, p99_ms)
    joined = check.estimated_share + joined_share(samples)
    return replace(
        check,
        reasons=tuple(
            client_limit_reasons(check, open_loop=open_loop, itl_ms=itl_ms or 0.0, p99_is_certain=sure, joined=joined)
        ),
    )


def client_limit_reasons(
    client: ClientCheck, *, open_loop: bool, itl_ms: float, p99_is_certain: bool, joined: float
) -> Iterator[str]:
    """Why the figures would be the client's rather than the server's; nothing when they are not.

    `sure` says that the P99 of gaps is known however the tokens came that were read together; `joined` is the share of
    tokens that came apart and were read together, as far as anybody can know.
    """
    if client.cpu_share > MAX_CPU_SHARE:
        yield f"a client process used {client.cpu_share:.0%} of a core; more --workers would help"
    yield from _late_reads(client, itl_ms=itl_ms, sure=p99_is_certain, joined=joined)
    if open_loop and client.send_lag_p99_ms > MAX_SEND_LAG_MS:
        yield f"requests were sent {client.send_lag_p99_ms:.0f} ms late (P99)"


def _late_reads(client: ClientCheck, *, itl_ms: float, sure: bool, joined: float) -> Iterator[str]:
    lag = client.read_lag_p99_ms
    if client.clock == "user" and lag > max(1.0, 0.05 * itl_ms):
        yield f"reads were up to {lag:.1f} ms late (P99) and the kernel gave no receive times"
    if client.clock == "kernel" and joined > MAX_MERGED_SHARE and 0 < itl_ms / 2 < lag:
        yield f"reads were {lag:.1f} ms late (P99): {joined:.1%} of tokens were read together"
    elif not sure:
        share = f"{client.estimated_share:.1%} of tokens were read late and together"
        yield f"{share}: P99 ITL may be more than {P99_TOLERANCE:.0%} off"


def lag_percentile_ms(lag: list[int], share: float) -> float:
    """Milliseconds that this share of reads waited at most (upper edge of its quarter octave)."""
    total, seen = sum(lag), 0
    for bucket, count in enumerate(lag):
        seen += count
        if total and seen >= share * total:
            return float(2 ** ((bucket + 1) / 4) - 1) / 1e3
    return 0.0


def merged_share(samples: Samples) -> float:
    """Tokens' events that came out of the same read as the one before, of all."""
    return sum(tokens - 1 for tokens, _ in group_reads(samples)) / max(1, len(samples.time))


def joined_share(samples: Samples) -> float:
    """Those of them that a reader who was late may have put together.

    It never leaves a stream alone for longer than LATE without knowing (such tokens are estimated). So where tokens at
    an even pace would have taken longer than that to come, they were sent together: a server that leaves Nagle's
    algorithm on sends what it wrote since the last acknowledgement in one segment.
    """
    late = sum(tokens - 1 for tokens, ns in group_reads(samples) if ns * (tokens - 1) / tokens <= LATE_NS)
    return late / max(1, len(samples.time))


def group_reads(samples: Samples) -> Iterator[tuple[int, int]]:
    """How many tokens' events came at one time, and how long after those before, or after the request was sent."""
    for request in samples.requests():
        before = request.sent
        for came, events in groupby(samples.time[request.first : request.last]):
            yield sum(1 for _ in events), came - before
            before = came


def _send_lag_p99_ms(samples: Samples) -> float:
    lags: Counter[float] = Counter(
        max(0, sent - due) / 1e6 for sent, due in zip(samples.columns["sent"], samples.columns["due"], strict=True)
    )
    return percentiles_of_counts(lags, [99])[0] if lags else 0.0
