"""Climbs the rungs in order, keeps the evidence, and stops where going on would mean nothing."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from moebox import codec
from moebox.core.endpoint import REFUSED, Endpoint
from moebox.core.event import RungDone
from moebox.core.habits import shown
from moebox.core.verdict import Ladder, Mark, Probe, Score, Slip, Verdict, worst
from moebox.errors import UnknownName, refuse_if
from moebox.escape import one_line
from moebox.loose import Json, rows
from moebox.store import Run
from moebox.stream import loop
from moebox.verify.ask import HANGS, Asker, Failed, Options, Skipped, Unusable
from moebox.verify.client import Client
from moebox.verify.kinds import in_words, kind_of
from moebox.verify.latency import late
from moebox.verify.progress import Meter, Watcher
from moebox.verify.rung import ProbeFunction, Rung, Warned
from moebox.verify.rungs import NAMES, RUNGS
from moebox.verify.score import share_text

LONGEST_TEXT = 20_000  # characters of one string in kept evidence; what is left out is counted
PROBE_S = 1800.0  # no probe takes longer, whatever the server does
OUT_OF_TIME = "out of time"  # how the reason of a check begins that was not tried for want of it

Listener = Callable[[Verdict], None]


def verify(
    endpoint: Endpoint,
    options: Options = Options(),  # noqa: B008  (frozen)
    *,
    only: Sequence[str] = (),
    start: str = "",
    keep_going: bool = False,
    run: Run | None = None,
    tell: Listener | None = None,
    watch: Watcher | None = None,
) -> Ladder:
    """Climb the ladder at `endpoint`: all rungs, `only` some, or those from `start` on.

    `run` keeps every exchange under verdicts/ and the sum in verify.json; `tell` hears of each rung as it is done,
    `watch` of each request; `keep_going` climbs on past a rung that makes later ones meaningless.
    """
    rungs = choose(only, start)
    return loop.run(climb(endpoint, options, rungs, keep_going=keep_going, run=run, tell=tell, watch=watch))


def choose(only: Sequence[str], start: str) -> list[Rung]:
    """The rungs meant, in ladder order; UnknownName for one that does not exist."""
    first = start or NAMES[0]
    for name in (*only, first):
        if name not in NAMES:
            raise UnknownName("check", name, NAMES)
    chosen = [rung for rung in RUNGS[NAMES.index(first) :] if not only or rung.name in only]
    refuse_if(not chosen, f"--only {','.join(only)} comes before --from {first}: no check is left")
    return chosen


async def climb(
    endpoint: Endpoint,
    options: Options,
    rungs: Sequence[Rung],
    *,
    keep_going: bool = False,
    run: Run | None = None,
    tell: Listener | None = None,
    watch: Watcher | None = None,
) -> Ladder:
    """`verify`, for callers that have a loop already."""
    began = time.monotonic()
    done: list[Verdict] = []
    stopped = ""
    async with Client(endpoint, deadline_s=options.deadline_s) as client:
        ask = Asker(client, options)
        client.ends = ask.ends
        meter = Meter(ask, rungs, watch)
        pulse = asyncio.create_task(ask.pulse.beat())
        await _introduce(ask, rungs)
        for rung in rungs:
            verdict = _skipped(rung, stopped) if stopped else await _rung(ask, rung, meter)
            stopped = stopped or await _why_stop(ask, rung, verdict, keep_going)
            verdict = _kept(run, verdict)
            done.append(verdict)
            if tell:
                tell(verdict)
        pulse.cancel()
        ladder = Ladder(
            url=endpoint.base_url,
            model=endpoint.model,
            engine=ask.engine,
            rungs=tuple(done),
            slips=ask.tally.slips(),
            stopped=stopped,
            notes=tuple(ask.notes),
            sandbox=ask.sandbox,
            requests=ask.requests,
            seconds=time.monotonic() - began,
        )
    if run:
        run.write_json("verify.json", document(ladder))
    return ladder


async def _introduce(ask: Asker, rungs: Sequence[Rung]) -> None:
    """When the first rung is left out, learn in silence what it would have learnt."""
    if rungs and rungs[0].name != RUNGS[0].name:
        for probe in RUNGS[0].probes.values():
            try:
                await probe(ask)
            except (Failed, Skipped):
                continue


async def _rung(ask: Asker, rung: Rung, meter: Meter) -> Verdict:
    """All probes of one rung; a server that is gone ends it early."""
    began = time.monotonic()
    before = ask.tally.snapshot()
    probes, gone = await _probes(ask, rung, meter)
    _late(ask)
    slips = _met(ask.tally.slips(before))
    own = _own(ask, slips)
    cut = gone if any(probe.reason == gone for probe in probes) else ""
    mark = _mark(probes, own, cut)
    ask.charged |= {slip.kind: slip.verdict for slip in own if kind_of(slip.kind).anywhere}
    return Verdict(
        name=rung.name,
        verdict=mark,
        reason=_reason(mark, probes, own) or cut,
        seconds=time.monotonic() - began,
        score=next((probe.score for probe in probes if probe.score), None),
        slips=slips,
        probes=tuple(probes),
        habits=_habits(ask.engine, rung.name, probes),
    )


async def _probes(ask: Asker, rung: Rung, meter: Meter) -> tuple[list[Probe], str]:
    """Every probe of a rung, and why the last ones were not tried, if they were not."""
    probes: list[Probe] = []
    gone = ""
    for name, function in rung.probes.items():
        gone = gone or _no_more(ask)
        if gone:
            probes.append(Probe(name=name, verdict="skip", reason=gone))
            continue
        meter.enter(rung, name)
        probe, gone = await _probe(ask, name, function)
        probes.append(probe)
    return probes, gone


def _mark(probes: Sequence[Probe], own: Sequence[Slip], cut: str) -> Mark:
    """The worst of a rung; a check that was cut short is not green, however well it began."""
    mark = worst([*(probe.verdict for probe in probes), *(slip.verdict for slip in own)])
    return "warn" if cut and mark == "pass" else mark


def _habits(engine: str, rung: str, probes: Sequence[Probe]) -> tuple[str, ...]:
    """What this engine is known to do, where a probe that did not pass shows it."""
    habits = (habit for probe in probes for habit in shown(engine, rung, probe))
    return tuple(dict.fromkeys(habit.text for habit in habits))


def _late(ask: Asker) -> None:
    """Count the requests of this rung that came seconds late."""
    for why in late(ask.paces, ask.paced):
        ask.tally.add("late", why)
    ask.paced = len(ask.paces)


def _no_more(ask: Asker) -> str:
    """Why nothing more is asked, or nothing."""
    if ask.left_s <= 0:
        return f"{OUT_OF_TIME}: the ladder may take {ask.options.time_s:g} s (--time)"
    return f"{ask.hangs} requests had no end" if ask.hangs >= HANGS else ""


def _own(ask: Asker, slips: Sequence[Slip]) -> list[Slip]:
    """The slips that this rung answers for: what any reply can show is charged once, and again where it is worse."""
    return [
        slip
        for slip in slips
        if worst([slip.verdict, ask.charged.get(slip.kind, "skip")]) == slip.verdict
        and slip.verdict != ask.charged.get(slip.kind)
    ]


def _met(slips: Sequence[Slip]) -> tuple[Slip, ...]:
    """The kinds that were seen, not only looked for."""
    return tuple(slip for slip in slips if slip.seen)


def _reason(mark: Mark, probes: Sequence[Probe], slips: Sequence[Slip]) -> str:
    """What made the rung's verdict: the first probe with it, else the slip that the probes share."""
    if mark == "pass":
        return ""
    for probe in probes:
        if probe.verdict == mark and probe.reason:
            return f"{probe.name}: {probe.reason}"
    return next((_told(slip) for slip in slips if slip.verdict == mark), "")


def _told(slip: Slip) -> str:
    return one_line(f"{slip.example}; {in_words(slip)}")


async def _probe(ask: Asker, name: str, function: ProbeFunction) -> tuple[Probe, str]:
    """One probe judged; and why the rest of the rung is pointless, if it is."""
    ask.exchanges = []
    ask.tools = ()
    before = ask.tally.snapshot()
    began = time.monotonic()
    outcome = await _outcome(ask, function)
    mark, reason = outcome.mark, outcome.reason
    slips = _met(ask.tally.slips(before))
    for slip in _own(ask, slips):
        if slip.verdict != "pass" and worst([mark, slip.verdict]) != mark:
            mark, reason = slip.verdict, _told(slip)
    probe = Probe(
        name=name,
        verdict=mark,
        reason=one_line(reason),
        seconds=time.monotonic() - began,
        requests=len(ask.exchanges),
        score=outcome.score,
        slips=slips,
        evidence=tuple(ask.exchanges),
    )
    return probe, outcome.gone


class _Outcome(NamedTuple):
    """How a probe ended by itself, before the slips that its replies showed are counted."""

    mark: Mark
    reason: str
    score: Score | None = None
    gone: str = ""  # why the rest of the rung is pointless


async def _outcome(ask: Asker, function: ProbeFunction) -> _Outcome:
    """Ask, for no longer than the ladder has time."""
    longest = max(0.05, min(PROBE_S, ask.left_s))
    try:
        async with asyncio.timeout(longest):
            return _found(await function(ask))
    except Skipped as problem:
        return _Outcome("skip", str(problem))
    except Failed as problem:
        gone = str(problem) if isinstance(problem, Unusable) else ""
        return _Outcome("fail", str(problem), problem.score, gone)
    except TimeoutError:
        return _Outcome("warn", f"not done after {longest:.0f} s")


def _found(found: object) -> _Outcome:
    """What a probe returned: a score, a warning, a remark or nothing."""
    if isinstance(found, Score):
        return _Outcome("pass", share_text(found), found)
    return _Outcome("warn" if isinstance(found, Warned) else "pass", found if isinstance(found, str) else "")


async def _why_stop(ask: Asker, rung: Rung, verdict: Verdict, keep_going: bool) -> str:
    """Why later rungs would mean nothing, or nothing."""
    if spent := _no_more(ask):
        return spent
    if verdict.verdict != "fail":
        return ""
    failed = {probe.name for probe in verdict.probes if probe.verdict == "fail"}
    if any(names <= failed for names in rung.stops) and not keep_going:
        return f"{rung.name} failed, so the checks after it would mean nothing"
    return await _why_gone(ask)


async def _why_gone(ask: Asker) -> str:
    """Why the endpoint takes no request any more, or nothing."""
    still = await ask.client.get(f"{ask.endpoint.base_url}/models")
    if still.error.startswith(("cannot connect", "TLS", "not a URL")):
        return f"the endpoint is gone: {still.error}"
    return f"the key is refused ({still.status})" if still.status in REFUSED else ""


def _skipped(rung: Rung, why: str) -> Verdict:
    return Verdict(name=rung.name, verdict="skip", reason=why)


def _kept(run: Run | None, verdict: Verdict) -> Verdict:
    """Write the rung's evidence into the run folder, and say where."""
    if run is None:
        return verdict
    name = f"verdicts/{NAMES.index(verdict.name):02d}-{verdict.name}.json"
    run.write_json(name, _trimmed(codec.plain(verdict)))
    run.event(RungDone(name=verdict.name, verdict=verdict.verdict, reason=verdict.reason))
    return replace(verdict, evidence=name)


def _trimmed(value: Any) -> Any:
    """Long strings cut in the middle, with a word on how much is missing."""
    if isinstance(value, str) and len(value) > LONGEST_TEXT:
        half = LONGEST_TEXT // 2
        return f"{value[:half]} […{len(value) - 2 * half:,} characters left out…] {value[-half:]}"
    if isinstance(value, dict):
        return {key: _trimmed(inner) for key, inner in value.items()}
    return [_trimmed(inner) for inner in value] if isinstance(value, list | tuple) else value


def document(ladder: Ladder) -> dict[str, object]:
    """The ladder for scripts: stable keys, exchanges left to the evidence files."""
    plain: dict[str, object] = codec.plain(ladder)
    return {"verdict": ladder.verdict, **plain, "rungs": [_in_short(rung) for rung in rows(plain, "rungs")]}


def _in_short(rung: Json) -> Json:
    """A rung without what its evidence file has."""
    probes = [
        {**probe, "evidence": [] if rung["evidence"] else [_line(exchange) for exchange in rows(probe, "evidence")]}
        for probe in rows(rung, "probes")
    ]
    return {**rung, "probes": probes}


def _line(exchange: Json) -> Json:
    """An exchange when there is no file to hold it whole."""
    return {**_trimmed(exchange), "headers": {}}
