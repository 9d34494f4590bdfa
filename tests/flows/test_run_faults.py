"""What happens to a pipeline: moebox or its engine killed at every step, no room, a closed lid, a stolen port."""

import os
import resource
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from moebox.cli import main
from moebox.core.pipeline import StepName
from moebox.flows.pipeline import PIPELINE
from moebox.serve import preflight, state
from moebox.store import Run
from moebox.stream.awake import STOPPED_S
from tests.driving import environment, suite_folders
from tests.sampling import one_in

from .pipelines import (
    ROOT,
    Hold,
    begin,
    events,
    gone,
    halves,
    held_in,
    measured,
    only,
    oracle_recipe,
    oracles,
    resume,
    the_run,
    until,
    weights,
)

# A whole checks is the longest step; what it shares with climb and bench is asked of it by `make test-siege`.
LADDER = pytest.param("verify", marks=pytest.mark.siege)
CLIMB = pytest.param("climb", marks=pytest.mark.siege)
UP = pytest.param("up", marks=pytest.mark.siege)


def over(moebox: "subprocess.Popen[str]") -> str:
    """What it said, once it ended well."""
    output, _ = moebox.communicate(timeout=240)
    assert moebox.returncode == 0, output
    return output


@pytest.mark.parametrize("step", [CLIMB, LADDER, UP, "bench"])
def test_moebox_killed_in_a_step_leaves_no_orphan_and_resumes(
    step: StepName, story_recipe: Path, hold: Hold, capsys: pytest.CaptureFixture[str]
):
    """kill -9 of moebox: the guard takes the engine down; --resume completes without measuring again what was kept."""
    moebox, run = held_in(step, story_recipe, hold)
    moebox.kill()
    moebox.communicate()
    hold.go()
    assert gone()
    kept = measured(run)
    assert bool(kept) == (step == "bench")
    resume(run, capsys)
    assert all(path.read_bytes() == before for path, before in kept.items())
    assert not halves(run)
    assert gone()


def test_moebox_killed_while_it_plans_resumes(story_recipe: Path, capsys: pytest.CaptureFixture[str]):
    """kill -9 in the plan, which measures the memory's bandwidth first: nothing was decided, and --resume plans."""
    moebox = begin("--recipe", str(story_recipe), "--until", "plan")
    run = the_run()
    until(lambda: events(run, "pipeline.running", step="plan"), "the plan has begun")
    moebox.kill()
    moebox.communicate()
    assert not (run.path / "recipe.toml").exists()
    assert resume(run, capsys)["steps"][0]["state"] == "done"
    assert gone()


def test_a_secret_in_a_recipe_is_copied_nowhere(story_recipe: Path, capsys: pytest.CaptureFixture[str]):
    """It is refused before there is a run: no folder is made, and what is printed does not hold it."""
    text = story_recipe.read_text().replace("oracle-k2", "hf_abcdefghijklmnopqrstuvwxyz")
    story_recipe.write_text(text)
    assert main(["run", "--recipe", str(story_recipe), *only()]) == 2
    reported = capsys.readouterr()
    assert "served_name: looks like a key" in reported.err
    assert "hf_abc" not in reported.out + reported.err
    home = Path(os.environ["MOEBOX_RUNS"])
    assert not home.exists() or not list(home.iterdir())


def test_moebox_killed_while_it_reports_resumes(story_recipe: Path, capsys: pytest.CaptureFixture[str]):
    """kill -9 as the report begins: the figures are there, and --resume only reports."""
    assert main(["run", "--recipe", str(story_recipe), *only("bench")]) == 0
    run = the_run()
    kept = measured(run)
    moebox = begin("--resume", run.id, "--until", "report")
    until(lambda: events(run, "pipeline.running", step="report"), "the report has begun")
    moebox.kill()
    moebox.communicate()
    assert moebox.returncode == -signal.SIGKILL
    (run.path / ".report.html.1.part").write_text("<p>half of")
    resume(run, capsys)
    assert "oracle" in (run.path / "report.html").read_text()
    assert measured(run) == kept
    assert len(events(run, "bench.level")) == 1
    assert not halves(run)


@pytest.fixture(scope="module")
def finished_story(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a pipeline that measured two levels and reported; what harms it takes a copy."""
    home = tmp_path_factory.mktemp("finished")
    with environment({**suite_folders(home), "PYTHONPATH": str(ROOT)}):
        words = ["--recipe", str(oracle_recipe(home)), *only("bench", "report", streams="1,2")]
        assert main(["run", *words]) == 0
        return the_run().path


@pytest.mark.parametrize("name", one_in(3, ["random-c1.json", "random-c1.samples", "gone"]))
def test_a_measurement_that_was_cut_short_is_measured_again(
    name: str, finished_story: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """Half a file of figures, or of the samples they come from, is no measurement; the whole ones are kept.

    The step was done, and the report is of what was there: both are done again, in a copy of the folder as well.
    """
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    run = Run(Path(shutil.copytree(finished_story, Path(os.environ["MOEBOX_RUNS"]) / "copy", symlinks=True)))
    kept = measured(run)
    path = run.path / "measurements" / name
    if path.exists():
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    else:
        (run.path / "measurements" / "random-c1.json").unlink()
    capsys.readouterr()
    assert main(["run", "--resume", run.id]) == 0
    assert f"report    {run.path / 'report.html'}" in capsys.readouterr().out
    assert [step["name"] for step in run.read_json(PIPELINE)["steps"] if step["state"] == "done"][-2:] == [
        "bench",
        "report",
    ]
    whole = {other: text for other, text in kept.items() if "c2" in other.name}
    assert all(other.read_bytes() == text for other, text in whole.items())
    assert len(events(run, "bench.damaged")) == (name != "gone")
    assert len(events(run, "bench.level", concurrency=1)) == 2
    assert run.read_json("measurements/random-c1.json")["completed"] > 0


def test_an_engine_killed_while_it_starts_is_started_by_resume(
    story_recipe: Path, hold: Hold, capsys: pytest.CaptureFixture[str]
):
    """kill -9 of the engine before it answers: one line that reports it, exit code 3, and --resume completes."""
    moebox, run = held_in("up", story_recipe, hold)
    for process in oracles():
        process.kill()
    output, _ = moebox.communicate(timeout=120)
    assert moebox.returncode == 3, output
    assert "was killed by SIGKILL" in output
    resume(run, capsys)
    assert gone()


@pytest.mark.siege
@pytest.mark.parametrize(
    ("step", "kind"),
    [("verify", "pipeline.engine_lost"), ("climb", "climb.again"), ("bench", "pipeline.engine_lost")],
)
def test_an_engine_killed_under_a_step_is_started_again(step: StepName, kind: str, story_recipe: Path, hold: Hold):
    """kill -9 of the engine: the pipeline notes it, goes on with a fresh one, and keeps no figure of the dead one."""
    moebox, run = held_in(step, story_recipe, hold)
    for process in oracles():
        process.kill()
    over(moebox)
    assert len(events(run, kind)) == 1
    assert all(b'"failed": 0' in text for path, text in measured(run).items() if path.suffix == ".json")
    assert gone()


@pytest.mark.parametrize(
    ("step", "which", "number", "kind"),
    one_in(2, [("bench", 4, 1, "pipeline.engine_lost"), ("climb", "any", 8, "climb.again")], unpack=True),
    ids=["as bench begins", "climb's questions"],
)
def test_an_engine_killed_between_measurements_is_started_again(
    step: StepName, which: str | int, number: int, kind: str, story_recipe: Path, hold: Hold
):
    """kill -9 while the climb asks its questions, or at the first word of a bench: no traceback, and all is done."""
    hold.at(which, number)
    moebox = begin("--recipe", str(story_recipe), *only(step))
    hold.wait()
    run = the_run()
    for process in oracles():
        process.kill()
    assert "Traceback" not in over(moebox)
    assert len(events(run, kind)) == 1
    assert gone()


@pytest.mark.parametrize("step", [LADDER, CLIMB, "bench"])
def test_without_room_it_stops_and_resumes_when_there_is_some(
    step: StepName, story_recipe: Path, hold: Hold, capsys: pytest.CaptureFixture[str]
):
    """Every write is refused from the middle of a step on: one line, exit code 3, nothing half-written, nothing lost.

    A limit of nought bytes on files stands for the full disk: the kernel refuses the same writes, and no mount is
    needed.
    """
    moebox, run = held_in(step, story_recipe, hold)
    kept = measured(run)
    resource.prlimit(moebox.pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
    hold.go()
    output, _ = moebox.communicate(timeout=120)
    assert moebox.returncode == 3, output
    assert output.count("cannot be written: File too large") == 2, output  # in the checks of steps, and as the error
    assert f"moebox run --resume {run.id}" in output
    assert not halves(run)
    assert measured(run) == kept
    assert gone()
    resume(run, capsys)
    assert all(path.read_bytes() == before for path, before in kept.items())
    assert len(events(run, "bench.level", concurrency=1)) == (step == "bench")


@contextmanager
def asleep(moebox: "subprocess.Popen[str]") -> Iterator[None]:
    """Everything that belongs to a pipeline stopped, as by a closed lid, for a little longer than goes unnoticed."""
    top = psutil.Process(moebox.pid)
    everything = [top, *top.children(recursive=True)]  # the guard and the engine are below it in the tree
    for process in everything:
        process.send_signal(signal.SIGSTOP)
    time.sleep(2 * STOPPED_S)
    yield
    for process in everything:
        process.send_signal(signal.SIGCONT)


@pytest.mark.parametrize("step", [LADDER, CLIMB, UP, "bench"])
def test_a_sleep_in_a_step_is_in_no_figure(step: StepName, story_recipe: Path, hold: Hold):
    """All processes stopped in mid-answer: the story goes on, says so, and measures again what the sleep spoilt."""
    moebox, run = held_in(step, story_recipe, hold)
    with asleep(moebox):
        hold.go()
    over(moebox)
    assert len(events(run, "pipeline.slept", step=step)) == 1
    assert events(run, "bench.slept") or step != "bench"
    reported = Run(run.path).read_json(PIPELINE)
    took = next(one["seconds"] for one in reported["steps"] if one["name"] == step)
    slept = events(run, "pipeline.slept")[0].event.data["seconds"]
    begun, done = (events(run, f"pipeline.{state}", step=step)[0].time for state in ("running", "done"))
    assert took < done - begun - slept / 2, "the step's time leaves the sleep out"
    for path in run.path.glob("measurements/*.json"):
        figures = Run(run.path).read_json(f"measurements/{path.name}")
        assert not figures["away_s"] or figures["client_limited"], "a spoilt figure is measured again, or says so"
    assert gone()


def test_a_port_stolen_after_the_plan_is_left_to_the_thief(story_recipe: Path, capsys: pytest.CaptureFixture[str]):
    """The engine takes another port, and reports it."""
    port = preflight.find_free_port()
    assert main(["run", "--recipe", str(story_recipe), "--port", str(port), "--skip", "doctor,rehearse", *only()]) == 0
    run = the_run()
    with socket.socket() as thief:
        thief.bind(("127.0.0.1", port))
        thief.listen()
        assert main(["run", "--resume", run.id, "--until", "up"]) == 0
    printed = capsys.readouterr().out
    assert f"port {port} is taken; using" in printed
    assert f"http://127.0.0.1:{port}/" not in printed
    assert gone()


@pytest.mark.siege
@pytest.mark.parametrize("step", ["verify", "climb", "bench"])
def test_a_port_stolen_before_a_step_is_left_to_the_thief(
    step: StepName, story_recipe: Path, capsys: pytest.CaptureFixture[str]
):
    """The engines of every later step take another port too, and the thief's server is not taken for theirs."""
    port = preflight.find_free_port()
    words = ["run", "--recipe", str(story_recipe), "--port", str(port), *only("up")]
    assert main(words) == 0
    run = the_run()
    with socket.socket() as thief:
        thief.bind(("127.0.0.1", port))
        thief.listen()
        document = run.read_json(PIPELINE)
        others = [name for name in ("verify", "climb", "bench") if name != step]
        document["request"]["skip"] = sorted({*document["request"]["skip"], *others} - {step})
        run.write_json(PIPELINE, document)
        assert main(["run", "--resume", run.id, "--until", step]) == 0
    assert f"port {port} is taken; using" in capsys.readouterr().out
    states = {each["name"]: each["state"] for each in run.read_json(PIPELINE)["steps"]}
    assert states[step] == "done"
    assert gone()


def test_two_at_once_keep_apart(story_recipe: Path, hold: Hold):
    """The second one, given the same port while the first one's engine loads, takes another, and its own folder."""
    port = preflight.find_free_port()
    words = ["--recipe", str(story_recipe), "--port", str(port), *only("up")]
    hold.at("start")
    first = begin(*words)
    hold.wait()
    second = over(begin(*words))
    assert f"port {port} is taken; using" in second
    hold.go()
    assert f"http://127.0.0.1:{port}/v1" in over(first)
    assert len(list(Path(os.environ["MOEBOX_RUNS"]).iterdir())) == 2
    assert gone()
    assert state.list_instances() == []


def test_one_run_does_not_run_twice(story_recipe: Path, hold: Hold, capsys: pytest.CaptureFixture[str]):
    """--resume of a run that another moebox is at work on is refused."""
    hold.at("start")
    moebox = begin("--recipe", str(story_recipe), *only("up"))
    hold.wait()
    assert main(["run", "--resume", the_run().id]) == 2
    assert "another moebox" in capsys.readouterr().err
    hold.go()
    over(moebox)


def test_a_report_of_a_failure_is_made_again(story_recipe: Path, capsys: pytest.CaptureFixture[str]):
    """A pipeline that failed has a report; once it is resumed and complete, the report is of the whole."""
    story_recipe.with_name("oracle.gguf").unlink()
    assert main(["run", "--recipe", str(story_recipe), *only("up", "report")]) == 3
    run = the_run()
    before = (run.path / "report.html").read_text()
    weights(story_recipe.parent)
    resume(run, capsys)
    assert (run.path / "report.html").read_text() != before
    assert gone()
