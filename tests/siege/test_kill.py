"""kill -9 of moebox, its engine and its guard at random moments of `moebox run` on the embedded engine.

Whatever dies, the run is taken up by `--resume` until it is complete: what was measured is kept byte for byte, and no
process is left behind.
"""

import dataclasses
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from moebox import codec
from moebox.core.event import StepRunning
from moebox.core.pipeline import STEPS
from moebox.core.recipe import Climb
from moebox.detect.machine import detect_machine
from moebox.flows import recipes
from moebox.flows.pipeline import PIPELINE
from moebox.serve import state
from moebox.store import Run
from tests.flows.pipelines import ROOT, oracle_recipe

VICTIMS = ("moebox", "engine", "guard")
ENGINE_STEPS = ("up", "verify", "climb", "bench")
MOMENTS = 30
MOST_RESUMES = 4
WAIT_S = 900.0  # for one run of the embedded engine on a busy machine; none is expected to take it


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """Who dies, and how long after which step began."""

    victim: str
    step: str
    after_s: float

    def __str__(self) -> str:
        return f"{self.victim}-{self.after_s:.2f}s-into-{self.step}"


def moments(count: int, seed: int) -> list[Moment]:
    """`count` of them, spread over victims and steps; the ladder takes a minute and more, the others seconds."""
    draw = random.Random(seed)
    drawn = []
    for number in range(count):
        step = ENGINE_STEPS[number // 3 % 4]
        longest_s = draw.choice((0.0, 2.0, 15.0, 60.0) if step == "verify" else (0.0, 0.5, 2.0, 6.0))
        drawn.append(Moment(victim=VICTIMS[number % 3], step=step, after_s=longest_s * draw.random()))
    return drawn


def words(step: str, path: Path, *, without: str = "") -> list[str]:
    """A run of every step that has an engine and a climb of one setting; with the ladder where that is struck."""
    left_out = ("doctor,task" if step == "verify" else "doctor,verify,task") + without
    return [
        "--recipe",
        str(path),
        "--effort",
        "quick",
        "--yes",
        "--skip",
        left_out,
        "--concurrency",
        "1,2",
        "--ram-bandwidth",
        "20GB/s",
    ]


def recipe() -> Path:
    """The rehearsal model on the embedded engine."""
    path = Path(os.environ["MOEBOX_RUNS"]).parent / "embedded.toml"
    path.parent.mkdir(exist_ok=True)
    box = dataclasses.replace(detect_machine(), gpus=(), links=())
    made = dataclasses.replace(recipes.plan_phantom(box).recipe, climb=Climb(contexts=(1024,), speculate=()))
    path.write_text(codec.to_toml(made))
    return path


def begin(*words: str) -> "subprocess.Popen[bytes]":
    """`moebox run` as a process of its own."""
    log = open(Path(os.environ["MOEBOX_RUNS"]).parent / "moebox.log", "ab")  # noqa: SIM115
    return subprocess.Popen([sys.executable, "-m", "moebox", "run", *words], stdout=log, stderr=log)


def the_run() -> Run | None:
    """The run that was begun, once it is there."""
    home = Path(os.environ["MOEBOX_RUNS"])
    found = [folder for folder in home.glob("*") if (folder / PIPELINE).exists()]
    return Run(found[0]) if found else None


def reached(step: str) -> bool:
    """The run has begun this step."""
    run = the_run()
    return run is not None and StepRunning(step=step) in run.read_events()


def pids_of(victim: str, moebox: "subprocess.Popen[bytes]") -> list[int]:
    """The processes that play this part now."""
    if victim == "moebox":
        return [moebox.pid]
    instances = state.list_instances()
    if victim == "guard":
        return [instance.guard for instance in instances if instance.is_alive]
    return [instance.guard_state.engine for instance in instances]


def kill(moment: Moment, moebox: "subprocess.Popen[bytes]") -> None:
    """SIGKILL, at the moment or as soon as there is a process to kill; or never, if the run ends before."""
    until = time.monotonic() + WAIT_S
    while not reached(moment.step) and moebox.poll() is None and time.monotonic() < until:
        time.sleep(0.01)
    time.sleep(moment.after_s)
    while moebox.poll() is None and time.monotonic() < until:
        pids = [pid for pid in pids_of(moment.victim, moebox) if pid and psutil.pid_exists(pid)]
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        if pids:
            return
        time.sleep(0.01)


def orphans() -> list[str]:
    """Processes of this test's engines that are left."""
    return [f"{name}: {pids}" for name, pids in state.marked_processes().items()]


def besiege(moment: Moment, path: Path, *, without: str = "") -> int:
    """One run of a recipe with one kill, taken up until it is complete; how often that took."""
    moebox = begin(*words(moment.step, path, without=without))
    kill(moment, moebox)
    moebox.wait(timeout=WAIT_S)
    run = the_run()
    assert run is not None
    kept = {path: path.read_bytes() for path in run.path.glob("measurements/random-*")}
    resumes = 0
    while not complete(run):
        assert resumes < MOST_RESUMES, (moment, (run.path.parent.parent / "moebox.log").read_text()[-3000:])
        begin("--resume", run.id, "--yes").wait(timeout=WAIT_S)
        resumes += 1
    figures = {path.stem for path in kept if path.suffix == ".json"}
    whole = {path: data for path, data in kept.items() if path.stem in figures}
    assert all(path.read_bytes() == data for path, data in whole.items()), f"{moment}: a measurement was lost"
    text = (run.path.parent.parent / "moebox.log").read_text()
    assert "Traceback" not in text, (moment, text[-4000:])
    until = time.monotonic() + 60.0
    while orphans() and time.monotonic() < until:
        time.sleep(0.1)
    assert not orphans(), moment
    assert not list(run.path.rglob("*.part")), moment
    return resumes


def complete(run: Run) -> bool:
    """Every step is done or left out, and the report is there."""
    document = run.read_json(PIPELINE)
    states = {step["name"]: step["state"] for step in document["steps"]}
    return all(states[name] in ("done", "skipped") for name in STEPS) and (run.path / "report.html").is_file()


@pytest.mark.slow
def test_a_killed_run_is_taken_up_and_nothing_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """One of the moments that `make test-siege` goes through, with the oracle as the engine.

    Moebox and the engine are killed in every step by tests/flows/test_run_faults.py.
    """
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    besiege(Moment(victim="guard", step="bench", after_s=0.5), oracle_recipe(tmp_path), without=",rehearse,climb")


@pytest.mark.siege
@pytest.mark.parametrize("moment", moments(MOMENTS, seed=18), ids=str)
def test_thirty_moments_of_death(moment: Moment, capsys: pytest.CaptureFixture[str]):
    """All resume, nothing is lost, no orphan is left."""
    resumes = besiege(moment, recipe())
    with capsys.disabled():
        print(f"\n{moment}: complete after {resumes} resumes", end="", flush=True)
