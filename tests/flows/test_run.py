"""The whole pipeline with a real engine process: run to the end, interrupted, kept up, simulated, refused."""

import json
import signal
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from moebox import codec
from moebox.cli import main
from moebox.core.pipeline import RunRequest
from moebox.core.recipe import PlannedFor, Recipe
from moebox.errors import ExternalError
from moebox.flows import recipes
from moebox.flows.live_engine import TwinProcess
from moebox.flows.pipeline import PIPELINE
from moebox.serve import state
from moebox.store import Run
from moebox.web import live

from .pipelines import begin, events, gone, only, oracles, the_run, until

QUICK = ["--effort", "quick", "--skip", "doctor,rehearse", "--concurrency", "1,2", "--ram-bandwidth", "20GB/s"]


def test_the_pipeline_runs_to_its_end(story_recipe: Path, capsys: pytest.CaptureFixture[str]):
    """Every step is done, the report is there, the JSON reports it, and nothing is left running."""
    assert main(["run", "--recipe", str(story_recipe), *QUICK, "--json"]) == 0
    reported = json.loads(capsys.readouterr().out)
    states = {step["name"]: step["state"] for step in reported["steps"]}
    assert states == {
        "plan": "done", "doctor": "skipped", "rehearse": "skipped", "up": "done", "verify": "done", "climb": "done",
        "bench": "done", "task": "skipped", "report": "done",
    }  # fmt: skip
    folder = Path(reported["run"])
    for name in ("recipe.toml", "box.toml", "verify.json", "climb.json", "report.html", "measurements/random-c2.json"):
        assert (folder / name).exists(), name
    assert "oracle" in (folder / "report.html").read_text()
    assert gone()
    assert state.list_instances() == []


def test_a_known_quirk_of_the_engine_is_reported_and_does_not_end_the_run(
    story_recipe: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """Every ik_llama.cpp answers 500 to a prompt that is too long: a warning with its workaround, and exit code 0."""
    recipe = codec.read_toml(Recipe, story_recipe)
    story_recipe.write_text(codec.to_toml(replace(recipe, engine="ik_llama.cpp")))
    monkeypatch.setenv("MOEBOX_ORACLE_TOO_LONG", "500")
    assert main(["run", "--recipe", str(story_recipe), *only("up", "verify", "bench", "report")]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "limits: known quirk of ik_llama.cpp: a prompt beyond the context is HTTP 500" in printed
    assert "failed: limits" not in printed
    run = the_run()
    states = {step["name"]: step["state"] for step in run.read_json(PIPELINE)["steps"]}
    assert {name for name, state in states.items() if state == "done"} == {
        "plan",
        "up",
        "verify",
        "bench",
        "report",
    }
    report = (run.path / "report.html").read_text()
    assert "known quirk of ik_llama.cpp" in report
    assert "Prepare clients for this engine" in report
    assert "Fix the failing checks first" not in report
    assert main(["run", "--resume", run.id]) == 0  # nothing is left to do


def test_requests_that_failed_are_reported_and_make_the_exit_code_1(
    story_recipe: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """As after `moebox bench`: a figure that leaves a request out is not green, and a resume does not make it so."""
    # of a measurement's, whose first one warms up
    monkeypatch.setenv("MOEBOX_ORACLE_FAILS", "64,3,the engine is confused")
    assert main(["run", "--recipe", str(story_recipe), *only("bench", "report", streams="1,2")]) == 1
    printed = capsys.readouterr().out
    assert "1 stream: 1 of 4 requests failed: HTTP 500" in printed
    assert "1 request failed" in " ".join(printed.split()), "in the strip"
    assert "✗ bench" in printed
    assert "requests failed 1 of 12" in printed
    run = the_run()
    assert {name: state for name, state, _ in live.live_view(run)["steps"]}["bench"] == "failed"
    assert main(["run", "--resume", run.id]) == 1
    assert gone()


def test_requests_that_an_engine_fails_now_and_then_are_reported(
    story_recipe: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """llama.cpp throws away a reply that is not UTF-8: not green, explained, and no failure."""
    monkeypatch.setenv("MOEBOX_ORACLE_FAILS", "64,3,Failed to parse input at pos 52")
    assert main(["run", "--recipe", str(story_recipe), *only("bench", "report", streams="1")]) == 0
    printed = capsys.readouterr().out
    assert "1 stream: llama.cpp ends a reply with an error" in printed
    assert "failed by a known quirk 1 of 4" in printed
    assert "1 request failed" in " ".join(printed.split()), "in the strip"
    assert "✓ fast" not in printed


def test_an_interrupt_says_how_to_go_on(story_recipe: Path):
    """Ctrl-C: exit code 130, the engine stopped, and the command that resumes."""
    moebox = begin("--recipe", str(story_recipe), *QUICK)
    run = the_run()
    until(lambda: events(run, "pipeline.running", step="verify"), "it verifies")
    moebox.send_signal(signal.SIGINT)
    output, _ = moebox.communicate(timeout=60)
    assert moebox.returncode == 130, output
    assert f"moebox run --resume {run.id}" in output
    assert gone()


def test_keep_leaves_the_engine_up(story_recipe: Path, capsys: pytest.CaptureFixture[str]):
    """--keep: the endpoint answers after the pipeline, and `down` stops it."""
    assert main(["run", "--recipe", str(story_recipe), *QUICK, "--until", "up", "--keep"]) == 0
    assert "endpoint  http://127.0.0.1:" in capsys.readouterr().out
    assert len(oracles()) == 1
    assert main(["down", "--all"]) == 0
    assert gone()


def test_a_recipe_is_run_on_its_own_port_and_not_cut_short(story_recipe: Path, capsys: pytest.CaptureFixture[str]):
    """Only the phantom's run and `--effort quick` shorten checks and loads; the recipe's port is the engine's."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    asked = codec.read_toml(Recipe, story_recipe)
    story_recipe.write_text(codec.to_toml(replace(asked, listen=replace(asked.listen, port=port))))
    words = ["--skip", "doctor,rehearse", "--until", "up", "--ram-bandwidth", "20GB/s", "--json"]
    assert main(["run", "--recipe", str(story_recipe), *words]) == 0
    reported = json.loads(capsys.readouterr().out)
    up = next(step for step in reported["steps"] if step["name"] == "up")

    assert f":{port}/" in up["figures"]["url"]
    assert not RunRequest(recipe=reported["request"]["recipe"]).is_short
    assert RunRequest(recipe="x", quick=True).is_short
    assert RunRequest().is_short
    assert gone()


def test_a_simulated_pipeline_is_marked_everywhere(capsys: pytest.CaptureFixture[str]):
    """--twin: no engine, no climb, only what a simulation can be asked, and the word on every page."""
    words = ["run", "kimi-k2.6", "--box", "8x-b200", "--twin", "--skip", "bench"]
    assert main(words) == 0
    shown = capsys.readouterr().out
    assert "simulation" in shown
    run = the_run()
    assert "simulation" in (run.path / "report.html").read_text().lower()
    assert json.loads((run.path / PIPELINE).read_text())["simulated"] is True


def test_a_simulation_has_the_memory_that_was_given():
    """`--ram` and `--ram-bandwidth` reach the twin as settings, which rejects impossible values."""
    place = PlannedFor(box="2x-rtx-pro-6000-max-q", ram="12")
    with pytest.raises(ExternalError, match="--ram 12 is less than 1 GiB"):
        TwinProcess(recipes.load_recipe("kimi-k26-ik"), planned_for=place, run=Run.create("twin"))

    place = PlannedFor(box="2x-rtx-pro-6000-max-q", ram="768GiB", ram_bandwidth="614GB/s")
    twin = TwinProcess(recipes.load_recipe("kimi-k26-ik"), planned_for=place, run=Run.create("twin"))
    assert twin.is_alive
    twin.stop()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--until", "dance"], "unknown step"),
        (["--skip", "plan,sing"], "unknown step"),
        (["kimi-k2.6", "--box", "8x-b200"], "is not this machine"),
        (["--twin"], "name one with --box"),
        (["--concurrency", "1,x"], "--concurrency"),
        (["--concurrency", "0"], "from 1 to"),
        (["--resume", "nothing"], "no run called"),
        (["kimi-k26"], "kimi-k2.6"),
    ],
)
def test_bad_input_is_one_line(words: list[str], says: str, capsys: pytest.CaptureFixture[str]):
    """Exit code 2, and what was meant."""
    assert main(["run", *words]) == 2
    assert says in capsys.readouterr().err


def test_a_folder_without_a_pipeline_cannot_be_resumed(capsys: pytest.CaptureFixture[str]):
    """It says what can."""
    run = Run.create("other")
    run.release_lock()
    assert main(["run", "--resume", run.id]) == 2
    assert "was not made by `moebox run`" in capsys.readouterr().err
