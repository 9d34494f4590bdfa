"""verdicts/*.json to checks with their evidence."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from moebox.errors import BadInput
from moebox.escape import one_line
from moebox.loose import Json, get_number, get_objects, get_path, get_text, get_texts
from moebox.report.record import CheckRow, Mark, ProbeRow
from moebox.report.tidy import hide_secrets
from moebox.store import plain
from moebox.store.summary import check_name, read_mark, summed_verdict

Piece = tuple[str, Any]  # of evidence: its title and what was kept, made text only where it is shown
PIECES = {"pass": 2, "fail": 12}  # pieces of evidence shown for each probe; more for what went wrong
LONGEST = 4_000  # characters of one piece of evidence shown; the file in the run folder has all of it
TOGETHER = "all checks together"
REASONS = ("detail", "reason", "why", "summary", "message")
SHOWN = {"name", "rung", "verdict", "passed", *REASONS, "seconds", "score", "probes", "title", "evidence"}


def read_checks(folder: Path) -> tuple[list[CheckRow], list[str]]:
    """Every check's latest verdict, in the order of the files; and what could not be read."""
    latest: dict[str, CheckRow] = {}
    gaps: list[str] = []
    for path in sorted(plain.list_entries(folder, "*.json"), key=lambda path: (path.lstat().st_mtime, path.name)):
        try:
            document = plain.load_json(path)
        except BadInput as problem:
            gaps.append(f"verdicts/{path.name}: {problem.message.split(': ', 1)[-1]}")
            continue
        checks = [check_row(row, path.stem) for row in verdicts(document)]
        latest |= {check.name: check for check in checks}
    return list(latest.values()), gaps


def together(ladder: Json, checks: Sequence[CheckRow]) -> list[CheckRow]:
    """What the newest ladder says of all its checks, as one more, where that is worse than each of them."""
    mark = summed_verdict(ladder, {check.name: check.mark for check in checks})
    if not mark:
        return []
    faults = [slip for slip in get_objects(ladder, "slips") if slip.get("verdict") == mark]
    detail = "; ".join(map(fault, faults[: PIECES["fail"]])) or get_text(ladder, "stopped")
    return [CheckRow(name=TOGETHER, mark=mark, detail=detail, is_sum=True)]


def fault(slip: Json) -> str:
    """ "transport: 3 of 12, such as: no reply"."""
    example = get_text(slip, "example")
    counted = f"{get_text(slip, 'kind')}: {get_text(slip, 'seen')} of {get_text(slip, 'of')}"
    return one_line(hide_secrets(f"{counted}, such as: {example}" if example else counted))


def verdicts(document: object) -> list[Json]:
    """The rows of a file: a list of its own, under a name, or the document itself."""
    named = get_objects(document, "rungs", "verdicts")
    if named:
        return named
    return [document] if isinstance(document, dict) else get_objects({"all": document}, "all")


def check_row(row: Json, name: str) -> CheckRow:
    """One check."""
    probes = enumerate(get_objects(row, "probes", "checks"), 1)
    return CheckRow(
        name=check_name(row, name),
        mark=read_mark(row),
        detail=get_text(row, *REASONS),
        score=score_of(row),
        quirks=tuple(get_texts(row, "habits")),
        probes=tuple(probe_of(probe, number) for number, probe in probes),
        evidence=shown(evidence_of(row), read_mark(row)),
        seconds=get_number(row, "seconds", "duration_s"),
    )


def probe_of(row: Json, number: int) -> ProbeRow:
    """One probe; what it has beyond the usual fields is evidence."""
    beside = titled({key: value for key, value in row.items() if key not in SHOWN})
    return ProbeRow(
        name=get_text(row, "name", "title") or f"probe {number}",
        mark=read_mark(row),
        detail=get_text(row, *REASONS),
        evidence=shown([*evidence_of(row), *beside], read_mark(row)),
        seconds=get_number(row, "seconds", "duration_s"),
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
    return number_text(score) or get_text(row, "score")


def number_text(score: object) -> str:
    """A score that is a figure alone; "" for anything else."""
    if isinstance(score, bool) or not isinstance(score, int | float):
        return ""
    return f"{score:.3g}"


def interval_text(score: Json) -> str:
    """ "11 of 12 (95%: 65–99%)"."""
    text = share_text(score)
    low, high = get_number(score, "low"), get_number(score, "high")
    if not text or low is None or high is None:
        return text
    return f"{text} (95%: {low * 100:.0f}–{high * 100:.0f}%)"


def share_text(score: Json) -> str:
    """ "11 of 12", or the share where the counts are not told."""
    passed, trials = get_number(score, "passed"), get_number(score, "trials", "n")
    if passed is not None and trials:
        return f"{passed:.0f} of {trials:.0f}"
    value = get_number(score, "value", "share", "rate")
    if value is None:
        return ""
    return f"{value * 100:.1f}%" if value <= 1 else f"{value:g}"


def evidence_of(row: Json) -> tuple[Piece, ...]:
    """Titled pieces, whatever form the evidence has."""
    evidence = get_path(row, "evidence")
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
        return [(get_text(piece, "title", "name") or f"evidence {number}", piece)]
    answer = (f"{number}: {outcome(piece)}", piece["response"])
    if empty(piece.get("request")):
        return [answer]
    return [(f"{number}: {get_text(piece, 'method')} {get_text(piece, 'url')}", piece["request"]), answer]


def outcome(piece: Json) -> str:
    """What came back: an error, or the status and when."""
    seconds = get_number(piece, "seconds")
    after = f" after {seconds:.2f} s" if seconds else ""
    return get_text(piece, "error") or f"status {get_text(piece, 'status')}{after}"


def show(value: Any) -> str:
    """A value as readable text, cut where it is too long to help."""
    text = value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False, default=str)
    text = hide_secrets(text)
    if len(text) <= LONGEST:
        return text
    return f"{text[:LONGEST]}\n… {len(text) - LONGEST:,} more characters in the run folder"
