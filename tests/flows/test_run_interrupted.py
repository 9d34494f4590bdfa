"""A run that was interrupted reports it, in which step, and how to go on: in lists, strip, report and page."""

import signal
from pathlib import Path

import pytest

from moebox.cli import main
from moebox.core.pipeline import StepName
from moebox.report.files import make_page, render_markdown
from moebox.runs.listing import summarize_run
from moebox.serve import state
from moebox.store import Run
from moebox.web import live
from tests.sampling import one_in

from .pipelines import Hold, gone, held_in, only


def states(run: Run) -> dict[str, str]:
    """Of its steps, as the page shows them."""
    return {name: state for name, state, _ in live.live_view(run)["steps"]}


@pytest.mark.parametrize(
    ("step", "how"),
    one_in(3, [("verify", signal.SIGTERM), ("up", signal.SIGKILL), ("bench", signal.SIGHUP)], unpack=True),
)
def test_an_interrupted_run_says_in_which_step(
    step: StepName, how: signal.Signals, story_recipe: Path, hold: Hold, capsys: pytest.CaptureFixture[str]
):
    """It once read as working: pipeline.json never said that a step had begun."""
    moebox, run = held_in(step, story_recipe, hold)
    assert states(run)[step] == "running"
    assert summarize_run(run).state_text(live=True) == f"running {step}"
    moebox.send_signal(how)
    hold.go()
    moebox.communicate()
    assert gone()

    capsys.readouterr()
    assert main(["runs", "show", run.id]) == 0
    shown = capsys.readouterr().out
    assert f"moebox run --resume {run.id}" in shown
    assert f"interrupted in {step}" in shown
    assert main(["runs"]) == 0
    assert f"interrupted in {step}" in " ".join(capsys.readouterr().out.split())
    text = render_markdown(make_page([run]))
    assert f"interrupted in {step}" in text
    assert "INTERRUPTED" in text
    assert "WORKING" not in text
    assert " works " not in text
    assert "RUNNING" not in text
    assert states(run)[step] == "interrupted"


def test_an_engine_that_is_still_being_stopped_is_no_work(tmp_path: Path):
    """Its moebox was killed: the list said that the run goes on while the run's own page called it interrupted."""
    run = Run.create("killed", runs=tmp_path)
    engines = {run.path.resolve(): "its engine"}
    assert state.is_run_active(run, {}, unfinished_step="up")  # by us
    run.release_lock()

    assert not state.is_run_active(run, engines, unfinished_step="up")
    assert state.is_run_active(run, engines, unfinished_step="")  # it serves
    assert not state.is_run_active(run, {}, unfinished_step="")


def test_a_run_that_ended_is_not_called_interrupted(story_recipe: Path, capsys: pytest.CaptureFixture[str]):
    """The report is made by the last step, while that step itself has no end yet."""
    assert main(["run", "--recipe", str(story_recipe), *only("bench", "report")]) == 0
    output = capsys.readouterr().out
    (folder,) = (Path(line.split()[-1]).parent for line in output.splitlines() if line.startswith("recipe "))
    made = (folder / "report.html").read_text()
    assert "interrupted" not in output + (folder / "report.md").read_text()
    assert "still going on" not in made
