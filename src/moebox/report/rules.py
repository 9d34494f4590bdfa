"""Recommendations derived from the data by rules that are stated beside them.

A rule is a function of the records; it speaks only where the figures it needs are there, and quotes them. Thresholds
are choices, named here, not measurements.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import NamedTuple

from moebox import units
from moebox.report.format import capitalize, format_change, format_ms, format_number, format_ratio, group_by, join_names
from moebox.report.record import LoadResult, RunRecord
from moebox.report.sections.memory import bytes_per_token, free_bytes
from moebox.report.sections.plan import join_texts, planned_figures

KNEE = 0.9  # share of the highest throughput at which more load is no longer worth its waiting
PATIENCE_MS = 2_000.0  # time to first token that a person at a prompt still accepts
TAIL = 5.0  # P99 this many times the mean is a queue or a warm-up, not noise
ROOM = 0.08  # share of a card left free that is worth reclaiming
STEP = 1.3  # ITL over TPOT from which several tokens came at once
FAILURES = 0.01  # share of failed requests that spoils the other figures
# What slows an engine down without a word, by whether there is no GPU.
SUSPECTS = {
    False: "clocks, lanes, the attention backend and whether CUDA graphs are on",
    True: "what else runs on the machine, the number of threads and the CPU's clock",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """One recommendation: what to do, the figures behind it, the rule."""

    title: str
    text: str
    rule: str
    runs: tuple[int, ...] = ()
    weight: float = 0.0  # the lower, the earlier


def make_advice(records: Sequence[RunRecord]) -> list[Advice]:
    """Every rule that applies, the gravest first."""
    rules = (
        advise_on_failed_checks,
        advise_on_quirks,
        advise_on_failed_requests,
        advise_on_client,
        advise_on_queueing,
        advise_on_knee,
        advise_on_waiting,
        advise_on_tail,
        advise_on_speculation,
        advise_on_pcie,
    )
    found: list[Advice] = []
    for index, record in enumerate(records):
        own = chain.from_iterable(rule(record) for rule in rules)
        found += [replace(advice, text=prefix_run(record, advice.text), runs=(index,)) for advice in own]
    for compare in (advise_fastest_run, advise_on_prompt_length, advise_on_forecast):
        found += compare(records)
    return sorted(found, key=lambda advice: advice.weight)


def prefix_run(record: RunRecord, text: str) -> str:
    """A sentence about one run: with its name in front, unless it is the only one."""
    return f"{record.page_label}: {text}" if record.page_label else capitalize(text)


def load_sweeps(record: RunRecord) -> list[list[LoadResult]]:
    """Levels of one workload over rising concurrency, where there are at least two."""
    groups = group_by(filter(lambda level: level.is_serving_load, record.loads), lambda level: level.workload)
    return [sorted(some, key=lambda level: level.load_value) for some in groups.values() if len(some) > 1]


def requests_in_cache(record: RunRecord, level: LoadResult) -> float:
    """Requests of this level's length that the KV cache holds at once; 0 where that is not known."""
    tokens = (level.input_tokens or 0) + (level.output_tokens or 0)
    return (record.kv_tokens or 0.0) / tokens if tokens else 0.0


def advise_on_queueing(record: RunRecord) -> Iterator[Advice]:
    """The cache is too small for the load, so requests wait for it."""
    rule = (
        "KV capacity below three quarters of the load, and TTFT at the highest load over five times that at the lowest."
    )
    for low, *_, high in load_sweeps(record):
        fit = requests_in_cache(record, high)
        if 0 < fit <= high.load_value * 0.75 and has_queued(low, high):
            spare = unused_memory_text(record)
            title = "Give the KV cache more room" if spare else f"Limit concurrency to {format_number(fit, 0)}"
            text = f"the cache holds {queued(record, fit, low, high)}{spare}"
            yield Advice(title=title, text=text, rule=rule, weight=1 + min(fit / high.load_value, 0.9))


def queued(record: RunRecord, fit: float, low: LoadResult, high: LoadResult) -> str:
    """How many requests the cache holds, and how long the others wait."""
    return (
        f"{units.format_count(record.kv_tokens or 0)} tokens, which is {format_number(fit, 0)} "
        f"requests of this length. Beyond that they queue: mean TTFT goes from {format_ms(low.ttft.mean_or_median)} at "
        f"{format_number(low.concurrency)} to {format_ms(high.ttft.mean_or_median)} "
        f"at {format_number(high.concurrency)}."
    )


def has_queued(low: LoadResult, high: LoadResult) -> bool:
    """Whether the first token comes so much later at the higher load that requests must have queued."""
    before, after = low.ttft.mean_or_median or math.inf, high.ttft.mean_or_median or 0.0
    return after > TAIL * before


def unused_memory_text(record: RunRecord) -> str:
    """What the room left on the fullest card would hold, in tokens."""
    cards = [device for device in record.reported_devices if not device.on_host]
    each = bytes_per_token(record.recipe)
    if not cards or not each:
        return ""
    free = min(map(free_bytes, cards))
    if free < ROOM * cards[0].total:
        return ""
    return (
        f" {units.format_gib(free)} per GPU stayed unused after loading; "
        f"at {units.format_count(each)} bytes a token that would "
        "be about "
        f"{units.format_count(round(free / each, -3))} tokens more. "
        "Raise the engine's memory fraction until little is left."
    )


def advise_on_knee(record: RunRecord) -> Iterator[Advice]:
    """Where more load stops paying."""
    rule = f"The lowest load that reaches {KNEE * 100:.0f}% of the highest output throughput."
    for levels in load_sweeps(record):
        top = max(levels, key=rate)
        stop = next(level for level in levels if rate(level) >= KNEE * rate(top))
        if stop is not top and len(levels) > 2:
            title = f"Limit concurrency to {format_number(stop.concurrency)}"
            text = f"{format_number(stop.concurrency)} concurrent requests already give {enough(stop, top)}."
            yield Advice(title=title, text=text, rule=rule, weight=3)


def rate(level: LoadResult) -> float:
    """Output tokens per second."""
    return level.output_tok_s or 0.0


def enough(stop: LoadResult, top: LoadResult) -> str:
    """How much of the highest output a lower load gives, and how much less it waits."""
    share = rate(stop) / (rate(top) or 1.0)
    rates = f"{format_number(stop.output_tok_s)} of {format_number(top.output_tok_s)} tok/s"
    gain = f"{share * 100:.0f}% of the highest output ({rates})"
    if not stop.ttft.mean_or_median or not top.ttft.mean_or_median:
        return gain
    waits = f"{format_ms(stop.ttft.mean_or_median)} instead of {format_ms(top.ttft.mean_or_median)}"
    return f"{gain} with a mean TTFT of {waits}"


def advise_on_waiting(record: RunRecord) -> Iterator[Advice]:
    """The highest load at which a person does not wait long."""
    rule = f"The highest load measured whose mean TTFT is at most {format_ms(PATIENCE_MS)}."
    for levels in load_sweeps(record):
        best = next(filter(quick, reversed(levels)), levels[-1])
        if best is not levels[-1]:
            text = (
                f"up to a concurrency of {format_number(best.concurrency)} the mean TTFT stays at "
                f"{format_ms(best.ttft.mean_or_median)} or less, at {format_number(best.output_tok_s)} output tok/s."
            )
            title = f"For people at a prompt, stay at {format_number(best.concurrency)}"
            yield Advice(title=title, text=text, rule=rule, weight=4)


def quick(level: LoadResult) -> bool:
    """Whether a person at a prompt accepts its time to first token."""
    return (level.ttft.mean_or_median or math.inf) <= PATIENCE_MS


def advise_on_tail(record: RunRecord) -> Iterator[Advice]:
    """A few requests wait far longer than the mean tells."""
    level = first_load(record, lambda level: ratio(level.ttft.p99, level.ttft.mean) > TAIL)
    if level:
        at = f" at {format_number(level.concurrency)}" if level.concurrency else ""
        text = (
            f"P99 TTFT{at} is {format_ms(level.ttft.p99)}, "
            f"{format_ratio(ratio(level.ttft.p99, level.ttft.mean))} the mean "
            f"of {format_ms(level.ttft.mean)}. Prefills queued behind each other (all clients starting together "
            "does this) or the first requests compiled kernels; warm up before measuring, and look at the steady part "
            "of the run."
        )
        rule = f"P99 TTFT above {TAIL:.0f} times the mean."
        yield Advice(title="Look at the slowest first tokens", text=text, rule=rule, weight=5)


def first_load(record: RunRecord, wanted: Callable[[LoadResult], bool]) -> LoadResult | None:
    """The first of its measurements that is so; one is enough to speak of it."""
    return next(filter(wanted, record.loads), None)


def ratio(above: float | None, below: float | None) -> float:
    """How many times the one is the other; 0 where either is not known."""
    return above / below if above and below else 0.0


def advise_on_speculation(record: RunRecord) -> Iterator[Advice]:
    """How many tokens a speculative step gave."""
    level = first_load(record, lambda level: ratio(level.itl.mean, level.tpot.mean) > STEP)
    if level:
        text = (
            f"chunks arrive every {format_ms(level.itl.mean)} while a token costs "
            f"{format_ms(level.tpot.mean)}, so each step delivered about "
            f"{ratio(level.itl.mean, level.tpot.mean):.1f} tokens. Random prompts "
            "undersell a draft: repeat with text like yours before tuning it."
        )
        rule = f"Mean ITL more than {STEP} times mean TPOT: several tokens in a chunk."
        yield Advice(title="Speculation pays; measure it on real text", text=text, rule=rule, weight=6)


def advise_on_failed_checks(record: RunRecord) -> Iterator[Advice]:
    """Checks that failed and should not: they come before any speed."""
    failed = [check for check in record.checks if check.failed_unexpectedly]
    if failed:
        reasons = "; ".join(join_texts(check.name, ": ", check.detail) for check in failed[:3])
        names = join_names([check.name for check in failed])
        text = f"{names} failed ({reasons}). Speed means little until these pass."
        rule = "Any failed check."
        yield Advice(title="Fix the failing checks first", text=text, rule=rule, weight=0)


def advise_on_quirks(record: RunRecord) -> Iterator[Advice]:
    """Checks that failed, and why nobody can mend them here."""
    for check in record.checks:
        if check.has_failed and check.quirks:
            text = f"{check.name} failed by a known habit of {'; of '.join(check.quirks)}."
            rule = "A failed check whose cause is a known habit of the engine."
            yield Advice(title="Tell clients what this engine does", text=text, rule=rule, weight=1)


def advise_on_failed_requests(record: RunRecord) -> Iterator[Advice]:
    """Requests that failed."""
    level = first_load(record, lambda level: ratio(level.failed, ended_requests(level)) > FAILURES)
    if level:
        count = f"{format_number(level.failed)} of {format_number(ended_requests(level))}"
        text = f"{count} requests failed at {loads_text([level])}."
        rule = f"More than {FAILURES * 100:.0f}% of requests failed."
        yield Advice(title="Find out why requests fail", text=text, rule=rule, weight=0)


def ended_requests(level: LoadResult) -> float:
    """Requests that came to an end, good or bad."""
    return (level.failed or 0.0) + (level.completed or 0.0)


def loads_text(levels: Sequence[LoadResult]) -> str:
    """Loads in a sentence: "a concurrency of 8 and 64", "2 requests/s"."""
    words = join_names([*map(load_text, levels)])
    return f"a concurrency of {words}" if levels[0].concurrency else words


def load_text(level: LoadResult) -> str:
    """Requests at once, or a second where those were offered; the measurement's name where neither is known."""
    if level.concurrency:
        return format_number(level.concurrency)
    return f"{format_number(level.request_rate)} requests/s" if level.request_rate else level.name


def advise_on_client(record: RunRecord) -> Iterator[Advice]:
    """Figures that tell of the client."""
    limited = [level for level in record.loads if level.client_limited]
    if limited:
        most = len(limited) > len(record.loads) / 2  # one load of many that hiccuped is a remark, not the first advice
        where = f"at {loads_text(limited[:5])} the client was the bottleneck"
        yield Advice(
            title="Measure again from a faster client",
            text=f"{where}; latencies there are too high.",
            rule="client_limited in the result.",
            weight=1 if most else 7,
        )


def advise_on_pcie(record: RunRecord) -> Iterator[Advice]:
    """GPUs on fewer PCIe lanes than they could have."""
    slow = [str(place) for place, gpu in enumerate(record.gpus) if gpu.degraded_slot]
    if slow:
        yield Advice(
            title="Give every GPU its PCIe lanes",
            text=f"GPU {join_names(slow)} run on fewer PCIe lanes than GPU and slot allow. Reseat or check the BIOS.",
            rule="Lanes now below lanes at most.",
            weight=2,
        )


def advise_fastest_run(records: Sequence[RunRecord]) -> Iterator[Advice]:
    """Which run serves most, when several did the same work."""
    found = ((index, record.peak_load()) for index, record in enumerate(records))
    peaks = [(index, level) for index, level in found if level and rate(level)]
    if len(peaks) < 2 or len({level.workload for _, level in peaks}) > 1:
        return
    (first, best), (second, other), *_ = sorted(peaks, key=lambda peak: -rate(peak[1]))
    text = (
        f"{records[first].label} reaches {format_number(best.output_tok_s)} output tok/s at {load_text(best)}, "
        f"{format_ratio(rate(best) / rate(other))} what {records[second].label} reaches "
        f"({format_number(other.output_tok_s)} at {load_text(other)})."
    )
    rule = "Highest output throughput under the same workload."
    title = f"For throughput take {records[first].label}"
    yield Advice(title=title, text=text, rule=rule, runs=(first, second), weight=2)


def advise_on_prompt_length(records: Sequence[RunRecord]) -> Iterator[Advice]:
    """Runs that trade decode for prefill: which prompt length makes the one or the other faster."""
    pairs = (SingleStream(index, record.label, *best_single_stream(record)) for index, record in enumerate(records))
    known = [run for run in pairs if run.tg and run.pp]
    if len(known) < 2:
        return
    talker = max(known, key=lambda run: (run.tg, run.pp))
    reader = max(known, key=lambda run: (run.pp, run.tg))
    rule = (
        "Time of a request = prompt / PP + answer / TG; compared between the run with the best TG and the one with "
        "the best PP."
    )
    if talker is reader:
        rates = f"{format_number(talker.tg)} tok/s generating, {format_number(talker.pp)} tok/s reading prompts"
        text = f"{talker.label} is best at both: {rates}."
        yield Advice(title=f"Take {talker.label}", text=text, rule=rule, runs=(talker.place,), weight=2)
        return
    text = _by_prompt_length(talker, reader)
    yield Advice(title="Choose by prompt length", text=text, rule=rule, runs=(talker.place, reader.place), weight=2)


def _by_prompt_length(talker: "SingleStream", reader: "SingleStream") -> str:
    """From which prompt on the faster reader is done before the faster talker."""
    ratio = (1 / reader.tg - 1 / talker.tg) / (1 / talker.pp - 1 / reader.pp)
    return (
        f"{talker.label} generates fastest ({format_number(talker.tg)} against {format_number(reader.tg)} tok/s), "
        f"{reader.label} reads prompts fastest ({format_number(reader.pp)} against {format_number(talker.pp)} tok/s). "
        "With uncached prompts more "
        f"than {ratio:.1f} times as long as the answers {reader.label} finishes first, otherwise {talker.label}."
    )


class SingleStream(NamedTuple):
    """A run with its best decode and prefill of one stream, in tok/s; 0 where one was not measured."""

    place: int
    label: str
    tg: float
    pp: float


def best_single_stream(record: RunRecord) -> tuple[float, float]:
    """Its best decode and prefill alone."""
    return record.highest_value("tg_tok_s") or 0.0, record.highest_value("pp_tok_s") or 0.0


def advise_on_forecast(records: Sequence[RunRecord]) -> Iterator[Advice]:
    """Measurements that lie outside what the plan promised."""
    off = [pair for pair in planned_figures(records) if pair.in_range is False and pair.unit == "tok/s"]
    worst = min(off, key=lambda pair: pair.relative_error, default=None)
    if worst and worst.expected_range and worst.relative_error < 0:
        text = (
            f"{worst.what} at {worst.load} is {format_number(worst.measured)} against "
            f"{format_number(worst.planned)} planned ({format_change(worst.relative_error)}), below the band's "
            f"{format_number(worst.expected_range[0])}. Something holds it back that the model does not know: check "
            f"{SUSPECTS[records[worst.run].has_no_gpu]}."
        )
        rule = "Measured below the forecast's band."
        text = prefix_run(records[worst.run], text)
        yield Advice(title="Find what holds it back", text=text, rule=rule, runs=(worst.run,), weight=3)
