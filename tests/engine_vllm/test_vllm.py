"""Real vLLM 0.32 on the CPU: up, facts, down; a rehearsal; and the flag catalogue against its own parser."""

import dataclasses
import json
import subprocess
from pathlib import Path

import pytest

from moebox.checkpoint import deploy
from moebox.core.recipe import Recipe
from moebox.engines.flags import flag_catalogue
from moebox.errors import ExternalError
from moebox.flows.rehearse import rehearse
from moebox.serve.faults import LaunchFailed
from moebox.serve.session import engine_session, launch_engine, prepare_launch
from moebox.serve.state import marked_processes
from moebox.store import Run

from .conftest import dtype

pytestmark = pytest.mark.engine
ROOT = Path(__file__).resolve().parents[2]


def test_the_real_kimi_class_starts_reports_its_facts_and_stops(recipe: Recipe, run: Run) -> None:
    """From a configuration alone; the cache's tokens come from vLLM's own metrics, and no worker is left."""
    with engine_session(deploy(recipe), run, patience_s=600) as session:
        assert session.is_alive
        assert (session.facts.kv_tokens or 0) > 10_000
        assert [name for name, _ in session.watch.summary.phases][-1] == "ready"
        assert b"KimiK25ForConditionalGeneration" in session.log.read_bytes()

    assert not marked_processes()
    kinds = [event.kind for event in run.read_events()]
    assert kinds[0] == "attempt.started"
    assert {"attempt.ready", "engine.stopped"} <= set(kinds)


def test_a_rehearsal_prompts_the_real_engine_beyond_one_prefill_block(recipe: Recipe, run: Run) -> None:
    """Two of three layers, dummy weights by the engine's own flags, a prompt longer than a step."""
    small = dataclasses.replace(
        recipe, context=1024, batched_tokens=512, flags={"enforce-eager": True, "dtype": dtype()}
    )
    found = rehearse(deploy(small), run, patience_s=600)
    assert found.layers == 2
    assert [step.name for step in found.steps] == ["boot", "long prompt", "decode", "down"]
    assert not marked_processes()


def test_a_context_that_does_not_fit_is_explained_by_vllm_itself(recipe: Recipe, run: Run) -> None:
    """vLLM names the longest context that its cache holds; moebox makes it a change to the recipe."""
    large = dataclasses.replace(recipe, context=524288, batched_tokens=None)
    with pytest.raises(LaunchFailed) as caught, engine_session(deploy(large), run, patience_s=600):
        pass
    assert caught.value.finding is not None
    assert caught.value.finding.symptom == "oom-context-too-long"
    assert 2048 < int(caught.value.finding.change["context"]) < 524288  # type: ignore[call-overload]


def test_settings_that_vllm_refuses_are_explained_by_its_message(recipe: Recipe, run: Run) -> None:
    """Its validation error names the setting on the line after; both are in the cause."""
    odd = dataclasses.replace(recipe, batched_tokens=16, max_seqs=64)
    with pytest.raises(LaunchFailed) as caught, engine_session(deploy(odd), run, patience_s=600):
        pass
    assert "refused the combination of settings" in caught.value.message
    assert "max_num_batched_tokens" in caught.value.message


def test_the_flag_catalogue_matches_the_real_parser(venv: Path) -> None:
    """Every flag of the installed vLLM is in the catalogue under the same names, and no other."""
    words = [str(venv / "bin" / "python"), str(ROOT / "scripts" / "dump_flags.py"), "vllm", "--version", "0.32.0"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=600, check=True)
    fresh = json.loads(done.stdout)
    kept = json.loads((ROOT / "src/moebox/data/flags/vllm-0.32.0.json").read_text())
    assert _names(fresh) == _names(kept)
    assert flag_catalogue("vllm", "0.32.0").find_spec("--tensor-parallel-size")


def test_another_version_is_refused_before_anything_starts(recipe: Recipe, run: Run) -> None:
    """The version is read from the venv's own metadata, without importing vLLM."""
    other = dataclasses.replace(recipe, engine_version="0.31.0")
    with pytest.raises(ExternalError, match=r"wants vllm 0\.31\.0, this machine has 0\.32\.0"):
        launch_engine(prepare_launch(deploy(other)), run)


def _names(document: object) -> set[str]:
    """Every flag in a catalogue, however it is laid out."""
    found: set[str] = set()
    edge = [document]
    while edge:
        value = edge.pop()
        if isinstance(value, dict):
            edge += [*value.keys(), *value.values()]
        elif isinstance(value, list):
            edge += value
        elif isinstance(value, str) and value.startswith("--") and " " not in value:
            found.add(value)
    return found
