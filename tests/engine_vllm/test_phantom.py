"""Checks, climb and the phantom's answers on real vLLM 0.32."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest

from moebox import codec, phantom
from moebox.checkpoint import deploy
from moebox.cli import main
from moebox.core.endpoint import Endpoint
from moebox.core.engine_event import AttemptStarted
from moebox.core.quirks import first_unexpected_failure
from moebox.core.recipe import Climb, Recipe
from moebox.flows.compare import CompareEffort, SideListener, compare_sides, measure_sides
from moebox.flows.trials import climb
from moebox.flows.walk import ClimbEffort
from moebox.serve.session import engine_session
from moebox.store import PIPELINE, Run
from moebox.verify.options import CHECK_NAMES, VerifyOptions
from moebox.verify.runner import run_checks

from .conftest import on_vllm

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def rehearsal(venv: Path) -> Recipe:
    """The phantom's Hugging Face folder, with Kimi's parsers."""
    return on_vllm(venv, phantom.hf_path(), name="phantom", context=4096)


@pytest.fixture(scope="module")
def endpoint(rehearsal: Recipe, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    """One engine for all tests."""
    run = Run.create("phantom", runs=tmp_path_factory.mktemp("phantom"))
    with engine_session(deploy(rehearsal), run, patience_s=600) as session:
        yield session.endpoint


def test_nothing_fails_except_known_quirks(endpoint: Endpoint) -> None:
    """Kimi's template, parsers, latent attention and experts, as vLLM has them, pass all checks."""
    results = run_checks(endpoint, VerifyOptions(thinking="yes", seed=1))

    assert (results.engine, first_unexpected_failure(results)) == ("vllm", "")
    assert [check.name for check in results.rungs] == list(CHECK_NAMES)


def test_lookup_drafts_do_not_change_answers(rehearsal: Recipe, endpoint: Endpoint, run: Run) -> None:
    """The same questions with and without drafts: as many right, and vLLM's own count of accepted tokens."""
    drafting = dataclasses.replace(
        rehearsal,
        flags={**rehearsal.flags, "speculative-config": '{"method":"ngram","num_speculative_tokens":4}'},
    )
    effort = CompareEffort(concurrency=(1,), rounds=2)
    (plain,) = measure_sides({"plain": endpoint}, effort, SideListener(effort))
    with engine_session(deploy(drafting), run, patience_s=600) as session:
        (ahead,) = measure_sides({"ahead": session.endpoint}, effort, SideListener(effort))
    found = compare_sides(plain, ahead)

    assert found.as_good, found.verdict
    assert found.answers.right_b.share == 1
    assert found.acceptance_a is None
    assert found.acceptance_b
    assert 0 < found.acceptance_b < 1


def test_a_climb_restarts_and_verifies_the_real_engine(rehearsal: Recipe, run: Run) -> None:
    """One longer context, then lookup: each step comes up, passes its checks and is measured."""
    recipe = dataclasses.replace(rehearsal, climb=Climb(contexts=(1024, 2048), speculate=("none", "ngram")))
    light = ClimbEffort(
        concurrency=2, rounds=2, tokens=32, questions=8, trials=4, parallel=4, first_checks=("alive", "plain")
    )
    result = climb(recipe, run, effort=light)

    assert [(trial.change, trial.verdict) for trial in result.trials] == [
        ("start", "pass"),
        ("context 2048", "pass"),
        ("speculate ngram", "pass"),
    ], [trial.why for trial in result.trials]
    assert all(trial.output_tok_s > 0 and trial.kv_tokens > 0 for trial in result.trials)
    assert result.trials[-1].acceptance is not None
    assert "draft tokens accepted" in result.trials[-1].why


def test_a_whole_run_on_the_real_engine(rehearsal: Recipe, tmp_path: Path) -> None:
    """`moebox run` in one process: a small rehearsal, then the whole model served, checked and measured."""
    recipe = dataclasses.replace(rehearsal, climb=Climb(contexts=(1024, 2048)))
    file, runs = tmp_path / "recipe.toml", tmp_path / "runs"
    file.write_text(codec.to_toml(recipe))
    code = main(
        ["run", "--recipe", str(file), "--runs", str(runs), "--effort", "quick", "--concurrency", "1,2", "--yes"]
    )
    run = Run(next(runs.iterdir()))
    results = run.read_json("verify.json")
    assert code == any(check["verdict"] == "fail" for check in results["rungs"])
    states = {step["name"]: step["state"] for step in run.read_json(PIPELINE)["steps"]}
    launches = [event for event in run.read_events() if isinstance(event, AttemptStarted)]
    assert {name for name, state in states.items() if state != "done"} <= {"task"}
    assert [launch.aside for launch in launches] == [True] + [False] * (len(launches) - 1)
    assert ["dummy" in launch.argv for launch in launches] == [launch.aside for launch in launches]
    assert (run.path / "report.html").exists()
