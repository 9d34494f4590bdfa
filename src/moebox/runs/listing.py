"""Runs as a list. Rows are cached until a file they were read from changes, so a thousand runs are listed at once."""

import contextlib
import hashlib
import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from moebox import codec, files
from moebox.core.engine_event import AttemptReady
from moebox.core.recipe import Recipe
from moebox.core.upgrade_result import UPGRADE_FILE, UpgradeResult
from moebox.errors import BadInput, refuse_if, suggest_names
from moebox.loose import Document, get_number
from moebox.runs.reader import RECIPES, FolderReader, folder_time, read_run
from moebox.runs.record import RunRecord, RunVerdict
from moebox.store import PIPELINE, PIPELINE_BEFORE, Run, plain, runs_dir
from moebox.units import plural

VERDICT_WORDS = {"pass": "passed", "warn": "warnings", "fail": "failed"}
MAX_NAME_CHARS, MAX_REASON_CHARS = 200, 300
WATCHED: tuple[str, ...] = ("run.json", "events.jsonl", "recipe.toml", "best.toml", "box.toml", "verify.json")
WATCHED += ("verdicts", "measurements", "tasks.json", "climb.json", "upgrade.json", PIPELINE, PIPELINE_BEFORE)
FORMAT = 13  # of the cache


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    id: str
    started: float = 0.0
    model: str = ""
    engine: str = ""
    recipe: str = ""  # its name
    box: str = ""
    verdict: RunVerdict = ""
    output_tok_s: float | None = None
    ttft_ms: float | None = None
    failed: str = ""  # the step that failed, and why
    step: str = ""  # the last step that began
    left_in: str = ""  # the step without an end, or "climb": it is running or was interrupted
    unchecked: bool = False  # its checks have no end
    damaged: int = 0  # measurements that cannot be read
    simulation: bool = False
    jobs: int = 0  # finished jobs of `moebox task`
    solved: int = 0

    @property
    def unfinished_part(self) -> str:
        """The step or verification that has no end."""
        return self.left_in or ("verify" if self.unchecked else "")

    def state_text(self, *, live: bool) -> str:
        """ "running bench", "failed in up", "interrupted in verify", "1 measurement damaged" or "ended"."""
        if live:
            return f"running {self.step}".strip()
        if self.failed:
            return f"failed in {self.failed.partition(':')[0]}"
        ended = f"{plural(self.damaged, 'measurement')} damaged" if self.damaged else "ended"
        return f"interrupted in {self.unfinished_part}" if self.unfinished_part else ended

    @property
    def checks_text(self) -> str:
        """How the checks ended, else how many jobs were solved; "–" for a simulation, whose replies mean nothing."""
        if self.simulation:
            return "–"
        text = VERDICT_WORDS.get(self.verdict, self.verdict)
        return text or (f"{self.solved} of {plural(self.jobs, 'job')}" if self.jobs else "–")


CachedRows = dict[str, tuple[str, RunSummary]]  # by folder name, with the stamp of the folder each was read from


def summarize_run(run: Run) -> RunSummary:
    """Read a run folder as a row of the list."""
    return summarize_record(read_run(run))


def summarize_record(record: RunRecord) -> RunSummary:
    peak, pipeline, recipe, tasks = record.peak_load(), record.pipeline, record.recipe, record.tasks
    names = [recipe.served_name or recipe.model] if recipe else []
    names += [record.requested_model, *(load.model for load in record.loads), record.server.model]
    names += [tasks.model] if tasks else []
    begun = [step.name for step in pipeline.steps if step.state not in ("waiting", "skipped")]
    jobs = tasks.results if tasks else ()
    failure = record.failure
    return RunSummary(
        id=record.id,
        started=folder_time(record.id),
        model=next(filter(None, names), "")[:MAX_NAME_CHARS],
        engine=recipe.engine if recipe else "",
        recipe=recipe.name if recipe else "",
        box=record.box.name[:MAX_NAME_CHARS] if record.box else "",
        verdict=record.verdict,
        output_tok_s=peak.output_tok_s if peak else None,
        ttft_ms=peak.ttft.mean if peak else None,
        failed=f"{failure.step}: {failure.message}"[:MAX_REASON_CHARS] if failure else "",
        step=record.open_step or (begun[-1] if begun else ""),
        left_in=record.open_step,
        unchecked=record.unfinished_checks is not None,
        damaged=len(record.damaged_loads),
        simulation=record.simulation,
        jobs=len(jobs),
        solved=sum(job.solved for job in jobs),
    )


def list_summaries(runs: Path | None = None) -> list[RunSummary]:
    """Return a row for every run, newest first; only folders that changed since the last call are read."""
    home = runs_dir(runs)
    name = hashlib.sha256(str(home.absolute()).encode()).hexdigest()[:16]
    path = files.xdg_home("cache") / "moebox" / "runs" / f"{name}-{FORMAT}.json"
    try:
        known = codec.decode(CachedRows, codec.load_json(path), where=str(path))
    except (BadInput, OSError):
        known = {}
    rows: CachedRows = {}
    entries = list(os.scandir(home)) if home.is_dir() else []
    folders = [Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)]
    for folder in sorted(filter(is_run_folder, folders), reverse=True):
        stamp, before = folder_stamp(folder, WATCHED), known.get(folder.name)
        rows[folder.name] = before if before and before[0] == stamp else (stamp, summarize_run(Run(folder)))
    if rows != known:
        with contextlib.suppress(OSError):  # a full disk costs the cache, not the list
            files.write_atomic(path, codec.to_json(rows, indent=None))
    return [row for _, row in rows.values()]


def is_run_folder(folder: Path) -> bool:
    """True if the folder has one of our files."""
    return any(os.path.exists(folder / name) for name in ("run.json", "events.jsonl", "recipe.toml", "measurements"))


def folder_stamp(folder: Path, names: Iterable[str]) -> str:
    """A text that changes whenever one of the named files changes, or a file is added to a named folder or replaced."""
    parts = []
    for name in names:
        with contextlib.suppress(OSError):
            stat = os.stat(folder / name)
            parts.append(f"{name}:{stat.st_mtime_ns}:{stat.st_size}")
    return " ".join(parts)


def run_brief(run: Run) -> Document:
    """The number and size of a run's files, and its last event, under the keys that scripts rely on."""
    journal = run.read_journal()
    notes = list(journal.notes)
    created: float | None = None
    try:
        created = get_number(run.read_json("run.json"), "created")
    except BadInput as problem:
        notes.append(problem.message)
    times = [entry.time for entry in journal.entries if entry.time > 0]
    started = created or folder_time(run.id) or min(times, default=0.0)
    return {
        "id": run.id,
        "path": str(run.path),
        "started": started,
        "last": max(times, default=started),
        "last_kind": journal.entries[-1].kind if journal.entries else "",
        "events": len(journal.entries),
        "measurements": len(plain.list_entries(run.path / "measurements", "*.json")),
        "verdicts": len(plain.list_entries(run.path / "verdicts", "*.json")),
        "bytes": sum(file.lstat().st_size for file in run.path.rglob("*") if plain.is_plain_file(file)),
        "report": (run.path / "report.html").exists(),
        "notes": notes,
    }


LOWER = 0.10  # two runs at other times differ by less without a cause; only upgrades measure in turn
BAR = 20  # columns of the chart


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryRow:
    run: str
    when: float
    version: str
    checks: str = ""
    tok_s: float | None = None
    outcome: str = ""  # of an upgrade: keep, no difference, undecided or roll back; "" for a run
    applied: bool = False
    note: str = ""
    regression: str = ""  # what is worse than on the last kept version


def recipe_history(name: str, *, runs: Path | None = None) -> list[HistoryRow]:
    """Runs and upgrades of the recipe `name`, oldest first. Raise BadInput if there are none."""
    home, rows, names = runs_dir(runs), list[HistoryRow](), set[str]()
    for summary in reversed(list_summaries(runs)):
        folder = Run(home / summary.id)
        if upgrade := FolderReader(folder).read(UpgradeResult, UPGRADE_FILE):
            names.add(upgrade.name)
            if upgrade.name == name:
                row = HistoryRow(
                    run=summary.id,
                    when=summary.started,
                    version=f"{upgrade.old} → {upgrade.new}",
                    tok_s=max((gain.b_tok_s for gain in upgrade.gains), default=None),
                    outcome=upgrade.outcome,
                    applied=upgrade.applied,
                    note=next(iter(upgrade.reasons), ""),
                )
                rows.append(row)
            continue
        names |= {summary.recipe} - {""}
        if summary.recipe != name or summary.simulation:
            continue
        path = next((folder.path / name for name in RECIPES if (folder.path / name).exists()), None)
        if path is None:
            continue
        recipe = codec.read_toml(Recipe, path)
        seen = (event.facts.version for event in folder.read_events() if isinstance(event, AttemptReady))
        version = f"{recipe.engine} {recipe.engine_version or next(filter(None, seen), recipe.runtime.kind)}"
        row = HistoryRow(run=summary.id, when=summary.started, version=version, note=summary.failed)
        rows.append(replace(row, checks=summary.verdict, tok_s=summary.output_tok_s))
    hint = suggest_names(name, sorted(names)) if names else None
    refuse_if(not rows, f"no run of a recipe called {name!r}", hint=hint)
    return mark_regressions(rows)


def mark_regressions(rows: list[HistoryRow]) -> list[HistoryRow]:
    """Mark rows that are worse than the last kept version: the first one, or the last upgrade that was applied."""
    marked: list[HistoryRow] = []
    kept = rows[0].version
    base: HistoryRow | None = None  # the newest good run of the kept version
    for row in rows:
        found = ""
        if row.outcome:
            found = row.note if row.outcome == "roll back" else ""
            if row.applied:
                kept, base = f"{row.version.split(' ')[0]} {row.version.rpartition(' ')[2]}", None
        else:
            if row.checks == "fail" and (base is None or base.checks != "fail"):
                found = "checks fail"
            elif base and base.tok_s and row.tok_s and row.tok_s < (1 - LOWER) * base.tok_s:
                found = f"{row.tok_s / base.tok_s - 1:+.0%} tok/s, not measured in turn"
            if not found and row.version == kept and row.tok_s:
                base = row
        marked.append(replace(row, regression=found))
    return marked


def speed_bar(row: HistoryRow, rows: list[HistoryRow]) -> str:
    """The row's speed as a bar, relative to the fastest."""
    most = max((each.tok_s or 0.0 for each in rows), default=0.0)
    return "█" * max(1, round(BAR * row.tok_s / most)) if row.tok_s and most else ""
