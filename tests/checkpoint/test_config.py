"""config.json as a model: right totals, or one line that names what is wrong."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moebox.checkpoint import resolve_model
from moebox.checkpoint.config import model_from_config
from moebox.core import catalogue
from moebox.errors import BadInput, MoeboxError
from tests.checkpoint.tiny import KIMI, QWEN, folder


def test_a_folder_gives_the_same_model_as_the_catalogue(tmp_path: Path):
    """Kimi K2's own shape, counted from its config."""
    model, (checkpoint,) = resolve_model(str(folder(tmp_path / "k2", KIMI)))
    assert model.total_parameters == catalogue.find_model("kimi-k2-instruct").total_parameters
    assert checkpoint.quant == "fp8-block"
    assert checkpoint.total_bytes == pytest.approx(1.029e12, rel=1e-3)


def test_grouped_attention_is_counted_too(tmp_path: Path):
    """Qwen3-235B-A22B: 235.09 B by its makers."""
    model, _ = resolve_model(str(folder(tmp_path / "qwen", QWEN)))
    assert model.total_parameters / 1e9 == pytest.approx(235.09, rel=1e-3)


def test_rules_that_spare_modules_are_followed(tmp_path: Path):
    """INT4 experts with bf16 attention, as Kimi K2 Thinking: 594.2 GB."""
    ignore = ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*", r"re:.*mlp\.(gate|up|gate_up|down)_proj.*"]
    group = {"group_0": {"weights": {"num_bits": 4, "group_size": 32, "type": "int"}}}
    quant = {"quant_method": "compressed-tensors", "ignore": ignore, "config_groups": group}
    _, (checkpoint,) = resolve_model(str(folder(tmp_path / "k2t", {**KIMI, "quantization_config": quant})))
    assert checkpoint.total_bytes == catalogue.find_checkpoint("kimi-k2-thinking", "int4").total_bytes


def test_quantisation_beside_the_config_is_read(tmp_path: Path):
    """NVIDIA's checkpoints keep it in hf_quant_config.json."""
    config = {key: value for key, value in KIMI.items() if key != "quantization_config"}
    path = folder(tmp_path / "nv", config)
    excluded = [f"model.layers.{n}.self_attn*" for n in range(61)]
    beside = {"quantization": {"quant_algo": "NVFP4", "exclude_modules": [*excluded, "lm_head"]}}
    (path / "hf_quant_config.json").write_text(json.dumps(beside))
    _, (checkpoint,) = resolve_model(str(path))
    assert checkpoint.quant == "nvfp4"
    assert (
        checkpoint.total_bytes == 589_837_622_272
    )  # by exact count: all but attention, head and embedding in 4.5 bits


@pytest.mark.parametrize(
    "field", ["hidden_size", "num_hidden_layers", "kv_lora_rank", "n_routed_experts", "vocab_size"]
)
@pytest.mark.parametrize("value", [None, -1, 0, 2**63, "many", True, 1.5, [1]])
def test_missing_and_absurd_fields_are_named(field: str, value: Any):
    """The message names the field and the file."""
    with pytest.raises(BadInput, match=field):
        model_from_config({**KIMI, field: value}, name="x", where="x/config.json")


def test_contradictions_are_named():
    """More experts used than there are; more dense layers than layers."""
    with pytest.raises(BadInput, match="num_experts_per_tok"):
        model_from_config({**KIMI, "num_experts_per_tok": 400}, name="x", where="x")
    with pytest.raises(BadInput, match="first_k_dense_replace"):
        model_from_config({**KIMI, "first_k_dense_replace": 62}, name="x", where="x")


def test_a_config_that_is_no_language_model_is_refused_by_field() -> None:
    """Without a number of layers there is nothing to plan."""
    config = {"architectures": ["RwkvForCausalLM"], "hidden_size": 4096}
    with pytest.raises(BadInput, match="num_hidden_layers is missing"):
        model_from_config(config, name="rwkv", where="config.json")


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=5), lambda x: st.lists(x, max_size=3)))
def test_no_value_of_any_field_crashes(value: Any):
    """Every field of the config takes anything: an answer or one line."""
    for field in KIMI:
        try:
            model_from_config({**KIMI, field: value}, name="x", where="x")
        except MoeboxError as problem:
            assert problem.exit_code == 2


@pytest.mark.parametrize("text", ["", "[]", "{}", "nul", '{"architectures": 5}', "[" * 100_000, '{"a":' * 50_000])
def test_broken_json_is_one_line(tmp_path: Path, text: str):
    """Nesting without end included."""
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(BadInput):
        resolve_model(str(path))


def test_an_empty_folder_and_a_missing_path_are_reported(tmp_path: Path):
    """Each its own line."""
    with pytest.raises(BadInput, match=r"neither config\.json"):
        resolve_model(str(tmp_path))
    with pytest.raises(BadInput, match="no such file"):
        resolve_model(str(tmp_path / "none"))


def test_a_context_that_yarn_stretches_is_the_stretched_one() -> None:
    """Qwen3's own advice for 131,072 tokens: rope_scaling in config.json, beside 40,960 positions."""
    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
    assert model_from_config(QWEN, name="x", where="x").context == 40960
    assert model_from_config({**QWEN, "rope_scaling": scaling}, name="x", where="x").context == 131072
