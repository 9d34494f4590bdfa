"""One measurement: warm the server up, drive the load, work out the figures."""

import time
from collections.abc import Callable
from dataclasses import dataclass, fields, replace

from moebox import __version__
from moebox.bench import metrics
from moebox.bench.counting import CHECKED_REPLIES, check_usage, count_missing_tokens, usage_mismatch
from moebox.bench.freshness import cached_prompts_flag, prefix_hit_rate, with_salt
from moebox.bench.generator import LoadJob, LoadProgress, LoadRun, run_job
from moebox.bench.prompts import load_prompts
from moebox.bench.samples import COMPLETED, Samples
from moebox.bench.scrape import Scraper
from moebox.bench.self_check import check_client
from moebox.bench.subject import ProbedEndpoint, api_path, measure_code_words, probe_endpoint, probe_stream
from moebox.bench.vocabulary import open_token_counter
from moebox.core.measure import Load, Slo, Workload
from moebox.core.result import ClientCheck, LoadSummary, Measurement, TokenCounts, UsageCheck
from moebox.errors import ExternalError
from moebox.stream.awake import AwakeClock
from moebox.units import format_seconds

__all__ = ["MeasuredLoad", "ProbedEndpoint", "ProgressWatcher", "measure_load", "probe_endpoint", "probe_stream"]

WARM_UP_OFFSET = 1 << 30  # indices of warm-up requests start here, so that none of them is measured later
ProgressWatcher = Callable[[list[LoadProgress], float], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredLoad:
    """The figures, and the samples they come from."""

    result: Measurement
    samples: Samples

    @property
    def was_interrupted(self) -> bool:
        """It was stopped before its end."""
        return self.result.partial


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
) -> MeasuredLoad:
    """Drive one load and work out what it was like.

    `offset` is the number of the first request: prompts of a file go on from there.
    """
    workload = with_salt(replace(workload, ignore_eos=workload.ignore_eos and probed.ignores_eos))
    if workload.kind == "code":
        probed = replace(probed, words=measure_code_words(probed, workload.api))
    job = _make_job(probed, workload, load, offset)
    if warmup:
        job = replace(job, offset=offset + _warm_up(job, warmup))
    with (
        AwakeClock() as awake,
        Scraper(probed.endpoint, enabled=scrape_metrics, tls=probed.tls if scrape_metrics else None) as scraper,
    ):
        driven = run_job(job, watcher=watch)
    counted, checked = _count_tokens(probed, driven.samples)
    if not counted:
        job = replace(job, keep_text=False)
    away_s = max([awake.away_s, *(gauge.clock_step_s for gauge in driven.gauges)])
    result = _make_measurement(probed, job, driven, slo=slo, away_s=away_s)
    zero = driven.samples.zero
    power = scraper.power_use(zero, result.duration, result.total_output_tokens)
    result = replace(
        result,
        label=label or None,
        warmup=warmup,
        server=scraper.server_view(zero),
        power=power,
        tokens_per_joule=power.output_tokens_per_joule if power else None,
        usage_check=checked,
    )
    return MeasuredLoad(result=_add_flags(probed, job, driven.samples, result), samples=driven.samples)


def _count_tokens(probed: ProbedEndpoint, samples: Samples) -> tuple[bool, UsageCheck | None]:
    """Count replies by the tokenizer, or check the server's count; False where a tokenizer there was is gone."""
    try:
        with open_token_counter(probed.endpoint, probed.words, tls=probed.tls) as count:
            if count is None:
                return False, None
            usage = check_usage(samples, count) if probed.reports_usage else None
            count_missing_tokens(samples, count)
            return True, usage
    except ExternalError:  # what was measured is not
        return False, None


def _make_job(probed: ProbedEndpoint, workload: Workload, load: Load, offset: int) -> LoadJob:
    has_tokenizer = bool(probed.words.tokenizer)
    return LoadJob(
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


def _warm_up(job: LoadJob, requests: int) -> int:
    """Requests that are not measured, with prompts of their own; how many prompts of a file they used."""
    load, work = job.load, job.workload
    connections = min(requests, load.concurrency or requests)
    warm = Load(concurrency=connections, requests=requests * max(1, work.turns), timeout_s=load.timeout_s)
    fresh = with_salt(replace(work, salt=""))
    offset = job.offset if work.kind == "prompts" else WARM_UP_OFFSET + job.offset
    if run_job(replace(job, workload=fresh, load=warm, offset=offset, keep_text=False, keep_first=0)).was_interrupted:
        raise KeyboardInterrupt
    return requests if work.kind == "prompts" else 0


def _make_measurement(
    probed: ProbedEndpoint, job: LoadJob, driven: LoadRun, *, slo: Slo | None, away_s: float
) -> Measurement:
    load, work, samples = job.load, job.workload, driven.samples
    figures = metrics.summarize_samples(samples, slo=slo, prompt_tokens=work.input_tokens)
    client = _check_client(job, driven, figures, away_s)
    backend = "openai-chat" if work.api == "chat" else "openai"
    return Measurement(
        tool=f"moebox {__version__}",
        date=time.strftime("%Y%m%d-%H%M%S", time.gmtime(samples.wall)),
        simulation=probed.simulation,
        backend=backend,
        endpoint_type=backend,
        model_id=probed.endpoint.model,
        tokenizer_id=probed.words.source,
        num_prompts=len(samples),
        request_rate=load.rate or "inf",
        burstiness=load.burstiness,
        max_concurrency=load.concurrency or None,
        **{each.name: getattr(figures, each.name) for each in fields(figures)},
        partial=driven.was_interrupted,
        away_s=away_s,
        workload=work,
        load=load,
        slo=slo,
        token_counts=_counted_by(probed, job),
        prompts_exact=probed.words.is_exact,
        errors=count_reasons(samples),
        steady=metrics.steady_state(samples, ramp_s=load.ramp_s),
        timeline=metrics.build_timeline(samples),
        speed_by_position=metrics.speed_by_position(samples),
        client_limited=bool(client.reasons),
        client=client,
    )


def _check_client(job: LoadJob, driven: LoadRun, figures: LoadSummary, away_s: float) -> ClientCheck:
    """Whether the client kept up with its server."""
    load = job.load
    unlimited = (bool(load.rate) or job.workload.kind == "trace") and not load.concurrency
    gap_ms, p99_ms = figures.chunk_gap.mean, figures.itl.p99
    client = check_client(driven.samples, driven.gauges, open_loop=unlimited, itl_ms=gap_ms, p99_ms=p99_ms)
    if not away_s:
        return client
    away = f"the machine slept, was stopped or its clock was set for {format_seconds(away_s)} meanwhile"
    return replace(client, reasons=(*client.reasons, away))


def _counted_by(probed: ProbedEndpoint, job: LoadJob) -> TokenCounts:
    if probed.reports_usage:
        return "usage"
    return "tokenizer" if job.keep_text else "chunks"


def _add_flags(probed: ProbedEndpoint, job: LoadJob, samples: Samples, result: Measurement) -> Measurement:
    """The result with what spoils its figures for whoever reads them."""
    counts_cached = any(cached >= 0 for cached in samples.columns["cached"])
    rate = prefix_hit_rate(
        prompt_tokens=result.total_input_tokens,
        cached_tokens=result.cached_input_tokens if counts_cached else -1,
        server=result.server,
    )
    template = probed.template_tokens * result.completed / max(1, result.total_input_tokens)
    cached = cached_prompts_flag(job.workload, rate, template_share=template)
    repeated = _repeated(job, len(samples))
    again = f"{repeated} of {len(samples)} prompts were asked before: the file holds too few" if repeated else ""
    fewer = _fewer(samples, result.total_output_tokens)
    doubtful = usage_mismatch(result.usage_check)
    return replace(
        result,
        prefix_cache_hit_rate=rate,
        prompts_cached=bool(cached),
        prompts_repeated=repeated,
        counts_doubtful=bool(fewer or doubtful),
        flags=tuple(filter(None, (cached, again, fewer, doubtful))),
    )


def _fewer(samples: Samples, output: int) -> str:
    """Events with text that are too many for the tokens counted; "" when they are not."""
    pairs = zip(samples.columns["chunks"], samples.columns["outcome"], strict=True)
    events = sum(chunks for chunks, outcome in pairs if outcome == COMPLETED)
    return f"usage counts {output:,} tokens in {events:,} events with text" if events > 2 * output > 0 else ""


def _repeated(job: LoadJob, requests: int) -> int:
    if job.workload.kind != "prompts":
        return 0
    return min(requests, max(0, job.offset + requests - len(load_prompts(job.workload.file))))


def count_reasons(samples: Samples) -> dict[str, int]:
    """What went wrong, and how often."""
    column = list(samples.columns["reason"])
    return {text: column.count(i) for i, text in enumerate(samples.reasons) if i and column.count(i)}
