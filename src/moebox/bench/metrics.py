"""Every figure of a benchmark, from samples: the one place that defines them (in words: docs/metrics.md).

Pure arithmetic. Field names are those of vLLM's serving benchmark where the figure is the same each. Only completed
requests enter means, percentiles and throughput; failed, truncated, empty and cancelled ones are counted apart.
"""

import itertools
import math
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from moebox.bench.samples import COMPLETED, OUTCOMES, SampledRequest, Samples
from moebox.core.measure import Slo
from moebox.core.result import LatencyStats, LoadSummary, PositionSpeed, SteadyState, Timeline
from moebox.stream.events import CONTENT, ESTIMATED_TIME, SILENT

PERCENTILES = (50, 90, 95, 99)
MAX_EXACT_VALUES = (
    200_000  # values up to which a distribution is kept exactly; above it, to a microsecond, which bounds memory
)
MAX_BINS = 600  # of a timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestFigures:
    """What one completed request comes to; times in seconds."""

    request: SampledRequest
    output: int
    ttft_s: float | None  # None where only the end of a reply without text is known
    ttfc_s: float | None  # to the first visible content
    tpot_s: float | None
    e2e_s: float
    worst_itl_s: float

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens that came out of a prefix cache, as far as the server tells."""
        return max(0, min(self.request.cached, self.request.prompt))

    def prompt_tokens_or(self, tokens: int) -> int:
        """Tokens of the prompt; `tokens` where the server does not count them."""
        return self.request.prompt if self.request.prompt >= 0 else tokens


def request_figures(samples: Samples) -> list[RequestFigures]:
    """The completed requests, each with its own figures."""
    return [_of_request(samples, request) for request in samples.requests() if request.outcome == COMPLETED]


def _of_request(samples: Samples, request: SampledRequest) -> RequestFigures:
    first, last, sent = request.first, request.last, request.sent
    times, kinds = samples.time[first:last], samples.kind[first:last]
    output = output_tokens(samples, request)
    timed = not (kinds[0] == SILENT and len(times) == 1 and output > 1)
    return RequestFigures(
        request=request,
        output=output,
        ttft_s=(times[0] - sent) / 1e9 if timed else None,
        ttfc_s=_first_content_s(times, kinds, sent),
        tpot_s=(times[-1] - times[0]) / 1e9 / (output - 1) if timed and output > 1 else None,
        e2e_s=(times[-1] - sent) / 1e9,
        worst_itl_s=max((after - before for before, after in itertools.pairwise(times)), default=0) / 1e9,
    )


def _first_content_s(times: Sequence[int], kinds: Sequence[int], sent: int) -> float | None:
    """Seconds until something visible came; None where nothing did."""
    visible = (at for at, kind in zip(times, kinds, strict=True) if kind & ~ESTIMATED_TIME == CONTENT)
    return next(((at - sent) / 1e9 for at in visible), None)


def output_tokens(samples: Samples, request: SampledRequest) -> int:
    """Tokens of a reply: the server's count, else each for each event."""
    return request.output if request.output >= 0 else sum(samples.tokens[request.first : request.last])


def summarize_samples(samples: Samples, *, slo: Slo | None = None, prompt_tokens: int = 0) -> LoadSummary:
    """The whole run. `prompt_tokens` stands in where the server does not count prompts."""
    done = request_figures(samples)
    counts = Counter(samples.columns["outcome"])
    duration = run_seconds(samples)
    total_input = sum(each.prompt_tokens_or(prompt_tokens) for each in done)
    total_output = sum(each.output for each in done)
    rate = 1 / duration if duration > 0 else 0.0
    token_gaps, chunk_gaps = token_and_chunk_gaps(samples, done)
    return LoadSummary(
        duration=duration,
        **{name: counts.get(code, 0) for code, name in enumerate(OUTCOMES)},
        total_input_tokens=total_input,
        total_output_tokens=total_output,
        request_throughput=len(done) * rate,
        request_goodput=None if slo is None else count_good(done, slo) * rate,
        output_throughput=total_output * rate,
        total_token_throughput=(total_input + total_output) * rate,
        max_output_tokens_per_s=peak_token_rate(samples),
        max_concurrent_requests=peak_concurrency(samples),
        cached_input_tokens=sum(each.cached_tokens for each in done),
        silent=sum(samples.kind[each.request.first] == SILENT for each in done),
        stopped_early=sum(each.output < each.request.asked for each in done),
        ttft=latency_stats(done, "ttft_s"),
        ttfc=latency_stats(done, "ttfc_s"),
        tpot=latency_stats(done, "tpot_s"),
        itl=stats_of_counts(token_gaps),
        chunk_gap=stats_of_counts(chunk_gaps),
        e2el=latency_stats(done, "e2e_s"),
    )


def latency_stats(done: Sequence[RequestFigures], name: str) -> LatencyStats:
    """One of the times of requests, over those that have it."""
    seconds = (getattr(each, name) for each in done)
    return stats_of_values(value * 1e3 for value in seconds if value is not None)


def stats_of_values(values: Iterable[float]) -> LatencyStats:
    """Mean, median, standard deviation and percentiles, in milliseconds."""
    return stats_of_counts(Counter(values))


def stats_of_counts(counter: "Counter[float]") -> LatencyStats:
    """The same of values that are already counted."""
    total = sum(counter.values())
    if not total:
        return LatencyStats()
    mean = sum(value * count for value, count in counter.items()) / total
    variance = sum((value - mean) ** 2 * count for value, count in counter.items()) / total
    p50, p90, p95, p99 = percentiles_of_counts(counter, PERCENTILES)
    return LatencyStats(mean=mean, median=p50, std=math.sqrt(variance), p50=p50, p90=p90, p95=p95, p99=p99)


def percentiles_of_counts(counter: "Counter[float]", wanted: Sequence[float]) -> list[float]:
    """Percentiles with linear interpolation between ranks, as numpy's default gives them; `wanted` is ascending."""
    last = sum(counter.values()) - 1
    ranks = [last * share / 100 for share in wanted]
    at = _ranked(counter, sorted({edge for rank in ranks for edge in (math.floor(rank), math.ceil(rank))}))
    edges = ((rank, at[math.floor(rank)], at[math.ceil(rank)]) for rank in ranks)
    return [low + (high - low) * (rank - math.floor(rank)) for rank, low, high in edges]


def _ranked(counter: "Counter[float]", ranks: Sequence[int]) -> dict[int, float]:
    """The values at these places, ascending, of all that were counted in order."""
    found: dict[int, float] = {}
    values, seen, value = iter(sorted(counter)), 0, 0.0
    for rank in ranks:
        while seen <= rank:
            value = next(values)
            seen += counter[value]
        found[rank] = value
    return found


def token_and_chunk_gaps(samples: Samples, done: Sequence[RequestFigures]) -> tuple["Counter[float]", "Counter[float]"]:
    """Gaps between tokens and between chunks, in ms.

    The tokens of one chunk share its gap evenly; the first chunk has none. A chunk that completed no token adds its
    gap to the next one's.
    """
    time, tokens = samples.time, samples.tokens
    exact = len(time) <= MAX_EXACT_VALUES
    by_token: Counter[float] = Counter()
    by_chunk: Counter[float] = Counter()
    for each in done:
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
    return _scaled(by_token, scale), _scaled(by_chunk, scale)


def _scaled(counter: "Counter[float]", scale: float) -> "Counter[float]":
    return Counter({value / scale: count for value, count in counter.items()})


def count_good(done: Iterable[RequestFigures], slo: Slo) -> int:
    """How many requests keep to what is asked of them."""
    return sum(request_meets_slo(each, slo) for each in done)


def request_meets_slo(figures: RequestFigures, slo: Slo) -> bool:
    """A request that keeps to everything asked of it; one whose first token nobody saw keeps to no TTFT."""
    if slo.ttft_s is not None and figures.ttft_s is None:
        return False
    pairs = (
        (figures.ttft_s, slo.ttft_s),
        (figures.tpot_s, slo.tpot_s),
        (figures.worst_itl_s, slo.itl_s),
        (figures.e2e_s, slo.e2e_s),
    )
    return all(limit is None or value is None or value <= limit for value, limit in pairs)


def run_seconds(samples: Samples) -> float:
    """Seconds from the first request sent to the last byte."""
    sent, ended = samples.columns["sent"], samples.columns["ended"]
    return (max(ended) - min(sent)) / 1e9 if len(samples) else 0.0


def peak_token_rate(samples: Samples) -> float:
    """Most output tokens of completed requests in one second, seconds counted from the start."""
    bins: Counter[int] = Counter()
    time, tokens, zero = samples.time, samples.tokens, samples.zero
    for request in samples.requests():
        if request.outcome == COMPLETED:
            for i in range(request.first, request.last):
                bins[(time[i] - zero) // 1_000_000_000] += tokens[i]
    return float(max(bins.values(), default=0))


def peak_concurrency(samples: Samples) -> int:
    """Most requests in flight at one moment."""
    edges = [(at, 1) for at in samples.columns["sent"]] + [(at, -1) for at in samples.columns["ended"]]
    most = now = 0
    for _, step in sorted(edges):  # at one moment, ends come before starts
        now += step
        most = max(most, now)
    return most


def steady_state(samples: Samples, *, ramp_s: float = 0.0) -> SteadyState | None:
    """The window in which load was neither building up nor running out; None where there is none worth the name.

    It opens when the ramp is over and the first request has ended (from then on requests are in all stages at once) and
    closes when the last one was sent. Throughput counts tokens that came inside it; latencies, requests sent inside it.
    """
    done = request_figures(samples)
    if not done:
        return None
    begin = max(samples.zero + int(ramp_s * 1e9), min(each.request.ended for each in done))
    end = max(samples.columns["sent"])
    inside = [each for each in done if begin <= each.request.sent <= end]
    if end - begin < 1_000_000_000 or len(inside) < 2:
        return None
    return _between(samples, done, inside, begin, end)


def _between(
    samples: Samples, done: Sequence[RequestFigures], inside: Sequence[RequestFigures], begin: int, end: int
) -> SteadyState:
    """The figures of a window; `inside` are the requests sent in it."""
    seconds = (end - begin) / 1e9
    return SteadyState(
        start_s=(begin - samples.zero) / 1e9,
        end_s=(end - samples.zero) / 1e9,
        requests=len(inside),
        request_throughput=sum(begin <= each.request.ended < end for each in done) / seconds,
        output_throughput=sum(_tokens_between(samples, each.request, begin, end) for each in done) / seconds,
        mean_concurrency=sum(_overlap_ns(each.request, begin, end) for each in done) / 1e9 / seconds,
        ttft=latency_stats(inside, "ttft_s"),
        tpot=latency_stats(inside, "tpot_s"),
    )


def _tokens_between(samples: Samples, request: SampledRequest, begin: int, end: int) -> int:
    chunks = range(request.first, request.last)
    return sum(samples.tokens[i] for i in chunks if begin <= samples.time[i] < end)


def _overlap_ns(request: SampledRequest, begin: int, end: int) -> int:
    """Nanoseconds of a request's life between two moments."""
    return max(0, min(request.ended, end) - max(request.sent, begin))


def build_timeline(samples: Samples) -> Timeline:
    """Tokens, requests and TTFT over time, in bins of a second or, for long runs, a few."""
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
        ttft_ms=tuple(map(_rounded_mean, ttft)),
    )


def _rounded_mean(values: Sequence[float]) -> float | None:
    return round(statistics.fmean(values), 3) if values else None


def speed_by_position(samples: Samples, bins: int = 20) -> tuple[PositionSpeed, ...]:
    """How fast one stream runs, by how far into its reply: does it sag? Mean over completed requests."""
    done = request_figures(samples)
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
