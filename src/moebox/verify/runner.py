"""Runs the checks in order, keeps the evidence, and stops when later checks would be meaningless."""

import asyncio
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple
from xml.etree import ElementTree as xml

from moebox import codec
from moebox.core import catalogue
from moebox.core.endpoint import AUTH_STATUSES, Endpoint
from moebox.core.event import CheckDone
from moebox.core.quirks import excuse_check, excuse_results, quirks_shown
from moebox.core.verdict import CheckResults, CheckVerdict, Failure, Mark, Probe, Score, worst_mark
from moebox.detect.stall import DEFAULT_LIMITS, STANDS_STILL, StallLimits, StallWatch
from moebox.errors import refuse_if, require_known
from moebox.escape import one_line
from moebox.loose import get_objects
from moebox.redact import hide_known_keys
from moebox.store import Run
from moebox.stream import run_to_end
from moebox.verify.causes import explain_failure
from moebox.verify.checks import CHECKS, STOP_IF_FAILED, Check
from moebox.verify.client import UNREACHABLE, ExchangeClient, MachineLimit
from moebox.verify.options import CHECK_NAMES, LEFT_OUT, VerifyOptions
from moebox.verify.session import MAX_HANGS, EndpointUnusable, ProbeFailed, ProbeSkipped, ProbeWarning
from moebox.verify.statistics import describe_failure, failure_kind
from moebox.verify.trials import CheckSession, ProbeFunction

MAX_EVIDENCE_CHARS = 20_000  # of one string in kept evidence; the length of what is left out is stated
STALL_LOOK_S = 0.2
MAX_PROBE_S = 1800.0  # whatever the server does
SIMULATED = "the endpoint is a simulation: its text is made up, so answers are not judged"
OUT_OF_TIME = "out of time"  # how the reason of a check begins that was not tried for lack of time


class CheckProgress(NamedTuple):
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
    checks, began, done, stopped = select_checks(only, start), time.monotonic(), list[CheckVerdict](), ""
    limits = stall_limits.for_prompts(options.context or 0)
    limits = replace(limits, still_s=math.inf) if restart else limits  # a stopped engine is still

    async def run_all(watch: StallWatch) -> CheckSession:
        nonlocal stopped
        async with ExchangeClient(endpoint, deadline_s=options.deadline_s) as client:
            session = CheckSession(client, options)
            session.restart = restart
            client.ends_at = session.ends_at
            if on_progress:
                _report_progress(session, checks, on_progress)
            watchers = [asyncio.create_task(session.stall_detector.watch_event_loop())]
            watchers.append(asyncio.create_task(_end_probe_if_stalled(session, watch)))
            if checks[0].name != CHECKS[0].name:
                # The first check is left out: learn from its probes without judging them
                for name, probe in CHECKS[0].probes.items():
                    await _run_probe(session, CHECKS[0].name, name, probe)
            for check in checks:
                stopped = stopped or SIMULATED * session.is_simulation
                if stopped:
                    reason = f"the server {STANDS_STILL}" if session.stalled else stopped
                    verdict = CheckVerdict(name=check.name, verdict="skip", reason=reason)
                else:
                    verdict = await _run_check(session, check)
                    if verdict.verdict == "fail" and not _budget_problem(session):
                        verdict = await explain_failure(session, verdict)
                    stopped = await _stop_reason(session, check, verdict, keep_going)
                done.append(_keep_verdict(run, verdict) if run else verdict)
                if on_check:
                    on_check(done[-1])
            for watcher in watchers:
                watcher.cancel()
        return session

    with StallWatch(endpoint, limits) as watch:
        session = run_to_end(run_all(watch))
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


def _keep_verdict(run: Run, verdict: CheckVerdict) -> CheckVerdict:
    """Write the verdict of a check and what reproduces its failure to files, and name these."""
    name = f"{CHECK_NAMES.index(verdict.name):02d}-{verdict.name}.json"
    if found := verdict.reproduction:
        raw = found.request if isinstance(found.request, str) else codec.to_json(found.request)
        run.write_file(f"reproduce/{name}", hide_known_keys(raw))
        verdict = replace(verdict, reproduction=replace(found, file=f"reproduce/{name}"))
    run.write_json(f"verdicts/{name}", _truncate_strings(codec.to_plain(verdict)))
    run.add_event(CheckDone(name=verdict.name, verdict=verdict.verdict, reason=verdict.reason))
    return replace(verdict, evidence=f"verdicts/{name}")


def select_checks(only: Sequence[str], start: str) -> list[Check]:
    """The named checks in their order. Raise UnknownName for a check that does not exist."""
    first = start or CHECK_NAMES[0]
    for name in (*only, first):
        require_known("check", name, CHECK_NAMES)
    chosen = [check for check in CHECKS[CHECK_NAMES.index(first) :] if not only or check.name in only]
    refuse_if(not chosen, f"--only {','.join(only)} comes before --from {first}: no check is left")
    return chosen


async def _end_probe_if_stalled(session: CheckSession, watch: StallWatch) -> None:
    """Pass progress to the watch, and end the present probe once the server stands still. Run until cancelled."""
    while watch.problem is None:
        watch.note_progress(session.client.received)
        await asyncio.sleep(STALL_LOOK_S)
    session.stalled = watch.problem
    session.notes += [watch.problem.hint] if watch.problem.hint else []
    if session.probe_timeout:
        session.probe_timeout.reschedule(asyncio.get_running_loop().time())


def _report_progress(session: CheckSession, checks: Sequence[Check], on_progress: OnProgress) -> None:
    """Report the progress at each request, with the time left estimated from the requests of each check."""
    began, total, requests = time.monotonic(), 0.0, catalogue.load_table("check_requests")["requests"]
    parts: dict[tuple[str, str], tuple[float, float]] = {}  # by probe: requests before it, and of it, about
    for check in checks:
        left_out = _left_out(session, check.name)
        for name in [each for each in check.probes if each not in left_out]:
            parts[check.name, name] = total, requests[check.name] / len(check.probes)
            total += requests[check.name] / len(check.probes)

    def report() -> None:
        (trial, trials), seconds = session.trial_progress, time.monotonic() - began
        before, own = parts.get(session.running, (0.0, 0.0))
        done = before + own * (min(1.0, trial / trials) if trials else 0.0)
        left = max(0.0, min(seconds * (total - done) / done, session.seconds_left)) if done > 0 else None
        on_progress(CheckProgress(*session.running, trial, trials, session.request_count, seconds, left))

    session.on_request = report


async def _run_check(session: CheckSession, check: Check) -> CheckVerdict:
    """Run all probes of one check; an unusable endpoint or the end of the time ends it early."""
    began = time.monotonic()
    before = session.failures.snapshot()
    probes: list[Probe] = []
    unusable = ""
    session.suspects = []
    session.offered_tools = ()  # the probes of a check share their tools: a prefix cache then knows them
    left_out = _left_out(session, check.name)
    for name, function in check.probes.items():
        unusable = unusable or _budget_problem(session)
        if unusable or name in left_out:
            probes.append(Probe(name=name, verdict="skip", reason=unusable or LEFT_OUT))
            continue
        session.running, session.trial_progress = (check.name, name), (0, 0)
        session.on_request()
        probe, unusable = await _run_probe(session, check.name, name, function)
        probes.append(probe)
    session.count_late_replies()
    failures, own = _failures_since(session, before)
    cut_short = unusable if any(probe.reason == unusable for probe in probes) else ""
    mark = worst_mark([*(probe.verdict for probe in probes), *(failure.verdict for failure in own)])
    if cut_short and mark == "pass":
        mark = "warn"  # a check that was cut short did not pass, however well it began
    any_reply = [failure for failure in own if failure_kind(failure.kind).get("any_reply")]
    session.reported_marks |= {failure.kind: failure.verdict for failure in any_reply}
    # The reason of the first probe with this mark, else the failure that the probes share
    reasons = [f"{probe.name}: {probe.reason}" for probe in probes if probe.verdict == mark and probe.reason]
    reasons += [_failure_text(failure) for failure in own if failure.verdict == mark]
    quirks = [quirk.text for probe in probes for quirk in quirks_shown(session.engine, check.name, probe)]
    verdict = CheckVerdict(
        name=check.name,
        verdict=mark,
        reason=next(iter(reasons), cut_short) if mark != "pass" else "",
        seconds=time.monotonic() - began,
        score=next((probe.score for probe in probes if probe.score), None),
        slips=failures,
        probes=tuple(probes),
        quirks=tuple(dict.fromkeys(quirks)),
    )
    return excuse_check(session.engine, verdict)


def _left_out(session: CheckSession, check: str) -> frozenset[str]:
    """Names of the probes that a quick run does not make; a restart is requested for what returns after it."""
    names = catalogue.load_table("check_requests")["not_quick"].get(check, ()) if session.options.brief else ()
    return frozenset(names).difference(["returning"] if session.restart else [])


def _budget_problem(session: CheckSession) -> str:
    """Return why no more requests are sent, or ""."""
    if session.stalled:
        return session.stalled.message
    if session.seconds_left <= 0:
        return f"{OUT_OF_TIME}: the checks may take {session.options.time_s:g} s (--set time_s=…)"
    hangs = session.client.hang_count
    return f"{hangs} requests had no end" if hangs >= MAX_HANGS else ""


def _failures_since(session: CheckSession, before: Mapping[str, int]) -> tuple[tuple[Failure, ...], list[Failure]]:
    """All failures since a snapshot, and those to report: no earlier check reported that kind, or it is worse now."""
    failures = tuple(failure for failure in session.failures.summarize(before) if failure.seen)
    own = []
    for failure in failures:
        reported = session.reported_marks.get(failure.kind, "skip")
        if failure.verdict != reported and worst_mark([failure.verdict, reported]) == failure.verdict:
            own.append(failure)
    return failures, own


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
            reason, score = result.text, result
        elif isinstance(result, str):
            mark, reason = "warn" if isinstance(result, ProbeWarning) else "pass", result
    except (ProbeSkipped, MachineLimit) as problem:
        mark, reason = "warn" if getattr(problem, "check", "") == check else "skip", str(problem)
    except ProbeFailed as problem:
        mark, reason, score = "fail", str(problem), problem.score
    except EndpointUnusable as problem:
        mark, reason = "fail", (unusable := str(problem))
    except TimeoutError:
        mark, reason = "warn", f"not finished after {longest:.0f} s"
        if session.stalled:
            mark, reason = "fail", (unusable := session.stalled.message)
    session.probe_timeout = None
    failures, own = _failures_since(session, before)
    for failure in own:
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
    if any(names <= failed for names in STOP_IF_FAILED.get(check.name, ())) and not keep_going:
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


def to_junit_xml(results: CheckResults) -> str:
    """Write the results as JUnit XML, which every CI system reads: a suite for each check, a case for each probe."""
    top = xml.Element("testsuites", name=f"moebox verify {results.model}")
    for check in results.rungs:
        # A check that was not run is one skipped case
        probes = check.probes or (Probe(name=check.name, verdict="skip", reason=check.reason),)
        marks = [probe.verdict for probe in probes]
        counts = {"tests": len(marks), "failures": marks.count("fail"), "skipped": marks.count("skip"), "errors": 0}
        shown = {key: str(count) for key, count in counts.items()}
        suite = xml.SubElement(top, "testsuite", shown, name=check.name, time=f"{check.seconds:.3f}")
        for probe in probes:
            about = {"classname": f"moebox.{check.name}", "name": probe.name, "time": f"{probe.seconds:.3f}"}
            case = xml.SubElement(suite, "testcase", about)
            text = "".join(filter(str.isprintable, probe.reason))  # XML has no control characters
            if probe.verdict in ("fail", "skip"):
                xml.SubElement(case, "failure" if probe.verdict == "fail" else "skipped", message=text)
            elif text:
                xml.SubElement(case, "system-out").text = f"warning: {text}" if probe.verdict == "warn" else text
    xml.indent(top)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + xml.tostring(top, encoding="unicode") + "\n"
