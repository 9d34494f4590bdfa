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
    marks_simulation,
)
from moebox.core.verdict import Mark
from moebox.errors import BadInput
from moebox.loose import Json, as_object, get_number, get_objects, get_text, is_true
from moebox.redact import hide_secrets
from moebox.store import plain
from moebox.store.journal import JournalEntry
from moebox.store.listing import folder_time, is_run_folder
from moebox.store.run import PIPELINE, PIPELINE_BEFORE, Run, runs_dir
from moebox.units import plural

RunVerdict = Literal["", "pass", "warn", "fail", "interrupted", "in part"]
VERDICT_WORDS = {
    "pass": "passed",
    "warn": "warnings",
    "fail": "failed",
    "interrupted": "interrupted",
    "in part": "in part",
}
MARKS: dict[str, Mark] = {
    **dict.fromkeys(("pass", "passed", "ok", "true"), "pass"),
    **dict.fromkeys(("fail", "failed", "error", "false"), "fail"),
    **dict.fromkeys(("skip", "skipped"), "skip"),
    **dict.fromkeys(("warn", "partial"), "warn"),
}
SIMULATION_KEY = "simulation"
WORST_FIRST: tuple[RunVerdict, ...] = ("warn", "pass")
MAX_FILE_BYTES = codec.MAX_FILE_BYTES  # bytes of a file of a run that are read for its row: as many as for its report
CLIMB = "climb.json"
_FILES = ("events.jsonl", "recipe.toml", "box.toml", "verify.json", "verdicts", "measurements", "tasks.json", CLIMB)
WATCHED = (*_FILES, PIPELINE, PIPELINE_BEFORE)
FORMAT = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """One run's row."""

    id: str
    started: float = 0.0
    model: str = ""
    engine: str = ""
    box: str = ""
    verdict: RunVerdict = ""
    output_tok_s: float | None = None
    ttft_ms: float | None = None
    failed: str = ""  # the step that failed, and why
    step: str = ""  # the last step that was begun
    left_in: str = ""  # the step of a run, or the climb, without an end: one that runs, or in which it was interrupted
    unchecked: bool = False  # its checks have no end
    simulation: bool = False
    jobs: int = 0  # of `moebox task` that are done
    solved: int = 0

    def state_text(self, *, live: bool) -> str:
        """In a few words."""
        if live:
            return f"running {self.step}".strip()
        if self.failed:
            return f"failed in {self.failed.partition(':')[0]}"
        return f"interrupted in {self.unfinished_part}" if self.unfinished_part else "ended"

    @property
    def unfinished_part(self) -> str:
        """What has no end, checks that were made by hand included."""
        return self.left_in or ("verify" if self.unchecked else "")

    @property
    def checks_text(self) -> str:
        """How they ended, in a word, else how many jobs were solved; a simulation's answers were not checked."""
        if self.simulation:
            return "–"
        return VERDICT_WORDS.get(self.verdict) or (f"{self.solved} of {plural(self.jobs, 'job')}" if self.jobs else "–")


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedRows:
    """Rows with the state of the folder they were read from."""

    format: int = FORMAT
    rows: dict[str, tuple[str, RunSummary]]


def list_summaries(runs: Path | None = None) -> list[RunSummary]:
    """Every run, newest first."""
    home = runs_dir(runs)
    known = _recall(home)
    rows: dict[str, tuple[str, RunSummary]] = {}
    for folder in _folders(home):
        state = _state(folder)
        before = known.get(folder.name)
        rows[folder.name] = before if before and before[0] == state else (state, summarize_run(Run(folder)))
    if rows != known:
        _remember(home, rows)
    return [row for _, row in rows.values()]


def _folders(home: Path) -> list[Path]:
    if not home.is_dir():
        return []
    found = (Path(entry.path) for entry in os.scandir(home) if entry.is_dir(follow_symlinks=False))
    return sorted((folder for folder in found if is_run_folder(folder)), reverse=True)


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


def summarize_run(run: Run) -> RunSummary:
    """One run's row, from what is there; a file that cannot be read costs its own columns."""
    recipe, box = _toml(run.path / "recipe.toml"), _toml(run.path / "box.toml")
    pipeline = _json(run.path / PIPELINE) or _json(run.path / PIPELINE_BEFORE)
    best = _fastest(run.path / "measurements")
    tasks = _json(run.path / "tasks.json")
    jobs = [is_true(job, "solved") for job in get_objects(tasks, "results")]
    entries = run.read_journal().entries
    unchecked = unfinished_checks(pipeline, entries) is not None
    return RunSummary(
        id=run.id,
        started=folder_time(run.id),
        model=_model(recipe, pipeline, best, entries, tasks),
        engine=_text(recipe, "engine"),
        box=_text(box, "name"),
        verdict=_verdict(run.path, unchecked=unchecked, of=check_count(entries)),
        output_tok_s=get_number(best, "output_throughput"),
        ttft_ms=get_number(best, "mean_ttft_ms"),
        failed=_failed(pipeline) if get_objects(pipeline, "steps") else _not_launched(entries) or _no_summit(run.path),
        step=unfinished_step(pipeline, entries) or _step(pipeline),
        left_in=unfinished_step(pipeline, entries) or unfinished_climb(run.path, entries),
        unchecked=unchecked,
        simulation=_simulated(
            entries, (pipeline, "simulated"), (_json(run.path / "run.json"), SIMULATION_KEY), (best, SIMULATION_KEY)
        ),
        jobs=len(jobs),
        solved=sum(jobs),
    )


def unfinished_checks(pipeline: object, entries: Sequence[JournalEntry]) -> tuple[str, ...] | None:
    """The checks of a verification that began and did not end; None where it ended, or never began."""
    if unfinished_step(pipeline, entries) == "verify":
        return ()
    told = [entry.event for entry in entries if isinstance(entry.event, VerifyBegan | VerifyEnded)]
    return told[-1].checks if told and isinstance(told[-1], VerifyBegan) else None


def check_count(entries: Sequence[JournalEntry]) -> int:
    """As the newest verification tells it; 0 where none does."""
    return next((entry.event.of for entry in reversed(entries) if isinstance(entry.event, VerifyBegan)), 0)


def _model(recipe: Json, pipeline: Json, best: Json, entries: Sequence[JournalEntry], jobs: Json) -> str:
    """The model that was asked, as the first who knows calls it."""
    told = (_text(recipe, "served_name", "model"), _text(pipeline, "request.model"), _text(best, "model_id"))
    checked = (entry.event.model[:200] for entry in entries if isinstance(entry.event, VerifyBegan))
    return next(filter(None, (*told, *checked, _text(jobs, "model"))), "")


def _verdict(folder: Path, *, unchecked: bool, of: int) -> RunVerdict:
    """The worst of its checks, as its report says it; half a ladder has no verdict, unless one failed."""
    paths = plain.list_entries(folder / "verdicts", "*.json")[:64]
    documents = [_json(path) for path in paths]
    checks = [read_mark(document) for document in documents]
    ladder = _json(folder / "verify.json")
    names = [check_name(document, path.stem) for document, path in zip(documents, paths, strict=True)]
    marks = (
        [*checks, summed_verdict(ladder, dict(zip(names, checks, strict=True)))]
        if checks
        else [_text(ladder, "verdict")]
    )
    if "fail" in marks:
        return "fail"
    if unchecked:
        return "interrupted"
    if 0 < len(checks) < of:
        return "in part"
    return next((mark for mark in WORST_FIRST if mark in marks), "")


def check_name(row: Json, name: str) -> str:
    """What a check is called; `name`, its file's, where it does not say."""
    return get_text(row, "name", "rung") or name


def read_mark(row: Json) -> Mark:
    """pass, warn, fail or skip, however it was written; what says nothing was skipped."""
    value = row.get("verdict", row.get("passed", row.get("ok")))
    return MARKS.get(str(value).lower(), "fail" if value is False else "skip")


def summed_verdict(results: Json, marks: Mapping[str, str]) -> Literal["", "fail", "warn"]:
    """The verdict of the newest ladder, where it is worse than each of its checks: a fault that is rare in every one.

    `marks`: the newest of each check. Where one was made again since, the sum is no longer of these, and says nothing.
    """
    made = {check_name(row, ""): read_mark(row) for row in get_objects(results, "rungs")}
    if not made or any(marks.get(name) != mark for name, mark in made.items()):
        return ""
    told, verdict = set(made.values()), get_text(results, "verdict")
    if verdict == "fail":
        return "" if "fail" in told else "fail"
    return "warn" if verdict == "warn" and not told & {"fail", "warn"} else ""


def _simulated(entries: Sequence[JournalEntry], *told: tuple[Json, str]) -> bool:
    """Whether a file or an event says that a twin answered."""
    return any(is_true(*each) for each in told) or any(marks_simulation(entry.event) for entry in entries)


def _fastest(folder: Path) -> Json:
    """The measurement with the highest output; one that the client did not limit, where there is one."""
    documents = [_json(path) for path in plain.list_entries(folder, "*.json")[:256]]
    return max(documents, key=_honest_rate, default={})


def _honest_rate(document: Json) -> tuple[bool, float]:
    rate = get_number(document, "output_throughput") or 0.0
    return rate > 0 and not is_true(document, "client_limited"), rate


def _failed(pipeline: Json) -> str:
    for step in get_objects(pipeline, "steps"):
        if step.get("state") == "failed":
            return f"{_text(step, 'name')}: {_text(step, 'why')}"[:300]
    return ""


def _not_launched(entries: Sequence[JournalEntry]) -> str:
    """Of a launch by itself, the last of which failed."""
    told = [entry.event for entry in entries if isinstance(entry.event, AttemptStarted | AttemptReady | AttemptFailed)]
    return f"up: {hide_secrets(told[-1].message)}"[:300] if told and isinstance(told[-1], AttemptFailed) else ""


def _step(pipeline: Json) -> str:
    begun = [step for step in get_objects(pipeline, "steps") if step.get("state") in ("running", "done", "failed")]
    return _text(begun[-1], "name") if begun else ""


def unfinished_step(pipeline: object, entries: Sequence[JournalEntry]) -> str:
    """The step of `moebox run` that began and did not end; up to 0.2 only the journal says so."""
    running = [
        get_text(step, "name") for step in get_objects(pipeline, "steps") if get_text(step, "state") == "running"
    ]
    told = [entry.event for entry in entries if isinstance(entry.event, StepEvent)][-1:]
    return next(iter([*running, *(event.step for event in told if isinstance(event, StepRunning))]), "")


def unfinished_climb(folder: Path, entries: Sequence[JournalEntry]) -> str:
    """ "climb" where one was begun and did not get to its end, else ""."""
    begun = any(isinstance(entry.event, ClimbBegan) for entry in entries)
    ended = (folder / "best.toml").exists() or is_true(_json(folder / CLIMB), "ended")
    return "climb" if begun and not ended else ""


def _no_summit(folder: Path) -> str:
    """Why a climb that ended found no recipe to keep."""
    table = _json(folder / CLIMB)
    if not is_true(table, "ended") or table.get("best") is not None:
        return ""
    return f"climb: {_text(next(iter(get_objects(table, 'steps')), {}), 'why')}"[:300]


def _text(document: Json, *names: str) -> str:
    return get_text(document, *names)[:200]


def _read(path: Path) -> bytes:
    """A plain file of reasonable size; anything else reads as empty."""
    try:
        return plain.read_bytes(path, max_bytes=MAX_FILE_BYTES)
    except (OSError, BadInput):
        return b""


def _json(path: Path) -> Json:
    try:
        return as_object(json.loads(_read(path) or b"{}"))
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


def _recall(home: Path) -> dict[str, tuple[str, RunSummary]]:
    path = _memory(home)
    try:
        remembered = codec.decode(CachedRows, codec.load_json(path), where=str(path))
    except (BadInput, OSError):
        return {}
    return remembered.rows if remembered.format == FORMAT else {}


def _remember(home: Path, rows: dict[str, tuple[str, RunSummary]]) -> None:
    try:
        files.write_atomic(_memory(home), codec.to_json(CachedRows(rows=rows), indent=None))
    except OSError:
        return  # a full disk costs the memory, not the list
