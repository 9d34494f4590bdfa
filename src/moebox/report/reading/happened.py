"""events.jsonl to attempts, problems, memory as it really was, and phases in time.

Kinds are matched by their words, not by one exact list, so that journals of other versions still tell their story.
"""

import re
import shlex
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from moebox.loose import figure, inner, rows, texts, truth, words
from moebox.report.reading.planned import device_of
from moebox.report.story import Attempt, Device, Failure, Outcome, Problem
from moebox.report.tidy import hide_keys

Event = dict[str, Any]
OUTCOMES: dict[str, Outcome] = {
    **dict.fromkeys(("success", "ready", "ok"), "SUCCESS"),
    **dict.fromkeys(("partial",), "PARTIAL"),
    **dict.fromkeys(("failed", "fail", "died", "exited", "timeout", "refused"), "FAILED"),
    **dict.fromkeys(("stopped", "interrupted"), "STOPPED"),
    **dict.fromkeys(("started",), "RUNNING"),
}


def attempts_of(events: Sequence[Event]) -> list[Attempt]:
    """Every try at a launch, in order; a try without an end is still running, or was cut off."""
    tries: dict[int, dict[str, Any]] = {}
    current = 0
    for event in events:
        head, _, tail = event["kind"].partition(".")
        if head != "attempt":
            continue
        data = event["data"]
        number = int(figure(data, "number", "attempt") or (current + 1 if tail == "started" else max(current, 1)))
        current = number
        one = tries.setdefault(number, {"started": event["time"]})
        one.update({key: value for key, value in data.items() if value not in (None, "")})
        one["ended"] = event["time"]
        outcome = OUTCOMES.get(words(data, "outcome", "result").lower()) or OUTCOMES.get(tail)
        if outcome and not (outcome == "RUNNING" and "outcome_seen" in one):
            one["outcome_seen"] = outcome
    return [attempt_of(number, one) for number, one in sorted(tries.items())]


def attempt_of(number: int, row: dict[str, Any]) -> Attempt:
    """One try."""
    finding = inner(row, "finding", "symptom")
    undated = truth(row, "undated")
    return Attempt(
        number=number,
        outcome=row.get("outcome_seen", "RUNNING"),
        model=words(row, "model", "checkpoint"),
        configuration=words(row, "configuration", "title") or engine_of(row),
        command=command_of(row),
        why=hide_keys(words(row, "why", "reason", "cause", "error", "message") or words(finding, "title", "cause")),
        remedy=words(row, "remedy") or words(finding, "remedy"),
        started=0.0 if undated else row["started"],
        ended=0.0 if undated else row["ended"],
        source=words(row, "source"),
    )


def engine_of(row: dict[str, Any]) -> str:
    """The engine and the cards it was given."""
    cards = texts(row, "gpus")
    words_ = [
        words(row, "engine"),
        f"GPU {', '.join(cards)}" if cards else "",
        f"port {words(row, 'port')}" if row.get("port") else "",
    ]
    return ", ".join(word for word in words_ if word)


def command_of(row: dict[str, Any]) -> str:
    """The launch as one line."""
    launch = inner(row, "launch") or row
    return hide_keys(shlex.join(texts(launch, "argv", "command")))


def problems_of(events: Sequence[Event], attempts: Sequence[Attempt]) -> list[Problem]:
    """Findings of the log matcher and the doctor, the same one counted once."""
    found: dict[str, Problem] = {}
    mended = bool(attempts) and attempts[-1].outcome == "SUCCESS"
    for event in events:
        tail = event["kind"].rpartition(".")[2]
        if tail not in ("finding", "symptom", "problem") and event["kind"] != "finding":
            continue
        data = inner(event["data"], "finding", "symptom") or event["data"]
        cause = words(data, "cause")
        title = (
            words(data, "title", "name") or first_sentence(cause) or words(data, "symptom", "id") or "unnamed problem"
        )
        before = found.get(title)
        found[title] = Problem(
            title=title,
            cause=cause if cause.rstrip(".") != title.rstrip(".") else "",
            remedy=words(data, "remedy", "remedy_text"),
            excerpt=hide_keys(words(data, "excerpt", "text", "match")),
            severity=words(data, "severity") or "warning",
            source=words(data, "source"),
            count=(before.count if before else 0) + 1,
            mended=truth(data, "mended") or (mended and words(data, "severity") == "fatal"),
        )
    return list(found.values())


def failure_of(told: Any, attempts: Sequence[Attempt], problems: Sequence[Problem]) -> Failure | None:
    """Why the run ended early: its failed step, or a last launch that failed; with the gravest finding of the log."""
    step = next((row for row in rows(told, "steps") if words(row, "state") == "failed"), {})
    launch = attempts[-1] if attempts and attempts[-1].outcome == "FAILED" else None
    if not step and launch is None:
        return None
    found = gravest(problems, launched=launch is not None)
    by_step = Failure(
        step=words(step, "name") or "up", what=hide_keys(words(step, "why")), hint=hide_keys(words(step, "hint"))
    )
    return with_launch(with_finding(by_step, found), launch)


def gravest(problems: Sequence[Problem], *, launched: bool) -> Problem | None:
    """The first fatal finding that was not fixed; after a failed launch, any other counts too."""
    left = [problem for problem in problems if not problem.mended]
    fatal = [problem for problem in left if problem.severity == "fatal"]
    if fatal:
        return fatal[0]
    return left[-1] if left and launched else None


def with_finding(failure: Failure, found: Problem | None) -> Failure:
    """What the log says about it."""
    if found is None:
        return failure
    lines = found.excerpt.strip().splitlines()
    return replace(failure, line=lines[0] if lines else "", cause=found.cause or found.title, remedy=found.remedy)


def with_launch(failure: Failure, launch: Attempt | None) -> Failure:
    """What the launch itself said, where nobody else said anything."""
    why, remedy = (launch.why, launch.remedy) if launch else ("", "")
    return replace(failure, what=failure.what or why or "stopped", remedy=failure.remedy or remedy)


def first_sentence(text: str) -> str:
    """The beginning of a text, as a title."""
    head = re.split(r"(?<=[.;:]) ", text, maxsplit=1)[0].rstrip(".;:")
    return head if len(head) <= 140 else head[:139] + "…"


def real_of(events: Sequence[Event]) -> tuple[list[Device], float | None, str]:
    """Memory as the engine reported it, its KV capacity in tokens, and a remark on it; the last word counts."""
    devices: list[Device] = []
    kv_tokens, note = None, ""
    for event in events:
        data = event["data"]
        facts = inner(data, "facts") or data
        found = rows(facts, "devices", "memory.devices", "per_device")
        if found:
            devices = [device for device in map(device_of, found) if device.total > 0] or devices
            note = words(facts, "memory_note") or note
        kv_tokens = figure(facts, "kv_tokens", "kv_cache_tokens") or kv_tokens
    return devices, kv_tokens, note


def phases_of(events: Sequence[Event]) -> list[tuple[str, float, float]]:
    """What took how long: pairs of started and finished events by the word before the dot, and engine phases."""
    opened: dict[str, float] = {}
    spans: list[tuple[str, float, float]] = []
    for event in events:
        head, _, tail = event["kind"].partition(".")
        name = words(event["data"], "phase", "step") if head in ("phase", "step", "engine") else head
        if not name or not event["time"]:
            continue
        if tail in ("started", "start", "begin"):
            opened.setdefault(name, event["time"])
        elif tail in ("finished", "done", "ready", "failed", "end", "stopped") and name in opened:
            spans.append((name, opened.pop(name), event["time"]))
    return spans


def losses_of(events: Sequence[Event]) -> list[str]:
    """What a full disk swallowed."""
    lost: dict[str, int] = {}
    for event in events:
        if event["kind"] == "journal.lost":
            for name, count in inner(event["data"], "files").items():
                lost[str(name)] = lost.get(str(name), 0) + int(count if isinstance(count, int) else 1)
    return [f"{name}: {count} write{'s' * (count != 1)} lost to a full disk" for name, count in lost.items()]
