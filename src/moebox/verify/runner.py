"""Runs the checks in order, keeps the evidence, and stops when later checks would be meaningless."""

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from moebox import codec
from moebox.core import catalogue
from moebox.core.endpoint import AUTH_STATUSES, Endpoint
from moebox.core.event import CheckDone
from moebox.core.quirks import excuse_check, excuse_results, quirks_shown
from moebox.core.verdict import CheckResults, CheckVerdict, Failure, Mark, Probe, Score, worst_mark
from moebox.detect.stall import DEFAULT_LIMITS, STANDS_STILL, StallLimits, StallWatch
from moebox.errors import UnknownName, refuse_if
from moebox.escape import one_line
from moebox.loose import get_objects
from moebox.redact import hide_known_keys
from moebox.store import Run
from moebox.stream import run_to_end
from moebox.verify.causes import explain_failure
from moebox.verify.checks import CHECKS
from moebox.verify.client import UNREACHABLE, ExchangeClient, MachineLimit
from moebox.verify.options import CHECK_NAMES, LEFT_OUT, VerifyOptions
from moebox.verify.session import MAX_HANGS, EndpointUnusable, ProbeFailed, ProbeSkipped, ProbeWarning
from moebox.verify.statistics import describe_failure, failure_kind, format_share
from moebox.verify.trials import Check, CheckSession, ProbeFunction

MAX_EVIDENCE_CHARS = 20_000  # of one string in kept evidence; the length of what is left out is stated
STALL_LOOK_S = 0.2
MAX_PROBE_S = 1800.0  # whatever the server does
OUT_OF_TIME = "out of time"  # how the reason of a check begins that was not tried for lack of time


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckProgress:
    """Progress of a verify run at one moment."""

    check: str
    probe: str
    trial: int  # of the present series; 0 if it has none
    trials: int
    requests: int
    seconds: float
    seconds_left: float | None  # None before there is anything to estimate it from


OnCheck = Callable[[CheckVerdict], None]
OnProgress = Callable[[CheckProgress], None]


def run_checks(
    endpoint: Endpoint,
    options: VerifyOptions = VerifyOptions(),
    *,
    only: Sequence[str] = (),
    start: str = "",
    keep_going: bool = False,
    run: Run | None = None,
    on_check: OnCheck | None = None,
    on_progress: OnProgress | None = None,
    stall_limits: StallLimits = DEFAULT_LIMITS,
    restart: Callable[[], None] | None = None,
) -> CheckResults:
    """Run all checks, `only` some, or those from `start` on.

    `run` keeps every exchange under verdicts/ and the results in verify.json; `on_check` is called after each check,
    `on_progress` at each request; `keep_going` goes on past a check that makes later ones meaningless.
    A server that stands still (detect/stall.py) fails the present check and ends the run. `restart` restarts the
    server between the turns of conversations that come back.
    """
    checks, notify = select_checks(only, start), on_check or (lambda verdict: None)
    limits = stall_limits.for_prompts(options.context or 0)
    limits = replace(limits, still_s=math.inf) if restart else limits  # a stopped engine is still
    with StallWatch(endpoint, limits) as watch:
        return run_to_end(_run_checks(endpoint, options, checks, keep_going, run, notify, on_progress, watch, restart))


def select_checks(only: Sequence[str], start: str) -> list[Check]:
    """The named checks in their order. Raise UnknownName for a check that does not exist."""
    first = start or CHECK_NAMES[0]
    for name in (*only, first):
        if name not in CHECK_NAMES:
            raise UnknownName("check", name, CHECK_NAMES)
    chosen = [check for check in CHECKS[CHECK_NAMES.index(first) :] if not only or check.name in only]
    refuse_if(not chosen, f"--only {','.join(only)} comes before --from {first}: no check is left")
    return chosen


async def _run_checks(
    endpoint: Endpoint,
    options: VerifyOptions,
    checks: Sequence[Check],
    keep_going: bool,
    run: Run | None,
    on_check: OnCheck,
    on_progress: OnProgress | None,
    watch: StallWatch,
    restart: Callable[[], None] | None,
) -> CheckResults:
    began = time.monotonic()
    done: list[CheckVerdict] = []
    stopped = ""
    async with ExchangeClient(endpoint, deadline_s=options.deadline_s) as client:
        session = CheckSession(client, options)
        session.restart = restart
        client.ends_at = session.ends_at
        meter = _ProgressMeter(session, checks, on_progress)
        watchers = [asyncio.create_task(session.stall_detector.watch_event_loop())]
        watchers.append(asyncio.create_task(_end_probe_if_stalled(session, watch)))
        if checks and checks[0].name != CHECKS[0].name:
            # The first check is left out: learn from its probes without judging them
            for name, probe in CHECKS[0].probes.items():
                await _run_probe(session, CHECKS[0].name, name, probe)
        for check in checks:
            if stopped:
                reason = f"the server {STANDS_STILL}" if session.stalled else stopped
                verdict = CheckVerdict(name=check.name, verdict="skip", reason=reason)
            else:
                verdict = await _run_check(session, check, meter)
                if verdict.verdict == "fail" and not _budget_problem(session):
                    verdict = await explain_failure(session, verdict)
                stopped = await _stop_reason(session, check, verdict, keep_going)
            if run:
                name = f"{CHECK_NAMES.index(verdict.name):02d}-{verdict.name}.json"
                if found := verdict.reproduction:
                    raw = found.request if isinstance(found.request, str) else codec.to_json(found.request)
                    run.write_file(f"reproduce/{name}", hide_known_keys(raw))
                    verdict = replace(verdict, reproduction=replace(found, file=f"reproduce/{name}"))
                file = f"verdicts/{name}"
                run.write_json(file, _truncate_strings(codec.to_plain(verdict)))
                run.add_event(CheckDone(name=verdict.name, verdict=verdict.verdict, reason=verdict.reason))
                verdict = replace(verdict, evidence=file)
            done.append(verdict)
            on_check(verdict)
        for watcher in watchers:
            watcher.cancel()
    results = CheckResults(
        url=endpoint.base_url,
        model=endpoint.model,
        engine=session.engine,
        rungs=tuple(done),
        slips=session.failures.summarize(),
        stopped=stopped,
        notes=tuple(session.notes),
        sandbox=session.sandbox,
        requests=session.request_count,
        seconds=time.monotonic() - began,
    )
    results = excuse_results(results)
    if run:
        run.write_json("verify.json", results_document(results))
    return results


async def _end_probe_if_stalled(session: CheckSession, watch: StallWatch) -> None:
    """Pass progress to the watch, and end the present probe once the server stands still. Run until cancelled."""
    while watch.problem is None:
        watch.note_progress(session.client.received)
        await asyncio.sleep(STALL_LOOK_S)
    session.stalled = watch.problem
    session.notes += [watch.problem.hint] if watch.problem.hint else []
    if session.probe_timeout:
        session.probe_timeout.reschedule(asyncio.get_running_loop().time())


class _ProgressMeter:
    """Reports the progress of a run, with the time left estimated from the requests of each check."""

    def __init__(self, session: CheckSession, checks: Sequence[Check], on_progress: OnProgress | None) -> None:
        self.session, self.on_progress = session, on_progress
        self.began = time.monotonic()
        self.total = 0.0
        for check in checks:
            made = len(check.probes) - len(_left_out(session.options, check))
            self.total += check.request_estimate * made / len(check.probes)
        self.done = 0.0
        self.check = self.probe = ""
        self.part = 0.0  # estimated requests of the present probe
        if on_progress:
            session.on_request = self.report

    def begin_probe(self, check: Check, probe: str) -> None:
        self.done += self.part
        self.check, self.probe, self.part = check.name, probe, check.request_estimate / len(check.probes)
        self.session.trial_progress = (0, 0)
        self.report()

    def report(self) -> None:
        if not self.on_progress:
            return
        trial, trials = self.session.trial_progress
        seconds = time.monotonic() - self.began
        done = self.done + (self.part * min(1.0, trial / trials) if trials else 0.0)
        left = seconds * (self.total - done) / done if done > 0 else None
        self.on_progress(
            CheckProgress(
                check=self.check,
                probe=self.probe,
                trial=trial,
                trials=trials,
                requests=self.session.request_count,
                seconds=seconds,
                seconds_left=None if left is None else max(0.0, min(left, self.session.seconds_left)),
            )
        )


async def _run_check(session: CheckSession, check: Check, meter: _ProgressMeter) -> CheckVerdict:
    """Run all probes of one check; an unusable endpoint or the end of the time ends it early."""
    began = time.monotonic()
    before = session.failures.snapshot()
    probes: list[Probe] = []
    unusable = ""
    session.suspects = []
    session.offered_tools = ()  # the probes of a check share their tools: a prefix cache then knows them
    left_out = _left_out(session.options, check)
    for name, function in check.probes.items():
        unusable = unusable or _budget_problem(session)
        if unusable or name in left_out:
            probes.append(Probe(name=name, verdict="skip", reason=unusable or LEFT_OUT))
            continue
        meter.begin_probe(check, name)
        probe, unusable = await _run_probe(session, check.name, name, function)
        probes.append(probe)
    session.count_late_replies()
    failures = tuple(failure for failure in session.failures.summarize(before) if failure.seen)
    own = _own_failures(session, failures)
    cut_short = unusable if any(probe.reason == unusable for probe in probes) else ""
    mark = worst_mark([*(probe.verdict for probe in probes), *(failure.verdict for failure in own)])
    if cut_short and mark == "pass":
        mark = "warn"  # a check that was cut short did not pass, however well it began
    session.reported_marks |= {failure.kind: failure.verdict for failure in own if failure_kind(failure.kind).any_reply}
    quirks = [quirk.text for probe in probes for quirk in quirks_shown(session.engine, check.name, probe)]
    verdict = CheckVerdict(
        name=check.name,
        verdict=mark,
        reason=_verdict_reason(mark, probes, own) or cut_short,
        seconds=time.monotonic() - began,
        score=next((probe.score for probe in probes if probe.score), None),
        slips=failures,
        probes=tuple(probes),
        quirks=tuple(dict.fromkeys(quirks)),
    )
    return excuse_check(session.engine, verdict)


def _left_out(options: VerifyOptions, check: Check) -> Sequence[str]:
    """Names of the probes that a quick run does not make."""
    left_out: Sequence[str] = catalogue.load_table("check_requests")["not_quick"].get(check.name, ())
    return left_out if options.brief else ()


def _budget_problem(session: CheckSession) -> str:
    """Return why no more requests are sent, or ""."""
    if session.stalled:
        return session.stalled.message
    if session.seconds_left <= 0:
        return f"{OUT_OF_TIME}: the checks may take {session.options.time_s:g} s (--set time_s=…)"
    hangs = session.client.hang_count
    return f"{hangs} requests had no end" if hangs >= MAX_HANGS else ""


def _own_failures(session: CheckSession, failures: Sequence[Failure]) -> list[Failure]:
    """Failures that this check reports: a kind that an earlier check reported counts again only if it is worse."""
    own = []
    for failure in failures:
        reported = session.reported_marks.get(failure.kind, "skip")
        if failure.verdict != reported and worst_mark([failure.verdict, reported]) == failure.verdict:
            own.append(failure)
    return own


def _verdict_reason(mark: Mark, probes: Sequence[Probe], failures: Sequence[Failure]) -> str:
    """The reason of the first probe with this mark, else the failure that the probes share."""
    if mark == "pass":
        return ""
    for probe in probes:
        if probe.verdict == mark and probe.reason:
            return f"{probe.name}: {probe.reason}"
    return next((_failure_text(failure) for failure in failures if failure.verdict == mark), "")


def _failure_text(failure: Failure) -> str:
    return one_line(f"{failure.example}; {describe_failure(failure)}")


async def _run_probe(session: CheckSession, check: str, name: str, function: ProbeFunction) -> tuple[Probe, str]:
    """Run and judge one probe of a check. Return it, and why the rest of the check is pointless, or ""."""
    session.exchanges = []
    before = session.failures.snapshot()
    began = time.monotonic()
    mark: Mark = "pass"
    reason, unusable = "", ""
    score: Score | None = None
    longest = max(0.05, min(MAX_PROBE_S, session.seconds_left))
    try:
        async with asyncio.timeout(longest) as session.probe_timeout:
            result = await function(session)
        if isinstance(result, Score):
            reason, score = format_share(result), result
        elif isinstance(result, str):
            mark, reason = "warn" if isinstance(result, ProbeWarning) else "pass", result
    except (ProbeSkipped, MachineLimit) as problem:
        mark, reason = "warn" if getattr(problem, "check", "") == check else "skip", str(problem)
    except ProbeFailed as problem:
        mark, reason, score = "fail", str(problem), problem.score
        unusable = reason if isinstance(problem, EndpointUnusable) else ""
    except TimeoutError:
        if session.stalled:
            mark, reason, unusable = "fail", session.stalled.message, session.stalled.message
        else:
            mark, reason = "warn", f"not finished after {longest:.0f} s"
    session.probe_timeout = None
    failures = tuple(failure for failure in session.failures.summarize(before) if failure.seen)
    for failure in _own_failures(session, failures):
        if failure.verdict != "pass" and worst_mark([mark, failure.verdict]) != mark:
            mark, reason = failure.verdict, _failure_text(failure)
    probe = Probe(
        name=name,
        verdict=mark,
        reason=one_line(reason),
        seconds=time.monotonic() - began,
        requests=len(session.exchanges),
        score=score,
        slips=failures,
        evidence=tuple(session.exchanges),
    )
    return probe, unusable


async def _stop_reason(session: CheckSession, check: Check, verdict: CheckVerdict, keep_going: bool) -> str:
    """Return why later checks would be meaningless, or ""."""
    if spent := _budget_problem(session):
        return spent
    if verdict.verdict != "fail":
        return ""
    failed = {probe.name for probe in verdict.probes if probe.verdict == "fail"}
    if any(names <= failed for names in check.stop_if_failed) and not keep_going:
        return f"{check.name} failed, so the checks after it would mean nothing"
    exchange = await session.client.get(f"{session.endpoint.base_url}/models")
    if exchange.error.startswith(UNREACHABLE):
        return f"the endpoint is gone: {exchange.error}"
    return f"the key is refused ({exchange.status})" if exchange.status in AUTH_STATUSES else ""


def _truncate_strings(value: Any) -> Any:
    """Cut long strings in the middle and state how much is missing."""
    if isinstance(value, str) and len(value) > MAX_EVIDENCE_CHARS:
        half = MAX_EVIDENCE_CHARS // 2
        return f"{value[:half]} […{len(value) - 2 * half:,} characters left out…] {value[-half:]}"
    if isinstance(value, dict):
        return {key: _truncate_strings(inner) for key, inner in value.items()}
    return [_truncate_strings(inner) for inner in value] if isinstance(value, list | tuple) else value


def results_document(results: CheckResults) -> dict[str, object]:
    """The results for scripts, with stable keys; exchanges are in the evidence files, or here if there are none."""
    plain: dict[str, object] = codec.to_plain(results)
    checks = []
    for check in get_objects(plain, "rungs"):
        probes = []
        for probe in get_objects(check, "probes"):
            exchanges = [] if check["evidence"] else get_objects(probe, "evidence")
            probes.append({**probe, "evidence": [{**_truncate_strings(row), "headers": {}} for row in exchanges]})
        checks.append({**check, "probes": probes})
    return {"verdict": results.verdict, **plain, "rungs": checks}
