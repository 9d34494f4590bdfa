"""Every figure of a benchmark, computed from samples: the one place that defines them (in words: docs/metrics.md).

Pure arithmetic. Figures that vLLM's serving benchmark has too carry its field names. Only completed requests enter
means, percentiles and throughput; failed, truncated, empty and cancelled ones are counted apart.
"""

import itertools
import math
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from moebox.bench.samples import COMPLETED, OUTCOMES, SampledRequest, Samples
from moebox.core.measure import Slo
from moebox.core.result import LatencyStats, LoadSummary, PositionSpeed, SteadyState, Timeline
from moebox.stream.events import CONTENT, ESTIMATED_TIME, SILENT

PERCENTILES = (50, 90, 95, 99)
MAX_EXACT_VALUES = 200_000  # larger distributions are kept to a microsecond, which bounds memory
MAX_BINS = 600  # of a timeline
FASTEST_TPOT_S = 1e-4  # no engine is faster; events of one reply that are, and came together, came out of a buffer


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestFigures:
    """The figures of one completed request; times in seconds."""

    request: SampledRequest
    output: int
    ttft_s: float | None  # None if only the end of a reply without text is known
    ttfc_s: float | None  # to the first visible content
    tpot_s: float | None  # None if the reply came in one piece or had one token
    e2e_s: float
    worst_itl_s: float | None  # None if the reply came in one piece

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens from a prefix cache, as far as the server reports them."""
        return max(0, min(self.request.cached, self.request.prompt))


def request_figures(samples: Samples) -> list[RequestFigures]:
    found = []
    for request in samples.requests():
        if request.outcome != COMPLETED:
            continue
        sent = request.sent
        times, kinds = samples.time[request.first : request.last], samples.kind[request.first : request.last]
        output = request.output
        if output < 0:  # the server did not count: one token for each event, or a tokenizer's count
            output = sum(samples.tokens[request.first : request.last])
        timed = not (kinds[0] == SILENT and len(times) == 1 and output > 1)
        spread_s, e2e_s = (times[-1] - times[0]) / 1e9, (times[-1] - sent) / 1e9
        streamed = timed and (output <= 2 or spread_s > min(FASTEST_TPOT_S * output, e2e_s / 10))
        gaps = (after - before for before, after in itertools.pairwise(times))
        visible = (at for at, kind in zip(times, kinds, strict=True) if kind & ~ESTIMATED_TIME == CONTENT)
        new_figures = RequestFigures(
            request=request,
            output=output,
            ttft_s=(times[0] - sent) / 1e9 if timed else None,
            ttfc_s=next(((at - sent) / 1e9 for at in visible), None),
            tpot_s=spread_s / (output - 1) if streamed and output > 1 else None,
            e2e_s=e2e_s,
            worst_itl_s=max(gaps, default=0) / 1e9 if streamed else None,
        )
        found.append(new_figures)
    return found


def summarize_samples(samples: Samples, *, slo: Slo | None = None, prompt_tokens: int = 0) -> LoadSummary:
    """Summarize a run. `prompt_tokens` is used if the server does not count prompts."""
    done = request_figures(samples)
    sent, ended = samples.columns["sent"], samples.columns["ended"]
    counts = Counter(samples.columns["outcome"])
    duration = (max(ended) - min(sent)) / 1e9 if len(samples) else 0.0  # from the first request to the last byte
    total_input = sum(each.request.prompt if each.request.prompt >= 0 else prompt_tokens for each in done)
    total_output = sum(each.output for each in done)
    rate = 1 / duration if duration > 0 else 0.0
    token_gaps, chunk_gaps = token_and_chunk_gaps(samples, done)
    return LoadSummary(
        duration=duration,
        **{name: counts.get(code, 0) for code, name in enumerate(OUTCOMES)},
        total_input_tokens=total_input,
        total_output_tokens=total_output,
        request_throughput=len(done) * rate,
        request_goodput=None if slo is None else sum(request_meets_slo(each, slo) for each in done) * rate,
        output_throughput=total_output * rate,
        total_token_throughput=(total_input + total_output) * rate,
        max_output_tokens_per_s=peak_token_rate(samples),
        max_concurrent_requests=peak_concurrency(samples),
        cached_input_tokens=sum(each.cached_tokens for each in done),
        silent=sum(samples.kind[each.request.first] == SILENT for each in done),
        stopped_early=sum(0 <= each.request.output < each.request.asked for each in done),
        ttft=latency_stats(done, "ttft_s"),
        ttfc=latency_stats(done, "ttfc_s"),
        tpot=latency_stats(done, "tpot_s"),
        itl=stats_of_counts(token_gaps),
        chunk_gap=stats_of_counts(chunk_gaps),
        e2el=latency_stats(done, "e2e_s"),
    )


def latency_stats(done: Sequence[RequestFigures], name: str) -> LatencyStats:
    """Summarize one of the times of requests, over those that have it."""
    seconds = (getattr(each, name) for each in done)
    return stats_of_counts(Counter(value * 1e3 for value in seconds if value is not None))


def stats_of_counts(counter: "Counter[float]") -> LatencyStats:
    """Return mean, standard deviation and percentiles of counted milliseconds."""
    total = sum(counter.values())
    if not total:
        return LatencyStats()
    mean = sum(value * count for value, count in counter.items()) / total
    variance = sum((value - mean) ** 2 * count for value, count in counter.items()) / total
    p50, p90, p95, p99 = percentiles_of_counts(counter, PERCENTILES)
    return LatencyStats(mean=mean, median=p50, std=math.sqrt(variance), p50=p50, p90=p90, p95=p95, p99=p99)


def percentiles_of_counts(counter: "Counter[float]", wanted: Sequence[float]) -> list[float]:
    """Return percentiles with linear interpolation between ranks, as numpy's default; `wanted` is ascending."""
    last = sum(counter.values()) - 1
    ranks = [last * share / 100 for share in wanted]
    at: dict[int, float] = {}  # the values at the ranks beside each percentile
    values, seen, value = iter(sorted(counter)), 0, 0.0
    for edge in sorted({place for rank in ranks for place in (math.floor(rank), math.ceil(rank))}):
        while seen <= edge:
            value = next(values)
            seen += counter[value]
        at[edge] = value
    edges = ((rank, at[math.floor(rank)], at[math.ceil(rank)]) for rank in ranks)
    return [low + (high - low) * (rank - math.floor(rank)) for rank, low, high in edges]


def token_and_chunk_gaps(samples: Samples, done: Sequence[RequestFigures]) -> tuple["Counter[float]", "Counter[float]"]:
    """Count the gaps between tokens and between chunks, in ms.

    The tokens of one chunk share its gap evenly; the first chunk has none. A chunk that completed no token adds its
    gap to the next one's.
    """
    time, tokens = samples.time, samples.tokens
    exact = len(time) <= MAX_EXACT_VALUES
    by_token: Counter[float] = Counter()
    by_chunk: Counter[float] = Counter()
    for each in (each for each in done if each.worst_itl_s is not None):
        before = chunk_before = time[each.request.first]
        for i in range(each.request.first + 1, each.request.last):
            now, count = time[i], tokens[i]
            gap = now - chunk_before
            by_chunk[gap if exact else gap // 1000] += 1
            chunk_before = now
            if count:
                share = (now - before) / count
                by_token[share if exact else share // 1000] += count
                before = now
    scale = 1e6 if exact else 1e3
    token_gaps = Counter({value / scale: count for value, count in by_token.items()})
    return token_gaps, Counter({value / scale: count for value, count in by_chunk.items()})


def request_meets_slo(figures: RequestFigures, slo: Slo) -> bool:
    """True if a request met every limit; an unknown time meets none, and a reply of one token has no TPOT."""
    tpot_s = figures.tpot_s if figures.output > 1 else 0.0
    times = (figures.ttft_s, tpot_s, figures.worst_itl_s, figures.e2e_s)
    pairs = zip(times, (slo.ttft_s, slo.tpot_s, slo.itl_s, slo.e2e_s), strict=True)
    return all(limit is None or (value is not None and value <= limit) for value, limit in pairs)


def peak_token_rate(samples: Samples) -> float:
    """Return the most output tokens of completed requests in one second, counted from the start."""
    bins: Counter[int] = Counter()
    time, tokens, zero = samples.time, samples.tokens, samples.zero
    for request in samples.requests():
        if request.outcome == COMPLETED:
            for i in range(request.first, request.last):
                bins[(time[i] - zero) // 1_000_000_000] += tokens[i]
    return float(max(bins.values(), default=0))


def peak_concurrency(samples: Samples) -> int:
    """Return the most requests in flight at once."""
    edges = [(at, 1) for at in samples.columns["sent"]] + [(at, -1) for at in samples.columns["ended"]]
    most = now = 0
    for _, step in sorted(edges):  # at the same moment, ends come before starts
        now += step
        most = max(most, now)
    return most


def steady_state(samples: Samples, *, ramp_s: float = 0.0) -> SteadyState | None:
    """Return the figures of the window in which load was neither building up nor running out, or None if too short.

    It opens when the ramp is over and the first request has ended (from then on requests are in all stages at once) and
    closes when the last one was sent. Throughput counts tokens that arrived inside it; latencies, requests sent inside.
    """
    done = request_figures(samples)
    if not done:
        return None
    begin = max(samples.zero + int(ramp_s * 1e9), min(each.request.ended for each in done))
    end = max(samples.columns["sent"])
    inside = [each for each in done if begin <= each.request.sent <= end]
    if end - begin < 1_000_000_000 or len(inside) < 2:
        return None
    seconds = (end - begin) / 1e9
    chunks = itertools.chain.from_iterable(range(each.request.first, each.request.last) for each in done)
    halves, middle = [0, 0], (begin + end) // 2
    for i in chunks:
        if begin <= samples.time[i] < end:
            halves[samples.time[i] >= middle] += samples.tokens[i]
    return SteadyState(
        start_s=(begin - samples.zero) / 1e9,
        end_s=(end - samples.zero) / 1e9,
        requests=len(inside),
        request_throughput=sum(begin <= each.request.ended < end for each in done) / seconds,
        output_throughput=sum(halves) / seconds,
        halves=(2 * halves[0] / seconds, 2 * halves[1] / seconds),
        mean_concurrency=sum(_overlap_ns(each.request, begin, end) for each in done) / 1e9 / seconds,
        ttft=latency_stats(inside, "ttft_s"),
        tpot=latency_stats(inside, "tpot_s"),
    )


def _overlap_ns(request: SampledRequest, begin: int, end: int) -> int:
    return max(0, min(request.ended, end) - max(request.sent, begin))


def build_timeline(samples: Samples) -> Timeline:
    """Return tokens, requests and TTFT over time, in bins of a second or, for long runs, a few."""
    if not len(samples):
        return Timeline()
    length = (max(samples.columns["ended"]) - samples.zero) / 1e9
    width = max(1, math.ceil(length / MAX_BINS))
    bins, unit, zero = int(length // width) + 1, width * 1_000_000_000, samples.zero
    tokens, ended, flight = [0] * bins, [0] * bins, [0.0] * bins
    ttft: list[list[float]] = [[] for _ in range(bins)]

    def bin_of(at: int) -> int:
        return min(bins - 1, max(0, (at - zero) // unit))

    for request in samples.requests():
        for i in range(request.first, request.last):
            tokens[bin_of(samples.time[i])] += samples.tokens[i]
        ended[bin_of(request.ended)] += 1
        for at in range(bin_of(request.sent), bin_of(request.ended) + 1):
            flight[at] += _overlap_ns(request, zero + at * unit, zero + (at + 1) * unit) / unit
        if request.last > request.first:
            ttft[bin_of(request.sent)].append((samples.time[request.first] - request.sent) / 1e6)
    return Timeline(
        bin_s=float(width),
        output_tokens=tuple(tokens),
        in_flight=tuple(round(value, 3) for value in flight),
        ended=tuple(ended),
        ttft_ms=tuple(round(statistics.fmean(values), 3) if values else None for values in ttft),
    )


def speed_by_position(samples: Samples, bins: int = 20) -> tuple[PositionSpeed, ...]:
    """Return the speed of a stream by position in its reply, as the mean over completed requests."""
    done = [each for each in request_figures(samples) if each.worst_itl_s is not None]
    longest = max((each.output for each in done), default=0)
    if longest < 2 * bins:
        return ()
    width = -(-longest // bins)
    spent, made = [0] * bins, [0] * bins
    for each in done:
        position = samples.tokens[each.request.first]
        for i in range(each.request.first + 1, each.request.last):
            at = min(bins - 1, position // width)
            spent[at] += samples.time[i] - samples.time[i - 1]
            made[at] += samples.tokens[i]
            position += samples.tokens[i]
    return tuple(
        PositionSpeed(first=at * width, last=min(longest, (at + 1) * width), tok_s=made[at] / (spent[at] / 1e9))
        for at in range(bins)
        if spent[at] > 0
    )
