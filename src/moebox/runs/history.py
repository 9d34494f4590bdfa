"""The journal of a run (events.jsonl) as launch attempts, problems, memory the engine reported, and phases in time."""

import re
import shlex
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

import msgspec

from moebox.core import engine_event
from moebox.core import event as events
from moebox.core.box import Box
from moebox.core.engine_facts import DeviceFacts, EngineFacts
from moebox.core.pipeline import Pipeline
from moebox.escape import clip_text
from moebox.redact import hide_secrets
from moebox.runs.record import LaunchAttempt, LogProblem, Outcome, RunFailure
from moebox.store import JournalEntry

E = TypeVar("E", bound=events.Event)
OUTCOMES: dict[str, Outcome] = {"success": "SUCCESS", "partial": "PARTIAL", "failed": "FAILED", "stopped": "STOPPED"}
PHASE_STARTS = ("started", "start", "begin")
PHASE_ENDS = ("finished", "done", "ready", "failed", "end", "stopped")


def command_line(argv: Sequence[str]) -> str:
    """A launch as one line, without keys."""
    return hide_secrets(shlex.join(argv))


def launch_attempts(entries: Sequence[JournalEntry], *, live: bool) -> list[LaunchAttempt]:
    """Every attempt to start an engine, in order. One without an end is running if the run is live, else stopped."""
    attempts: dict[int, LaunchAttempt] = {}
    current = 0
    for entry in entries:
        event = entry.event
        if isinstance(event, engine_event.AttemptEnded):  # written by an import
            current = event.number or current + 1
            moment = 0.0 if event.undated else entry.time
            attempts[current] = LaunchAttempt(
                number=current,
                outcome=OUTCOMES.get(event.outcome, "RUNNING"),
                model=event.model,
                configuration=event.configuration,
                command=command_line(event.argv),
                reason=hide_secrets(event.why),
                remedy=event.remedy,
                started=moment,
                ended=moment,
                source=event.source,
            )
        elif isinstance(event, engine_event.AttemptStarted):
            current += 1
            gpus = f"GPU {', '.join(map(str, event.gpus))}" if event.gpus else ""
            port = f"port {event.port}" if event.port else ""
            attempts[current] = LaunchAttempt(
                number=current,
                outcome="RUNNING",
                model=event.model,
                configuration=", ".join(filter(None, ("rehearsal" * event.aside, event.engine, gpus, port))),
                is_rehearsal=event.aside,
                command=command_line(event.argv),
                started=entry.time,
                ended=entry.time,
            )
        elif isinstance(event, engine_event.AttemptReady | engine_event.AttemptFailed | engine_event.AttemptStopped):
            current = max(current, 1)
            begun = attempts.get(current, LaunchAttempt(number=current, outcome="RUNNING", started=entry.time))
            if isinstance(event, engine_event.AttemptReady):
                ended = replace(begun, outcome="SUCCESS", model=event.model or begun.model, reason=event.load_text)
            elif isinstance(event, engine_event.AttemptStopped):
                ended = replace(begun, outcome="STOPPED")
            else:
                cause, remedy = (event.finding.cause, event.finding.remedy) if event.finding else ("", "")
                reason = hide_secrets(event.message or cause)
                ended = replace(begun, outcome="FAILED", reason=reason, remedy=event.remedy or remedy)
            attempts[current] = replace(ended, ended=entry.time)
    for number, attempt in attempts.items():
        if attempt.outcome == "RUNNING" and not live:
            attempts[number] = replace(attempt, outcome="STOPPED", reason="interrupted before it was ready")
    return [attempt for _, attempt in sorted(attempts.items())]


def log_problems(entries: Sequence[JournalEntry], attempts: Sequence[LaunchAttempt]) -> list[LogProblem]:
    """Known problems found in logs, each once with its count. A fatal one counts as fixed if the last launch serves."""
    serves = bool(attempts) and attempts[-1].outcome == "SUCCESS"
    problems: dict[str, LogProblem] = {}
    for entry in entries:
        finding = entry.event
        if isinstance(finding, engine_event.EngineFinding):
            first_sentence = re.split(r"(?<=[.;:]) ", finding.cause, maxsplit=1)[0].rstrip(".;:")
            title = finding.title or clip_text(first_sentence, 140) or finding.symptom or "unnamed problem"
            problems[title] = LogProblem(
                title=title,
                cause=finding.cause if finding.cause.rstrip(".") != title.rstrip(".") else "",
                remedy=finding.remedy,
                excerpt=hide_secrets(finding.excerpt or finding.text),
                severity=finding.severity or "warning",
                source=finding.source,
                count=problems[title].count + 1 if title in problems else 1,
                is_fixed=finding.is_fixed or (serves and finding.severity == "fatal"),
            )
    return list(problems.values())


def find_failure(
    pipeline: Pipeline, attempts: Sequence[LaunchAttempt], problems: Sequence[LogProblem], last: events.CommandEnded
) -> RunFailure | None:
    """Why the run ended early, with the gravest problem of the log, or None if it did not.

    A run with a pipeline failed if a step failed: it goes on after a boot that failed. Other runs failed if their last
    launch did, or if their `last` command ended with an error.
    """
    step = next((step for step in pipeline.steps if step.state == "failed"), None)
    launch = attempts[-1] if attempts and attempts[-1].outcome == "FAILED" else None
    if step:
        failure = RunFailure(step=step.name, message=hide_secrets(step.why), hint=hide_secrets(step.hint))
    elif launch and not pipeline.steps:
        failure = RunFailure(step="up", message="")
    elif last.message:
        return RunFailure(step=last.step, message=hide_secrets(last.message), hint=hide_secrets(last.hint))
    else:
        return None
    open_problems = [problem for problem in problems if not problem.is_fixed]
    fatal = [problem for problem in open_problems if problem.severity == "fatal"]
    gravest = next(iter([*fatal, *open_problems[-1:]] if launch else fatal), None)
    if gravest:
        lines = gravest.excerpt.strip().splitlines()
        cause = gravest.cause or gravest.title
        failure = replace(failure, log_line=next(iter(lines), ""), cause=cause, remedy=gravest.remedy)
    reason, remedy = (launch.reason, launch.remedy) if launch else ("", "")
    return replace(failure, message=failure.message or reason or "stopped", remedy=failure.remedy or remedy)


def climb_steps(entries: Sequence[JournalEntry]) -> list[events.ClimbStep]:
    """Steps of the last climb, kept and dropped."""
    steps: list[events.ClimbStep] = []
    for entry in entries:
        if isinstance(entry.event, events.ClimbBegan):
            steps = []
        elif isinstance(entry.event, events.ClimbStep):
            steps.append(entry.event)
    return steps


def reported_facts(entries: Sequence[JournalEntry]) -> list[EngineFacts]:
    """What the run's engines reported about themselves, newest first; rehearsals with few layers are left out."""
    facts: list[EngineFacts] = []
    is_rehearsal = False
    for entry in entries:
        if isinstance(entry.event, engine_event.AttemptStarted):
            is_rehearsal = entry.event.aside
        elif isinstance(entry.event, engine_event.AttemptReady | engine_event.PublishedFacts) and not is_rehearsal:
            facts.append(entry.event.facts)
    return facts[::-1]


def reported_devices(facts: Sequence[EngineFacts], box: Box | None) -> tuple[DeviceFacts, ...]:
    """The newest memory report by device, with the GPU's size from the box if the engine did not report it."""
    devices = []
    for device in next((each.devices for each in facts if each.devices), ()):
        spent = sum(size for name, size in device.sizes_by_name().items() if name != "total_bytes")
        number = re.search(r"\d+$", device.device)
        if box and number and int(number[0]) < len(box.gpus) and (device.total_bytes or 0.0) <= spent * 1.0001:
            memory = float(box.gpus[int(number[0])].memory)
            device = msgspec.structs.replace(device, total_bytes=memory) if memory > spent else device
        devices.append(device)
    return tuple(devices)


def events_of(entries: Sequence[JournalEntry], kind: type[E]) -> list[E]:
    return [entry.event for entry in entries if isinstance(entry.event, kind)]


def resume_command(run: str, climb: str, upgrade: events.UpgradeStep | None, last: events.CommandEnded) -> str:
    """Return the command that goes on with a run, or does the same again, without "moebox"."""
    if upgrade:  # old journals have no command
        return upgrade.command or f"upgrade {shlex.quote(upgrade.recipe)} {shlex.quote(upgrade.to)}"
    again = f"{climb} --resume {shlex.quote(run)}"
    return again if climb else last.command or f"run{again}"


def unfinished_step(pipeline: Pipeline, entries: Sequence[JournalEntry]) -> str:
    """Return the step of `moebox run` that began and did not end; until 0.1 only the journal named it."""
    running = [step.name for step in pipeline.steps if step.state == "running"]
    if running:
        return running[0]
    last = next(reversed(events_of(entries, events.StepEvent)), None)
    return last.step if isinstance(last, events.StepRunning) else ""


def unfinished_checks(step: str, entries: Sequence[JournalEntry]) -> tuple[str, ...] | None:
    """Return the checks of a verification that has no end, or None. They are () if it does not name them."""
    newest = (entry.event for entry in reversed(entries))
    last = next((each for each in newest if isinstance(each, events.VerifyBegan | events.VerifyEnded)), None)
    if isinstance(last, events.VerifyBegan):
        return last.checks
    return () if step == "verify" else None


def phases(entries: Sequence[JournalEntry], pipeline: Pipeline) -> list[tuple[str, float, float]]:
    """What took how long: the steps of `moebox run`, else pairs of events that start and end something."""
    spans: list[tuple[str, float, float]] = []
    clock = 0.0
    for step in pipeline.steps:
        if step.seconds > 0:
            spans.append((step.name, clock, clock + step.seconds))
        clock += step.seconds
    if spans:
        return spans
    opened: dict[str, float] = {}
    for entry in entries:
        name, _, tail = entry.kind.partition(".")
        if isinstance(entry.event, engine_event.PhaseStarted | engine_event.PhaseDone):
            name = entry.event.phase
        elif name == "engine":
            continue
        if not entry.time or not name:
            continue
        if tail in PHASE_STARTS:
            opened.setdefault(name, entry.time)
        elif tail in PHASE_ENDS and name in opened:
            spans.append((name, opened.pop(name), entry.time))
    return spans
