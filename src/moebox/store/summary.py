"""The list of runs: model, box, verdict and speed of each, cached until the folder changes.

A thousand runs are listed from the cached rows; only changed folders are read again. The cache is in the user's cache
directory and can be deleted at any time.
"""

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from moebox import codec, files
from moebox.core.engine_event import AttemptFailed, AttemptReady, AttemptStarted
from moebox.core.event import ClimbBegan, StepEvent, StepRunning, VerifyBegan, VerifyEnded, marks_simulation
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
MAX_FILE_BYTES = codec.MAX_FILE_BYTES  # of a file of a run; the same as for its report
CLIMB = "climb.json"
_FILES = ("events.jsonl", "recipe.toml", "box.toml", "verify.json", "verdicts", "measurements", "tasks.json", CLIMB)
WATCHED = (*_FILES, PIPELINE, PIPELINE_BEFORE)
FORMAT = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """One row of the list."""

    id: str
    started: float = 0.0
    model: str = ""
    engine: str = ""
    box: str = ""
    verdict: RunVerdict = ""
    output_tok_s: float | None = None
    ttft_ms: float | None = None
    failed: str = ""  # the step that failed, and the reason
    step: str = ""  # the last step that began
    left_in: str = ""  # the step of a run, or the climb, that has no end: it is running or was interrupted
    unchecked: bool = False  # its checks did not end
    simulation: bool = False
    jobs: int = 0  # finished jobs of `moebox task`
    solved: int = 0

    def state_text(self, *, live: bool) -> str:
        if live:
            return f"running {self.step}".strip()
        if self.failed:
            return f"failed in {self.failed.partition(':')[0]}"
        return f"interrupted in {self.unfinished_part}" if self.unfinished_part else "ended"

    @property
    def unfinished_part(self) -> str:
        """The step, climb or checks that did not end."""
        return self.left_in or ("verify" if self.unchecked else "")

    @property
    def checks_text(self) -> str:
        """The verdict of the checks, else the number of solved jobs; a simulation has no checks."""
        if self.simulation:
            return "–"
        return VERDICT_WORDS.get(self.verdict) or (f"{self.solved} of {plural(self.jobs, 'job')}" if self.jobs else "–")


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedRows:
    """Rows with the state of the folders that they were read from."""

    format: int = FORMAT
    rows: dict[str, tuple[str, RunSummary]]


def list_summaries(runs: Path | None = None) -> list[RunSummary]:
    """All runs, newest first."""
    home = runs_dir(runs)
    known = _read_cache(home)
    rows: dict[str, tuple[str, RunSummary]] = {}
    for folder in _run_folders(home):
        state = _folder_state(folder)
        before = known.get(folder.name)
        rows[folder.name] = before if before and before[0] == state else (state, summarize_run(Run(folder)))
    if rows != known:
        _write_cache(home, rows)
    return [row for _, row in rows.values()]


def _run_folders(home: Path) -> list[Path]:
    if not home.is_dir():
        return []
    found = (Path(entry.path) for entry in os.scandir(home) if entry.is_dir(follow_symlinks=False))
    return sorted((folder for folder in found if is_run_folder(folder)), reverse=True)


def _folder_state(folder: Path) -> str:
    """A text that changes whenever one of the files behind a row does."""
    parts = []
    for name in WATCHED:
        try:
            stat = os.stat(folder / name)
        except OSError:
            continue
        parts.append(f"{name}:{stat.st_mtime_ns}:{stat.st_size}")
    return " ".join(parts)


def summarize_run(run: Run) -> RunSummary:
    """The row of one run; an unreadable file leaves its columns empty."""
    recipe, box = _read_toml(run.path / "recipe.toml"), _read_toml(run.path / "box.toml")
    pipeline = _read_json(run.path / PIPELINE) or _read_json(run.path / PIPELINE_BEFORE)
    best = _fastest_measurement(run.path / "measurements")
    tasks = _read_json(run.path / "tasks.json")
    jobs = [is_true(job, "solved") for job in get_objects(tasks, "results")]
    entries = run.read_journal().entries
    unchecked = unfinished_checks(pipeline, entries) is not None
    return RunSummary(
        id=run.id,
        started=folder_time(run.id),
        model=_model_name(recipe, pipeline, best, entries, tasks),
        engine=_short_text(recipe, "engine"),
        box=_short_text(box, "name"),
        verdict=_run_verdict(run.path, unchecked=unchecked, of=check_count(entries)),
        output_tok_s=get_number(best, "output_throughput"),
        ttft_ms=get_number(best, "mean_ttft_ms"),
        failed=_failed_step(pipeline)
        if get_objects(pipeline, "steps")
        else _launch_failure(entries) or _climb_failure(run.path),
        step=unfinished_step(pipeline, entries) or _last_step(pipeline),
        left_in=unfinished_step(pipeline, entries) or unfinished_climb(run.path, entries),
        unchecked=unchecked,
        simulation=_is_simulation(
            entries,
            (pipeline, "simulated"),
            (_read_json(run.path / "run.json"), SIMULATION_KEY),
            (best, SIMULATION_KEY),
        ),
        jobs=len(jobs),
        solved=sum(jobs),
    )


def unfinished_checks(pipeline: object, entries: Sequence[JournalEntry]) -> tuple[str, ...] | None:
    """The checks of a verification that began and did not end; None if it ended or never began."""
    if unfinished_step(pipeline, entries) == "verify":
        return ()
    found = [entry.event for entry in entries if isinstance(entry.event, VerifyBegan | VerifyEnded)]
    return found[-1].checks if found and isinstance(found[-1], VerifyBegan) else None


def check_count(entries: Sequence[JournalEntry]) -> int:
    """The number of existing checks by the newest verification; 0 if unknown."""
    return next((entry.event.of for entry in reversed(entries) if isinstance(entry.event, VerifyBegan)), 0)


def _model_name(recipe: Json, pipeline: Json, best: Json, entries: Sequence[JournalEntry], jobs: Json) -> str:
    """The name of the model, from the first file or event that has it."""
    found = (
        _short_text(recipe, "served_name", "model"),
        _short_text(pipeline, "request.model"),
        _short_text(best, "model_id"),
    )
    checked = (entry.event.model[:200] for entry in entries if isinstance(entry.event, VerifyBegan))
    return next(filter(None, (*found, *checked, _short_text(jobs, "model"))), "")


def _run_verdict(folder: Path, *, unchecked: bool, of: int) -> RunVerdict:
    """The worst of its checks, as in its report; incomplete checks have no verdict, unless one failed."""
    paths = plain.list_entries(folder / "verdicts", "*.json")[:64]
    documents = [_read_json(path) for path in paths]
    checks = [read_mark(document) for document in documents]
    ladder = _read_json(folder / "verify.json")
    names = [check_name(document, path.stem) for document, path in zip(documents, paths, strict=True)]
    marks = (
        [*checks, summed_verdict(ladder, dict(zip(names, checks, strict=True)))]
        if checks
        else [_short_text(ladder, "verdict")]
    )
    if "fail" in marks:
        return "fail"
    if unchecked:
        return "interrupted"
    if 0 < len(checks) < of:
        return "in part"
    return next((mark for mark in WORST_FIRST if mark in marks), "")


def check_name(row: Json, name: str) -> str:
    """The name of a check, or `name`, that of its file."""
    return get_text(row, "name", "rung") or name


def read_mark(row: Json) -> Mark:
    """The verdict in any of its spellings; "skip" if there is none."""
    value = row.get("verdict", row.get("passed", row.get("ok")))
    return MARKS.get(str(value).lower(), "fail" if value is False else "skip")


def summed_verdict(results: Json, marks: Mapping[str, str]) -> Literal["", "fail", "warn"]:
    """The verdict of the newest verification, if it is worse than that of each check: a rare fault in all of them.

    `marks`: the newest verdict of each check. If one was repeated since, the sum does not apply to them.
    """
    made = {check_name(row, ""): read_mark(row) for row in get_objects(results, "rungs")}
    if not made or any(marks.get(name) != mark for name, mark in made.items()):
        return ""
    found, verdict = set(made.values()), get_text(results, "verdict")
    if verdict == "fail":
        return "" if "fail" in found else "fail"
    return "warn" if verdict == "warn" and not found & {"fail", "warn"} else ""


def _is_simulation(entries: Sequence[JournalEntry], *found: tuple[Json, str]) -> bool:
    """True if a file or an event says that a twin replied."""
    return any(is_true(*each) for each in found) or any(marks_simulation(entry.event) for entry in entries)


def _fastest_measurement(folder: Path) -> Json:
    """The measurement with the highest output, if possible one that the client did not limit."""
    documents = [_read_json(path) for path in plain.list_entries(folder, "*.json")[:256]]
    return max(documents, key=_honest_rate, default={})


def _honest_rate(document: Json) -> tuple[bool, float]:
    rate = get_number(document, "output_throughput") or 0.0
    return rate > 0 and not is_true(document, "client_limited"), rate


def _failed_step(pipeline: Json) -> str:
    for step in get_objects(pipeline, "steps"):
        if step.get("state") == "failed":
            return f"{_short_text(step, 'name')}: {_short_text(step, 'why')}"[:300]
    return ""


def _launch_failure(entries: Sequence[JournalEntry]) -> str:
    """The failure of a launch without a pipeline, if the last one failed."""
    found = [entry.event for entry in entries if isinstance(entry.event, AttemptStarted | AttemptReady | AttemptFailed)]
    return f"up: {hide_secrets(found[-1].message)}"[:300] if found and isinstance(found[-1], AttemptFailed) else ""


def _last_step(pipeline: Json) -> str:
    begun = [step for step in get_objects(pipeline, "steps") if step.get("state") in ("running", "done", "failed")]
    return _short_text(begun[-1], "name") if begun else ""


def unfinished_step(pipeline: object, entries: Sequence[JournalEntry]) -> str:
    """The step of `moebox run` that began and did not end; up to 0.2 only the journal has it."""
    running = [
        get_text(step, "name") for step in get_objects(pipeline, "steps") if get_text(step, "state") == "running"
    ]
    found = [entry.event for entry in entries if isinstance(entry.event, StepEvent)][-1:]
    return next(iter([*running, *(event.step for event in found if isinstance(event, StepRunning))]), "")


def unfinished_climb(folder: Path, entries: Sequence[JournalEntry]) -> str:
    """Return "climb" if one began and did not end, else ""."""
    begun = any(isinstance(entry.event, ClimbBegan) for entry in entries)
    ended = (folder / "best.toml").exists() or is_true(_read_json(folder / CLIMB), "ended")
    return "climb" if begun and not ended else ""


def _climb_failure(folder: Path) -> str:
    """Why a climb ended without a recipe to keep."""
    table = _read_json(folder / CLIMB)
    if not is_true(table, "ended") or table.get("best") is not None:
        return ""
    return f"climb: {_short_text(next(iter(get_objects(table, 'steps')), {}), 'why')}"[:300]


def _short_text(document: Json, *names: str) -> str:
    return get_text(document, *names)[:200]


def _read_bytes(path: Path) -> bytes:
    """Read a plain file of reasonable size; anything else is empty."""
    try:
        return plain.read_bytes(path, max_bytes=MAX_FILE_BYTES)
    except (OSError, BadInput):
        return b""


def _read_json(path: Path) -> Json:
    try:
        return as_object(json.loads(_read_bytes(path) or b"{}"))
    except (ValueError, RecursionError):
        return {}


def _read_toml(path: Path) -> Json:
    try:
        return codec.parse_toml(_read_bytes(path).decode("utf-8", "replace"), where=path.name)
    except BadInput:
        return {}


def _cache_path(home: Path) -> Path:
    name = hashlib.sha256(str(home.absolute()).encode()).hexdigest()[:16]
    return files.cache_home() / "moebox" / "runs" / f"{name}.json"


def _read_cache(home: Path) -> dict[str, tuple[str, RunSummary]]:
    path = _cache_path(home)
    try:
        remembered = codec.decode(CachedRows, codec.load_json(path), where=str(path))
    except (BadInput, OSError):
        return {}
    return remembered.rows if remembered.format == FORMAT else {}


def _write_cache(home: Path, rows: dict[str, tuple[str, RunSummary]]) -> None:
    try:
        files.write_atomic(_cache_path(home), codec.to_json(CachedRows(rows=rows), indent=None))
    except OSError:
        return  # without the cache the list still works
