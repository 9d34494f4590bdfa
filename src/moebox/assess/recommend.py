"""Recommendations derived from the data by rules that are shown beside them.

A rule is a function of a record; it applies only if the figures it needs are there and give no reason for doubt, and
quotes them. Thresholds are choices, named here, not measurements.
"""

import itertools
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from moebox import units
from moebox.assess.assessment import Recommendation
from moebox.assess.devices import reported_parts
from moebox.assess.figures import planned_figures, reliable_loads
from moebox.assess.format import (
    capitalize,
    format_change,
    format_ms,
    format_number,
    format_ratio,
    group_by,
    join_names,
    unique_names,
)
from moebox.core.catalogue import get_model, load_table
from moebox.core.recipe import Recipe
from moebox.errors import MoeboxError
from moebox.runs.record import LoadResult, RunRecord

KNEE = 0.9  # share of the highest throughput beyond which more load is not worth its waiting
PATIENCE_MS = 2_000.0  # time to first token that a user at a prompt still accepts
TAIL = 5.0  # P99 this many times the mean is a queue or a warm-up, not noise
FREE_SHARE = 0.08  # share of a GPU's memory left free that is worth reclaiming
SEVERAL_TOKENS = 1.3  # ITL over TPOT from which several tokens came at once
CACHE_SHARE = 0.75  # requests that the cache holds over concurrent requests: below, they queue
# What slows an engine down without a log line, by whether there is no GPU.
SUSPECTS = {
    False: "clocks, lanes, the attention backend and whether CUDA graphs are on",
    True: "what else runs on the machine, the number of threads and the CPU's clock",
}
# How to get rid of a flag, by its beginning; other flags are about the prompts or counts of tokens.
REPEAT_CONDITIONS = {
    "disturbed": "on a quiet machine",
    "not steady": "after a longer warm-up",
    "simulation": "without `--speed`",
    "tokens were counted as": "with `--set endpoint.tokenizer=FILE`",
    "other clients": "while no other client uses the server",
}


def make_recommendation(subject: str, text: str, **changes: Any) -> Recommendation:
    """Return the recommendation of `data/recommendations.toml` for a subject, with what the figures change in it."""
    row = load_table("recommendations")[subject]
    rule = row["rule"].format(knee=KNEE * 100, patience=format_ms(PATIENCE_MS), tail=TAIL, several=SEVERAL_TOKENS)
    return Recommendation(**{**row, "subject": subject, "text": text, "rule": rule, **changes})


def recommend(records: Sequence[RunRecord]) -> tuple[Recommendation, ...]:
    """Every rule that applies, the most serious first; at most one for each subject and run."""
    rules = [recommend_checks, recommend_requests, recommend_repeat, recommend_cache]
    rules += [recommend_concurrency, recommend_latency, recommend_pcie, recommend_forecast]
    found: list[Recommendation] = []
    for index, record in enumerate(records):
        for row in itertools.chain.from_iterable(rule(record) for rule in rules):
            text = f"{record.page_label}: {row.text}" if record.page_label else capitalize(row.text)
            found.append(replace(row, text=text, runs=(index,)))
    return tuple(sorted([*found, *recommend_choice(records)], key=lambda row: row.weight))


def load_sweeps(loads: Sequence[LoadResult]) -> list[list[LoadResult]]:
    """Loads of one workload in order of concurrency, for workloads with at least two."""
    groups = group_by((load for load in loads if load.is_serving_load), lambda load: load.workload)
    return [sorted(group, key=lambda load: load.load_value) for group in groups.values() if len(group) > 1]


def loads_text(loads: Sequence[LoadResult]) -> str:
    """ "a concurrency of 8 and 64", "2/s"."""
    closed = join_names(unique_names(load.load_name for load in loads if load.concurrency))
    others = unique_names(load.load_name for load in loads if not load.concurrency)
    return join_names([*([f"a concurrency of {closed}"] if closed else []), *others])


def recommend_checks(record: RunRecord) -> Iterator[Recommendation]:
    """Failed checks come before any speed; a known quirk of the engine cannot be fixed here."""
    failed = [check for check in record.failed_checks if not check.quirks]
    if failed:
        reasons = "; ".join(f"{check.name}: {check.reason}" if check.reason else check.name for check in failed[:3])
        text = f"{join_names([check.name for check in failed])} failed ({reasons})."
        yield make_recommendation("checks", f"{text} Speed means little until these pass.")
    names = [check.name for check in record.all_checks if check.quirks and check.verdict in ("warn", "fail")]
    if names:
        text = f"The warnings of {join_names(names)} name each known quirk, and what a client can do."
        yield make_recommendation("quirks", text)


def recommend_requests(record: RunRecord) -> Iterator[Recommendation]:
    loads = [load for load in record.loads if load.failed]
    if loads:
        failed = sum(load.failed or 0.0 for load in loads)
        ended = failed + sum(load.completed or 0.0 for load in loads)
        text = f"{format_number(failed)} of {format_number(ended)} requests failed at {loads_text(loads[:5])}."
        yield make_recommendation("requests", text)


def recommend_repeat(record: RunRecord) -> Iterator[Recommendation]:
    """Loads whose figures are flagged or limited by the client: the only conclusion is to measure again."""
    doubtful = [load for load in record.loads if load.flags or load.client_limited]
    if not doubtful:
        return
    flags = [(flag, load) for load in doubtful for flag in load.flags]
    flags += [("the client was the bottleneck", load) for load in doubtful if load.client_limited]
    reasons = group_by(flags, lambda pair: pair[0])
    sentences = [f"at {loads_text([load for _, load in rows][:5])} {flag}" for flag, rows in reasons.items()]
    text = "; ".join([*sentences[:3], *(["and others"] if len(sentences) > 3 else [])])
    text += ". Nothing else is concluded from these loads."
    serious = any(load.flags for load in doubtful) or len(doubtful) > len(record.loads) / 2
    title = " ".join(("Measure again", *repeat_conditions(doubtful)[:1]))
    yield make_recommendation("measurement", text, title=title, weight=1.0 if serious else 7.0)


def repeat_conditions(loads: Sequence[LoadResult]) -> list[str]:
    """Conditions under which these loads should be measured again, the most frequent cause first."""
    flags = [flag for load in loads for flag in load.flags]
    found = [text for start, text in REPEAT_CONDITIONS.items() if any(flag.startswith(start) for flag in flags)]
    return found + ["from a faster client"] * any(load.client_limited for load in loads)


def recommend_cache(record: RunRecord) -> Iterator[Recommendation]:
    """A cache that is too small although memory is free."""
    spare = unused_memory_text(record)
    texts = [text for _, text in cache_limits(record)]
    if texts and spare:
        yield make_recommendation("cache", texts[0] + spare)


def cache_limits(record: RunRecord) -> list[tuple[int, str]]:
    """Requests that the cache holds and what happens beyond, for each sweep in which requests queue for it."""
    found = []
    for loads in load_sweeps(reliable_loads(record)):
        low, high = loads[0], loads[-1]
        first_ttft, last_ttft = low.ttft.mean_or_median, high.ttft.mean_or_median
        tokens = (high.input_tokens or 0) + (high.output_tokens or 0)
        in_cache = (record.kv_tokens or 0.0) / tokens if tokens else 0.0
        queues = (last_ttft or 0.0) > TAIL * (first_ttft or math.inf)
        if 1 <= in_cache <= high.load_value * CACHE_SHARE and queues:
            text = (
                f"the cache holds {units.format_count(record.kv_tokens or 0)} tokens, which is "
                f"{format_number(in_cache, 0)} requests of this length. Beyond that they queue: mean TTFT goes from "
                f"{format_ms(first_ttft)} at {format_number(low.concurrency)} to {format_ms(last_ttft)} at "
                f"{format_number(high.concurrency)}."
            )
            found.append((int(in_cache), text))
    return found


def recommend_concurrency(record: RunRecord) -> Iterator[Recommendation]:
    """One recommendation about concurrency, which names each purpose with its limit."""
    limits: defaultdict[str, list[float]] = defaultdict(list)  # by purpose
    texts: list[str] = []
    for loads in load_sweeps(reliable_loads(record)):
        high, top = loads[-1], max(loads, key=lambda load: load.output_tok_s or 0.0)
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
            texts.append(f"{text}.")
            limits["throughput"].append(knee.load_value)
        patient = [load for load in loads if (load.ttft.mean_or_median or math.inf) <= PATIENCE_MS]
        if patient and patient[-1] is not high:
            load = patient[-1]
            texts.append(
                f"up to a concurrency of {format_number(load.concurrency)} the mean TTFT stays at "
                f"{format_ms(load.ttft.mean_or_median)} or less, at {format_number(load.output_tok_s)} output tok/s."
            )
            limits["interactive use"].append(load.load_value)
    if not unused_memory_text(record):
        for in_cache, text in cache_limits(record):
            texts.append(text)
            limits["requests that do not queue"].append(in_cache)
    by_limit = group_by(limits, lambda purpose: min(limits[purpose]))
    purposes = [f"{format_number(limit)} for {join_names(names)}" for limit, names in by_limit.items()]
    if limits:
        text = " ".join([texts[0], *map(capitalize, texts[1:])])
        yield make_recommendation("concurrency", text, title=f"Limit concurrency to {join_names(purposes)}")


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


def bytes_per_token(recipe: Recipe | None) -> float | None:
    """Bytes of one cached token on each GPU, or None if model or cache type is unknown."""
    if recipe is None or (model := get_model(recipe.model)) is None:
        return None
    try:
        return model.kv_bytes_per_token("bf16" if recipe.kv == "auto" else recipe.kv) / recipe.parallel.dcp
    except (KeyError, MoeboxError, AssertionError):
        return None


def recommend_latency(record: RunRecord) -> Iterator[Recommendation]:
    """First tokens that come far later than the mean, and speculation; one load is enough for each."""
    texts: dict[str, str] = {}
    for load in reliable_loads(record):
        ttft, tpot = load.ttft.mean or math.inf, load.tpot.mean or math.inf
        tail, tokens = (load.ttft.p99 or 0.0) / ttft, (load.itl.mean or 0.0) / tpot
        if tail > TAIL:
            at = f" at {load.load_name}" if load.load_value else ""
            text = (
                f"P99 TTFT{at} is {format_ms(load.ttft.p99)}, {format_ratio(tail)} the mean of {format_ms(ttft)}. "
                "Prefills queued behind each other (all clients starting together does this) or the first requests "
                "compiled kernels; warm up before measuring, and look at the steady part of the run."
            )
            texts.setdefault("slow first tokens", text)
        if tokens > SEVERAL_TOKENS:
            text = (
                f"chunks arrive every {format_ms(load.itl.mean)} while a token costs {format_ms(tpot)}, so each step "
                f"delivered about {tokens:.1f} tokens. Random prompts undersell a draft: repeat with text like yours "
                "before tuning it."
            )
            texts.setdefault("speculation", text)
    yield from itertools.starmap(make_recommendation, texts.items())


def recommend_pcie(record: RunRecord) -> Iterator[Recommendation]:
    """GPUs on fewer PCIe lanes than they could have."""
    slow = [str(index) for index, gpu in enumerate(record.gpus) if gpu.degraded_slot]
    if slow:
        text = f"GPU {join_names(slow)} run on fewer PCIe lanes than GPU and slot allow. Reseat or check the BIOS."
        yield make_recommendation("PCIe", text)


def recommend_fastest(records: Sequence[RunRecord]) -> Iterator[Recommendation]:
    """The run with the highest throughput, if several measured the same workload."""
    peaks = [
        (load, index)
        for index, record in enumerate(records)
        if (load := record.peak_load()) and load.output_tok_s and not load.doubts
    ]
    if len(peaks) < 2 or len({load.workload for load, _ in peaks}) > 1:
        return
    (best, first), (other, second), *_ = sorted(peaks, key=lambda peak: -(peak[0].output_tok_s or 0.0))
    ratio = (best.output_tok_s or 0.0) / (other.output_tok_s or 1.0)
    text = (
        f"{records[first].label} reaches {format_number(best.output_tok_s)} output tok/s at {best.load_name}, "
        f"{format_ratio(ratio)} what {records[second].label} reaches ({format_number(other.output_tok_s)} at "
        f"{other.load_name})."
    )
    title, rule = f"For throughput take {records[first].label}", "Highest output throughput under the same workload."
    yield make_recommendation("choice", text, title=title, rule=rule, runs=(first, second))


def recommend_by_prompt_length(records: Sequence[RunRecord]) -> Iterator[Recommendation]:
    """Runs that trade decode for prefill: the prompt length from which one or the other is faster."""
    known = [
        (tg, pp, index)
        for index, record in enumerate(records)
        if (tg := max((load.tg_tok_s or 0.0 for load in reliable_loads(record)), default=0.0))
        and (pp := max((load.pp_tok_s or 0.0 for load in reliable_loads(record)), default=0.0))
    ]
    if len(known) < 2:
        return
    (tg, slow_pp, writer), (slow_tg, pp, reader) = max(known), max(known, key=lambda run: (run[1], run[0]))
    writer_label, reader_label = records[writer].label, records[reader].label
    if writer == reader:
        rates = f"{format_number(tg)} tok/s generating, {format_number(pp)} tok/s reading prompts"
        text = f"{writer_label} is best at both: {rates}."
        yield make_recommendation("choice", text, title=f"Take {writer_label}", runs=(writer,))
        return
    ratio = (1 / slow_tg - 1 / tg) / (1 / slow_pp - 1 / pp)
    text = (
        f"{writer_label} generates fastest ({format_number(tg)} against {format_number(slow_tg)} tok/s), "
        f"{reader_label} reads prompts fastest ({format_number(pp)} against {format_number(slow_pp)} tok/s). "
        f"With uncached prompts more than {ratio:.1f} times as long as the answers {reader_label} finishes first, "
        f"otherwise {writer_label}."
    )
    yield make_recommendation("choice", text, runs=(writer, reader))


def recommend_choice(records: Sequence[RunRecord]) -> list[Recommendation]:
    """Which of several runs to take: by throughput, by prompt length, or both purposes in one recommendation."""
    found = [*recommend_fastest(records), *recommend_by_prompt_length(records)]
    if len(found) < 2:
        return found
    first, second = found
    title = f"{first.title}; with one stream, {second.title[0].lower()}{second.title[1:]}"
    runs = tuple(dict.fromkeys((*first.runs, *second.runs)))
    text, rule = f"{first.text} With one stream: {second.text}", f"{first.rule} {second.rule}"
    return [replace(first, title=title, text=text, rule=rule, runs=runs)]


def recommend_forecast(record: RunRecord) -> Iterator[Recommendation]:
    """The rate that lies furthest below its forecast's range."""
    outside = [figure for figure in planned_figures([record]) if figure.in_range is False and figure.unit == "tok/s"]
    worst = min((figure for figure in outside if figure.is_reliable), key=lambda it: it.relative_error, default=None)
    if worst and worst.expected_range and worst.relative_error < 0:
        text = (
            f"{worst.what} at {worst.load} is {format_number(worst.measured)} against "
            f"{format_number(worst.planned)} planned ({format_change(worst.relative_error)}), below the range's "
            f"{format_number(worst.expected_range[0])}. Something holds it back that the model does not know: check "
            f"{SUSPECTS[record.has_no_gpu]}."
        )
        yield make_recommendation("forecast", text)
