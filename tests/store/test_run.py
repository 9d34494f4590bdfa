"""Run folders: made, found, held, listed; and the engine's log in bounded space."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from moebox.core.event import UnknownEvent
from moebox.core.verdict import CheckResults, CheckVerdict
from moebox.errors import BadInput
from moebox.runs.listing import list_summaries, run_brief
from moebox.store import Run
from moebox.store.log import EngineLog, log_pieces
from moebox.tasks.result import JobResult, TaskRun
from moebox.verify.runner import results_document


def test_a_run_is_found_by_path_name_beginning_and_as_the_latest(tmp_path: Path) -> None:
    """A run is found by each of its names."""
    run = Run.create("kimi k2.6/8x", runs=tmp_path)
    assert "/" not in run.id
    for name in (str(run.path), run.id, run.id[:17], run.id[-4:], "latest"):
        assert Run.open(name, runs=tmp_path).path == run.path
    with pytest.raises(BadInput, match="no run called 'nothing'"):
        Run.open("nothing", runs=tmp_path)
    with pytest.raises(BadInput):
        Run.open("", runs=tmp_path)


def test_an_ambiguous_name_lists_the_runs_it_could_be(tmp_path: Path) -> None:
    """Two runs that begin alike: neither is chosen."""
    for name in ("20260101-000000-a", "20260101-000000-b"):
        (tmp_path / name).mkdir()
    with pytest.raises(BadInput, match="2 runs") as refused:
        Run.open("20260101", runs=tmp_path)
    assert "20260101-000000-b" in (refused.value.hint or "")


def test_a_run_is_held_while_its_process_lives_and_no_longer(tmp_path: Path) -> None:
    """`held` is true in another process exactly as long as the maker lives, kill -9 included."""
    code = (
        "import sys, time; from pathlib import Path; from moebox.store import Run\n"
        "run = Run.create('x', runs=Path(sys.argv[1])); print(run.id, flush=True); time.sleep(60)"
    )
    child = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    run = Run.open(child.stdout.readline().strip(), runs=tmp_path)
    assert run.is_locked
    assert not run.acquire_lock()
    child.kill()
    child.wait()
    child.stdout.close()
    assert not run.is_locked
    assert run.acquire_lock()


def test_the_list_shows_what_there_is_and_survives_foreign_folders(tmp_path: Path) -> None:
    """Newest first; a half-written run.json is a note, a folder of another program is skipped."""
    (tmp_path / "holiday-pictures").mkdir()
    old = tmp_path / "20260101-000000-old-0000"
    old.mkdir()
    (old / "run.json").write_text('{"created": 17')
    (old / "events.jsonl").write_text('{"time": 5, "kind": "up.ready", "data": {}}\n{"time": 6, "ki')
    Run.create("new", runs=tmp_path).add_event(UnknownEvent(name="plan.made", fields={"simulation": True}))
    new, first = list_summaries(tmp_path)
    assert new.simulation
    assert run_brief(Run(tmp_path / new.id))["last_kind"] == "plan.made"
    assert first.started == 1767225600.0  # 2026-01-01, from the folder's name
    assert len(run_brief(Run(old))["notes"]) == 2


def test_the_engine_log_keeps_its_beginning_and_its_end(tmp_path: Path) -> None:
    """Turned over many times, the first piece and the newest lines are still there, and the size is bounded."""
    log = EngineLog(tmp_path / "engine.log", limit=100, keep=2)
    for number in range(200):
        log.write(b"line %04d\n" % number)
    log.close()
    text = b"".join(piece.read_bytes() for piece in log_pieces(tmp_path / "engine.log"))
    assert text.startswith(b"line 0000\n")
    assert text.endswith(b"line 0199\n")
    assert len(text) <= 400
    assert len(log_pieces(tmp_path / "engine.log")) == 4


def test_the_list_shows_how_many_jobs_were_solved(tmp_path: Path) -> None:
    """Shown only if nothing was checked: the verdict of checks is preferred."""
    run = Run.create("task-m", runs=tmp_path)
    job = JobResult(family="errand", level="easy", seed=0, solved=True, end="done")
    run.write_json("tasks.json", TaskRun(url="", model="m", results=(job, replace(job, seed=1, solved=False))))
    (row,) = list_summaries(tmp_path)
    assert (row.checks_text, row.jobs, row.solved) == ("1 of 2 jobs", 2, 1)
    check = CheckVerdict(name="plain", verdict="warn")
    run.write_json("verify.json", results_document(CheckResults(url="", model="m", rungs=(check,))))
    (row,) = list_summaries(tmp_path)
    assert row.checks_text == "warnings"
