"""Rehearsals: the real embedded engine with a generated GGUF, and what other engines invent."""

import contextlib
import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from moebox import codec, engines
from moebox.checkpoint import deploy
from moebox.cli import main
from moebox.core import catalogue
from moebox.core.box import Box
from moebox.core.engine_event import AttemptStarted
from moebox.core.recipe import Parallel, Recipe, Speculate
from moebox.errors import AnswerIsNo, BadInput, Unsupported
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
    assert codec.read_toml(Recipe, run.path / "recipe.toml").checkpoint.endswith("phantom-q8_0.gguf")
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
    assert (small.env.get("VLLM_DEEP_GEMM_WARMUP") == "skip") == (recipe.engine == "vllm")


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


def config_folder(path: Path, **config: object) -> Path:
    """A model's folder without weights: Nemotron's shapes, a tokenizer, and a large file that is not copied."""
    shapes = {
        "architectures": ["NemotronHForCausalLM"],
        "model_type": "nemotron_h",
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "num_key_value_heads": 2,
        "head_dim": 128,
        "vocab_size": 131072,
        "intermediate_size": 2688,
        "max_position_embeddings": 262144,
    }
    path.mkdir()
    (path / "config.json").write_text(json.dumps(shapes | config))
    (path / "tokenizer.json").write_text("{}")
    with open(path / "large.pt", "wb") as large:
        large.truncate(65 * 2**20)
    return path


PATTERN = "MEMEMEM*EMEMEMEM*EMEMEMEM*E"


@pytest.mark.parametrize(
    ("listed", "kept"),
    [
        ({"hybrid_override_pattern": PATTERN}, 8),
        ({"layer_types": ["sliding", "full"] * 13 + ["full"]}, 2),
        ({"compress_ratios": [0, 0, 4, 128] + [4, 128] * 11 + [4] + [0]}, 4),  # the last one is a draft's
        ({"eos_token_id": [1, 2, 3]}, 1),
        ({"layer_pattern": None, "text_config": None}, 1),
    ],
)
def test_few_layers_have_one_of_each_kind_that_the_config_lists(
    listed: dict[str, Any], kept: int, tmp_path: Path
) -> None:
    """A rehearsal keeps the first layers until each kind has occurred, and cuts the lists to these."""
    gqa = {"num_hidden_layers": 27, "architectures": ["Qwen3MoeForCausalLM"], "num_experts": 128}
    gqa |= {"num_experts_per_tok": 8, "moe_intermediate_size": 768}
    mamba = {
        "mamba_num_heads": 128,
        "mamba_head_dim": 64,
        "ssm_state_size": 128,
        "n_groups": 8,
        "n_routed_experts": 512,
    }
    mamba |= {
        "moe_intermediate_size": 2688,
        "num_experts_per_tok": 22,
        "moe_latent_size": 1024,
        "num_hidden_layers": 27,
    }
    folder = config_folder(tmp_path / "model", **(mamba if "hybrid_override_pattern" in listed else gqa), **listed)
    recipe = Recipe(
        name="x", engine="vllm", model=str(folder), checkpoint=str(folder), served_name="x", context=4096, kv="bf16"
    )
    small, layers, _ = reduce_recipe(deploy(recipe), tmp_path / "unused.gguf", 0)
    assert layers == kept
    made = Path(small.checkpoint)
    assert sorted(path.name for path in made.iterdir()) == ["config.json", "tokenizer.json"]
    config = json.loads((made / "config.json").read_text())
    assert config["num_hidden_layers"] == kept
    for key, value in listed.items():
        assert config[key] == (value[:kept] + value[27:] if value and len(value) >= 27 else value)


def test_what_cannot_start_with_dummy_weights_is_not_rehearsed(tmp_path: Path) -> None:
    """vLLM 0.26 computes a part of DeepSeek-V4's weights while it reads a checkpoint."""
    recipe = dataclasses.replace(
        load_recipe("kimi-k26-vllm"), model="deepseek-v4-flash", checkpoint="deepseek-v4-flash"
    )
    for version, refused in (("0.25.0", False), ("0.26.0", True)):
        deployment = deploy(dataclasses.replace(recipe, engine_version=version, kv="fp8"))
        with pytest.raises(Unsupported, match="hc_attn_fn_broadcast") if refused else contextlib.nullcontext():
            reduce_recipe(deployment, tmp_path / "unused.gguf", 0)
