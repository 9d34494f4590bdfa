"""One measurement: look at the server, warm it up, drive the load, work out the figures."""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from moebox import __version__, codec
from moebox.bench import filler, metrics
from moebox.bench.counting import CHECKED, check, recount
from moebox.bench.freshness import complaint, hit_rate, salted
from moebox.bench.generator import Driven, Job, Progress, Text, drive
from moebox.bench.prompts import load_prompts
from moebox.bench.samples import Samples
from moebox.bench.scrape import Scraper
from moebox.bench.self_check import self_check
from moebox.bench.vocabulary import MOST_PER_WORD, PLAIN, counter, text_for
from moebox.core.endpoint import Endpoint
from moebox.core.measure import Load, Slo, Workload
from moebox.errors import Outside
from moebox.stream import Reply, ask, sockets
from moebox.stream.awake import Awake
from moebox.stream.body import retry_after_s
from moebox.units import seconds

FORMAT = 1
BY_USAGE = "calibrated words (by the server's count of a prompt)"
SIMULATED = "x-moebox-simulation"  # a header of every reply of `moebox twin`
MOST_TEMPLATE = 8192  # tokens of a chat template; a server that counts more does not count
MOST_EVENTS = 10_000  # of a reply to a request for a few tokens
CALIBRATION_S = 120.0  # for a prompt of a few hundred tokens
LONGEST_PAUSE_S = 60.0  # that a server which is still loading may ask for
WARM = 1 << 30  # indices of warm-up requests start here, so that none of them is measured later
Watch = Callable[[list[Progress], float], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """The figures, and the samples they come from."""

    result: dict[str, Any]
    samples: Samples

    @property
    def interrupted(self) -> bool:
        """It was stopped before its end."""
        return bool(self.result["partial"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """An endpoint that was looked at: how to reach it, what it understands, how its tokens are counted."""

    endpoint: Endpoint
    target: sockets.Target
    text: Text
    counts: bool  # its streams end with usage
    ignores_eos: bool  # it accepts ignore_eos
    simulation: bool = False  # its replies say that no model wrote them
    template_tokens: int = 0  # that its chat template adds to a prompt, where it counts prompts


def subject_of(
    endpoint: Endpoint,
    *,
    tokenizer: str = "",
    api: str = "chat",
    insecure: bool = False,
    ca_file: str = "",
    timeout_s: float = 600.0,
) -> Subject:
    """Look at the server, and then choose words by its tokenizer or a local one."""
    subject = look(endpoint, PLAIN, api=api, insecure=insecure, ca_file=ca_file, timeout_s=timeout_s)
    return replace(subject, text=text_for(endpoint, tokenizer=tokenizer, timeout_s=timeout_s))


def look(
    endpoint: Endpoint,
    text: Text,
    *,
    api: str = "chat",
    insecure: bool = False,
    ca_file: str = "",
    timeout_s: float = 600.0,
) -> Subject:
    """Ask for a few tokens: is it there, does it stream, does it count, does it know ignore_eos?"""
    target = sockets.target_of(endpoint.base_url, insecure=insecure, ca_file=ca_file)
    opening = " ".join(["one", "two", *random.sample(text.words, 3)])
    body = {**_body(endpoint, api, opening), "max_tokens": 4}
    until = time.monotonic() + timeout_s
    reply = _ask(endpoint, {**body, "ignore_eos": True}, api, target, until)
    ignores = not reply.error
    if reply.error and reply.status in (400, 422):
        reply = _ask(endpoint, body, api, target, until)
    if reply.error:
        raise Outside(f"{endpoint.base_url}: {reply.error}", hint="--model must be a name that /v1/models lists")
    template = (reply.prompt_tokens or 0) - len(opening.split())
    return Subject(
        endpoint=endpoint,
        target=target,
        text=text,
        counts=reply.completion_tokens is not None,
        ignores_eos=ignores,
        simulation=SIMULATED in reply.headers,
        template_tokens=template if 0 < template < MOST_TEMPLATE else 0,
    )


def _ask(endpoint: Endpoint, body: dict[str, Any], api: str, target: sockets.Target, until: float) -> Reply:
    """One request within the time left; once more after a refusal that says when, if that is within it."""
    while True:
        left = until - time.monotonic()
        if left <= 0:
            raise Outside(f"{endpoint.base_url}: not over in the time that --timeout gives it")
        reply = ask(
            endpoint, body, path=path_of(api), target=target, timeout_s=left, total_s=left, most_events=MOST_EVENTS
        )
        pause = retry_after_s({b"retry-after": reply.headers.get("retry-after", "").encode()})
        if reply.status not in (429, 503) or pause is None or pause > min(LONGEST_PAUSE_S, until - time.monotonic()):
            return reply
        time.sleep(pause)


def _body(endpoint: Endpoint, api: str, text: str) -> dict[str, Any]:
    prompt = {"prompt": text} if api == "completions" else {"messages": [{"role": "user", "content": text}]}
    return {"model": endpoint.model, "stream_options": {"include_usage": True}, **prompt}


def code_text(subject: Subject, api: str) -> Text:
    """The words, with the length of code measured by the server's own count where there is no tokenizer."""
    if subject.text.tokenizer or not subject.counts:
        return subject.text
    code = filler.code("calibration", 200)
    short, long = (_prompt_tokens(subject, api, text) for text in ("x", f"x {code}"))
    if short is None or long is None:
        return subject.text
    per_word = (long - short) / len(code.split())
    if not 1 <= per_word <= MOST_PER_WORD:  # it does not count what it was sent
        return subject.text
    return replace(subject.text, tokens_per_code_word=per_word, how=BY_USAGE)


def _prompt_tokens(subject: Subject, api: str, text: str) -> int | None:
    body = {**_body(subject.endpoint, api, text), "max_tokens": 1}
    return _ask(subject.endpoint, body, api, subject.target, time.monotonic() + CALIBRATION_S).prompt_tokens


def path_of(api: str) -> str:
    """Below /v1."""
    return "/completions" if api == "completions" else "/chat/completions"


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
) -> Measurement:
    """Drive one load and work out what it was like.

    `offset` is the number of the first request: prompts of a file go on from there.
    """
    workload = salted(replace(workload, ignore_eos=workload.ignore_eos and subject.ignores_eos))
    if workload.kind == "code":
        subject = replace(subject, text=code_text(subject, workload.api))
    count = counter(subject.endpoint, subject.text)
    job = Job(
        target=subject.target,
        path=path_of(workload.api),
        headers=subject.endpoint.headers,
        model=subject.endpoint.model,
        workload=workload,
        load=load,
        text=subject.text,
        offset=offset,
        keep_text=count is not None and not subject.counts,
        keep_first=CHECKED if count is not None else 0,
    )
    if warmup:
        job = replace(job, offset=offset + _warm_up(job, warmup))
    with Awake() as awake, Scraper(subject.endpoint, enabled=scrape) as scraper:
        driven = drive(job, watch=watch)
    try:
        checked = check(driven.samples, count) if count is not None and subject.counts else None
        if count is not None:
            recount(driven.samples, count)
    except Outside:  # the server's tokenizer is gone: what was measured is not
        checked, job = None, replace(job, keep_text=False)
    away_s = max([awake.away_s, *(gauge.clock_step_s for gauge in driven.gauges)])
    result = document(subject, job, driven, slo=slo, warmup=warmup, label=label, away_s=away_s)
    result |= scraper.report(driven.samples.zero, result["duration"], result["total_output_tokens"])
    result |= {"usage_check": codec.plain(checked) if checked else None, **_flags(subject, job, driven.samples, result)}
    if checked and checked.doubtful:
        result["counts_doubtful"] = True
        result["flags"].append(checked.complaint)
    return Measurement(result=result, samples=driven.samples)


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


def _flags(subject: Subject, job: Job, samples: Samples, result: dict[str, Any]) -> dict[str, Any]:
    """What spoils the figures for whoever reads them: sentences, and the hit rate that one of them is about."""
    told = any(cached >= 0 for cached in samples.columns["cached"])
    rate = hit_rate(
        asked=result["total_input_tokens"],
        cached=result["cached_input_tokens"] if told else -1,
        server=result["server"] or {},
    )
    template = subject.template_tokens * result["completed"] / max(1, result["total_input_tokens"])
    cached = complaint(job.workload, rate, template=template)
    repeated = _repeated(job, len(samples))
    events, output = len(samples.time), result["total_output_tokens"]
    fewer = f"usage counts {output:,} tokens in {events:,} events with text" if events > 2 * output > 0 else ""
    again = f"{repeated} of {len(samples)} prompts were asked before: the file holds too few" if repeated else ""
    return {
        "prefix_cache_hit_rate": rate,
        "prompts_cached": bool(cached),
        "prompts_repeated": repeated,
        "counts_doubtful": bool(fewer),
        "flags": [flag for flag in (cached, again, fewer) if flag],
    }


def _repeated(job: Job, requests: int) -> int:
    if job.workload.kind != "prompts":
        return 0
    return min(requests, max(0, job.offset + requests - len(load_prompts(job.workload.file))))


def document(
    subject: Subject, job: Job, driven: Driven, *, slo: Slo | None, warmup: int, label: str, away_s: float = 0.0
) -> dict[str, Any]:
    """The result as it is printed and kept; its keys are listed in docs/metrics.md."""
    load, work, samples = job.load, job.workload, driven.samples
    figures = metrics.summary(samples, slo=slo, prompt_tokens=work.input_tokens)
    unlimited = bool(load.rate) and not load.concurrency
    own = self_check(samples, driven.gauges, open_loop=unlimited, itl_ms=figures["mean_chunk_gap_ms"])
    if away_s:
        own["reasons"].append(f"the machine slept, was stopped or its clock was set for {seconds(away_s)} meanwhile")
    return {
        "format": FORMAT,
        "kind": "serving",
        "tool": f"moebox {__version__}",
        "date": time.strftime("%Y%m%d-%H%M%S", time.gmtime(samples.wall)),
        "label": label or None,
        "simulation": subject.simulation,
        "backend": "openai-chat" if work.api == "chat" else "openai",
        "endpoint_type": "openai-chat" if work.api == "chat" else "openai",
        "model_id": subject.endpoint.model,
        "tokenizer_id": subject.text.how,
        "num_prompts": len(samples),
        "request_rate": load.rate or "inf",
        "burstiness": load.burstiness,
        "max_concurrency": load.concurrency or None,
        **figures,
        "partial": driven.interrupted,
        "away_s": away_s,
        "workload": codec.plain(work),
        "load": codec.plain(load),
        "warmup": warmup,
        "slo": codec.plain(slo) if slo else None,
        "token_counts": "usage" if subject.counts else "tokenizer" if job.keep_text else "chunks",
        "prompts_exact": subject.text.exact,
        "errors": reasons(samples),
        "steady": metrics.steady(samples, ramp_s=load.ramp_s),
        "timeline": metrics.timeline(samples),
        "speed_by_position": metrics.speed_by_position(samples),
        "client_limited": bool(own["reasons"]),
        "client": own,
    }


def reasons(samples: Samples) -> dict[str, int]:
    """What went wrong, and how often."""
    column = list(samples.columns["reason"])
    return {text: column.count(i) for i, text in enumerate(samples.reasons) if i and column.count(i)}
