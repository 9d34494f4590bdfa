"""verdicts/*.json to checks with their evidence."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from moebox.errors import BadInput
from moebox.escape import one_line
from moebox.loose import Json, figure, rows, texts, within, words
from moebox.report.record import CheckResult, Mark, Probe
from moebox.report.tidy import hide_keys
from moebox.store import plain
from moebox.store.summary import check_name, in_sum, mark_of

Piece = tuple[str, Any]  # of evidence: its title and what was kept, made text only where it is shown
PIECES = {"pass": 2, "fail": 12}  # pieces of evidence shown for each probe; more for what went wrong
LONGEST = 4_000  # characters of one piece of evidence shown; the file in the run folder has all of it
TOGETHER = "all checks together"
REASONS = ("detail", "reason", "why", "summary", "message")
SHOWN = {"name", "rung", "verdict", "passed", *REASONS, "seconds", "score", "probes", "title", "evidence"}


def read(folder: Path) -> tuple[list[CheckResult], list[str]]:
    """Every check's latest verdict, in the order of the files; and what could not be read."""
    latest: dict[str, CheckResult] = {}
    gaps: list[str] = []
    for path in sorted(plain.entries(folder, "*.json"), key=lambda path: (path.lstat().st_mtime, path.name)):
        try:
            document = plain.load_json(path)
        except BadInput as problem:
            gaps.append(f"verdicts/{path.name}: {problem.message.split(': ', 1)[-1]}")
            continue
        checks = [check_of(row, path.stem) for row in verdicts(document)]
        latest |= {check.name: check for check in checks}
    return list(latest.values()), gaps


def together(ladder: Json, checks: Sequence[CheckResult]) -> list[CheckResult]:
    """What the newest ladder says of all its checks, as one more, where that is worse than each of them."""
    mark = in_sum(ladder, {check.name: check.mark for check in checks})
    if not mark:
        return []
    faults = [slip for slip in rows(ladder, "slips") if slip.get("verdict") == mark]
    detail = "; ".join(map(fault, faults[: PIECES["fail"]])) or words(ladder, "stopped")
    return [CheckResult(name=TOGETHER, mark=mark, detail=detail, of_all=True)]


def fault(slip: Json) -> str:
    """ "transport: 3 of 12, such as: no reply"."""
    example = words(slip, "example")
    counted = f"{words(slip, 'kind')}: {words(slip, 'seen')} of {words(slip, 'of')}"
    return one_line(hide_keys(f"{counted}, such as: {example}" if example else counted))


def verdicts(document: object) -> list[Json]:
    """The rows of a file: a list of its own, under a name, or the document itself."""
    named = rows(document, "rungs", "verdicts")
    if named:
        return named
    return [document] if isinstance(document, dict) else rows({"all": document}, "all")


def check_of(row: Json, name: str) -> CheckResult:
    """One check."""
    probes = enumerate(rows(row, "probes", "checks"), 1)
    return CheckResult(
        name=check_name(row, name),
        mark=mark_of(row),
        detail=words(row, *REASONS),
        score=score_of(row),
        habits=tuple(texts(row, "habits")),
        probes=tuple(probe_of(probe, number) for number, probe in probes),
        evidence=shown(evidence_of(row), mark_of(row)),
        seconds=figure(row, "seconds", "duration_s"),
    )


def probe_of(row: Json, number: int) -> Probe:
    """One probe; what it has beyond the usual fields is evidence."""
    beside = titled({key: value for key, value in row.items() if key not in SHOWN})
    return Probe(
        name=words(row, "name", "title") or f"probe {number}",
        mark=mark_of(row),
        detail=words(row, *REASONS),
        evidence=shown([*evidence_of(row), *beside], mark_of(row)),
        seconds=figure(row, "seconds", "duration_s"),
    )


def shown(pieces: Sequence[Piece], mark: Mark) -> tuple[tuple[str, str], ...]:
    """As much evidence as a page can hold for hundreds of probes; the run folder keeps all of it."""
    most = PIECES.get(mark, 2)
    texts = tuple((title, show(value)) for title, value in pieces[:most])
    left = len(pieces) - most
    return texts if left <= 0 else (*texts, ("and more", f"{left} more pieces of evidence in the run folder"))


def score_of(row: Json) -> str:
    """A score with its trials and interval, where one is due."""
    score = row.get("score")
    if isinstance(score, dict):
        return interval_text(score)
    return number_text(score) or words(row, "score")


def number_text(score: object) -> str:
    """A score that is a figure alone; "" for anything else."""
    if isinstance(score, bool) or not isinstance(score, int | float):
        return ""
    return f"{score:.3g}"


def interval_text(score: Json) -> str:
    """ "11 of 12 (95%: 65–99%)"."""
    text = share_text(score)
    low, high = figure(score, "low"), figure(score, "high")
    if not text or low is None or high is None:
        return text
    return f"{text} (95%: {low * 100:.0f}–{high * 100:.0f}%)"


def share_text(score: Json) -> str:
    """ "11 of 12", or the share where the counts are not told."""
    passed, trials = figure(score, "passed"), figure(score, "trials", "n")
    if passed is not None and trials:
        return f"{passed:.0f} of {trials:.0f}"
    value = figure(score, "value", "share", "rate")
    if value is None:
        return ""
    return f"{value * 100:.1f}%" if value <= 1 else f"{value:g}"


def evidence_of(row: Json) -> tuple[Piece, ...]:
    """Titled pieces, whatever form the evidence has."""
    evidence = within(row, "evidence")
    if isinstance(evidence, dict):
        return titled(evidence)
    if isinstance(evidence, list):
        return tuple(each for number, piece in enumerate(evidence, 1) for each in exchange(piece, number))
    return () if empty(evidence) else (("evidence", evidence),)


def titled(fields: Json) -> tuple[Piece, ...]:
    """Every field that says something, under its own name."""
    return tuple((str(key).replace("_", " "), value) for key, value in fields.items() if not empty(value))


def empty(value: object) -> bool:
    """Whether there is nothing to show of it."""
    return value in (None, "", [], {})


def exchange(piece: Any, number: int) -> list[Piece]:
    """A request and its answer, or whatever else was kept."""
    if not isinstance(piece, dict) or "response" not in piece:
        return [(words(piece, "title", "name") or f"evidence {number}", piece)]
    answer = (f"{number}: {outcome(piece)}", piece["response"])
    if empty(piece.get("request")):
        return [answer]
    return [(f"{number}: {words(piece, 'method')} {words(piece, 'url')}", piece["request"]), answer]


def outcome(piece: Json) -> str:
    """What came back: an error, or the status and when."""
    seconds = figure(piece, "seconds")
    after = f" after {seconds:.2f} s" if seconds else ""
    return words(piece, "error") or f"status {words(piece, 'status')}{after}"


def show(value: Any) -> str:
    """A value as readable text, cut where it is too long to help."""
    text = value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False, default=str)
    text = hide_keys(text)
    if len(text) <= LONGEST:
        return text
    return f"{text[:LONGEST]}\n… {len(text) - LONGEST:,} more characters in the run folder"
