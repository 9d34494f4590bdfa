"""Every figure of a benchmark, from samples: the one place that defines them (in words: docs/metrics.md).

Pure arithmetic. Field names are those of vLLM's serving benchmark where the figure is the same each. Only completed
requests enter means, percentiles and throughput; failed, truncated, empty and cancelled ones are counted apart.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from moebox.bench.samples import COMPLETED, OUTCOMES, Request, Samples
from moebox.core.measure import Slo
from moebox.core.result import PositionSpeed, Spread, Steady, Summary, Timeline
from moebox.stream.events import CONTENT, GUESSED, SILENT

PERCENTILES = (50, 90, 95, 99)
EXACT = 200_000  # values up to which a distribution is kept exactly; above it, to a microsecond, which bounds memory
MOST_BINS = 600  # of a timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What one completed request comes to; times in seconds."""

    request: Request
    output: int
    ttft_s: float | None  # None where only the end of a reply without text is known
    ttfc_s: float | None  # to the first visible content
    tpot_s: float | None
    e2e_s: float
    worst_itl_s: float


def figures(samples: Samples) -> list[Figures]:
    """The completed requests, each with its own figures."""
    time, kind = samples.time, samples.kind
    found = []
    for request in samples.requests():
        if request.outcome != COMPLETED:
            continue
        first, last = request.first, request.last
        output = output_tokens(samples, request)
        content = next((i for i in range(first, last) if kind[i] & ~GUESSED == CONTENT), None)
        decode = (time[last - 1] - time[first]) / 1e9
        untimed = kind[first] == SILENT and last - first == 1 and output > 1
        found.append(
            Figures(
                request=request,
                output=output,
                ttft_s=None if untimed else (time[first] - request.sent) / 1e9,
                ttfc_s=(time[content] - request.sent) / 1e9 if content is not None else None,
                tpot_s=decode / (output - 1) if output > 1 and not untimed else None,
                e2e_s=(time[last - 1] - request.sent) / 1e9,
                worst_itl_s=max((time[i] - time[i - 1] for i in range(first + 1, last)), default=0) / 1e9,
            )
        )
    return found


def output_tokens(samples: Samples, request: Request) -> int:
    """Tokens of a reply: the server's count, else each for each event."""
    return request.output if request.output >= 0 else sum(samples.tokens[request.first : request.last])


def summary(samples: Samples, *, slo: Slo | None = None, prompt_tokens: int = 0) -> Summary:
    """The whole run. `prompt_tokens` stands in where the server does not count prompts."""
    done = figures(samples)
    counts = Counter(samples.columns["outcome"])
    duration = run_s(samples)
    total_input = sum(each.request.prompt if each.request.prompt >= 0 else prompt_tokens for each in done)
    total_output = sum(each.output for each in done)
    rate = 1 / duration if duration > 0 else 0.0
    token_gaps, chunk_gaps = gaps(samples, done)
    return Summary(
        duration=duration,
        **{name: counts.get(code, 0) for code, name in enumerate(OUTCOMES)},
        total_input_tokens=total_input,
        total_output_tokens=total_output,
        request_throughput=len(done) * rate,
        request_goodput=None if slo is None else sum(meets(each, slo) for each in done) * rate,
        output_throughput=total_output * rate,
        total_token_throughput=(total_input + total_output) * rate,
        max_output_tokens_per_s=peak_tokens(samples),
        max_concurrent_requests=peak_concurrency(samples),
        cached_input_tokens=sum(max(0, min(each.request.cached, each.request.prompt)) for each in done),
        silent=sum(samples.kind[each.request.first] == SILENT for each in done),
        stopped_early=sum(each.output < each.request.asked for each in done),
        ttft=spread(each.ttft_s * 1e3 for each in done if each.ttft_s is not None),
        ttfc=spread(each.ttfc_s * 1e3 for each in done if each.ttfc_s is not None),
        tpot=spread(each.tpot_s * 1e3 for each in done if each.tpot_s is not None),
        itl=spread_of(token_gaps),
        chunk_gap=spread_of(chunk_gaps),
        e2el=spread(each.e2e_s * 1e3 for each in done),
    )


def spread(values: Iterable[float]) -> Spread:
    """Mean, median, standard deviation and percentiles, in milliseconds."""
    return spread_of(Counter(values))


def spread_of(counter: "Counter[float]") -> Spread:
    """The same of values that are already counted."""
    total = sum(counter.values())
    if not total:
        return Spread()
    mean = sum(value * count for value, count in counter.items()) / total
    variance = sum((value - mean) ** 2 * count for value, count in counter.items()) / total
    p50, p90, p95, p99 = percentiles(counter, PERCENTILES)
    return Spread(mean=mean, median=p50, std=math.sqrt(variance), p50=p50, p90=p90, p95=p95, p99=p99)


def percentiles(counter: "Counter[float]", wanted: Sequence[float]) -> list[float]:
    """Percentiles with linear interpolation between ranks, as numpy's default gives them; `wanted` is ascending."""
    total = sum(counter.values())
    targets = sorted({i for p in wanted for i in (math.floor((total - 1) * p / 100), math.ceil((total - 1) * p / 100))})
    found: dict[int, float] = {}
    seen = 0
    for value in sorted(counter):
        seen += counter[value]
        while targets and targets[0] < seen:
            found[targets.pop(0)] = value
        if not targets:
            break
    result = []
    for p in wanted:
        rank = (total - 1) * p / 100
        low, high = found[math.floor(rank)], found[math.ceil(rank)]
        result.append(low + (high - low) * (rank - math.floor(rank)))
    return result


def gaps(samples: Samples, done: Sequence[Figures]) -> tuple["Counter[float]", "Counter[float]"]:
    """Gaps between tokens and between chunks, in ms.

    The tokens of one chunk share its gap evenly; the first chunk has none. A chunk that completed no token adds its
    gap to the next one's.
    """
    time, tokens = samples.time, samples.tokens
    exact = len(time) <= EXACT
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
    return Counter({k / scale: n for k, n in by_token.items()}), Counter({k / scale: n for k, n in by_chunk.items()})


def meets(each: Figures, slo: Slo) -> bool:
    """A request that keeps to everything asked of it; one whose first token nobody saw keeps to no TTFT."""
    if slo.ttft_s is not None and each.ttft_s is None:
        return False
    pairs = (
        (each.ttft_s, slo.ttft_s),
        (each.tpot_s, slo.tpot_s),
        (each.worst_itl_s, slo.itl_s),
        (each.e2e_s, slo.e2e_s),
    )
    return all(limit is None or value is None or value <= limit for value, limit in pairs)


def run_s(samples: Samples) -> float:
    """Seconds from the first request sent to the last byte."""
    sent, ended = samples.columns["sent"], samples.columns["ended"]
    return (max(ended) - min(sent)) / 1e9 if len(samples) else 0.0


def peak_tokens(samples: Samples) -> float:
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


def steady(samples: Samples, *, ramp_s: float = 0.0) -> Steady | None:
    """The window in which load was neither building up nor running out; None where there is none worth the name.

    It opens when the ramp is over and the first request has ended (from then on requests are in all stages at once) and
    closes when the last one was sent. Throughput counts tokens that came inside it; latencies, requests sent inside it.
    """
    done = figures(samples)
    if not done:
        return None
    begin = max(samples.zero + int(ramp_s * 1e9), min(each.request.ended for each in done))
    end = max(samples.columns["sent"])
    inside = [each for each in done if begin <= each.request.sent <= end]
    if end - begin < 1_000_000_000 or len(inside) < 2:
        return None
    seconds = (end - begin) / 1e9
    time, tokens = samples.time, samples.tokens
    came = sum(
        tokens[i] for each in done for i in range(each.request.first, each.request.last) if begin <= time[i] < end
    )
    ended = sum(begin <= each.request.ended < end for each in done)
    busy = sum(max(0, min(each.request.ended, end) - max(each.request.sent, begin)) for each in done)
    return Steady(
        start_s=(begin - samples.zero) / 1e9,
        end_s=(end - samples.zero) / 1e9,
        requests=len(inside),
        request_throughput=ended / seconds,
        output_throughput=came / seconds,
        mean_concurrency=busy / 1e9 / seconds,
        ttft=spread(each.ttft_s * 1e3 for each in inside if each.ttft_s is not None),
        tpot=spread(each.tpot_s * 1e3 for each in inside if each.tpot_s is not None),
    )


def timeline(samples: Samples) -> Timeline:
    """Tokens, requests and TTFT over time, in bins of a second or, for long runs, a few."""
    if not len(samples):
        return Timeline()
    length = (max(samples.columns["ended"]) - samples.zero) / 1e9
    width = max(1, math.ceil(length / MOST_BINS))
    bins, unit, zero = int(length // width) + 1, width * 1_000_000_000, samples.zero
    tokens, ended, flight = [0] * bins, [0] * bins, [0.0] * bins
    ttft: list[list[float]] = [[] for _ in range(bins)]
    for request in samples.requests():
        for i in range(request.first, request.last):
            tokens[min(bins - 1, max(0, (samples.time[i] - zero) // unit))] += samples.tokens[i]
        ended[min(bins - 1, max(0, (request.ended - zero) // unit))] += 1
        first, last = max(0, (request.sent - zero) // unit), min(bins - 1, (request.ended - zero) // unit)
        for at in range(first, last + 1):
            inside = min(request.ended, zero + (at + 1) * unit) - max(request.sent, zero + at * unit)
            flight[at] += max(0, inside) / unit
        if request.last > request.first:
            ttft[min(bins - 1, first)].append((samples.time[request.first] - request.sent) / 1e6)
    return Timeline(
        bin_s=float(width),
        output_tokens=tuple(tokens),
        in_flight=tuple(round(value, 3) for value in flight),
        ended=tuple(ended),
        ttft_ms=tuple(round(sum(values) / len(values), 3) if values else None for values in ttft),
    )


def speed_by_position(samples: Samples, bins: int = 20) -> tuple[PositionSpeed, ...]:
    """How fast one stream runs, by how far into its reply: does it sag? Mean over completed requests."""
    done = figures(samples)
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
