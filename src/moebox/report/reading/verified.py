"""verdicts/*.json to rungs with their evidence."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from moebox.errors import BadInput
from moebox.loose import Json, figure, rows, within, words
from moebox.report.story import Mark, Probe, RungSeen
from moebox.report.tidy import hide_keys
from moebox.store import plain

PIECES = {"pass": 2, "fail": 12}  # pieces of evidence shown for each probe; more for what went wrong
LONGEST = 4_000  # characters of one piece of evidence shown; the file in the run folder has all of it
MARKS: dict[str, Mark] = {
    **dict.fromkeys(("pass", "passed", "ok", "true"), "pass"),
    **dict.fromkeys(("fail", "failed", "error", "false"), "fail"),
    **dict.fromkeys(("skip", "skipped"), "skip"),
    **dict.fromkeys(("warn", "partial"), "warn"),
}
PLAIN = {
    "name",
    "rung",
    "verdict",
    "passed",
    "detail",
    "reason",
    "why",
    "message",
    "summary",
    "seconds",
    "score",
    "probes",
    "title",
}


def read(folder: Path) -> tuple[list[RungSeen], list[str]]:
    """Every rung's latest verdict, in the order of the files; and what could not be read."""
    seen: dict[str, RungSeen] = {}
    gaps: list[str] = []
    for path in sorted(folder.glob("*.json"), key=lambda path: (path.lstat().st_mtime, path.name)):
        try:
            document = plain.load_json(path)
        except BadInput as problem:
            gaps.append(f"verdicts/{path.name}: {problem.message.split(': ', 1)[-1]}")
            continue
        found = rows(document, "rungs", "verdicts") or (
            [document] if isinstance(document, dict) else rows({"all": document}, "all")
        )
        for row in found:
            rung = rung_of(row, path.stem)
            seen[rung.name] = rung
    return list(seen.values()), gaps


def rung_of(row: Json, name: str) -> RungSeen:
    """One rung."""
    probes = tuple(probe_of(one, number) for number, one in enumerate(rows(row, "probes", "checks"), 1))
    return RungSeen(
        name=words(row, "name", "rung") or name,
        mark=mark_of(row),
        detail=words(row, "detail", "reason", "why", "summary", "message"),
        score=score_of(row),
        probes=probes,
        evidence=shown(evidence_of(row), mark_of(row)),
        seconds=figure(row, "seconds", "duration_s"),
    )


def probe_of(row: Json, number: int) -> Probe:
    """One probe; what it has beyond the usual fields is evidence."""
    others = {
        key: value for key, value in row.items() if key not in PLAIN | {"evidence"} and value not in (None, "", [], {})
    }
    beside = [(key.replace("_", " "), show(value)) for key, value in others.items()]
    return Probe(
        name=words(row, "name", "title") or f"probe {number}",
        mark=mark_of(row),
        detail=words(row, "detail", "reason", "why", "message", "summary"),
        evidence=shown([*evidence_of(row), *beside], mark_of(row)),
        seconds=figure(row, "seconds", "duration_s"),
    )


def shown(pieces: Sequence[tuple[str, str]], mark: Mark) -> tuple[tuple[str, str], ...]:
    """As much evidence as a page can hold for hundreds of probes; the run folder keeps all of it."""
    most = PIECES.get(mark, 2)
    if len(pieces) <= most:
        return tuple(pieces)
    return (*pieces[:most], ("and more", f"{len(pieces) - most} more pieces of evidence in the run folder"))


def mark_of(row: Json) -> Mark:
    """pass, fail or skip, however it was written; what says nothing was skipped."""
    value = row.get("verdict", row.get("passed", row.get("ok")))
    return MARKS.get(str(value).lower(), "fail" if value is False else "skip")


def score_of(row: Json) -> str:
    """A score with its trials and interval, where one is due."""
    score = row.get("score")
    if isinstance(score, dict):
        passed, trials = figure(score, "passed"), figure(score, "trials", "n")
        value = figure(score, "value", "share", "rate")
        value = passed / trials if passed is not None and trials else value
        low, high = figure(score, "low"), figure(score, "high")
        if value is None:
            return ""
        if passed is not None and trials:
            text = f"{passed:.0f} of {trials:.0f}"
        else:
            text = f"{value * 100:.1f}%" if value <= 1 else f"{value:g}"
        return text + (f" (95%: {low * 100:.0f}–{high * 100:.0f}%)" if low is not None and high is not None else "")
    return f"{score:.3g}" if isinstance(score, int | float) and not isinstance(score, bool) else words(row, "score")


def evidence_of(row: Json) -> tuple[tuple[str, str], ...]:
    """Titled texts, whatever form the evidence has."""
    evidence = within(row, "evidence")
    if isinstance(evidence, dict):
        return tuple(
            (str(key).replace("_", " "), show(value))
            for key, value in evidence.items()
            if value not in (None, "", [], {})
        )
    if isinstance(evidence, list):
        return tuple(piece for number, one in enumerate(evidence, 1) for piece in exchange(one, number))
    return (("evidence", show(evidence)),) if evidence not in (None, "") else ()


def exchange(one: Any, number: int) -> list[tuple[str, str]]:
    """A request and its answer, or whatever else was kept."""
    if not isinstance(one, dict) or "response" not in one:
        return [(words(one, "title", "name") or f"evidence {number}", show(one))]
    seconds = figure(one, "seconds")
    came = words(one, "error") or f"status {words(one, 'status')}" + (f" after {seconds:.2f} s" if seconds else "")
    sent = (
        []
        if one.get("request") in (None, "")
        else [(f"{number}: {words(one, 'method')} {words(one, 'url')}", show(one["request"]))]
    )
    return [*sent, (f"{number}: {came}", show(one["response"]))]


def show(value: Any) -> str:
    """A value as readable text, cut where it is too long to help."""
    text = value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False, default=str)
    text = hide_keys(text)
    if len(text) <= LONGEST:
        return text
    return f"{text[:LONGEST]}\n… {len(text) - LONGEST:,} more characters in the run folder"
