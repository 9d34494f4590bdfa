"""One measurement: warm the server up, send the load, compute the figures."""

import contextlib
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

from moebox import __version__
from moebox.bench import metrics, validity
from moebox.bench.client_check import check_client
from moebox.bench.generator import CHECKED_REPLIES, LoadJob, LoadProgress, LoadRun, run_job
from moebox.bench.probe import ProbedEndpoint, api_path, measure_code_words, open_token_counter
from moebox.bench.prompts import load_prompts
from moebox.bench.samples import Samples
from moebox.bench.scrape import Scraper, summarize_scrapes
from moebox.core.endpoint import faster_than_forecast
from moebox.core.measure import Load, Slo, Workload
from moebox.core.result import Measurement, TokenCounts, UsageCheck
from moebox.detect.conditions import ConditionsWatch, server_processes
from moebox.detect.stall import DEFAULT_LIMITS, StallLimits, StallWatch
from moebox.errors import ExternalError
from moebox.stream.awake import AwakeClock
from moebox.units import format_seconds

END_TOKENS = 2  # over what was asked for, which some engines count with the end of the turn
WARM_UP_OFFSET = 1 << 30  # index of the first warm-up request, so that none of them is measured later
SETTLE_ROUNDS = 5  # at most; two are enough for a server that has nothing to compile
SETTLED_GAIN = 0.15  # a round that is less than this much faster than the fastest one before shows nothing new
SETTLE_TOKENS = 32  # of each reply while settling
ProgressWatcher = Callable[[list[LoadProgress], float], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredLoad:
    """The figures, and the samples they come from."""

    result: Measurement
    samples: Samples


def measure_load(
    probed: ProbedEndpoint,
    workload: Workload,
    load: Load,
    *,
    slo: Slo | None = None,
    warmup: int = 0,
    label: str = "",
    watch: ProgressWatcher | None = None,
    scrape_metrics: bool = True,
    offset: int = 0,
    settle: bool = False,
    stall_limits: StallLimits = DEFAULT_LIMITS,
) -> MeasuredLoad:
    """Send one load and compute its figures. Raise ServerStalled if the server stands still (detect/stall.py).

    `offset` is the number of the first request: prompts of a file go on from there. With `settle`, the server is first
    warmed up at the load's own batch size and lengths until it gets no faster: kernels are compiled and tuned by then.
    """
    workload = validity.with_salt(replace(workload, ignore_eos=workload.ignore_eos and probed.ignores_eos))
    if workload.kind == "code":
        probed = replace(probed, words=measure_code_words(probed, workload.api))
    has_tokenizer = bool(probed.words.tokenizer)
    job = LoadJob(
        address=probed.address,
        path=api_path(workload.api),
        headers=probed.endpoint.headers,
        model=probed.endpoint.model,
        workload=workload,
        load=load,
        words=probed.words,
        offset=offset,
        keep_text=has_tokenizer and not probed.reports_usage,
        keep_first=CHECKED_REPLIES if has_tokenizer else 0,
    )
    stall_limits = stall_limits.for_prompts(workload.input_tokens * load.concurrency)
    with StallWatch(probed.endpoint, stall_limits) as stall:
        if settle:
            warmup = _settle(job, _watcher(stall))
        elif warmup:
            _warm_up(job, warmup, _watcher(stall))
            job = replace(job, offset=offset + (warmup if workload.kind == "prompts" else 0))
    with (
        StallWatch(probed.endpoint, stall_limits) as stall,
        AwakeClock() as awake,
        Scraper(probed.endpoint, enabled=scrape_metrics, tls=probed.tls) as scraper,
        ConditionsWatch(server_processes(probed.endpoint.server_url)) as conditions,
    ):
        run = run_job(job, watcher=_watcher(stall, watch))
    was_counted, usage = _count_tokens(probed, run.samples)
    counted_by: TokenCounts = "tokenizer" if job.keep_text and was_counted else "chunks"
    result = _make_measurement(
        probed,
        job,
        run,
        away_s=awake.away_s,
        slo=slo,
        label=label or None,
        warmup=warmup,
        token_counts="usage" if probed.reports_usage else counted_by,
        server=summarize_scrapes(scraper.rows, run.samples.zero),
        conditions=conditions.result(),
        usage_check=usage,
    )
    if power := scraper.power_use(run.samples.zero, result.duration, result.total_output_tokens):
        result = replace(result, power=power, tokens_per_joule=power.output_tokens_per_joule)
    return MeasuredLoad(result=_add_flags(probed, job, run.samples, result), samples=run.samples)


def _watcher(stall: StallWatch, watch: ProgressWatcher | None = None) -> ProgressWatcher:
    """Return a watcher that passes progress on and raises if the server stands still."""

    def note(progress: list[LoadProgress], seconds: float) -> None:
        stall.note_progress(sum(worker.tokens + worker.ended for worker in progress))
        stall.raise_if_stalled()
        if watch:
            watch(progress, seconds)

    return note


def _settle(job: LoadJob, watcher: ProgressWatcher) -> int:
    """Send rounds of one request per connection until a round is no longer much faster; return how many were sent.

    Replies are short: what is compiled at first use depends on the batch and the prompt, and a step is a step.
    """
    width = job.load.concurrency or 1
    short = replace(job, workload=replace(job.workload, output_tokens=min(job.workload.output_tokens, SETTLE_TOKENS)))
    fastest_s, sent = math.inf, 0
    for _ in range(SETTLE_ROUNDS):
        round_s = max(gauge.wall_s for gauge in _warm_up(short, width, watcher).gauges)
        sent += width
        if round_s > (1 - SETTLED_GAIN) * fastest_s:
            break
        fastest_s = min(fastest_s, round_s)
    return sent


def _warm_up(job: LoadJob, requests: int, watcher: ProgressWatcher) -> LoadRun:
    """Send requests that are not measured, with their own prompts."""
    load, work = job.load, job.workload
    connections = min(requests, load.concurrency or requests)
    warm = Load(concurrency=connections, requests=requests * max(1, work.turns), timeout_s=load.timeout_s)
    fresh = validity.with_salt(replace(work, salt=""))
    offset = job.offset if work.kind == "prompts" else WARM_UP_OFFSET + job.offset
    warm_job = replace(job, workload=fresh, load=warm, offset=offset, keep_text=False, keep_first=0)
    run = run_job(warm_job, watcher=watcher)
    if run.was_interrupted:
        raise KeyboardInterrupt
    return run


def _count_tokens(probed: ProbedEndpoint, samples: Samples) -> tuple[bool, UsageCheck | None]:
    """Count replies with the tokenizer, or check the server's counts. Return False if there is no tokenizer left."""
    with contextlib.suppress(ExternalError), open_token_counter(probed) as count:  # the measurement itself is good
        if count is not None:
            counted = probed.reports_usage and not probed.simulation  # the text of a simulation is made up
            usage = validity.check_usage(samples, count) if counted else None
            validity.count_missing_tokens(samples, count)
            return True, usage
    return False, None


def _make_measurement(
    probed: ProbedEndpoint, job: LoadJob, run: LoadRun, *, slo: Slo | None, away_s: float, **others: Any
) -> Measurement:
    load, work, samples = job.load, job.workload, run.samples
    figures = metrics.summarize_samples(samples, slo=slo, prompt_tokens=work.input_tokens)
    client = check_client(
        samples,
        run.gauges,
        open_loop=(bool(load.rate) or work.kind == "trace") and not load.concurrency,
        itl_ms=figures.chunk_gap.mean,
        p99_ms=figures.itl.p99,
    )
    away_s = max([away_s, *(gauge.clock_step_s for gauge in run.gauges)])
    if away_s:
        away = f"the machine slept, was stopped or its clock was set for {format_seconds(away_s)} meanwhile"
        client = replace(client, reasons=(*client.reasons, away))
    backend = "openai-chat" if work.api == "chat" else "openai"
    reasons = list(samples.columns["reason"])
    return Measurement(
        tool=f"moebox {__version__}",
        date=time.strftime("%Y%m%d-%H%M%S", time.gmtime(samples.wall)),
        simulation=bool(probed.simulation),
        backend=backend,
        endpoint_type=backend,
        model_id=probed.endpoint.model,
        tokenizer_id=probed.words.source,
        num_prompts=len(samples),
        request_rate=load.rate or "inf",
        burstiness=load.burstiness,
        max_concurrency=load.concurrency or None,
        **{each.name: getattr(figures, each.name) for each in fields(figures)},
        partial=run.was_interrupted,
        away_s=away_s,
        workload=work,
        load=load,
        slo=slo,
        prompts_exact=probed.words.is_exact,
        errors={text: reasons.count(i) for i, text in enumerate(samples.reasons) if i and reasons.count(i)},
        steady=metrics.steady_state(samples, ramp_s=load.ramp_s),
        timeline=metrics.build_timeline(samples),
        speed_by_position=metrics.speed_by_position(samples),
        client_limited=bool(client.reasons),
        client=client,
        **others,
    )


def _add_flags(probed: ProbedEndpoint, job: LoadJob, samples: Samples, result: Measurement) -> Measurement:
    """Return the result with warnings about everything that spoils its figures."""
    reports_cached = max(samples.columns["cached"], default=-1) >= 0
    rate = validity.prefix_hit_rate(
        prompt_tokens=result.total_input_tokens,
        cached_tokens=result.cached_input_tokens if reports_cached else -1,
        server=result.server,
    )
    template_share = probed.template_tokens * result.completed / max(1, result.total_input_tokens)
    cached = validity.cached_prompts_flag(job.workload, rate, template_share=template_share)
    repeated = 0
    if job.workload.kind == "prompts":
        repeated = min(len(samples), max(0, job.offset + len(samples) - len(load_prompts(job.workload.file))))
    again = f"{repeated} of {len(samples)} prompts were asked before: the file holds too few" * bool(repeated)
    figures = metrics.request_figures(samples)
    done = [each.request for each in figures]
    events, output = sum(each.last - each.first for each in done), result.total_output_tokens
    fewer = f"usage counts {output:,} tokens in {events:,} events with text" * (events > 2 * output > 0)
    fewer = validity.COUNTED_EVENTS * any(each.output < 0 for each in done) or fewer
    beyond = sum(each.output > each.asked + END_TOKENS for each in done)
    more = f"usage counts more tokens than were asked for in {beyond} of {len(samples)} replies" * bool(beyond)
    faster = faster_than_forecast(probed.simulation)
    sped_up = f"simulation: {faster}" * bool(faster)
    mismatch = validity.usage_mismatch(result.usage_check)
    unsteady, whole = validity.unsteady_flag(result.steady), validity.unstreamed_flag(figures)
    sent_tokens = round(result.total_input_tokens * len(samples) / max(1, result.completed))
    foreign = validity.foreign_traffic_flag(result.server, prompt_tokens=sent_tokens, requests=len(samples))
    disturbed = [f"disturbed: {line}" for line in result.conditions.disturbances()] if result.conditions else []
    return replace(
        result,
        prefix_cache_hit_rate=rate,
        prompts_cached=bool(cached),
        prompts_repeated=repeated,
        counts_doubtful=bool(fewer or more or mismatch),
        flags=(*filter(None, (sped_up, whole, cached, again, fewer, more, mismatch, unsteady, foreign)), *disturbed),
    )
