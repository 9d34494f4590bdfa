"""The one reader of run folders.

Our own files are decoded into the types that wrote them; formats of earlier versions pass a named upgrade first. A file
that is damaged costs itself and becomes a line in `gaps`. Only results of other tools (`loads.imported_load`) and the
climb table of an imported run are read leniently.
"""

import calendar
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, get_args

import msgspec

from moebox import codec
from moebox.core import event as events
from moebox.core.box import Box
from moebox.core.engine_event import AttemptEnded, AttemptReady, AttemptStarted, PublishedFacts
from moebox.core.kernel import KernelFindings, KernelLaunch
from moebox.core.pipeline import NO_PIPELINE, Pipeline
from moebox.core.plan import NO_MEMORY, Plan
from moebox.core.recipe import Recipe
from moebox.core.symptom import KnownFailure
from moebox.core.upgrade_result import UPGRADE_FILE, UpgradeResult
from moebox.core.verdict import CheckResults, CheckVerdict, Gain, Mark
from moebox.errors import BadInput
from moebox.escape import one_line
from moebox.loose import Json, drop_empty, drop_keys, get_number, get_objects, get_text, is_true
from moebox.quality.measure import RESULT_FILE, QualityResult
from moebox.quality.reference import FILE_NAME
from moebox.redact import hide_secrets
from moebox.runs import history
from moebox.runs.loads import read_loads
from moebox.runs.record import ForecastRow, LoadResult, RunFailure, RunInfo, RunRecord
from moebox.store import FORMAT, PIPELINE, PIPELINE_BEFORE, JournalEntry, Run, plain
from moebox.tasks.result import TaskRun
from moebox.units import plural

T = TypeVar("T")
MAX_CHECK_FILES = 200  # files in verdicts/ that are read
MAX_FAILURES_SHOWN = 12
MAX_NAMES_SHOWN = 8  # files that are not ours
MAX_SCRIPT_BYTES = 200_000  # a rendered launch.sh has about 5 kB
ALL_CHECKS = "all checks together"
RECIPES = ("recipe.toml", "best.toml", "start.toml")  # of a launch; of a climb its best, or the one it began with
# What moebox writes into run folders beside logs, recipes and hidden files; the private ones are about users.
PACKED_FILES = (*RECIPES[:2], "box.toml", "plan.json", "climb.json", "run.json", "launch.sh", "kernels.json")
PACKED_FOLDERS = ("measurements", "verdicts", "reproduce", "patches", "configs", "kernels", "recipes")
PRIVATE_FILES = ("usage.json", "traces.jsonl")
OWN_NAMES = {*PACKED_FILES, *PACKED_FOLDERS, *PRIVATE_FILES, PIPELINE, PIPELINE_BEFORE, RESULT_FILE, FILE_NAME}
OWN_NAMES |= {"A", "B", "events.jsonl", "verify.json", "climb", "logs", "answers.json", "doctor.json", "report.html"}
OWN_NAMES |= {"report.pdf", "report.md", "tasks", "tasks.json", "upgrade.json", "upgrade.md", "tune.json", "screen"}
OWN_NAMES |= {"pareto.svg", "calibration.json", "compare.json", "nodes.json", "fleet.json", "bisect.json", "issue.md"}
OWN_NAMES |= {"watch.jsonl", "watch.jsonl.1", "incidents", "litellm.yaml", "keys.sh"}


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledFindings(KernelFindings):
    """Kernels that were judged by compiling them."""

    bad: tuple[KernelLaunch, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFindings(KernelFindings):
    """Kernels that were looked up in the table of scanned releases."""

    bad: tuple[KnownFailure, ...] = ()


def upgrade_check(document: Json) -> Json:
    """Until November 2026 a probe that passed with a remark had `caution`, now a warning, and quirks were `habits`."""
    probes = [dict(probe) for probe in get_objects(document, "probes")]
    for probe in probes:
        if probe.pop("caution", None) is True:
            probe["verdict"] = "warn"
    new = {"quirks" if name == "habits" else name: value for name, value in document.items()}
    return {**new, "probes": probes} if probes else new


def upgrade_results(document: Json) -> Json:
    checks = document.get("rungs")
    if not isinstance(checks, list):
        return document
    return {**document, "rungs": [upgrade_check(check) if isinstance(check, dict) else check for check in checks]}


UPGRADES: dict[type[Any], tuple[Callable[[Json], Json], ...]] = {
    CheckVerdict: (upgrade_check,),
    CheckResults: (upgrade_results,),
    # Until November 2026 a recipe kept the box it was planned for as a free table.
    Recipe: (lambda document: drop_keys(document, "described"),),
}


class FolderReader:
    """Reads files of one run folder; `gaps` collects what could not be read."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.gaps: list[str] = []

    def decode(self, kind: type[T], document: object, name: str) -> T | None:
        """Return a document of ours as `kind`, or None and a gap. Fields of another version are ignored and named."""
        if isinstance(document, dict):
            for upgrade in UPGRADES.get(kind, ()):
                document = upgrade(document)
        try:
            return codec.decode(kind, document, where=name)
        except BadInput as problem:
            self.gaps.append(problem.message)
            if "unknown setting" not in problem.message:
                return None
        try:
            return msgspec.convert(document, kind)
        except msgspec.ValidationError as problem:
            self.gaps.append(f"{name}: {problem}")
            return None

    def load(self, name: str) -> Any:
        """Return the plain content of a JSON or TOML file, or None if it is missing or, with a gap, unreadable."""
        path = self.run.path / name
        if not path.exists() and not path.is_symlink():
            return None
        try:
            return plain.load_toml(path) if path.suffix == ".toml" else plain.load_json(path)
        except BadInput as problem:
            self.gaps.append(problem.message.replace(str(path), name))
            return None

    def read(self, kind: type[T], *names: str) -> T | None:
        """Return the first file of these names that exists, decoded."""
        for name in names:
            document = self.load(name)
            if document is not None:
                return self.decode(kind, document, name)
        return None

    def read_checks(self) -> tuple[list[CheckVerdict], CheckVerdict | None]:
        """Return the newest verdict of each check, and the verdict over all of them if it is worse than each."""
        newest: dict[str, CheckVerdict] = {}
        paths = plain.list_entries(self.run.path / "verdicts", "*.json")
        for path in sorted(paths, key=lambda path: (path.lstat().st_mtime, path.name))[-MAX_CHECK_FILES:]:
            name = f"verdicts/{path.name}"
            document = self.load(name)
            rows = document["rungs"] if isinstance(document, dict) and "rungs" in document else [document]
            for row in rows if isinstance(rows, list) and document is not None else []:
                check = self.decode(CheckVerdict, row, name)
                if check:
                    newest[check.name] = check
        results = self.read_results()
        if not results:
            return list(newest.values()), None
        if not newest:
            return list(results.rungs), None
        return list(newest.values()), summed_check(results, newest)

    def read_results(self) -> CheckResults | None:
        document = self.load("verify.json")
        if not isinstance(document, dict):
            return None
        return self.decode(CheckResults, drop_keys(document, "verdict"), "verify.json")  # which is computed

    def read_kernels(self) -> list[KernelFindings]:
        kinds: dict[object, type[KernelFindings]] = {"compiling": CompiledFindings, "table": TableFindings}
        rows = get_objects(self.load("kernels.json"), "scans")
        found = (self.decode(kinds.get(row.get("by"), TableFindings), row, "kernels.json") for row in rows)
        return list(filter(None, found))


def summed_check(results: CheckResults, newest: dict[str, CheckVerdict]) -> CheckVerdict | None:
    """Return the verdict over all checks if it is worse than each of them: a failure that is rare in every one.

    None if a check was made again since, because the sum is no longer about these checks.
    """
    made = results.marks
    if not made or any(name not in newest or newest[name].verdict != mark for name, mark in made.items()):
        return None
    verdict, marks = results.verdict, set(made.values())
    if verdict not in ("fail", "warn") or verdict in marks or "fail" in marks:
        return None
    failures = [failure for failure in results.slips if failure.verdict == verdict][:MAX_FAILURES_SHOWN]
    counts = {f"{failure.kind}: {failure.seen} of {failure.of}": failure.example for failure in failures}
    texts = [f"{count}, such as: {example}" if example else count for count, example in counts.items()]
    reason = "; ".join(one_line(hide_secrets(text)) for text in texts) or results.stopped
    return CheckVerdict(name=ALL_CHECKS, verdict=verdict, reason=reason)


def imported_climb(document: object) -> list[events.ClimbStep]:
    """Read the steps of a published climb: what is missing or not a number keeps its default."""
    steps: list[events.ClimbStep] = []
    for row in get_objects(document, "steps"):
        share, verdict = get_number(row, "gain.share", "gain"), get_text(row, "verdict")
        low, high = get_number(row, "gain.low", "gain_low"), get_number(row, "gain.high", "gain_high")
        new_step = events.ClimbStep(
            change=get_text(row, "change"),
            verdict=next((mark for mark in get_args(Mark) if mark == verdict), "skip"),
            kept=is_true(row, "kept"),
            why=get_text(row, "why"),
            output_tok_s=get_number(row, "output_tok_s") or 0.0,
            ttft_ms=get_number(row, "ttft_ms") or 0.0,
            kv_tokens=int(get_number(row, "kv_tokens") or 0),
            gain=None if share is None else Gain(share=share, low=low or share, high=high or share),
        )
        steps.append(new_step)
    return steps


def read_run(run: Run) -> RunRecord:
    """Read everything in a run folder. Never raises for a damaged file."""
    reader = FolderReader(run)
    gaps = reader.gaps
    info = reader.read(RunInfo, "run.json") or RunInfo()
    journal = run.read_journal()
    entries = journal.entries
    lost = Counter[str]()
    for event in history.events_of(entries, events.JournalLost):
        lost.update(event.files)
    gaps += [*journal.notes, *(f"{name}: {plural(count, 'write')} lost to a full disk" for name, count in lost.items())]
    if info.format != FORMAT:
        gaps.append(f"run.json: format {info.format}, this moebox writes {FORMAT}; read as far as the two agree")
    if not entries:
        gaps.append("events.jsonl: none, so attempts, problems and timing are unknown")
    recipe, box, plan = reader.read(Recipe, *RECIPES), reader.read(Box, "box.toml"), reader.read(Plan, "plan.json")
    pipeline = reader.read(Pipeline, PIPELINE, PIPELINE_BEFORE) or NO_PIPELINE
    loads, damaged, unread = read_loads(run.path / "measurements")
    gaps += [*damaged, *unread]
    checks, summed = reader.read_checks()
    climb = reader.load("climb.json")
    sources = [get_text(row, "source") for row in get_objects(climb, "steps")]
    tasks = reader.read(TaskRun, "tasks.json")
    locked, step = run.is_locked, history.unfinished_step(pipeline, entries)
    climb_began = next((event.command for event in history.events_of(entries, events.ClimbBegan)), "")
    has_best = (run.path / "best.toml").exists()
    ends = history.events_of(entries[-1:], events.CommandEnded) * (not (pipeline.steps or has_best))
    last = next(iter(ends), events.CommandEnded())  # nothing went on since
    if not step and climb_began and not (has_best or is_true(climb, "ended")):
        step = climb_began
    upgrade = next(iter(history.events_of(entries, events.UpgradeStep)), None)
    verified = history.events_of(entries, events.VerifyBegan)
    result = reader.read(UpgradeResult, UPGRADE_FILE)
    if upgrade and not result:
        step = "upgrade"
    step = (step or last.step) * (not last.message)
    server = last_server(entries, tasks)
    left_in, unanswered = bench_end(server, loads)
    step = step or ("" if recipe else left_in)
    attempts = history.launch_attempts(entries, live=locked)
    problems = history.log_problems(entries, attempts)
    facts = history.reported_facts(entries)
    times = [entry.time for entry in entries if entry.time > 0]
    simulation = info.simulation or pipeline.simulated or any(load.simulation for load in loads)
    simulation = simulation or any(events.marks_simulation(entry.event) for entry in entries)
    gaps += missing_files(run.path, loads=bool([*loads, *damaged]), checks=bool(checks))
    return RunRecord(
        id=run.id,
        path=run.path,
        info=info,
        label=info.label,
        started=info.created or folder_time(run.id) or min(times, default=0.0),
        ended=max(times, default=0.0),
        locked=locked,
        open_step=step,
        resume_command=history.resume_command(run.id, climb_began if not pipeline.steps else "", upgrade, last),
        upgrade=result,
        simulation=simulation,
        box=box,
        recipe=recipe,
        plan=plan,
        planned_memory=plan.memory if plan else NO_MEMORY,
        forecast=tuple(plan_forecast(plan)) if plan else (),
        pipeline=pipeline,
        reported_devices=history.reported_devices(facts, box),
        memory_note=next((each.memory_note for each in facts if each.memory_note), ""),
        kv_tokens=next((each.kv_tokens for each in facts if each.kv_tokens), None),
        loads=tuple(loads),
        damaged_loads=tuple(damaged),
        checks=tuple(checks),
        summed_check=summed,
        unfinished_checks=history.unfinished_checks(step, entries),
        check_total=verified[-1].of if verified else 0,
        server=server,
        attempts=tuple(attempts),
        climb_steps=tuple(history.climb_steps(entries) or imported_climb(climb)),
        climb_source="; ".join(dict.fromkeys(filter(None, sources))),
        problems=tuple(problems),
        failure=history.find_failure(pipeline, attempts, problems, last) or unanswered,
        kernels=tuple(reader.read_kernels()),
        tasks=tasks,
        quality=reader.read(QualityResult, RESULT_FILE),
        phases=tuple(history.phases(entries, pipeline)),
        commands=tuple(launch_commands(run.path, info, entries)),
        versions=tuple(software_versions(info, box, entries).items()),
        gaps=tuple(gaps),
    )


def last_server(entries: Sequence[JournalEntry], tasks: TaskRun | None) -> events.ServerMeasured:
    """Return the server that was checked or measured last, or given jobs, as bench last reached it."""
    seen = [entry.event for entry in entries if isinstance(entry.event, events.VerifyBegan | events.ServerMeasured)]
    measured = ([each for each in seen if isinstance(each, events.ServerMeasured)] or [events.ServerMeasured()])[-1]
    named = next((each for each in reversed(seen) if each.url or each.model), tasks or measured)
    return msgspec.structs.replace(measured, url=named.url, model=named.model, key_env=named.key_env)


def bench_end(server: events.ServerMeasured, loads: Sequence[LoadResult]) -> tuple[str, RunFailure | None]:
    """Return the step "bench" if loads are missing or were interrupted, or the failure if no request was answered."""
    if server.left or any(load.partial and load.measurement for load in loads):
        return "bench", None
    is_unanswered = loads and all(load.failed and not load.completed for load in loads)
    return "", RunFailure(step="bench", message="no request was answered") if is_unanswered else None


def plan_forecast(plan: Plan) -> list[ForecastRow]:
    """Return the plan's own forecast, which is of decoding alone."""
    return [
        ForecastRow(
            **codec.shared_fields(row, ForecastRow),
            output_tok_s=row.decode_tok_s,
            ttft_ms=row.ttft_s * 1e3 or None,
            pp_tok_s=row.prefill_tok_s or None,
            decode_only=True,
        )
        for row in plan.forecast
    ]


def launch_commands(folder: Path, info: RunInfo, entries: Sequence[JournalEntry]) -> list[tuple[str, str]]:
    """Return published commands, the last launch and launch.sh, each with a title."""
    found = [(row.get("title", ""), row.get("text", "")) for row in info.commands]
    launches = [entry.event.argv for entry in entries if isinstance(entry.event, AttemptStarted | AttemptEnded)]
    argv = next(filter(None, reversed(launches)), ())
    if argv:
        found.append(("Launch", history.command_line(argv)))
    script = folder / "launch.sh"
    if plain.is_plain_file(script) and script.stat().st_size < MAX_SCRIPT_BYTES:
        found.append(("launch.sh", plain.read_text(script)))
    return found


def software_versions(info: RunInfo, box: Box | None, entries: Sequence[JournalEntry]) -> dict[str, str]:
    """Return versions by name: of the machine, of the engine as it reported itself, and what an import names."""
    found: dict[str, str] = {}
    if box and box.host:
        host = box.host
        found = {"system": host.system, "driver": host.driver, "CUDA": host.cuda, "Python": host.python}
        found |= {**host.engines, **host.runtimes}
    seen = [entry.event for entry in reversed(entries) if isinstance(entry.event, AttemptReady | PublishedFacts)]
    found["engine"] = next((event.facts.version for event in seen if event.facts.version), "")
    found = {**found, **info.versions}
    found.setdefault("moebox", info.moebox)
    return drop_empty(found)


def missing_files(folder: Path, *, loads: bool, checks: bool) -> list[str]:
    """Return a line for each file that is missing, is a link, or is not ours."""
    notes = [] if loads else ["measurements/: none, so there are no throughput or latency figures"]
    notes += [] if checks else ["verdicts/: none, so it is not known whether replies are correct"]
    notes += [f"{name}: missing" for name in ("recipe.toml", "box.toml", "plan.json") if not (folder / name).exists()]
    foreign: list[str] = []
    for path in sorted(folder.iterdir()):
        if path.is_symlink() and path.is_dir():
            notes.append(f"{path.name}: is a link, and was not followed")
        name = path.name.removeprefix(f"{folder.name}-")  # a side of a comparison has its run's name before its own
        own = name in OWN_NAMES or name.startswith((".", "engine.log")) or path.suffix in (".toml", ".log")
        foreign += [] if own else [path.name]
    if foreign:
        more = " …" if len(foreign) > MAX_NAMES_SHOWN else ""
        notes.append(f"ignored, not written by moebox: {', '.join(foreign[:MAX_NAMES_SHOWN])}{more}")
    return notes


def folder_time(name: str) -> float:
    """Return the time in a run folder's name, or 0."""
    try:
        return float(calendar.timegm(time.strptime(name[:15], "%Y%m%d-%H%M%S")))
    except ValueError:
        return 0.0
