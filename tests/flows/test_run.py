"""The whole story with a real engine process: told to the end, killed at every step, resumed, told twice at once."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from moebox import wire
from moebox.cli import main
from moebox.core.recipe import Climb, Hybrid, Listen, Recipe, Runtime
from moebox.flows.story import FILE
from moebox.serve import state
from moebox.store import Run

ROOT = Path(__file__).parents[2]
QUICK = ["--skip", "doctor,rehearse", "--concurrency", "1,2"]


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A recipe file whose engine is the oracle: a process that answers every question of the ladder rightly."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    weights = tmp_path / "oracle.gguf"
    weights.write_bytes(b"GGUF")
    made = Recipe(
        name="oracle",
        engine="llama.cpp",
        model="kimi-k2.6",
        checkpoint=str(weights),
        served_name="oracle-k2",
        context=2048,
        max_seqs=2,
        hybrid=Hybrid(),
        listen=Listen(port=0),
        runtime=Runtime(entry=f"{sys.executable} -m tests.verify.oracle.engine"),
        climb=Climb(contexts=(2048,), speculate=(), settings={}),
    )
    path = tmp_path / "recipe.toml"
    path.write_text(wire.to_toml(made))
    return path


def begin(*words: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "moebox", "run", *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def the_run() -> Run:
    """The only run of this test."""
    home = Path(os.environ["MOEBOX_RUNS"])
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        found = [one for one in home.iterdir() if (one / FILE).exists()] if home.is_dir() else []
        if found:
            return Run(found[0])
        time.sleep(0.05)
    raise AssertionError("no run was begun")


def wait_for(run: Run, step: str, kind: str = "") -> None:
    """Until the step is running, and an event of `kind` was seen in it."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        events = list(run.events())
        running = [
            at for at, one in enumerate(events) if one["kind"] == "story.running" and one["data"]["step"] == step
        ]
        if running and (not kind or any(one["kind"] == kind for one in events[running[-1] :])):
            return
        time.sleep(0.02)
    raise AssertionError(f"{step} was never reached")


def oracles() -> list[psutil.Process]:
    """Engines of this test that are alive."""
    mark = os.environ["MOEBOX_RUNS"]
    found = []
    for process in psutil.process_iter(["cmdline"]):
        words = " ".join(process.info["cmdline"] or ())
        if "tests.verify.oracle.engine" in words and str(Path(mark).parent) in words:
            found.append(process)
    return found


def gone() -> bool:
    """No engine is left, within the time a guard takes to climb down."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and oracles():
        time.sleep(0.1)
    return not oracles()


def test_the_story_is_told_to_its_end(recipe: Path, capsys: pytest.CaptureFixture[str]):
    """Every step is done, the report is there, the JSON says so, and nothing is left running."""
    assert main(["run", "--recipe", str(recipe), *QUICK, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    states = {step["name"]: step["state"] for step in told["steps"]}
    assert states == {
        "plan": "done", "doctor": "skipped", "rehearse": "skipped", "up": "done", "verify": "done", "climb": "done",
        "bench": "done", "report": "done",
    }  # fmt: skip
    folder = Path(told["run"])
    for name in ("recipe.toml", "box.toml", "verify.json", "climb.json", "report.html", "measurements/random-c2.json"):
        assert (folder / name).exists(), name
    assert "oracle" in (folder / "report.html").read_text()
    assert gone()
    assert state.instances() == []


@pytest.mark.parametrize(
    ("step", "kind"),
    [("up", "attempt.started"), ("verify", "verify.rung"), ("climb", "climb.try"), ("bench", "bench.level")],
)
def test_killed_at_any_step_it_leaves_no_orphan_and_resumes(
    recipe: Path, step: str, kind: str, capsys: pytest.CaptureFixture[str]
):
    """kill -9 of moebox: the guard takes the engine down; --resume completes without measuring again what was kept."""
    moebox = begin("--recipe", str(recipe), *QUICK)
    run = the_run()
    wait_for(run, step, kind)
    moebox.send_signal(signal.SIGKILL)
    moebox.wait()
    assert gone()
    measured = {path: path.read_bytes() for path in run.path.glob("measurements/*.json")}
    assert main(["run", "--resume", run.id, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert all(one["state"] in ("done", "skipped") for one in told["steps"])
    assert all(path.read_bytes() == before for path, before in measured.items())
    assert gone()


def test_an_engine_that_dies_under_a_step_is_started_again(recipe: Path):
    """kill -9 of the engine while it is verified: the story notes it, starts a fresh one and goes on."""
    moebox = begin("--recipe", str(recipe), *QUICK, "--until", "verify")
    run = the_run()
    wait_for(run, "verify", "verify.rung")
    for process in oracles():
        process.kill()
    output, _ = moebox.communicate(timeout=240)
    assert moebox.returncode == 0, output
    assert any(event["kind"] == "story.engine_lost" for event in run.events())
    assert gone()


def test_an_interrupt_says_how_to_go_on(recipe: Path):
    """Ctrl-C: exit code 130, the engine stopped, and the command that resumes."""
    moebox = begin("--recipe", str(recipe), *QUICK)
    run = the_run()
    wait_for(run, "verify")
    moebox.send_signal(signal.SIGINT)
    output, _ = moebox.communicate(timeout=60)
    assert moebox.returncode == 130, output
    assert f"moebox run --resume {run.id}" in output
    assert gone()


def test_two_at_once_keep_apart(recipe: Path):
    """Each has its own folder and port."""
    both = [begin("--recipe", str(recipe), *QUICK, "--until", "verify") for _ in range(2)]
    outputs = [one.communicate(timeout=300)[0] for one in both]
    assert [one.returncode for one in both] == [0, 0], outputs
    runs = [one for one in Path(os.environ["MOEBOX_RUNS"]).iterdir() if (one / FILE).exists()]
    urls = {json.loads((one / FILE).read_text())["steps"][3]["figures"]["url"] for one in runs}
    assert len(urls) == 2
    assert gone()


def test_keep_leaves_the_engine_up(recipe: Path, capsys: pytest.CaptureFixture[str]):
    """--keep: the endpoint answers after the story, and `down` stops it."""
    assert main(["run", "--recipe", str(recipe), *QUICK, "--until", "up", "--keep"]) == 0
    assert "endpoint  http://127.0.0.1:" in capsys.readouterr().out
    assert len(oracles()) == 1
    assert main(["down", "--all"]) == 0
    assert gone()


def test_a_simulated_story_is_marked_everywhere(capsys: pytest.CaptureFixture[str]):
    """--twin: no engine, no climb, only what a simulation can be asked, and the word on every page."""
    words = ["run", "kimi-k2.6", "--box", "8x-b200", "--twin", "--skip", "bench"]
    assert main(words) == 0
    shown = capsys.readouterr().out
    assert "simulation" in shown
    run = the_run()
    assert "simulation" in (run.path / "report.html").read_text().lower()
    assert json.loads((run.path / FILE).read_text())["simulated"] is True


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--until", "dance"], "unknown step"),
        (["--skip", "plan,sing"], "unknown step"),
        (["kimi-k2.6", "--box", "8x-b200"], "is not this machine"),
        (["--twin"], "name one with --box"),
        (["--concurrency", "1,x"], "--concurrency"),
        (["--concurrency", "0"], "at least 1"),
        (["--resume", "nothing"], "no run called"),
        (["kimi-k26"], "kimi-k2.6"),
    ],
)
def test_bad_input_is_one_line(words: list[str], says: str, capsys: pytest.CaptureFixture[str]):
    """Exit code 2, and what was meant."""
    assert main(["run", *words]) == 2
    assert says in capsys.readouterr().err


def test_a_folder_without_a_story_cannot_be_resumed(capsys: pytest.CaptureFixture[str]):
    """It says what can."""
    run = Run.create("other")
    run.release()
    assert main(["run", "--resume", run.id]) == 2
    assert "holds no story" in capsys.readouterr().err
