"""One measurement: warm the server up, drive the load, work out the figures."""

import time
from collections.abc import Callable
from dataclasses import dataclass, fields, replace

from moebox import __version__
from moebox.bench import metrics
from moebox.bench.counting import CHECKED, check, doubt, recount
from moebox.bench.freshness import complaint, hit_rate, salted
from moebox.bench.generator import Driven, Job, Progress, drive
from moebox.bench.prompts import load_prompts
from moebox.bench.samples import COMPLETED, Samples
from moebox.bench.scrape import Scraper
from moebox.bench.self_check import self_check
from moebox.bench.subject import Subject, code_text, look, path_of, subject_of
from moebox.bench.vocabulary import counter
from moebox.core.measure import Load, Slo, Workload
from moebox.core.result import ClientCheck, LoadSummary, Measurement, TokenCounts, UsageCheck
from moebox.errors import ExternalError
from moebox.stream.awake import AwakeClock
from moebox.units import format_seconds

__all__ = ["Measured", "Subject", "Watch", "look", "measure", "subject_of"]

WARM = 1 << 30  # indices of warm-up requests start here, so that none of them is measured later
Watch = Callable[[list[Progress], float], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The figures, and the samples they come from."""

    result: Measurement
    samples: Samples

    @property
    def interrupted(self) -> bool:
        """It was stopped before its end."""
        return self.result.partial


def measure(
    subject: Subject,
    workload: Workload,
    load: Load,
    *,
    slo: Slo | None = None,
    warmup: int = 0,
    label: str = "",
    watch: Watch | None = None,
    scrape: bool = True,
    offset: int = 0,
) -> Measured:
    """Drive one load and work out what it was like.

    `offset` is the number of the first request: prompts of a file go on from there.
    """
    workload = salted(replace(workload, ignore_eos=workload.ignore_eos and subject.ignores_eos))
    if workload.kind == "code":
        subject = replace(subject, text=code_text(subject, workload.api))
    job = _job(subject, workload, load, offset)
    if warmup:
        job = replace(job, offset=offset + _warm_up(job, warmup))
    with (
        AwakeClock() as awake,
        Scraper(subject.endpoint, enabled=scrape, tls=subject.tls if scrape else None) as scraper,
    ):
        driven = drive(job, watch=watch)
    counted, checked = _count(subject, driven.samples)
    if not counted:
        job = replace(job, keep_text=False)
    away_s = max([awake.away_s, *(gauge.clock_step_s for gauge in driven.gauges)])
    result = _figures(subject, job, driven, slo=slo, away_s=away_s)
    zero = driven.samples.zero
    power = scraper.power(zero, result.duration, result.total_output_tokens)
    result = replace(
        result,
        label=label or None,
        warmup=warmup,
        server=scraper.server(zero),
        power=power,
        tokens_per_joule=power.output_tokens_per_joule if power else None,
        usage_check=checked,
    )
    return Measured(result=_flagged(subject, job, driven.samples, result), samples=driven.samples)


def _count(subject: Subject, samples: Samples) -> tuple[bool, UsageCheck | None]:
    """Count replies by the tokenizer, or check the server's count; False where a tokenizer there was is gone."""
    try:
        with counter(subject.endpoint, subject.text, tls=subject.tls) as count:
            if count is None:
                return False, None
            checked = check(samples, count) if subject.counts else None
            recount(samples, count)
            return True, checked
    except ExternalError:  # what was measured is not
        return False, None


def _job(subject: Subject, workload: Workload, load: Load, offset: int) -> Job:
    has_tokenizer = bool(subject.text.tokenizer)
    return Job(
        target=subject.target,
        path=path_of(workload.api),
        headers=subject.endpoint.headers,
        model=subject.endpoint.model,
        workload=workload,
        load=load,
        text=subject.text,
        offset=offset,
        keep_text=has_tokenizer and not subject.counts,
        keep_first=CHECKED if has_tokenizer else 0,
    )


def _warm_up(job: Job, requests: int) -> int:
    """Requests that are not measured, with prompts of their own; how many prompts of a file they used."""
    load, work = job.load, job.workload
    connections = min(requests, load.concurrency or requests)
    warm = Load(concurrency=connections, requests=requests * max(1, work.turns), timeout_s=load.timeout_s)
    fresh = salted(replace(work, salt=""))
    offset = job.offset if work.kind == "prompts" else WARM + job.offset
    if drive(replace(job, workload=fresh, load=warm, offset=offset, keep_text=False, keep_first=0)).interrupted:
        raise KeyboardInterrupt
    return requests if work.kind == "prompts" else 0


def _figures(subject: Subject, job: Job, driven: Driven, *, slo: Slo | None, away_s: float) -> Measurement:
    load, work, samples = job.load, job.workload, driven.samples
    figures = metrics.summary(samples, slo=slo, prompt_tokens=work.input_tokens)
    client = _client(job, driven, figures, away_s)
    backend = "openai-chat" if work.api == "chat" else "openai"
    return Measurement(
        tool=f"moebox {__version__}",
        date=time.strftime("%Y%m%d-%H%M%S", time.gmtime(samples.wall)),
        simulation=subject.simulation,
        backend=backend,
        endpoint_type=backend,
        model_id=subject.endpoint.model,
        tokenizer_id=subject.text.how,
        num_prompts=len(samples),
        request_rate=load.rate or "inf",
        burstiness=load.burstiness,
        max_concurrency=load.concurrency or None,
        **{each.name: getattr(figures, each.name) for each in fields(figures)},
        partial=driven.interrupted,
        away_s=away_s,
        workload=work,
        load=load,
        slo=slo,
        token_counts=_counted_by(subject, job),
        prompts_exact=subject.text.exact,
        errors=reasons(samples),
        steady=metrics.steady(samples, ramp_s=load.ramp_s),
        timeline=metrics.timeline(samples),
        speed_by_position=metrics.speed_by_position(samples),
        client_limited=bool(client.reasons),
        client=client,
    )


def _client(job: Job, driven: Driven, figures: LoadSummary, away_s: float) -> ClientCheck:
    """Whether the client kept up with its server."""
    load = job.load
    unlimited = (bool(load.rate) or job.workload.kind == "trace") and not load.concurrency
    gap_ms, p99_ms = figures.chunk_gap.mean, figures.itl.p99
    client = self_check(driven.samples, driven.gauges, open_loop=unlimited, itl_ms=gap_ms, p99_ms=p99_ms)
    if not away_s:
        return client
    away = f"the machine slept, was stopped or its clock was set for {format_seconds(away_s)} meanwhile"
    return replace(client, reasons=(*client.reasons, away))


def _counted_by(subject: Subject, job: Job) -> TokenCounts:
    if subject.counts:
        return "usage"
    return "tokenizer" if job.keep_text else "chunks"


def _flagged(subject: Subject, job: Job, samples: Samples, result: Measurement) -> Measurement:
    """The result with what spoils its figures for whoever reads them."""
    told = any(cached >= 0 for cached in samples.columns["cached"])
    rate = hit_rate(
        asked=result.total_input_tokens, cached=result.cached_input_tokens if told else -1, server=result.server
    )
    template = subject.template_tokens * result.completed / max(1, result.total_input_tokens)
    cached = complaint(job.workload, rate, template=template)
    repeated = _repeated(job, len(samples))
    again = f"{repeated} of {len(samples)} prompts were asked before: the file holds too few" if repeated else ""
    fewer = _fewer(samples, result.total_output_tokens)
    doubtful = doubt(result.usage_check)
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


def _repeated(job: Job, requests: int) -> int:
    if job.workload.kind != "prompts":
        return 0
    return min(requests, max(0, job.offset + requests - len(load_prompts(job.workload.file))))


def reasons(samples: Samples) -> dict[str, int]:
    """What went wrong, and how often."""
    column = list(samples.columns["reason"])
    return {text: column.count(i) for i, text in enumerate(samples.reasons) if i and column.count(i)}
