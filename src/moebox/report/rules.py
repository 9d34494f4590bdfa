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
from moebox.report.format import capital, change, listed, milliseconds, number, times
from moebox.report.order import grouped
from moebox.report.record import Level, RunRecord
from moebox.report.sections.memory import bytes_per_token, room
from moebox.report.sections.plan import joined, pairs

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


def advise(records: Sequence[RunRecord]) -> list[Advice]:
    """Every rule that applies, the gravest first."""
    rules = (faults, habits, failures, client, queueing, knee, patience, tail, speculation, lanes)
    found: list[Advice] = []
    for index, record in enumerate(records):
        own = chain.from_iterable(rule(record) for rule in rules)
        found += [replace(advice, text=whose(record, advice.text), runs=(index,)) for advice in own]
    for compare in (fastest, placement, forecast):
        found += compare(records)
    return sorted(found, key=lambda advice: advice.weight)


def whose(record: RunRecord, text: str) -> str:
    """A sentence about one run: with its name in front, unless it is the only one."""
    return f"{record.named}: {text}" if record.named else capital(text)


def sweeps(record: RunRecord) -> list[list[Level]]:
    """Levels of one workload over rising concurrency, where there are at least two."""
    groups = grouped(filter(lambda level: level.served, record.levels), lambda level: level.workload)
    return [sorted(some, key=lambda level: level.load) for some in groups.values() if len(some) > 1]


def holds(record: RunRecord, level: Level) -> float:
    """Requests of this level's length that the KV cache holds at once; 0 where that is not known."""
    tokens = (level.input_tokens or 0) + (level.output_tokens or 0)
    return (record.kv_tokens or 0.0) / tokens if tokens else 0.0


def queueing(record: RunRecord) -> Iterator[Advice]:
    """The cache is too small for the load, so requests wait for it."""
    rule = (
        "KV capacity below three quarters of the load, and TTFT at the highest load over five times that at the lowest."
    )
    for low, *_, high in sweeps(record):
        fit = holds(record, high)
        if 0 < fit <= high.load * 0.75 and waits(low, high):
            spare = reclaim(record)
            title = "Give the KV cache more room" if spare else f"Limit concurrency to {number(fit, 0)}"
            text = f"the cache holds {queued(record, fit, low, high)}{spare}"
            yield Advice(title=title, text=text, rule=rule, weight=1 + min(fit / high.load, 0.9))


def queued(record: RunRecord, fit: float, low: Level, high: Level) -> str:
    """How many requests the cache holds, and how long the others wait."""
    return (
        f"{units.format_count(record.kv_tokens or 0)} tokens, which is {number(fit, 0)} "
        f"requests of this length. Beyond that they queue: mean TTFT goes from {milliseconds(low.ttft.mean_or_median)} at "
        f"{number(low.concurrency)} to {milliseconds(high.ttft.mean_or_median)} at {number(high.concurrency)}."
    )


def waits(low: Level, high: Level) -> bool:
    """Whether the first token comes so much later at the higher load that requests must have queued."""
    before, after = low.ttft.mean_or_median or math.inf, high.ttft.mean_or_median or 0.0
    return after > TAIL * before


def reclaim(record: RunRecord) -> str:
    """What the room left on the fullest card would hold, in tokens."""
    cards = [device for device in record.real if not device.on_host]
    each = bytes_per_token(record.recipe)
    if not cards or not each:
        return ""
    free = min(map(room, cards))
    if free < ROOM * cards[0].total:
        return ""
    return (
        f" {units.format_gib(free)} per GPU stayed unused after loading; at {units.format_count(each)} bytes a token that would "
        "be about "
        f"{units.format_count(round(free / each, -3))} tokens more. Raise the engine's memory fraction until little is left."
    )


def knee(record: RunRecord) -> Iterator[Advice]:
    """Where more load stops paying."""
    rule = f"The lowest load that reaches {KNEE * 100:.0f}% of the highest output throughput."
    for levels in sweeps(record):
        top = max(levels, key=rate)
        stop = next(level for level in levels if rate(level) >= KNEE * rate(top))
        if stop is not top and len(levels) > 2:
            title = f"Limit concurrency to {number(stop.concurrency)}"
            text = f"{number(stop.concurrency)} concurrent requests already give {enough(stop, top)}."
            yield Advice(title=title, text=text, rule=rule, weight=3)


def rate(level: Level) -> float:
    """Output tokens per second."""
    return level.output_tok_s or 0.0


def enough(stop: Level, top: Level) -> str:
    """How much of the highest output a lower load gives, and how much less it waits."""
    share = rate(stop) / (rate(top) or 1.0)
    rates = f"{number(stop.output_tok_s)} of {number(top.output_tok_s)} tok/s"
    gain = f"{share * 100:.0f}% of the highest output ({rates})"
    if not stop.ttft.mean_or_median or not top.ttft.mean_or_median:
        return gain
    waits = f"{milliseconds(stop.ttft.mean_or_median)} instead of {milliseconds(top.ttft.mean_or_median)}"
    return f"{gain} with a mean TTFT of {waits}"


def patience(record: RunRecord) -> Iterator[Advice]:
    """The highest load at which a person does not wait long."""
    rule = f"The highest load measured whose mean TTFT is at most {milliseconds(PATIENCE_MS)}."
    for levels in sweeps(record):
        best = next(filter(quick, reversed(levels)), levels[-1])
        if best is not levels[-1]:
            text = (
                f"up to a concurrency of {number(best.concurrency)} the mean TTFT stays at "
                f"{milliseconds(best.ttft.mean_or_median)} or less, at {number(best.output_tok_s)} output tok/s."
            )
            title = f"For people at a prompt, stay at {number(best.concurrency)}"
            yield Advice(title=title, text=text, rule=rule, weight=4)


def quick(level: Level) -> bool:
    """Whether a person at a prompt accepts its time to first token."""
    return (level.ttft.mean_or_median or math.inf) <= PATIENCE_MS


def tail(record: RunRecord) -> Iterator[Advice]:
    """A few requests wait far longer than the mean tells."""
    level = first(record, lambda level: ratio(level.ttft.p99, level.ttft.mean) > TAIL)
    if level:
        at = f" at {number(level.concurrency)}" if level.concurrency else ""
        text = (
            f"P99 TTFT{at} is {milliseconds(level.ttft.p99)}, {times(ratio(level.ttft.p99, level.ttft.mean))} the mean "
            f"of {milliseconds(level.ttft.mean)}. Prefills queued behind each other (all clients starting together "
            "does this) or the first requests compiled kernels; warm up before measuring, and look at the steady part "
            "of the run."
        )
        rule = f"P99 TTFT above {TAIL:.0f} times the mean."
        yield Advice(title="Look at the slowest first tokens", text=text, rule=rule, weight=5)


def first(record: RunRecord, wanted: Callable[[Level], bool]) -> Level | None:
    """The first of its measurements that is so; one is enough to speak of it."""
    return next(filter(wanted, record.levels), None)


def ratio(above: float | None, below: float | None) -> float:
    """How many times the one is the other; 0 where either is not known."""
    return above / below if above and below else 0.0


def speculation(record: RunRecord) -> Iterator[Advice]:
    """How many tokens a speculative step gave."""
    level = first(record, lambda level: ratio(level.itl.mean, level.tpot.mean) > STEP)
    if level:
        text = (
            f"chunks arrive every {milliseconds(level.itl.mean)} while a token costs "
            f"{milliseconds(level.tpot.mean)}, so each step delivered about "
            f"{ratio(level.itl.mean, level.tpot.mean):.1f} tokens. Random prompts "
            "undersell a draft: repeat with text like yours before tuning it."
        )
        rule = f"Mean ITL more than {STEP} times mean TPOT: several tokens in a chunk."
        yield Advice(title="Speculation pays; measure it on real text", text=text, rule=rule, weight=6)


def faults(record: RunRecord) -> Iterator[Advice]:
    """Checks that failed and should not: they come before any speed."""
    failed = [check for check in record.checks if check.at_fault]
    if failed:
        reasons = "; ".join(joined(check.name, ": ", check.detail) for check in failed[:3])
        names = listed([check.name for check in failed])
        text = f"{names} failed ({reasons}). Speed means little until these pass."
        rule = "Any failed check."
        yield Advice(title="Fix the failing checks first", text=text, rule=rule, weight=0)


def habits(record: RunRecord) -> Iterator[Advice]:
    """Checks that failed, and why nobody can mend them here."""
    for check in record.checks:
        if check.failed and check.habits:
            text = f"{check.name} failed by a known habit of {'; of '.join(check.habits)}."
            rule = "A failed check whose cause is a known habit of the engine."
            yield Advice(title="Tell clients what this engine does", text=text, rule=rule, weight=1)


def failures(record: RunRecord) -> Iterator[Advice]:
    """Requests that failed."""
    level = first(record, lambda level: ratio(level.failed, asked(level)) > FAILURES)
    if level:
        text = f"{number(level.failed)} of {number(asked(level))} requests failed at {loads([level])}."
        rule = f"More than {FAILURES * 100:.0f}% of requests failed."
        yield Advice(title="Find out why requests fail", text=text, rule=rule, weight=0)


def asked(level: Level) -> float:
    """Requests that came to an end, good or bad."""
    return (level.failed or 0.0) + (level.completed or 0.0)


def loads(levels: Sequence[Level]) -> str:
    """Loads in a sentence: "a concurrency of 8 and 64", "2 requests/s"."""
    words = listed([*map(load, levels)])
    return f"a concurrency of {words}" if levels[0].concurrency else words


def load(level: Level) -> str:
    """Requests at once, or a second where those were offered; the measurement's name where neither is known."""
    if level.concurrency:
        return number(level.concurrency)
    return f"{number(level.rate)} requests/s" if level.rate else level.name


def client(record: RunRecord) -> Iterator[Advice]:
    """Figures that tell of the client."""
    limited = [level for level in record.levels if level.client_limited]
    if limited:
        most = len(limited) > len(record.levels) / 2  # one load of many that hiccuped is a remark, not the first advice
        where = f"at {loads(limited[:5])} the client was the bottleneck"
        yield Advice(
            title="Measure again from a faster client",
            text=f"{where}; latencies there are too high.",
            rule="client_limited in the result.",
            weight=1 if most else 7,
        )


def lanes(record: RunRecord) -> Iterator[Advice]:
    """GPUs on fewer PCIe lanes than they could have."""
    slow = [str(place) for place, gpu in enumerate(record.gpus) if gpu.degraded_slot]
    if slow:
        yield Advice(
            title="Give every GPU its PCIe lanes",
            text=f"GPU {listed(slow)} run on fewer PCIe lanes than GPU and slot allow. Reseat or check the BIOS.",
            rule="Lanes now below lanes at most.",
            weight=2,
        )


def fastest(records: Sequence[RunRecord]) -> Iterator[Advice]:
    """Which run serves most, when several did the same work."""
    found = ((index, record.peak()) for index, record in enumerate(records))
    peaks = [(index, level) for index, level in found if level and rate(level)]
    if len(peaks) < 2 or len({level.workload for _, level in peaks}) > 1:
        return
    (first, best), (second, other), *_ = sorted(peaks, key=lambda peak: -rate(peak[1]))
    text = (
        f"{records[first].label} reaches {number(best.output_tok_s)} output tok/s at {load(best)}, "
        f"{times(rate(best) / rate(other))} what {records[second].label} reaches "
        f"({number(other.output_tok_s)} at {load(other)})."
    )
    rule = "Highest output throughput under the same workload."
    title = f"For throughput take {records[first].label}"
    yield Advice(title=title, text=text, rule=rule, runs=(first, second), weight=2)


def placement(records: Sequence[RunRecord]) -> Iterator[Advice]:
    """Runs that trade decode for prefill: which prompt length makes the one or the other faster."""
    pairs = (Alone(index, record.label, *alone(record)) for index, record in enumerate(records))
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
        rates = f"{number(talker.tg)} tok/s generating, {number(talker.pp)} tok/s reading prompts"
        text = f"{talker.label} is best at both: {rates}."
        yield Advice(title=f"Take {talker.label}", text=text, rule=rule, runs=(talker.place,), weight=2)
        return
    text = _by_prompt_length(talker, reader)
    yield Advice(title="Choose by prompt length", text=text, rule=rule, runs=(talker.place, reader.place), weight=2)


def _by_prompt_length(talker: "Alone", reader: "Alone") -> str:
    """From which prompt on the faster reader is done before the faster talker."""
    ratio = (1 / reader.tg - 1 / talker.tg) / (1 / talker.pp - 1 / reader.pp)
    return (
        f"{talker.label} generates fastest ({number(talker.tg)} against {number(reader.tg)} tok/s), {reader.label} "
        f"reads prompts fastest ({number(reader.pp)} against {number(talker.pp)} tok/s). With uncached prompts more "
        f"than {ratio:.1f} times as long as the answers {reader.label} finishes first, otherwise {talker.label}."
    )


class Alone(NamedTuple):
    """A run with its best decode and prefill of one stream, in tok/s; 0 where one was not measured."""

    place: int
    label: str
    tg: float
    pp: float


def alone(record: RunRecord) -> tuple[float, float]:
    """Its best decode and prefill alone."""
    return record.highest("tg_tok_s") or 0.0, record.highest("pp_tok_s") or 0.0


def forecast(records: Sequence[RunRecord]) -> Iterator[Advice]:
    """Measurements that lie outside what the plan promised."""
    off = [pair for pair in pairs(records) if pair.inside is False and pair.unit == "tok/s"]
    worst = min(off, key=lambda pair: pair.error, default=None)
    if worst and worst.band and worst.error < 0:
        text = (
            f"{worst.what} at {worst.load} is {number(worst.measured)} against "
            f"{number(worst.planned)} planned ({change(worst.error)}), below the band's "
            f"{number(worst.band[0])}. Something holds it back that the model does not know: check "
            f"{SUSPECTS[records[worst.run].without_gpu]}."
        )
        rule = "Measured below the forecast's band."
        text = whose(records[worst.run], text)
        yield Advice(title="Find what holds it back", text=text, rule=rule, runs=(worst.run,), weight=3)
