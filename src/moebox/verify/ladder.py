"""Climbs the rungs in order, keeps the evidence, and stops where going on would mean nothing."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from moebox import codec
from moebox.core.endpoint import Endpoint
from moebox.core.verdict import Ladder, Mark, Probe, Score, Verdict
from moebox.errors import UnknownName
from moebox.store import Run
from moebox.verify.ask import Asker, Failed, Options, Skipped, Unusable
from moebox.verify.client import Client
from moebox.verify.rung import Caution, ProbeFunction, Rung
from moebox.verify.rungs import NAMES, RUNGS
from moebox.verify.score import share_text

LONGEST_TEXT = 20_000  # characters of one string in kept evidence; what is left out is counted
PROBE_S = 1800.0  # no probe takes longer, whatever the server does

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
) -> Ladder:
    """Climb the ladder at `endpoint`: all rungs, `only` some, or those from `start` on.

    `run` keeps every exchange under verdicts/ and the sum in verify.json; `tell` hears of each rung as it is done;
    `keep_going` climbs on past a rung that makes later ones meaningless.
    """
    rungs = choose(only, start)
    return asyncio.run(climb(endpoint, options, rungs, keep_going=keep_going, run=run, tell=tell))


def choose(only: Sequence[str], start: str) -> list[Rung]:
    """The rungs meant, in ladder order; UnknownName for one that does not exist."""
    for name in (*only, *([start] if start else [])):
        if name not in NAMES:
            raise UnknownName("rung", name, NAMES)
    first = NAMES.index(start) if start else 0
    return [rung for rung in RUNGS[first:] if not only or rung.name in only]


async def climb(
    endpoint: Endpoint,
    options: Options,
    rungs: Sequence[Rung],
    *,
    keep_going: bool = False,
    run: Run | None = None,
    tell: Listener | None = None,
) -> Ladder:
    """`verify`, for callers that have a loop already."""
    done: list[Verdict] = []
    stopped = ""
    async with Client(endpoint, deadline_s=options.deadline_s) as client:
        ask = Asker(client, options)
        await _introduce(ask, rungs)
        for rung in rungs:
            verdict = _skipped(rung, stopped) if stopped else await _rung(ask, rung)
            stopped = stopped or await _why_stop(ask, rung, verdict, keep_going)
            verdict = _kept(run, verdict)
            done.append(verdict)
            if tell:
                tell(verdict)
        ladder = Ladder(
            url=endpoint.base_url,
            model=endpoint.model,
            engine=ask.engine,
            rungs=tuple(done),
            stopped=stopped,
            sandbox=ask.sandbox,
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


async def _rung(ask: Asker, rung: Rung) -> Verdict:
    """All probes of one rung; a server that is gone ends it early."""
    began = time.monotonic()
    probes: list[Probe] = []
    gone = ""
    for name, function in rung.probes.items():
        if gone:
            probes.append(Probe(name=name, verdict="skip", reason=gone))
            continue
        probe, gone = await _probe(ask, name, function)
        probes.append(probe)
    marks = {probe.verdict for probe in probes}
    mark: Mark = "fail" if "fail" in marks else "pass" if "pass" in marks else "skip"
    telling = [
        probe for probe in probes if probe.verdict == mark and probe.reason and (mark != "pass" or probe.caution)
    ]
    reason = f"{telling[0].name}: {telling[0].reason}" if telling else ""
    score = next((probe.score for probe in probes if probe.score), None)
    seconds = time.monotonic() - began
    return Verdict(name=rung.name, verdict=mark, reason=reason, seconds=seconds, score=score, probes=tuple(probes))


async def _probe(ask: Asker, name: str, function: ProbeFunction) -> tuple[Probe, str]:
    """One probe judged; and why the rest of the rung is pointless, if it is."""
    ask.exchanges = []
    began = time.monotonic()
    mark: Mark = "pass"
    reason, gone, caution = "", "", False
    score: Score | None = None
    try:
        async with asyncio.timeout(PROBE_S):
            found = await function(ask)
        score, caution = found if isinstance(found, Score) else None, isinstance(found, Caution)
        reason = share_text(score) if score else found if isinstance(found, str) else ""
    except Skipped as problem:
        mark, reason = "skip", str(problem)
    except Failed as problem:
        mark, reason, score = "fail", str(problem), problem.score
        gone = reason if isinstance(problem, Unusable) else ""
    except TimeoutError:
        mark, reason = "fail", f"not done after {PROBE_S:g} s"
    probe = Probe(
        name=name,
        verdict=mark,
        reason=" ".join(reason.split()),  # an answer that is quoted may hold any number of lines
        caution=caution,
        seconds=time.monotonic() - began,
        requests=len(ask.exchanges),
        score=score,
        evidence=tuple(ask.exchanges),
    )
    return probe, gone


async def _why_stop(ask: Asker, rung: Rung, verdict: Verdict, keep_going: bool) -> str:
    """Why later rungs would mean nothing, or nothing."""
    if verdict.verdict != "fail":
        return ""
    failed = {probe.name for probe in verdict.probes if probe.verdict == "fail"}
    if any(names <= failed for names in rung.stops) and not keep_going:
        return f"{rung.name} failed, so the rungs after it would mean nothing"
    still = await ask.client.get(f"{ask.endpoint.base_url}/models")
    if still.error.startswith(("cannot connect", "TLS", "not a URL")):
        return f"the endpoint is gone: {still.error}"
    return f"the key is refused ({still.status})" if still.status in (401, 403) else ""


def _skipped(rung: Rung, why: str) -> Verdict:
    return Verdict(name=rung.name, verdict="skip", reason=why)


def _kept(run: Run | None, verdict: Verdict) -> Verdict:
    """Write the rung's evidence into the run folder, and say where."""
    if run is None:
        return verdict
    name = f"verdicts/{NAMES.index(verdict.name):02d}-{verdict.name}.json"
    run.write_json(name, _trimmed(codec.plain(verdict)))
    run.event("verify.rung", name=verdict.name, verdict=verdict.verdict, reason=verdict.reason)
    return replace(verdict, evidence=name)


def _trimmed(value: Any) -> Any:
    """Long strings cut in the middle, with a word on how much is missing."""
    if isinstance(value, str) and len(value) > LONGEST_TEXT:
        half = LONGEST_TEXT // 2
        return f"{value[:half]} […{len(value) - 2 * half:,} characters left out…] {value[-half:]}"
    if isinstance(value, dict):
        return {key: _trimmed(inner) for key, inner in value.items()}
    return [_trimmed(inner) for inner in value] if isinstance(value, list) else value


def document(ladder: Ladder) -> dict[str, Any]:
    """The ladder for scripts: stable keys, exchanges left to the evidence files."""
    plain: dict[str, Any] = codec.plain(ladder)
    for rung in plain["rungs"]:
        for probe in rung["probes"]:
            probe["evidence"] = [_line(exchange) for exchange in probe["evidence"]] if not rung["evidence"] else []
    return {"verdict": ladder.verdict, **plain}


def _line(exchange: dict[str, Any]) -> dict[str, Any]:
    """An exchange when there is no file to hold it whole."""
    return {**_trimmed(exchange), "headers": {}}
