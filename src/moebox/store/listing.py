"""A brief description of a run folder."""

import calendar
import os
import time
from dataclasses import dataclass
from pathlib import Path

from moebox.errors import BadInput
from moebox.loose import get_number
from moebox.store import plain
from moebox.store.run import Run


@dataclass(frozen=True, slots=True, kw_only=True)
class RunBrief:
    """The files of one run, and its last event."""

    id: str
    path: str
    started: float
    last: float  # time of the last event
    last_kind: str
    events: int
    measurements: int
    verdicts: int
    bytes: int
    report: bool
    notes: tuple[str, ...] = ()


def is_run_folder(folder: Path) -> bool:
    """True if the folder contains a file of a run; False if it cannot be read."""
    return any(os.path.exists(folder / name) for name in ("run.json", "events.jsonl", "recipe.toml", "measurements"))


def run_brief(run: Run) -> RunBrief:
    journal = run.read_journal()
    about, problems = _about(run)
    entries = journal.entries
    times = [entry.time for entry in entries if entry.time > 0]
    started = get_number(about, "created") or folder_time(run.id) or min(times, default=0.0)
    return RunBrief(
        id=run.id,
        path=str(run.path),
        started=started,
        last=max(times, default=started),
        last_kind=entries[-1].kind if entries else "",
        events=len(entries),
        measurements=len(plain.list_entries(run.path / "measurements", "*.json")),
        verdicts=len(plain.list_entries(run.path / "verdicts", "*.json")),
        bytes=_bytes(run.path),
        report=(run.path / "report.html").exists(),
        notes=(*journal.notes, *problems),
    )


def _bytes(folder: Path) -> int:
    return sum(file.lstat().st_size for file in folder.rglob("*") if plain.is_plain_file(file))


def _about(run: Run) -> tuple[object, list[str]]:
    """The content of run.json, and problems with it."""
    try:
        return run.read_json("run.json"), []
    except BadInput as problem:
        return None, [problem.message]


def folder_time(name: str) -> float:
    """The time in a run folder's name, or 0."""
    try:
        return float(calendar.timegm(time.strptime(name[:15], "%Y%m%d-%H%M%S")))
    except ValueError:
        return 0.0
