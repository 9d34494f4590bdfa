"""Runs in a list: model, box, verdict and speed of each, read once and remembered until the folder changes.

A thousand runs are listed from the remembered rows; only what changed since is read again. The memory lies in the
user's cache and can be deleted at any time.
"""

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from moebox import codec, files
from moebox.core.event import (
    AttemptFailed,
    AttemptReady,
    AttemptStarted,
    ClimbBegan,
    StepEvent,
    StepRunning,
    VerifyBegan,
    VerifyEnded,
    simulated,
)
from moebox.core.verdict import Mark
from moebox.errors import BadInput
from moebox.loose import Json, as_json, figure, rows, truth, words
from moebox.redact import hide_keys
from moebox.store import plain
from moebox.store.journal import Entry
from moebox.store.listing import looks_like_one, stamp_of
from moebox.store.run import PIPELINE, PIPELINE_BEFORE, Run, runs_dir
from moebox.units import plural

Verdict = Literal["", "pass", "warn", "fail", "interrupted", "in part"]
CHECKS = {"pass": "passed", "warn": "warnings", "fail": "failed", "interrupted": "interrupted", "in part": "in part"}
MARKS: dict[str, Mark] = {
    **dict.fromkeys(("pass", "passed", "ok", "true"), "pass"),
    **dict.fromkeys(("fail", "failed", "error", "false"), "fail"),
    **dict.fromkeys(("skip", "skipped"), "skip"),
    **dict.fromkeys(("warn", "partial"), "warn"),
}
MARK = "simulation"
WORST_FIRST: tuple[Verdict, ...] = ("warn", "pass")
LARGEST = codec.LARGEST  # bytes of a file of a run that are read for its row: as many as for its report
CLIMB = "climb.json"
_FILES = ("events.jsonl", "recipe.toml", "box.toml", "verify.json", "verdicts", "measurements", "tasks.json", CLIMB)
WATCHED = (*_FILES, PIPELINE, PIPELINE_BEFORE)
FORMAT = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """One run's row."""

    id: str
    started: float = 0.0
    model: str = ""
    engine: str = ""
    box: str = ""
    verdict: Verdict = ""
    output_tok_s: float | None = None
    ttft_ms: float | None = None
    failed: str = ""  # the step that failed, and why
    step: str = ""  # the last step that was begun
    left_in: str = ""  # the step of a run, or the climb, without an end: one that runs, or in which it was interrupted
    unchecked: bool = False  # its checks have no end
    simulation: bool = False
    jobs: int = 0  # of `moebox task` that are done
    solved: int = 0

    def state(self, *, live: bool) -> str:
        """In a few words."""
        if live:
            return f"running {self.step}".strip()
        if self.failed:
            return f"failed in {self.failed.partition(':')[0]}"
        return f"interrupted in {self.unended}" if self.unended else "ended"

    @property
    def unended(self) -> str:
        """What has no end, checks that were made by hand included."""
        return self.left_in or ("verify" if self.unchecked else "")

    @property
    def checks(self) -> str:
        """How they ended, in a word, else how many jobs were solved; a simulation's answers were not checked."""
        if self.simulation:
            return "–"
        return CHECKS.get(self.verdict) or (f"{self.solved} of {plural(self.jobs, 'job')}" if self.jobs else "–")


@dataclass(frozen=True, slots=True, kw_only=True)
class Remembered:
    """Rows with the state of the folder they were read from."""

    format: int = FORMAT
    rows: dict[str, tuple[str, Summary]]


def summaries(runs: Path | None = None) -> list[Summary]:
    """Every run, newest first."""
    home = runs_dir(runs)
    known = _recall(home)
    rows: dict[str, tuple[str, Summary]] = {}
    for folder in _folders(home):
        state = _state(folder)
        before = known.get(folder.name)
        rows[folder.name] = before if before and before[0] == state else (state, summarize(Run(folder)))
    if rows != known:
        _remember(home, rows)
    return [row for _, row in rows.values()]


def _folders(home: Path) -> list[Path]:
    if not home.is_dir():
        return []
    found = (Path(entry.path) for entry in os.scandir(home) if entry.is_dir(follow_symlinks=False))
    return sorted((folder for folder in found if looks_like_one(folder)), reverse=True)


def _state(folder: Path) -> str:
    """Changes whenever one of the files a row is made of does."""
    parts = []
    for name in WATCHED:
        try:
            stat = os.stat(folder / name)
        except OSError:
            continue
        parts.append(f"{name}:{stat.st_mtime_ns}:{stat.st_size}")
    return " ".join(parts)


def summarize(run: Run) -> Summary:
    """One run's row, from what is there; a file that cannot be read costs its own columns."""
    recipe, box = _toml(run.path / "recipe.toml"), _toml(run.path / "box.toml")
    pipeline = _json(run.path / PIPELINE) or _json(run.path / PIPELINE_BEFORE)
    best = _fastest(run.path / "measurements")
    tasks = _json(run.path / "tasks.json")
    jobs = [truth(job, "solved") for job in rows(tasks, "results")]
    entries = run.journal().entries
    unchecked = unfinished_checks(pipeline, entries) is not None
    return Summary(
        id=run.id,
        started=stamp_of(run.id),
        model=_model(recipe, pipeline, best, entries, tasks),
        engine=_text(recipe, "engine"),
        box=_text(box, "name"),
        verdict=_verdict(run.path, unchecked=unchecked, of=checks_there_are(entries)),
        output_tok_s=figure(best, "output_throughput"),
        ttft_ms=figure(best, "mean_ttft_ms"),
        failed=_failed(pipeline) if rows(pipeline, "steps") else _not_launched(entries) or _no_summit(run.path),
        step=unended_step(pipeline, entries) or _step(pipeline),
        left_in=unended_step(pipeline, entries) or left_climb(run.path, entries),
        unchecked=unchecked,
        simulation=_simulated(entries, (pipeline, "simulated"), (_json(run.path / "run.json"), MARK), (best, MARK)),
        jobs=len(jobs),
        solved=sum(jobs),
    )


def unfinished_checks(pipeline: object, entries: Sequence[Entry]) -> tuple[str, ...] | None:
    """The checks of a verification that began and did not end; None where it ended, or never began."""
    if unended_step(pipeline, entries) == "verify":
        return ()
    told = [entry.event for entry in entries if isinstance(entry.event, VerifyBegan | VerifyEnded)]
    return told[-1].checks if told and isinstance(told[-1], VerifyBegan) else None


def checks_there_are(entries: Sequence[Entry]) -> int:
    """As the newest verification tells it; 0 where none does."""
    return next((entry.event.of for entry in reversed(entries) if isinstance(entry.event, VerifyBegan)), 0)


def _model(recipe: Json, pipeline: Json, best: Json, entries: Sequence[Entry], jobs: Json) -> str:
    """The model that was asked, as the first who knows calls it."""
    told = (_text(recipe, "served_name", "model"), _text(pipeline, "request.model"), _text(best, "model_id"))
    checked = (entry.event.model[:200] for entry in entries if isinstance(entry.event, VerifyBegan))
    return next(filter(None, (*told, *checked, _text(jobs, "model"))), "")


def _verdict(folder: Path, *, unchecked: bool, of: int) -> Verdict:
    """The worst of its checks, as its report says it; half a ladder has no verdict, unless one failed."""
    paths = plain.entries(folder / "verdicts", "*.json")[:64]
    documents = [_json(path) for path in paths]
    checks = [mark_of(document) for document in documents]
    ladder = _json(folder / "verify.json")
    names = [check_name(document, path.stem) for document, path in zip(documents, paths, strict=True)]
    marks = [*checks, in_sum(ladder, dict(zip(names, checks, strict=True)))] if checks else [_text(ladder, "verdict")]
    if "fail" in marks:
        return "fail"
    if unchecked:
        return "interrupted"
    if 0 < len(checks) < of:
        return "in part"
    return next((mark for mark in WORST_FIRST if mark in marks), "")


def check_name(row: Json, name: str) -> str:
    """What a check is called; `name`, its file's, where it does not say."""
    return words(row, "name", "rung") or name


def mark_of(row: Json) -> Mark:
    """pass, warn, fail or skip, however it was written; what says nothing was skipped."""
    value = row.get("verdict", row.get("passed", row.get("ok")))
    return MARKS.get(str(value).lower(), "fail" if value is False else "skip")


def in_sum(ladder: Json, marks: Mapping[str, str]) -> Literal["", "fail", "warn"]:
    """The verdict of the newest ladder, where it is worse than each of its checks: a fault that is rare in every one.

    `marks`: the newest of each check. Where one was made again since, the sum is no longer of these, and says nothing.
    """
    made = {check_name(row, ""): mark_of(row) for row in rows(ladder, "rungs")}
    if not made or any(marks.get(name) != mark for name, mark in made.items()):
        return ""
    told, verdict = set(made.values()), words(ladder, "verdict")
    if verdict == "fail":
        return "" if "fail" in told else "fail"
    return "warn" if verdict == "warn" and not told & {"fail", "warn"} else ""


def _simulated(entries: Sequence[Entry], *told: tuple[Json, str]) -> bool:
    """Whether a file or an event says that a twin answered."""
    return any(truth(*each) for each in told) or any(simulated(entry.event) for entry in entries)


def _fastest(folder: Path) -> Json:
    """The measurement with the highest output; one that the client did not limit, where there is one."""
    documents = [_json(path) for path in plain.entries(folder, "*.json")[:256]]
    return max(documents, key=_honest_rate, default={})


def _honest_rate(document: Json) -> tuple[bool, float]:
    rate = figure(document, "output_throughput") or 0.0
    return rate > 0 and not truth(document, "client_limited"), rate


def _failed(pipeline: Json) -> str:
    for step in rows(pipeline, "steps"):
        if step.get("state") == "failed":
            return f"{_text(step, 'name')}: {_text(step, 'why')}"[:300]
    return ""


def _not_launched(entries: Sequence[Entry]) -> str:
    """Of a launch by itself, the last of which failed."""
    told = [entry.event for entry in entries if isinstance(entry.event, AttemptStarted | AttemptReady | AttemptFailed)]
    return f"up: {hide_keys(told[-1].message)}"[:300] if told and isinstance(told[-1], AttemptFailed) else ""


def _step(pipeline: Json) -> str:
    begun = [step for step in rows(pipeline, "steps") if step.get("state") in ("running", "done", "failed")]
    return _text(begun[-1], "name") if begun else ""


def unended_step(pipeline: object, entries: Sequence[Entry]) -> str:
    """The step of `moebox run` that began and did not end; up to 0.2 only the journal says so."""
    running = [words(step, "name") for step in rows(pipeline, "steps") if words(step, "state") == "running"]
    told = [entry.event for entry in entries if isinstance(entry.event, StepEvent)][-1:]
    return next(iter([*running, *(event.step for event in told if isinstance(event, StepRunning))]), "")


def left_climb(folder: Path, entries: Sequence[Entry]) -> str:
    """ "climb" where one was begun and did not get to its end, else ""."""
    begun = any(isinstance(entry.event, ClimbBegan) for entry in entries)
    ended = (folder / "best.toml").exists() or truth(_json(folder / CLIMB), "ended")
    return "climb" if begun and not ended else ""


def _no_summit(folder: Path) -> str:
    """Why a climb that ended found no recipe to keep."""
    table = _json(folder / CLIMB)
    if not truth(table, "ended") or table.get("best") is not None:
        return ""
    return f"climb: {_text(next(iter(rows(table, 'steps')), {}), 'why')}"[:300]


def _text(document: Json, *names: str) -> str:
    return words(document, *names)[:200]


def _read(path: Path) -> bytes:
    """A plain file of reasonable size; anything else reads as empty."""
    try:
        return plain.read_bytes(path, most=LARGEST)
    except (OSError, BadInput):
        return b""


def _json(path: Path) -> Json:
    try:
        return as_json(json.loads(_read(path) or b"{}"))
    except (ValueError, RecursionError):
        return {}


def _toml(path: Path) -> Json:
    try:
        return codec.parse_toml(_read(path).decode("utf-8", "replace"), where=path.name)
    except BadInput:
        return {}


def _memory(home: Path) -> Path:
    name = hashlib.sha256(str(home.absolute()).encode()).hexdigest()[:16]
    return files.cache_home() / "moebox" / "runs" / f"{name}.json"


def _recall(home: Path) -> dict[str, tuple[str, Summary]]:
    path = _memory(home)
    try:
        remembered = codec.decode(Remembered, codec.load_json(path), where=str(path))
    except (BadInput, OSError):
        return {}
    return remembered.rows if remembered.format == FORMAT else {}


def _remember(home: Path, rows: dict[str, tuple[str, Summary]]) -> None:
    try:
        files.write_atomic(_memory(home), codec.to_json(Remembered(rows=rows), indent=None))
    except OSError:
        return  # a full disk costs the memory, not the list
