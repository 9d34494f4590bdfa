"""Climbs the rungs in order, keeps the evidence, and stops where going on would mean nothing."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from moebox import codec
from moebox.core.endpoint import AUTH_STATUSES, Endpoint
from moebox.core.event import CheckDone
from moebox.core.quirks import quirks_shown
from moebox.core.verdict import CheckResults, CheckVerdict, Failure, Mark, Probe, Score, worst_mark
from moebox.errors import UnknownName, refuse_if
from moebox.escape import one_line
from moebox.loose import Json, get_objects
from moebox.store import Run
from moebox.stream import run_to_end
from moebox.verify.ask import MAX_HANGS, CheckSession, EndpointUnusable, ProbeFailed, ProbeSkipped, VerifyOptions
from moebox.verify.client import ExchangeClient
from moebox.verify.kinds import describe_failure, failure_kind
from moebox.verify.latency import late_replies
from moebox.verify.progress import OnProgress, ProgressMeter
from moebox.verify.rung import Check, ProbeFunction, ProbeWarning
from moebox.verify.rungs import CHECK_NAMES, CHECKS
from moebox.verify.score import format_share

MAX_EVIDENCE_CHARS = 20_000  # characters of one string in kept evidence; what is left out is counted
MAX_PROBE_S = 1800.0  # no probe takes longer, whatever the server does
OUT_OF_TIME = "out of time"  # how the reason of a check begins that was not tried for want of it

OnCheck = Callable[[CheckVerdict], None]


def run_checks(
    endpoint: Endpoint,
    options: VerifyOptions = VerifyOptions(),  # noqa: B008  (frozen)
    *,
    only: Sequence[str] = (),
    start: str = "",
    keep_going: bool = False,
    run: Run | None = None,
    on_check: OnCheck | None = None,
    on_progress: OnProgress | None = None,
) -> CheckResults:
    """Climb the ladder at `endpoint`: all rungs, `only` some, or those from `start` on.

    `run` keeps every exchange under verdicts/ and the sum in verify.json; `tell` hears of each rung as it is done,
    `watch` of each request; `keep_going` climbs on past a rung that makes later ones meaningless.
    """
    rungs = select_checks(only, start)
    return run_to_end(
        run_checks_async(
            endpoint, options, rungs, keep_going=keep_going, run=run, on_check=on_check, on_progress=on_progress
        )
    )


def select_checks(only: Sequence[str], start: str) -> list[Check]:
    """The rungs meant, in ladder order; UnknownName for one that does not exist."""
    first = start or CHECK_NAMES[0]
    for name in (*only, first):
        if name not in CHECK_NAMES:
            raise UnknownName("check", name, CHECK_NAMES)
    chosen = [rung for rung in CHECKS[CHECK_NAMES.index(first) :] if not only or rung.name in only]
    refuse_if(not chosen, f"--only {','.join(only)} comes before --from {first}: no check is left")
    return chosen


async def run_checks_async(
    endpoint: Endpoint,
    options: VerifyOptions,
    checks: Sequence[Check],
    *,
    keep_going: bool = False,
    run: Run | None = None,
    on_check: OnCheck | None = None,
    on_progress: OnProgress | None = None,
) -> CheckResults:
    """`verify`, for callers that have a loop already."""
    began = time.monotonic()
    done: list[CheckVerdict] = []
    stopped = ""
    async with ExchangeClient(endpoint, deadline_s=options.deadline_s) as client:
        ask = CheckSession(client, options)
        client.ends_at = ask.ends_at
        meter = ProgressMeter(ask, checks, on_progress)
        pulse = asyncio.create_task(ask.stall_detector.watch_event_loop())
        await _introduce(ask, checks)
        for rung in checks:
            verdict = _skipped(rung, stopped) if stopped else await _rung(ask, rung, meter)
            stopped = stopped or await _why_stop(ask, rung, verdict, keep_going)
            verdict = _kept(run, verdict)
            done.append(verdict)
            if on_check:
                on_check(verdict)
        pulse.cancel()
        ladder = CheckResults(
            url=endpoint.base_url,
            model=endpoint.model,
            engine=ask.engine,
            rungs=tuple(done),
            slips=ask.failures.summarize(),
            stopped=stopped,
            notes=tuple(ask.notes),
            sandbox=ask.sandbox,
            requests=ask.request_count,
            seconds=time.monotonic() - began,
        )
    if run:
        run.write_json("verify.json", results_document(ladder))
    return ladder


async def _introduce(session: CheckSession, rungs: Sequence[Check]) -> None:
    """When the first rung is left out, learn in silence what it would have learnt."""
    if rungs and rungs[0].name != CHECKS[0].name:
        for probe in CHECKS[0].probes.values():
            try:
                await probe(session)
            except (ProbeFailed, ProbeSkipped):
                continue


async def _rung(session: CheckSession, rung: Check, meter: ProgressMeter) -> CheckVerdict:
    """All probes of one rung; a server that is gone ends it early."""
    began = time.monotonic()
    before = session.failures.snapshot()
    probes, gone = await _probes(session, rung, meter)
    _late(session)
    slips = _met(session.failures.summarize(before))
    own = _own(session, slips)
    cut = gone if any(probe.reason == gone for probe in probes) else ""
    mark = _mark(probes, own, cut)
    session.reported_marks |= {slip.kind: slip.verdict for slip in own if failure_kind(slip.kind).anywhere}
    return CheckVerdict(
        name=rung.name,
        verdict=mark,
        reason=_reason(mark, probes, own) or cut,
        seconds=time.monotonic() - began,
        score=next((probe.score for probe in probes if probe.score), None),
        slips=slips,
        probes=tuple(probes),
        habits=_habits(session.engine, rung.name, probes),
    )


async def _probes(session: CheckSession, rung: Check, meter: ProgressMeter) -> tuple[list[Probe], str]:
    """Every probe of a rung, and why the last ones were not tried, if they were not."""
    probes: list[Probe] = []
    gone = ""
    for name, function in rung.probes.items():
        gone = gone or _no_more(session)
        if gone:
            probes.append(Probe(name=name, verdict="skip", reason=gone))
            continue
        meter.begin_probe(rung, name)
        probe, gone = await _probe(session, name, function)
        probes.append(probe)
    return probes, gone


def _mark(probes: Sequence[Probe], own: Sequence[Failure], cut: str) -> Mark:
    """The worst of a rung; a check that was cut short is not green, however well it began."""
    mark = worst_mark([*(probe.verdict for probe in probes), *(slip.verdict for slip in own)])
    return "warn" if cut and mark == "pass" else mark


def _habits(engine: str, rung: str, probes: Sequence[Probe]) -> tuple[str, ...]:
    """What this engine is known to do, where a probe that did not pass shows it."""
    habits = (habit for probe in probes for habit in quirks_shown(engine, rung, probe))
    return tuple(dict.fromkeys(habit.text for habit in habits))


def _late(session: CheckSession) -> None:
    """Count the requests of this rung that came seconds late."""
    for why in late_replies(session.reply_times, session.reply_times_judged):
        session.failures.add("late", why)
    session.reply_times_judged = len(session.reply_times)


def _no_more(session: CheckSession) -> str:
    """Why nothing more is asked, or nothing."""
    if session.seconds_left <= 0:
        return f"{OUT_OF_TIME}: the ladder may take {session.options.time_s:g} s (--time)"
    return f"{session.hang_count} requests had no end" if session.hang_count >= MAX_HANGS else ""


def _own(session: CheckSession, slips: Sequence[Failure]) -> list[Failure]:
    """The slips that this rung answers for: what any reply can show is charged once, and again where it is worse."""
    return [
        slip
        for slip in slips
        if worst_mark([slip.verdict, session.reported_marks.get(slip.kind, "skip")]) == slip.verdict
        and slip.verdict != session.reported_marks.get(slip.kind)
    ]


def _met(slips: Sequence[Failure]) -> tuple[Failure, ...]:
    """The kinds that were seen, not only looked for."""
    return tuple(slip for slip in slips if slip.seen)


def _reason(mark: Mark, probes: Sequence[Probe], slips: Sequence[Failure]) -> str:
    """What made the rung's verdict: the first probe with it, else the slip that the probes share."""
    if mark == "pass":
        return ""
    for probe in probes:
        if probe.verdict == mark and probe.reason:
            return f"{probe.name}: {probe.reason}"
    return next((_told(slip) for slip in slips if slip.verdict == mark), "")


def _told(slip: Failure) -> str:
    return one_line(f"{slip.example}; {describe_failure(slip)}")


async def _probe(session: CheckSession, name: str, function: ProbeFunction) -> tuple[Probe, str]:
    """One probe judged; and why the rest of the rung is pointless, if it is."""
    session.exchanges = []
    session.offered_tools = ()
    before = session.failures.snapshot()
    began = time.monotonic()
    outcome = await _outcome(session, function)
    mark, reason = outcome.mark, outcome.reason
    slips = _met(session.failures.summarize(before))
    for slip in _own(session, slips):
        if slip.verdict != "pass" and worst_mark([mark, slip.verdict]) != mark:
            mark, reason = slip.verdict, _told(slip)
    probe = Probe(
        name=name,
        verdict=mark,
        reason=one_line(reason),
        seconds=time.monotonic() - began,
        requests=len(session.exchanges),
        score=outcome.score,
        slips=slips,
        evidence=tuple(session.exchanges),
    )
    return probe, outcome.gone


class _Outcome(NamedTuple):
    """How a probe ended by itself, before the slips that its replies showed are counted."""

    mark: Mark
    reason: str
    score: Score | None = None
    gone: str = ""  # why the rest of the rung is pointless


async def _outcome(session: CheckSession, function: ProbeFunction) -> _Outcome:
    """Ask, for no longer than the ladder has time."""
    longest = max(0.05, min(MAX_PROBE_S, session.seconds_left))
    try:
        async with asyncio.timeout(longest):
            return _found(await function(session))
    except ProbeSkipped as problem:
        return _Outcome("skip", str(problem))
    except ProbeFailed as problem:
        gone = str(problem) if isinstance(problem, EndpointUnusable) else ""
        return _Outcome("fail", str(problem), problem.score, gone)
    except TimeoutError:
        return _Outcome("warn", f"not done after {longest:.0f} s")


def _found(found: object) -> _Outcome:
    """What a probe returned: a score, a warning, a remark or nothing."""
    if isinstance(found, Score):
        return _Outcome("pass", format_share(found), found)
    return _Outcome("warn" if isinstance(found, ProbeWarning) else "pass", found if isinstance(found, str) else "")


async def _why_stop(session: CheckSession, rung: Check, verdict: CheckVerdict, keep_going: bool) -> str:
    """Why later rungs would mean nothing, or nothing."""
    if spent := _no_more(session):
        return spent
    if verdict.verdict != "fail":
        return ""
    failed = {probe.name for probe in verdict.probes if probe.verdict == "fail"}
    if any(names <= failed for names in rung.stop_if_failed) and not keep_going:
        return f"{rung.name} failed, so the checks after it would mean nothing"
    return await _why_gone(session)


async def _why_gone(session: CheckSession) -> str:
    """Why the endpoint takes no request any more, or nothing."""
    still = await session.client.get(f"{session.endpoint.base_url}/models")
    if still.error.startswith(("cannot connect", "TLS", "not a URL")):
        return f"the endpoint is gone: {still.error}"
    return f"the key is refused ({still.status})" if still.status in AUTH_STATUSES else ""


def _skipped(rung: Check, why: str) -> CheckVerdict:
    return CheckVerdict(name=rung.name, verdict="skip", reason=why)


def _kept(run: Run | None, verdict: CheckVerdict) -> CheckVerdict:
    """Write the rung's evidence into the run folder, and say where."""
    if run is None:
        return verdict
    name = f"verdicts/{CHECK_NAMES.index(verdict.name):02d}-{verdict.name}.json"
    run.write_json(name, _trimmed(codec.to_plain(verdict)))
    run.add_event(CheckDone(name=verdict.name, verdict=verdict.verdict, reason=verdict.reason))
    return replace(verdict, evidence=name)


def _trimmed(value: Any) -> Any:
    """Long strings cut in the middle, with a word on how much is missing."""
    if isinstance(value, str) and len(value) > MAX_EVIDENCE_CHARS:
        half = MAX_EVIDENCE_CHARS // 2
        return f"{value[:half]} […{len(value) - 2 * half:,} characters left out…] {value[-half:]}"
    if isinstance(value, dict):
        return {key: _trimmed(inner) for key, inner in value.items()}
    return [_trimmed(inner) for inner in value] if isinstance(value, list | tuple) else value


def results_document(results: CheckResults) -> dict[str, object]:
    """The ladder for scripts: stable keys, exchanges left to the evidence files."""
    plain: dict[str, object] = codec.to_plain(results)
    return {"verdict": results.verdict, **plain, "rungs": [_in_short(rung) for rung in get_objects(plain, "rungs")]}


def _in_short(rung: Json) -> Json:
    """A rung without what its evidence file has."""
    probes = [
        {
            **probe,
            "evidence": [] if rung["evidence"] else [_line(exchange) for exchange in get_objects(probe, "evidence")],
        }
        for probe in get_objects(rung, "probes")
    ]
    return {**rung, "probes": probes}


def _line(exchange: Json) -> Json:
    """An exchange when there is no file to hold it whole."""
    return {**_trimmed(exchange), "headers": {}}
