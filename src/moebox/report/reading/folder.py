"""A run folder to a record: each file on its own, so that one bad file costs only itself."""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from moebox import codec
from moebox.core.box import Box
from moebox.core.engine_event import AttemptEnded, AttemptReady, AttemptStarted, PublishedFacts
from moebox.core.event import ServerMeasured, VerifyBegan, marks_simulation
from moebox.core.recipe import Recipe
from moebox.errors import BadInput
from moebox.loose import Json, as_object, get_number, get_object, get_objects, get_text, get_texts, is_true, scalar_text
from moebox.report.reading import climbed, happened, kernels, measured, planned, verified
from moebox.report.record import DeviceParts, LoadResult, RunRecord
from moebox.store import FORMAT, PIPELINE, PIPELINE_BEFORE, JournalEntry, Run, plain
from moebox.store.listing import folder_time
from moebox.store.summary import check_count, unfinished_checks, unfinished_climb, unfinished_step
from moebox.tasks.result import TaskRun, load_task_run

T = TypeVar("T")
OURS = {"run.json", "events.jsonl", "plan.json", PIPELINE, PIPELINE_BEFORE, "verify.json", "climb.json", "compare.json"}
OURS |= {"verdicts", "measurements", "climb", "kernels", "configs", "patches", "logs", "recipes", "kernels.json"}
OURS |= {"answers.json", "doctor.json", "report.html", "report.pdf", "report.md", "launch.sh", "tasks.json", "tasks"}
OURS |= {"calibration.json", "nodes.json", "fleet.json", "A", "B"}  # the last two: the sides of a comparison


def read_record(run: Run) -> RunRecord:
    """The record of one run, as far as its folder tells."""
    gaps: list[str] = []
    about = as_object(attempt(gaps, lambda: run.read_json("run.json")))
    journal = run.read_journal()
    gaps += [*journal.notes, *happened.losses_of(journal.entries), *unlike(about), *untold(journal.entries)]
    recipe = attempt(gaps, lambda: toml(Recipe, recipe_of(run.path)))
    box = attempt(gaps, lambda: toml(Box, run.path / "box.toml"))
    plan = planned.plan_record(attempt(gaps, lambda: run.read_json("plan.json")))
    levels, unread = measured.read_loads(run.path / "measurements")
    checks, unreadable = verified.read_checks(run.path / "verdicts")
    checks += verified.together(as_object(attempt(gaps, lambda: run.read_json("verify.json"))), checks)
    climb = attempt(gaps, lambda: run.read_json("climb.json"))
    pipeline = attempt(gaps, lambda: run.read_pipeline())
    step, held = (
        unfinished_step(pipeline, journal.entries) or unfinished_climb(run.path, journal.entries),
        run.is_locked,
    )
    attempts = happened.settled(happened.attempts_of(journal.entries), live=held)
    tasks = attempt(gaps, lambda: load_task_run(run))
    problems = happened.problems_of(journal.entries, attempts)
    real, kv_tokens, real_note = happened.real_of(journal.entries)
    first, last = span_of(journal.entries)
    gaps += unread + unreadable
    gaps += absent(run.path, levels=bool(levels), checks=bool(checks))
    return RunRecord(
        id=run.id,
        path=run.path,
        label=get_text(about, "label"),
        title=get_text(about, "title"),
        requested_model=get_text(pipeline, "request.model"),
        started=get_number(about, "created") or folder_time(run.id) or first,
        ended=last,
        version=get_text(about, "moebox"),
        live=held and step != "report",  # which a run makes of itself when all the rest is over
        interrupted_step="" if held else step,
        resume_command="run" if pipeline else "climb",
        simulation=is_true(pipeline, "simulated") or from_twin(about, journal.entries, levels),
        imported=is_true(about, "imported"),
        sources=sources_of(about),
        box=box,
        box_notes=tuple(get_texts(about, "box_notes")),
        recipe=recipe,
        plan=plan,
        reported_devices=tuple(filled(real, box)),
        memory_note=real_note,
        kv_tokens=kv_tokens,
        facts=facts_of(about),
        loads=tuple(levels),
        checks=tuple(checks),
        all_checks=check_count(journal.entries),
        url=asked_at(journal.entries, tasks),
        unfinished_checks=unfinished_checks(pipeline, journal.entries),
        attempts=tuple(attempts),
        steps=tuple(climbed.steps_of(climb, journal.entries)),
        problems=tuple(problems),
        failure=happened.failure_of(pipeline, attempts, problems),
        tasks=tasks,
        kernels=tuple(kernels.kernels_of(attempt(gaps, lambda: run.read_json("kernels.json")))),
        phases=tuple(steps_of(pipeline) or happened.phases_of(journal.entries)),
        commands=commands_of(run.path, about, journal.entries),
        versions=versions_of(about, box, journal.entries),
        notes=tuple(get_texts(about, "notes")),
        gaps=tuple(gaps),
    )


def untold(entries: Sequence[JournalEntry]) -> list[str]:
    """A run without a journal."""
    return [] if entries else ["events.jsonl: none, so attempts, problems and timing are unknown"]


def span_of(entries: Sequence[JournalEntry]) -> tuple[float, float]:
    """The first and the last moment of a journal; 0 where no line says its own."""
    moments = [entry.time for entry in entries if entry.time > 0]
    return min(moments, default=0.0), max(moments, default=0.0)


def sources_of(about: Json) -> tuple[tuple[str, str], ...]:
    """Where imported figures come from: what, and its address."""
    return tuple((get_text(row, "title", "what"), get_text(row, "url")) for row in get_objects(about, "sources"))


def unlike(about: Json) -> list[str]:
    """A folder in another format than this moebox's."""
    form = get_number(about, "format")
    if form is None or form == FORMAT:
        return []
    return [f"run.json: format {form:g}, this moebox writes {FORMAT}; read as far as the two agree"]


def asked_at(entries: Sequence[JournalEntry], tasks: TaskRun | None) -> str:
    """The address of the server that was checked or measured last, or given jobs."""
    asked = [entry.event.url for entry in entries if isinstance(entry.event, VerifyBegan | ServerMeasured)]
    return [tasks.url if tasks else "", *filter(None, asked)][-1]


def recipe_of(folder: Path) -> Path:
    """The recipe of a launch; of a climb the best one, or as long as there is none the one it began with."""
    names = ("recipe.toml", "best.toml", "start.toml")
    return next((folder / name for name in names if (folder / name).exists()), folder / names[0])


def steps_of(pipeline: object) -> list[tuple[str, float, float]]:
    """The steps of a whole run, one after the other."""
    spans, clock = [], 0.0
    for row in get_objects(pipeline, "steps"):
        took = get_number(row, "seconds") or 0.0
        if took > 0:
            spans.append((get_text(row, "name"), clock, clock + took))
        clock += took
    return spans


def filled(devices: list[DeviceParts], box: Box | None) -> list[DeviceParts]:
    """GPUs that told their parts but not their size get it from the box; what nobody accounts for stays blank."""
    return [sized(device, box) for device in devices]


def sized(device: DeviceParts, box: Box | None) -> DeviceParts:
    """One of them: a device whose size is no more than its parts is as large as the box says."""
    spent = sum(device.parts.values())
    told = device.total > spent * 1.0001
    known = memory_of(device.name, box)
    return device if told or known <= spent else replace(device, total=float(known))


def memory_of(name: str, box: Box | None) -> int:
    """Bytes of the GPU whose number ends the name; 0 where the box has none such."""
    number = re.search(r"\d+$", name)
    if box is None or number is None or int(number[0]) >= len(box.gpus):
        return 0
    return box.gpus[int(number[0])].memory


def attempt(gaps: list[str], reading: Callable[[], T]) -> T | None:
    """What `reading` gives, or None and a note."""
    try:
        return reading()
    except BadInput as problem:
        message = problem.message
        gaps.append(message.rpartition("/")[2] if message.startswith("/") else message)
        return None


def toml(kind: type[T], path: Path) -> T | None:
    """A TOML file as `kind`; fields of another version are dropped rather than refused."""
    if not path.exists():
        return None
    document = plain.load_toml(path)
    for _ in range(50):  # a file from another version has a handful of unknown fields, not hundreds
        try:
            return codec.decode(kind, document, where=path.name)
        except BadInput as problem:
            unknown = re.search(r"unknown setting '([^']+)'", problem.message)
            if not unknown or not drop(document, unknown[1]):
                raise
    raise BadInput(f"{path.name}: more unknown fields than known ones")


def drop(document: dict[str, object], name: str) -> bool:
    """Take out the field called `name` ("gpus[0].speed"), if it is there."""
    place: Any = document
    steps = re.findall(r"[^.\[\]]+|\[\d+\]", name)
    for step in steps[:-1]:
        try:
            place = place[int(step[1:-1])] if step.startswith("[") else place[step]
        except (KeyError, IndexError, TypeError):
            return False
    return isinstance(place, dict) and place.pop(steps[-1], None) is not None


def absent(folder: Path, *, levels: bool, checks: bool) -> list[str]:
    """What the folder does not have, and what it has that is not ours."""
    notes = [] if levels else ["measurements/: none, so there are no throughput or latency figures"]
    notes += [] if checks else ["verdicts/: none, so nothing is said about whether the answers are right"]
    notes += [f"{name}: not there" for name in ("recipe.toml", "box.toml", "plan.json") if not (folder / name).exists()]
    return notes + strange(sorted(folder.iterdir()))


def strange(paths: Sequence[Path]) -> list[str]:
    """Links to folders, and what moebox did not write."""
    links = [path.name for path in paths if path.is_symlink() and path.is_dir()]
    foreign = [path.name for path in paths if not ours(path)]
    return [*(f"{name}: is a link, and was not followed" for name in links), *left_aside(foreign)]


def left_aside(foreign: Sequence[str]) -> list[str]:
    """Files of others, the first few by name."""
    more = " …" if len(foreign) > 8 else ""
    return [f"left aside, not written by moebox: {', '.join(foreign[:8])}{more}"] if foreign else []


def ours(path: Path) -> bool:
    """Whether moebox writes files of that name; a side of a comparison has its run's name before its own."""
    name = path.name.removeprefix(f"{path.parent.name}-")
    return name in OURS or name.startswith((".", "engine.log")) or path.suffix in (".toml", ".log")


def from_twin(about: Json, entries: Sequence[JournalEntry], levels: Sequence[LoadResult]) -> bool:
    """Whether any of it came from the twin instead of an engine."""
    return (
        is_true(about, "simulation")
        or any(marks_simulation(entry.event) for entry in entries)
        or any(level.simulation for level in levels)
    )


def facts_of(about: Json) -> tuple[tuple[str, str], ...]:
    """What an import says beside the figures."""
    facts = ((str(key), scalar_text(value)) for key, value in get_object(about, "facts").items())
    return tuple((key, value) for key, value in facts if value)


def commands_of(folder: Path, about: Json, entries: Sequence[JournalEntry]) -> tuple[tuple[str, str], ...]:
    """The launch that worked last, and what an import brought along."""
    found = [(get_text(row, "title"), get_text(row, "text")) for row in get_objects(about, "commands")]
    line = launch_of(entries)
    if line:
        found.append(("Launch", line))
    script = folder / "launch.sh"
    if plain.is_plain_file(script) and script.stat().st_size < 200_000:
        found.append(("launch.sh", plain.read_text(script)))
    return tuple(found)


def launch_of(entries: Sequence[JournalEntry]) -> str:
    """The last launch as one line; "" where none is told."""
    events = [entry.event for entry in reversed(entries)]
    launches = (happened.command_of(event.argv) for event in events if isinstance(event, AttemptStarted | AttemptEnded))
    return next(filter(None, launches), "")


def installed(box: Box | None) -> dict[str, str]:
    """Software of the machine, as it was detected."""
    if box is None or box.host is None:
        return {}
    host = box.host
    system = {"system": host.system, "driver": host.driver, "CUDA": host.cuda, "Python": host.python}
    return {**system, **host.engines, **host.runtimes}


def versions_of(about: Json, box: Box | None, entries: Sequence[JournalEntry]) -> tuple[tuple[str, str], ...]:
    """Software as it was found."""
    found = installed(box)
    told = [entry.event.facts.version for entry in entries if isinstance(entry.event, AttemptReady | PublishedFacts)]
    found["engine"] = next(filter(None, reversed(told)), "")
    noted = get_object(about, "versions")
    found |= {str(key): get_text(noted, key) for key in noted}
    found.setdefault("moebox", get_text(about, "moebox"))
    return tuple((key, value) for key, value in found.items() if value)
