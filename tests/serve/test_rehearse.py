"""Rehearsals: the real embedded engine with a generated GGUF, and what other engines invent."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from moebox import codec, engines
from moebox.checkpoint import deploy
from moebox.cli import main
from moebox.core import catalogue
from moebox.core.box import Box
from moebox.core.engine_event import AttemptStarted
from moebox.core.recipe import Parallel, Recipe, Speculate
from moebox.errors import AnswerIsNo, BadInput
from moebox.flows.recipes import load_recipe
from moebox.flows.rehearse import fewest_layers, reduce_recipe, rehearse
from moebox.planner.speed import Speed
from moebox.store import Run

Acting = Callable[..., Recipe]


def test_a_rehearsal_boots_prompts_beyond_a_block_decodes_and_cleans_up(embedded: Recipe, run: Run) -> None:
    """llama.cpp with a generated file of the same shapes; the file and the process are gone afterwards."""
    found = rehearse(deploy(embedded), run, patience_s=60)

    assert [step.name for step in found.steps] == ["boot", "long prompt", "decode", "down"]
    assert "more than a prefill block of 512" in found.steps[1].detail
    assert found.layers == 2
    assert not (run.path / "rehearsal.gguf").exists()
    assert any("layers are left out" in note for note in found.not_rehearsed)
    assert {"rehearse.started", "attempt.ready", "engine.stopped", "rehearse.finished"} <= {
        event.kind for event in run.read_events()
    }


@pytest.mark.engine
def test_the_phantom_takes_the_place_of_dummy_weights(embedded: Recipe, run: Run) -> None:
    """The same engine and flags with a small model that knows something, and is asked."""
    found = rehearse(deploy(embedded), run, phantom=True, patience_s=60)
    assert found.recipe.checkpoint.endswith("phantom-q8_0.gguf")
    assert [step.name for step in found.steps] == ["boot", "long prompt", "decode", "answers", "down"]
    assert "answered right on" in found.steps[3].detail


def test_a_crash_at_the_first_long_prompt_is_found_and_explained(acting: Acting, run: Run) -> None:
    """Short prompts pass, the long one hits SM120's shared memory: the log's cause is the answer."""
    recipe = acting("fails-at-length", engine="sglang", model="kimi-k2.6", checkpoint="moonshotai/Kimi-K2.6")
    with pytest.raises(AnswerIsNo, match=r"failed at a prompt of about \d+ words: HTTP 500") as caught:
        rehearse(deploy(recipe), run, patience_s=60)
    assert "FlashInfer attention backend" in str(caught.value.hint)


def test_what_a_run_serves_after_its_rehearsal_is_the_recipe_itself(acting: Acting, tmp_path: Path) -> None:
    """Few layers and dummy weights are started for the rehearsal alone; the run's recipe stays what was asked for."""
    recipe = acting("good", model="kimi-k2.6", checkpoint="moonshotai/Kimi-K2.6")
    file, runs = tmp_path / "recipe.toml", tmp_path / "runs"
    file.write_text(codec.to_toml(recipe))
    assert main(["run", "--recipe", str(file), "--runs", str(runs), "--skip", "doctor", "--until", "up"]) == 0
    folder = next(runs.iterdir())
    rehearsed, served = (event for event in Run(folder).read_events() if isinstance(event, AttemptStarted))
    assert ("dummy" in rehearsed.argv, "dummy" in served.argv) == (True, False)
    assert (rehearsed.aside, served.aside) == (True, False)
    assert codec.read_toml(Recipe, folder / "recipe.toml").flags == recipe.flags


def test_a_run_times_the_embedded_engine_and_forecasts_from_that(
    embedded: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One boot with all layers; the run's box has the calibration, and its recipe is still the one asked for."""
    monkeypatch.setattr("moebox.flows.calibrate_boot.STEP_LIMITS", (200, 200))  # a tenth of a millisecond each
    monkeypatch.setattr("moebox.flows.calibrate_timing.TRIES", 1)
    monkeypatch.setattr("moebox.flows.calibrate_timing.MANY", 1)
    monkeypatch.setattr("moebox.flows.run.TIMED_S", 8.0)
    file, runs = tmp_path / "recipe.toml", tmp_path / "runs"
    file.write_text(codec.to_toml(embedded))
    assert main(["run", "--recipe", str(file), "--runs", str(runs), "--skip", "doctor", "--until", "rehearse"]) == 0
    folder = next(runs.iterdir())
    recipe = codec.read_toml(Recipe, folder / "recipe.toml")
    measured = Speed.for_deployment(deploy(recipe, codec.read_toml(Box, folder / "box.toml"))).measured
    assert recipe.checkpoint == embedded.checkpoint
    assert measured is not None
    assert measured.calibration.depths == (2,)


@pytest.mark.parametrize("name", ["kimi-k26-vllm", "kimi-k26-sglang"])
def test_dummy_weights_are_asked_for_in_the_engines_own_flags(name: str, tmp_path: Path) -> None:
    """Few layers and dummy weights by flags that the engine's catalogue knows; parallelism and the rest stay."""
    recipe = load_recipe(name)
    small, kept, _ = reduce_recipe(deploy(recipe), tmp_path / "unused.gguf", 0)
    argv = engines.build_launch(deploy(small)).argv
    assert argv[argv.index("--load-format") + 1] == "dummy"
    override = next(word for word in argv if word.startswith("{") and "num_hidden_layers" in word)
    assert json.loads(override) == {"text_config": {"num_hidden_layers": kept}}
    assert small.parallel == recipe.parallel


def test_the_layers_kept_are_one_of_each_kind_and_one_per_stage() -> None:
    """Kimi has one dense layer before its experts; four pipeline stages need four layers."""
    kimi = catalogue.find_model("kimi-k2.6")
    recipe = load_recipe("kimi-k26-vllm")
    assert fewest_layers(kimi, recipe) == 2
    assert fewest_layers(kimi, dataclasses.replace(recipe, parallel=Parallel(tp=2, pp=4))) == 4


def test_what_is_left_out_is_said(tmp_path: Path) -> None:
    """A draft model cannot follow when its layers are gone."""
    recipe = dataclasses.replace(load_recipe("kimi-k26-vllm"), speculate=Speculate(draft="some/draft"))
    small, _, notes = reduce_recipe(deploy(recipe), tmp_path / "unused.gguf", 0)
    assert small.speculate is None
    assert any("speculative decoding" in note for note in notes)


def test_more_layers_than_there_are_is_bad_input(embedded: Recipe, tmp_path: Path) -> None:
    """A number that cannot be meant."""
    with pytest.raises(BadInput, match="--layers 99"):
        reduce_recipe(deploy(embedded), tmp_path / "x.gguf", 99)
