"""A climb is careful: it asks the planner first, and never starts again what ran out of memory."""

from pathlib import Path

import pytest

from moebox import codec, detect
from moebox.checkpoint import deploy
from moebox.core.event import ClimbTried
from moebox.core.recipe import Climb, Recipe
from moebox.errors import AnswerIsNo
from moebox.flows.recipes import load_recipe
from moebox.flows.trials import climb
from moebox.flows.walk import memory_problem
from moebox.serve import order
from moebox.store import Run

from .pipelines import events, gone
from .test_climb import LIGHT


@pytest.fixture
def recipe(story_recipe: Path) -> Recipe:
    """The oracle, at three contexts."""
    asked = codec.read_toml(Recipe, story_recipe)
    return codec.decode(
        Recipe,
        {**codec.to_plain(asked), "climb": codec.to_plain(Climb(contexts=(2048, 4096, 8192), speculate=()))},
        where="test",
    )


def test_what_ran_out_of_memory_is_never_started_again(recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """One start, the words "out of memory", and no longer context is tried; nor by a resumed climb."""
    counter = tmp_path / "memory.events"
    counter.write_text("oom_kill 0\n")
    monkeypatch.setattr(order, "oom_counter_files", lambda: [str(counter)])
    monkeypatch.setenv("MOEBOX_ORACLE_OOM", f"{counter},8192")  # two slots of 4,096
    run = Run.create("climb")
    summit = climb(recipe, run, effort=LIGHT)
    trial = summit.trials[1]

    assert trial.change == "context 4096"
    assert not trial.kept
    assert "out of memory" in trial.why
    assert len(events(Run(run.path / trial.folder), "attempt.started")) == 1
    assert summit.passed_over == {"context 8192": "context 4096 failed already"}
    before = list(run.path.rglob("climb/*"))
    assert climb(recipe, run, effort=LIGHT).passed_over == summit.passed_over
    assert list(run.path.rglob("climb/*")) == before
    assert gone()


def test_a_step_that_took_the_machine_down_is_not_tried_again(recipe: Recipe):
    """It was begun before the machine last started, and nothing came of it."""
    run = Run.create("climb")
    run.write_file("start.toml", codec.to_toml(recipe))
    run.add_event(ClimbTried(change="start", boot="another-start-of-the-machine"))
    with pytest.raises(AnswerIsNo, match="the machine restarted while it was tried"):
        climb(recipe, run, effort=LIGHT)
    assert not (run.path / "climb").exists()


def test_a_step_that_does_not_fit_is_not_started(recipe: Recipe):
    """The planner is asked first: Kimi on one small GPU is refused in bytes, and no engine is started."""
    box = detect.load_box("1x-rtx-5090", ram="64GiB")
    kimi = load_recipe("kimi-k26-vllm")
    assert "out of memory by the plan" in memory_problem(deploy(kimi).on_box(box))
    assert memory_problem(deploy(recipe).on_box(box)) == ""
    run = Run.create("climb")
    with pytest.raises(AnswerIsNo, match="out of memory by the plan"):
        climb(kimi, run, effort=LIGHT, box=box)
    assert not (run.path / "climb").exists()
