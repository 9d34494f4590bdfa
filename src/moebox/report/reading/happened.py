"""events.jsonl to attempts, problems, memory as it really was, and phases in time."""

import re
import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from moebox import codec
from moebox.core.engine_event import (
    AttemptEnded,
    AttemptFailed,
    AttemptReady,
    AttemptStarted,
    AttemptStopped,
    EngineFinding,
    PhaseDone,
    PhaseStarted,
    PublishedFacts,
)
from moebox.core.engine_facts import EngineFacts
from moebox.core.event import Event, JournalLost
from moebox.escape import clip_text
from moebox.loose import Json, get_objects, get_text
from moebox.report.reading import planned
from moebox.report.record import DeviceParts, LaunchAttempt, LogProblem, Outcome, RunFailure
from moebox.report.tidy import hide_secrets
from moebox.store import JournalEntry
from moebox.units import plural

PUBLISHED: dict[str, Outcome] = {
    "success": "SUCCESS",
    "partial": "PARTIAL",
    "failed": "FAILED",
    "stopped": "STOPPED",
    "": "RUNNING",
}
BEGINS, ENDS = ("started", "start", "begin"), ("finished", "done", "ready", "failed", "end", "stopped")


def attempts_of(entries: Sequence[JournalEntry]) -> list[LaunchAttempt]:
    """Every attempt at a launch, in order; one without an end is still running, or was cut off."""
    attempts: dict[int, LaunchAttempt] = {}
    current = 0
    for entry in entries:
        event = entry.event
        if isinstance(event, AttemptEnded):
            current = event.number or current + 1
            attempts[current] = published(event, current, entry.time)
        elif isinstance(event, AttemptStarted):
            current += 1
            attempts[current] = begun(event, current, entry.time)
        elif isinstance(event, AttemptReady | AttemptFailed | AttemptStopped):
            current = max(current, 1)
            before = attempts.get(current, LaunchAttempt(number=current, outcome="RUNNING", started=entry.time))
            attempts[current] = replace(ended(before, event), ended=entry.time)
    return [attempt for _, attempt in sorted(attempts.items())]


def settled(attempts: Sequence[LaunchAttempt], *, live: bool) -> list[LaunchAttempt]:
    """Those without an end were cut off, where nobody works on the run any more."""
    return [attempt if live or attempt.outcome != "RUNNING" else cut_off(attempt) for attempt in attempts]


def cut_off(attempt: LaunchAttempt) -> LaunchAttempt:
    """Neither ready nor failed."""
    return replace(attempt, outcome="STOPPED", reason="interrupted before it was ready")


def published(event: AttemptEnded, number: int, time: float) -> LaunchAttempt:
    """An attempt of somebody else's."""
    moment = 0.0 if event.undated else time
    return LaunchAttempt(
        number=number,
        outcome=PUBLISHED[event.outcome],
        model=event.model,
        configuration=event.configuration,
        command=command_of(event.argv),
        reason=hide_secrets(event.why),
        remedy=event.remedy,
        started=moment,
        ended=moment,
        source=event.source,
    )


def begun(event: AttemptStarted, number: int, time: float) -> LaunchAttempt:
    """A launch, as far as its first event tells."""
    gpus = f"GPU {', '.join(map(str, event.gpus))}" if event.gpus else ""
    port = f"port {event.port}" if event.port else ""
    return LaunchAttempt(
        number=number,
        outcome="RUNNING",
        model=event.model,
        configuration=", ".join(filter(None, ("rehearsal" * event.aside, event.engine, gpus, port))),
        is_rehearsal=event.aside,
        command=command_of(event.argv),
        started=time,
        ended=time,
    )


def ended(attempt: LaunchAttempt, event: AttemptReady | AttemptFailed | AttemptStopped) -> LaunchAttempt:
    """The attempt with what a later event tells of it."""
    if isinstance(event, AttemptReady):
        return replace(attempt, outcome="SUCCESS", model=event.model or attempt.model)
    if isinstance(event, AttemptStopped):
        return replace(attempt, outcome="STOPPED")
    return failed(attempt, event)


def failed(attempt: LaunchAttempt, event: AttemptFailed) -> LaunchAttempt:
    """An attempt that never served: what the engine said, or what its log is known to mean."""
    cause, remedy = (event.finding.cause, event.finding.remedy) if event.finding else ("", "")
    return replace(
        attempt, outcome="FAILED", reason=hide_secrets(event.message or cause), remedy=event.remedy or remedy
    )


def command_of(argv: Sequence[str]) -> str:
    """The launch as one line."""
    return hide_secrets(shlex.join(argv))


def problems_of(entries: Sequence[JournalEntry], attempts: Sequence[LaunchAttempt]) -> list[LogProblem]:
    """Findings of the log matcher and the doctor, the same one counted once."""
    problems: dict[str, LogProblem] = {}
    fixed = last_outcome(attempts) == "SUCCESS"
    for entry in entries:
        if isinstance(entry.event, EngineFinding):
            problem = problem_of(entry.event, fixed=fixed)
            before = problems.get(problem.title, replace(problem, count=0))
            problems[problem.title] = replace(problem, count=before.count + 1)
    return list(problems.values())


def last_outcome(attempts: Sequence[LaunchAttempt]) -> Outcome | None:
    """What came of the last launch; None where there was none."""
    return attempts[-1].outcome if attempts else None


def problem_of(finding: EngineFinding, *, fixed: bool) -> LogProblem:
    """One finding; a fatal one was fixed where a later attempt serves."""
    title = title_of(finding)
    return LogProblem(
        title=title,
        cause=finding.cause if finding.cause.rstrip(".") != title.rstrip(".") else "",
        remedy=finding.remedy,
        excerpt=hide_secrets(finding.excerpt or finding.text),
        severity=finding.severity or "warning",
        source=finding.source,
        is_fixed=finding.is_fixed or (fixed and finding.severity == "fatal"),
    )


def title_of(finding: EngineFinding) -> str:
    """What a problem is called: by its own title, its cause, or the symptom."""
    return finding.title or first_sentence(finding.cause) or finding.symptom or "unnamed problem"


def failure_of(
    pipeline: object, attempts: Sequence[LaunchAttempt], problems: Sequence[LogProblem]
) -> RunFailure | None:
    """Why the run ended early: its failed step, or a last launch that failed; with the gravest finding of the log."""
    steps = get_objects(pipeline, "steps")
    step = next((row for row in steps if get_text(row, "state") == "failed"), {})
    launch = attempts[-1] if last_outcome(attempts) == "FAILED" else None
    if not step and (launch is None or steps):  # a whole run goes on past a boot that failed
        return None
    return with_launch(with_finding(by_step(step), gravest(problems, launched=launch is not None)), launch)


def by_step(row: Json) -> RunFailure:
    """What a step of the run said itself; where no step failed, it was the launch."""
    return RunFailure(
        step=get_text(row, "name") or "up",
        message=hide_secrets(get_text(row, "why")),
        hint=hide_secrets(get_text(row, "hint")),
    )


def gravest(problems: Sequence[LogProblem], *, launched: bool) -> LogProblem | None:
    """The first fatal finding that was not fixed; after a failed launch, the last of any other counts too."""
    left = [problem for problem in problems if not problem.is_fixed]
    fatal = [problem for problem in left if problem.severity == "fatal"]
    return next(iter([*fatal, *left[-1:]] if launched else fatal), None)


def with_finding(failure: RunFailure, found: LogProblem | None) -> RunFailure:
    """What the log says about it."""
    if found is None:
        return failure
    lines = found.excerpt.strip().splitlines()
    return replace(failure, log_line=lines[0] if lines else "", cause=found.cause or found.title, remedy=found.remedy)


def with_launch(failure: RunFailure, launch: LaunchAttempt | None) -> RunFailure:
    """What the launch itself said, where nobody else said anything."""
    why, remedy = (launch.reason, launch.remedy) if launch else ("", "")
    return replace(failure, message=failure.message or why or "stopped", remedy=failure.remedy or remedy)


def first_sentence(text: str) -> str:
    """The beginning of a text, as a title."""
    head = re.split(r"(?<=[.;:]) ", text, maxsplit=1)[0].rstrip(".;:")
    return clip_text(head, 140)


def real_of(entries: Sequence[JournalEntry]) -> tuple[list[DeviceParts], float | None, str]:
    """Memory as the engine reported it, its KV capacity in tokens, and a remark on it; the last word counts.

    What a rehearsal with few layers reported is left out.
    """
    told = list(facts_of(entries))[::-1]
    devices = next(filter(None, map(devices_of, told)), [])
    kv_tokens = next(filter(None, (facts.kv_tokens for facts in told)), None)
    return devices, kv_tokens, next(filter(None, (facts.memory_note for facts in told)), "")


def facts_of(entries: Sequence[JournalEntry]) -> Iterator[EngineFacts]:
    """What engines said of themselves, but for attempts beside the run's own."""
    aside = False
    for entry in entries:
        if isinstance(entry.event, AttemptStarted):
            aside = entry.event.aside
        elif isinstance(entry.event, AttemptReady | PublishedFacts) and not aside:
            yield entry.event.facts


def devices_of(facts: EngineFacts) -> list[DeviceParts]:
    """The devices that it tells of."""
    return planned.devices_of(map(codec.to_plain, facts.devices))


def phases_of(entries: Sequence[JournalEntry]) -> list[tuple[str, float, float]]:
    """What took how long: pairs of started and finished events by the word before the dot, and engine phases."""
    opened: dict[str, float] = {}
    spans: list[tuple[str, float, float]] = []
    for entry in entries:
        name, tail = phase_of(entry.event) if entry.time else ("", "")
        if name and tail in BEGINS:
            opened.setdefault(name, entry.time)
        elif tail in ENDS and name in opened:
            spans.append((name, opened.pop(name), entry.time))
    return spans


def phase_of(event: Event) -> tuple[str, str]:
    """What an event is about, and whether that begins or ends with it."""
    if isinstance(event, PhaseStarted | PhaseDone):
        return event.phase, event.kind.rpartition(".")[2]
    head, _, tail = event.kind.partition(".")
    return ("" if head == "engine" else head), tail


def losses_of(entries: Sequence[JournalEntry]) -> list[str]:
    """What a full disk swallowed."""
    lost: Counter[str] = Counter()
    for entry in entries:
        if isinstance(entry.event, JournalLost):
            lost.update(entry.event.files)
    return [f"{name}: {plural(count, 'write')} lost to a full disk" for name, count in lost.items()]
