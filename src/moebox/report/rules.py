"""Recommendations derived from the data by rules that are shown beside them.

A rule is a function of a record; it applies only if the figures it needs are there, and quotes them. Thresholds are
choices, named here, not measurements.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from moebox import units
from moebox.report.bars import reported_parts
from moebox.report.block import CustomBlock, Section
from moebox.report.format import capitalize, format_change, format_ms, format_number, format_ratio, group_by, join_names
from moebox.report.palette import run_colour
from moebox.report.sections.memory import bytes_per_token
from moebox.report.sections.plan import join_texts, planned_figures
from moebox.runs.record import LoadResult, RunRecord

KNEE = 0.9  # share of the highest throughput beyond which more load is not worth its waiting
PATIENCE_MS = 2_000.0  # time to first token that a user at a prompt still accepts
TAIL = 5.0  # P99 this many times the mean is a queue or a warm-up, not noise
FREE_SHARE = 0.08  # share of a GPU's memory left free that is worth reclaiming
SEVERAL_TOKENS = 1.3  # ITL over TPOT from which several tokens came at once
FAILURES = 0.01  # share of failed requests that spoils the other figures
CACHE_SHARE = 0.75  # requests that the cache holds over concurrent requests: below, they queue
# What slows an engine down without a log line, by whether there is no GPU.
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
    weight: float = 0.0  # lower ones come first


def advice_section(records: Sequence[RunRecord]) -> Section | None:
    """Recommendations, each with its rule."""
    rows = [{"advice": advice, "colours": [*map(run_colour, advice.runs)]} for advice in make_advice(records)]
    lead = "Derived from the figures above by the rules given; nothing here is general advice."
    blocks = (CustomBlock(kind="advice", data=rows),) if rows else ()
    return Section(id="advice", title="Recommendations", lead=lead, blocks=blocks)


def make_advice(records: Sequence[RunRecord]) -> list[Advice]:
    """Every rule that applies, the most serious first."""
    rules = (advise_on_checks, advise_on_requests, advise_on_sweeps, advise_on_latency, advise_on_pcie)
    found: list[Advice] = []
    for index, record in enumerate(records):
        for rule in rules:
            found += [replace(advice, text=prefix_run(record, advice.text), runs=(index,)) for advice in rule(record)]
    for compare in (advise_fastest_run, advise_on_prompt_length, advise_on_forecast):
        found += compare(records)
    return sorted(found, key=lambda advice: advice.weight)


def prefix_run(record: RunRecord, text: str) -> str:
    """A sentence about one run, with its name in front if there are several."""
    return f"{record.page_label}: {text}" if record.page_label else capitalize(text)


def load_sweeps(record: RunRecord) -> list[list[LoadResult]]:
    """Loads of one workload in order of concurrency, for workloads with at least two."""
    groups = group_by((load for load in record.loads if load.is_serving_load), lambda load: load.workload)
    return [sorted(loads, key=lambda load: load.load_value) for loads in groups.values() if len(loads) > 1]


def advise_on_checks(record: RunRecord) -> Iterator[Advice]:
    """Failed checks come before any speed; a known quirk of the engine cannot be fixed here."""
    failed = [check for check in record.failed_checks if not check.habits]
    if failed:
        reasons = "; ".join(join_texts(check.name, ": ", check.reason) for check in failed[:3])
        names = join_names([check.name for check in failed])
        text = f"{names} failed ({reasons}). Speed means little until these pass."
        yield Advice(title="Fix the failing checks first", text=text, rule="Any failed check.", weight=0)
    for check in record.failed_checks:
        if check.habits:
            text = f"{check.name} failed by a known quirk of {'; of '.join(check.habits)}."
            rule = "A failed check whose cause is a known quirk of the engine."
            yield Advice(title="Prepare clients for this engine's quirk", text=text, rule=rule, weight=1)


def advise_on_requests(record: RunRecord) -> Iterator[Advice]:
    """Requests that failed, and loads that the client limited."""
    for load in record.loads:
        ended = (load.failed or 0.0) + (load.completed or 0.0)
        if load.failed and load.failed / ended > FAILURES:
            text = f"{format_number(load.failed)} of {format_number(ended)} requests failed at {loads_text([load])}."
            rule = f"More than {FAILURES * 100:.0f}% of requests failed."
            yield Advice(title="Find out why requests fail", text=text, rule=rule, weight=0)
            break
    limited = [load for load in record.loads if load.client_limited]
    if limited:
        text = f"at {loads_text(limited[:5])} the client was the bottleneck; latencies there are too high."
        yield Advice(
            title="Measure again from a faster client",
            text=text,
            rule="client_limited in the result.",
            weight=1 if len(limited) > len(record.loads) / 2 else 7,  # one load of many is only a remark
        )


def loads_text(loads: Sequence[LoadResult]) -> str:
    """ "a concurrency of 8 and 64", "2 requests/s"."""
    text = join_names([load_name(load) for load in loads])
    return f"a concurrency of {text}" if loads[0].concurrency else text


def load_name(load: LoadResult) -> str:
    """Concurrency or request rate, or the measurement's name if neither is known."""
    if load.concurrency:
        return format_number(load.concurrency)
    return f"{format_number(load.request_rate)} requests/s" if load.request_rate else load.name


def advise_on_sweeps(record: RunRecord) -> Iterator[Advice]:
    """From measurements over rising concurrency: a cache that is too small, and where more load stops paying."""
    for loads in load_sweeps(record):
        low, high, top = loads[0], loads[-1], max(loads, key=lambda load: load.output_tok_s or 0.0)
        first_ttft, last_ttft = low.ttft.mean_or_median, high.ttft.mean_or_median
        tokens = (high.input_tokens or 0) + (high.output_tokens or 0)
        in_cache = (record.kv_tokens or 0.0) / tokens if tokens else 0.0
        queues = (last_ttft or 0.0) > TAIL * (first_ttft or math.inf)
        if 0 < in_cache <= high.load_value * CACHE_SHARE and queues:
            spare = unused_memory_text(record)
            text = (
                f"the cache holds {units.format_count(record.kv_tokens or 0)} tokens, which is "
                f"{format_number(in_cache, 0)} requests of this length. Beyond that they queue: mean TTFT goes from "
                f"{format_ms(first_ttft)} at {format_number(low.concurrency)} to {format_ms(last_ttft)} at "
                f"{format_number(high.concurrency)}.{spare}"
            )
            yield Advice(
                title="Give the KV cache more room" if spare else f"Limit concurrency to {format_number(in_cache, 0)}",
                text=text,
                rule="KV capacity below three quarters of the load, and TTFT at the highest load over five times that "
                "at the lowest.",
                weight=1 + min(in_cache / high.load_value, 0.9),
            )
        highest = top.output_tok_s or 0.0
        knee = next(load for load in loads if (load.output_tok_s or 0.0) >= KNEE * highest)
        if knee is not top and len(loads) > 2:
            share = (knee.output_tok_s or 0.0) / (highest or 1.0)
            rates = f"{format_number(knee.output_tok_s)} of {format_number(top.output_tok_s)} tok/s"
            text = f"{format_number(knee.concurrency)} concurrent requests already give {share * 100:.0f}% of the "
            text += f"highest output ({rates})"
            if knee.ttft.mean_or_median and top.ttft.mean_or_median:
                waits = f"{format_ms(knee.ttft.mean_or_median)} instead of {format_ms(top.ttft.mean_or_median)}"
                text += f" with a mean TTFT of {waits}"
            title = f"Limit concurrency to {format_number(knee.concurrency)}"
            rule = f"The lowest load that reaches {KNEE * 100:.0f}% of the highest output throughput."
            yield Advice(title=title, text=f"{text}.", rule=rule, weight=3)
        patient = [load for load in loads if (load.ttft.mean_or_median or math.inf) <= PATIENCE_MS]
        if patient and patient[-1] is not high:
            load = patient[-1]
            text = (
                f"up to a concurrency of {format_number(load.concurrency)} the mean TTFT stays at "
                f"{format_ms(load.ttft.mean_or_median)} or less, at {format_number(load.output_tok_s)} output tok/s."
            )
            title = f"For interactive use, stay at {format_number(load.concurrency)}"
            rule = f"The highest load measured whose mean TTFT is at most {format_ms(PATIENCE_MS)}."
            yield Advice(title=title, text=text, rule=rule, weight=4)


def unused_memory_text(record: RunRecord) -> str:
    """How many more tokens the free memory of the fullest GPU would hold; "" if it is too little to matter."""
    gpus = [device for device in map(reported_parts, record.reported_devices) if device.total and not device.on_host]
    token_bytes = bytes_per_token(record.recipe)
    free = min((device.parts.get("free", 0.0) for device in gpus), default=0.0)
    if not gpus or not token_bytes or free < FREE_SHARE * gpus[0].total:
        return ""
    return (
        f" {units.format_gib(free)} per GPU stayed unused after loading; at {units.format_count(token_bytes)} bytes a "
        f"token that would be about {units.format_count(round(free / token_bytes, -3))} tokens more. "
        "Raise the engine's memory fraction until little is left."
    )


def advise_on_latency(record: RunRecord) -> Iterator[Advice]:
    """First tokens that come far later than the mean, and speculation; one load is enough for each."""
    for load in record.loads:
        if load.ttft.p99 and load.ttft.mean and load.ttft.p99 / load.ttft.mean > TAIL:
            at = f" at {format_number(load.concurrency)}" if load.concurrency else ""
            text = (
                f"P99 TTFT{at} is {format_ms(load.ttft.p99)}, {format_ratio(load.ttft.p99 / load.ttft.mean)} the mean "
                f"of {format_ms(load.ttft.mean)}. Prefills queued behind each other (all clients starting together "
                "does this) or the first requests compiled kernels; warm up before measuring, and look at the steady "
                "part of the run."
            )
            rule = f"P99 TTFT above {TAIL:.0f} times the mean."
            yield Advice(title="Look at the slowest first tokens", text=text, rule=rule, weight=5)
            break
    for load in record.loads:
        if load.itl.mean and load.tpot.mean and load.itl.mean / load.tpot.mean > SEVERAL_TOKENS:
            text = (
                f"chunks arrive every {format_ms(load.itl.mean)} while a token costs {format_ms(load.tpot.mean)}, so "
                f"each step delivered about {load.itl.mean / load.tpot.mean:.1f} tokens. Random prompts undersell a "
                "draft: repeat with text like yours before tuning it."
            )
            rule = f"Mean ITL more than {SEVERAL_TOKENS} times mean TPOT: several tokens in a chunk."
            yield Advice(title="Speculation pays; measure it on real text", text=text, rule=rule, weight=6)
            break


def advise_on_pcie(record: RunRecord) -> Iterator[Advice]:
    """GPUs on fewer PCIe lanes than they could have."""
    slow = [str(index) for index, gpu in enumerate(record.gpus) if gpu.degraded_slot]
    if slow:
        yield Advice(
            title="Give every GPU its PCIe lanes",
            text=f"GPU {join_names(slow)} run on fewer PCIe lanes than GPU and slot allow. Reseat or check the BIOS.",
            rule="Lanes now below lanes at most.",
            weight=2,
        )


def advise_fastest_run(records: Sequence[RunRecord]) -> Iterator[Advice]:
    """The run with the highest throughput, if several measured the same workload."""
    peaks = [
        (load, index) for index, record in enumerate(records) if (load := record.peak_load()) and load.output_tok_s
    ]
    if len(peaks) < 2 or len({load.workload for load, _ in peaks}) > 1:
        return
    (best, first), (other, second), *_ = sorted(peaks, key=lambda peak: -(peak[0].output_tok_s or 0.0))
    ratio = (best.output_tok_s or 0.0) / (other.output_tok_s or 1.0)
    text = (
        f"{records[first].label} reaches {format_number(best.output_tok_s)} output tok/s at {load_name(best)}, "
        f"{format_ratio(ratio)} what {records[second].label} reaches ({format_number(other.output_tok_s)} at "
        f"{load_name(other)})."
    )
    rule = "Highest output throughput under the same workload."
    title = f"For throughput take {records[first].label}"
    yield Advice(title=title, text=text, rule=rule, runs=(first, second), weight=2)


def advise_on_prompt_length(records: Sequence[RunRecord]) -> Iterator[Advice]:
    """Runs that trade decode for prefill: the prompt length from which one or the other is faster."""
    known = [
        (tg, pp, index)
        for index, record in enumerate(records)
        if (tg := record.highest_value("tg_tok_s")) and (pp := record.highest_value("pp_tok_s"))
    ]
    if len(known) < 2:
        return
    (tg, slow_pp, writer), (slow_tg, pp, reader) = max(known), max(known, key=lambda run: (run[1], run[0]))
    writer_label, reader_label = records[writer].label, records[reader].label
    rule = (
        "Time of a request = prompt / PP + answer / TG; compared between the run with the best TG and the one with "
        "the best PP."
    )
    if writer == reader:
        rates = f"{format_number(tg)} tok/s generating, {format_number(pp)} tok/s reading prompts"
        text = f"{writer_label} is best at both: {rates}."
        yield Advice(title=f"Take {writer_label}", text=text, rule=rule, runs=(writer,), weight=2)
        return
    ratio = (1 / slow_tg - 1 / tg) / (1 / slow_pp - 1 / pp)
    text = (
        f"{writer_label} generates fastest ({format_number(tg)} against {format_number(slow_tg)} tok/s), "
        f"{reader_label} reads prompts fastest ({format_number(pp)} against {format_number(slow_pp)} tok/s). "
        f"With uncached prompts more than {ratio:.1f} times as long as the answers {reader_label} finishes first, "
        f"otherwise {writer_label}."
    )
    yield Advice(title="Choose by prompt length", text=text, rule=rule, runs=(writer, reader), weight=2)


def advise_on_forecast(records: Sequence[RunRecord]) -> Iterator[Advice]:
    """The rate that lies furthest below its forecast's range."""
    outside = [pair for pair in planned_figures(records) if pair.in_range is False and pair.unit == "tok/s"]
    worst = min(outside, key=lambda pair: pair.relative_error, default=None)
    if worst and worst.expected_range and worst.relative_error < 0:
        text = (
            f"{worst.what} at {worst.load} is {format_number(worst.measured)} against "
            f"{format_number(worst.planned)} planned ({format_change(worst.relative_error)}), below the range's "
            f"{format_number(worst.expected_range[0])}. Something holds it back that the model does not know: check "
            f"{SUSPECTS[records[worst.run].has_no_gpu]}."
        )
        text = prefix_run(records[worst.run], text)
        rule = "Measured below the forecast's range."
        yield Advice(title="Find what holds it back", text=text, rule=rule, runs=(worst.run,), weight=3)
