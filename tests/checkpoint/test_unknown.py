"""Weights of an architecture that moebox does not know give a plan with its assumptions, or one line."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moebox.checkpoint import look_up_model
from moebox.checkpoint.config import checkpoint_from_config, model_from_config
from moebox.core import catalogue
from moebox.core.box import Box
from moebox.core.plan import Plan
from moebox.detect.declared import parse_box
from moebox.errors import BadInput, DoesNotFit
from moebox.planner.choose import choose_plan
from moebox.planner.constraints import Constraints
from tests.checkpoint.tiny import folder, gguf, shard
from tests.sampling import one_in

CONFIGS = Path(__file__).parent / "unknown_configs"
# Billions of parameters without vision tower and prediction layers: as published, or the Hub's metadata less those.
PUBLISHED = {
    "Qwen--Qwen3-Coder-480B-A35B-Instruct": 480,
    "Qwen--Qwen3-Next-80B-A3B": 80,
    "Qwen--Qwen3.5-35B-A3B": 34.7,
    "XiaomiMiMo--MiMo-V2.6-Pro": 1020,
    "nvidia--NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": 31.6,
    "nvidia--NVIDIA-Nemotron-3-Super-120B-A12B-NVFP4": 120.6,
    "nvidia--NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16": 550,
    "nvidia--NVIDIA-Nemotron-3.5-Lightning-30B-A3B-NVFP4": 31.6,
    "poolside--Laguna-S-2.1": 118,
    "tencent--Hy3": 295,
    "zai-org--GLM-4.5-Air": 106,
    "zai-org--GLM-5.3-Flash": 313.3,
    "Qwen--Qwen3.8-Flash-Next": 176,
}
ODD = {"architectures": ["OddForCausalLM"], "hidden_size": 2048, "num_hidden_layers": 8, "vocab_size": 1000}
ODD |= {"num_attention_heads": 16, "num_key_value_heads": 4, "intermediate_size": 4096}


def plan_of(path: Path, box: str = "8x-b300") -> Plan:
    found = look_up_model(str(path))
    return choose_plan(parse_box(box), found.model, found.checkpoints, Constraints(context=4096))


@pytest.mark.parametrize("name", one_in(3, PUBLISHED))
def test_real_configs_count_within_a_percent_and_give_a_plan(name: str) -> None:
    """Hybrid, latent, windowed and state-space models, read by the names of their fields alone."""
    path = CONFIGS / f"{name}.json"
    assert look_up_model(str(path)).model.text_parameters / 1e9 == pytest.approx(PUBLISHED[name], rel=0.01)
    assert plan_of(path).forecast[0].decode_tok_s > 0


@pytest.mark.parametrize(
    ("config", "name"),
    [
        ("zai-org--GLM-5.3-Flash", "glm-5.3-flash"),
        ("Qwen--Qwen3.8-Flash-Next", "qwen3.8-flash-next"),
        ("nvidia--NVIDIA-Nemotron-3-Super-120B-A12B-NVFP4", "nemotron-3-super"),
        ("XiaomiMiMo--MiMo-V2.6-Pro", "mimo-v2.6-pro"),
        ("poolside--Laguna-S-2.1", "laguna-s-2.1"),
        ("tencent--Hy3", "hy3"),
    ],
)
def test_a_config_of_the_catalogue_gets_its_model(config: str, name: str) -> None:
    """Kinds of layer that the fields alone do not show come from the catalogue, and nothing is assumed."""
    found = look_up_model(str(CONFIGS / f"{config}.json"))
    assert found.model.name == name
    assert not any("unknown architecture" in note for note in found.notes)


def test_tables_in_ram_are_stated_and_must_fit() -> None:
    """51 GB of n-gram tables: a note if the RAM holds them, else no plan."""
    model = catalogue.find_model("qwen3.8-flash-next")
    forms = tuple(each for each in catalogue.published_checkpoints(model.name) if each.name == "nvfp4")
    plan = choose_plan(replace(parse_box("4x-rtx-5090"), ram=128 * 2**30), model, forms, Constraints())
    assert "its n-gram tables, 51.2 GB, are kept in RAM" in [warning.text for warning in plan.warnings]
    with pytest.raises(DoesNotFit):
        choose_plan(replace(parse_box("4x-rtx-5090"), ram=32 * 2**30), model, forms, Constraints())


def test_an_unknown_architecture_states_its_assumptions_and_a_wide_range(tmp_path: Path) -> None:
    """One line names the cache and the experts that were assumed; the range covers a factor of two."""
    path = folder(tmp_path / "odd", ODD)
    (note,) = (line for line in look_up_model(str(path)).notes if "OddForCausalLM" in line)
    assert "8 layers cache 1,024 elements a token, no experts" in note
    assert note.startswith("no engine is known to run OddForCausalLM")
    best = plan_of(path, "1x-rtx-5090").forecast[0]
    assert best.low_tok_s < best.decode_tok_s / 2
    assert best.high_tok_s > best.decode_tok_s * 2


def test_weights_come_from_the_headers(tmp_path: Path) -> None:
    """The bytes of a folder are those of its files, whatever the architecture."""
    path = folder(tmp_path / "odd", ODD)
    names = [f"backbone.layers.{layer}.mixer.in_proj.weight" for layer in range(8)]
    shard(path / "model.safetensors", {name: ("BF16", [1000, 1000], 2_000_000) for name in names})
    (checkpoint,) = look_up_model(str(path)).checkpoints
    assert checkpoint.how == "read"
    assert checkpoint.bytes_by_component == {"attention": 16_000_000}


def test_weights_come_from_the_index_if_no_shard_is_there(tmp_path: Path) -> None:
    """A folder with config.json and the index alone has the total that the index states."""
    path = folder(tmp_path / "odd", ODD)
    index = {"metadata": {"total_size": 123_456_789}, "weight_map": {"a": "model-00001-of-00001.safetensors"}}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))
    (checkpoint,) = look_up_model(str(path)).checkpoints
    assert checkpoint.total_bytes == pytest.approx(123_456_789, abs=10)


def test_a_part_that_stands_alone_and_a_title_in_two_lines_are_seen(tmp_path: Path) -> None:
    """The header says how many parts there are, whatever the file is called; no line of a title looks like ours."""
    keys = {"block_count": 8, "embedding_length": 2048, "context_length": 8192, "vocab_size": 1000}
    keys |= {"attention.head_count": 16, "attention.head_count_kv": 4, "feed_forward_length": 4096}
    metadata = {"general.architecture": "odd", "general.name": "a\nerror: b", "split.count": 3}
    metadata |= {f"odd.{name}": value for name, value in keys.items()}
    found = look_up_model(str(gguf(tmp_path / "odd.gguf", metadata, [("blk.0.attn_q.weight", [2048, 2048], 1)])))
    assert found.model.title == "a error: b"
    assert "odd.gguf is one of 3 parts by its header; by its name it is alone" in found.notes


def test_a_gguf_of_any_architecture_is_read(tmp_path: Path) -> None:
    """Shape from the header's metadata, bytes from its tensors."""
    keys = {"block_count": 8, "embedding_length": 2048, "context_length": 8192, "vocab_size": 1000}
    keys |= {"attention.head_count": 16, "attention.head_count_kv": 4, "feed_forward_length": 4096}
    metadata = {"general.architecture": "odd", **{f"odd.{name}": value for name, value in keys.items()}}
    found = look_up_model(str(gguf(tmp_path / "odd.gguf", metadata, [("blk.0.attn_q.weight", [2048, 2048], 1)])))
    assert found.model.kv_bytes_per_token("bf16") == 8 * 2 * 4 * 128 * 2
    assert "odd.gguf is not downloaded completely: it has 379 bytes" in found.notes[0]
    assert "no engine is known to run odd, an unknown architecture" in found.notes[1]


@pytest.mark.parametrize(
    ("quant", "label", "bits"),
    [
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, "int4-g128", 4.15625),
        ({"quant_method": "gptq", "bits": 8, "group_size": 32}, "int8-g32", 8.75),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, "fp8-tensor", 8.0),
        ({"quant_method": "mxfp8"}, "fp8-mx", 8.25),
        ({"quant_method": "fp8", "store_dtype": "mxfp4"}, "mxfp4", 8.001953125),
    ],
)
def test_quantisations_of_other_tools_are_read(quant: dict[str, Any], label: str, bits: float, tmp_path: Path) -> None:
    """AWQ, GPTQ, modelopt's fp8, mxfp8, and fp8 that holds mxfp4 experts."""
    model = model_from_config(ODD, name="odd", where="config.json")
    checkpoint = checkpoint_from_config(model, {**ODD, "quantization_config": quant}, "odd", tmp_path)
    assert checkpoint.quant == label
    assert checkpoint.bytes_by_component["dense_ffn"] * 8 == pytest.approx(8 * 3 * 2048 * 4096 * bits, rel=1e-6)


MOE = {**ODD, "num_experts": 16, "num_experts_per_tok": 2, "moe_intermediate_size": 512}


def test_networks_that_no_field_names_are_counted() -> None:
    """Llama 4's shared expert, Gemma 4's dense network beside experts, Nemotron-H's layers of only a network."""

    def parameters(**fields: Any) -> dict[str, int]:
        config = {name: value for name, value in (MOE | fields).items() if value is not None}
        return dict(model_from_config(config, name="odd", where="config.json").parameters_by_component)

    llama = parameters(
        intermediate_size=512, moe_intermediate_size=None, intermediate_size_mlp=4096, interleave_moe_layer_step=2
    )
    assert (llama["shared_experts"], llama["dense_ffn"]) == (4 * 3 * 2048 * 512, 4 * 3 * 2048 * 4096)
    assert parameters(enable_moe_block=True)["shared_experts"] == 8 * 3 * 2048 * 4096
    nemotron = parameters(
        num_experts=None, hybrid_override_pattern="M-M-M*M-", mlp_hidden_act="relu2", ssm_state_size=8
    )
    assert nemotron["dense_ffn"] == pytest.approx(3 * 2 * 2048 * 4096, rel=0.001)


def test_layers_of_the_whole_context_may_have_heads_of_their_own() -> None:
    """Gemma 4 names them global; the layers with a window keep the plain ones."""
    kinds = ["sliding_attention"] * 6 + ["full_attention"] * 2
    fields = {"layer_types": kinds, "sliding_window": 64, "num_global_key_value_heads": 1, "global_head_dim": 256}
    model = model_from_config(MOE | fields, name="odd", where="config.json")
    assert model.kv_bytes_per_token("bf16") == 2 * 2 * 1 * 256 * 2
    assert model.stack[1].kind.entry_width(1) == 2 * 4 * 128


@pytest.mark.parametrize(
    ("entries", "full", "states", "note"),
    [
        (3 * ["linear_attention"] + ["full_attention"], 15, 45, "its list of 4 layers is repeated"),
        (6 * ["linear_attention"] + ["full_attention"], 54, 6, "its list of 7 layers ends early"),
        (45 * ["linear_attention"] + 15 * ["full_attention"], 15, 45, ""),
    ],
)
def test_a_short_list_of_layers_is_a_pattern_or_said_to_end(
    entries: list[str], full: int, states: int, note: str
) -> None:
    """Four kinds for sixty layers counted as 57 layers with a whole cache; a context that no field names is stated."""
    config = {
        "hidden_size": 4096,
        "num_hidden_layers": 60,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "vocab_size": 151936,
        "layer_types": entries,
    }
    model = model_from_config(config | {"architectures": ["ZzForCausalLM"]}, name="zz", where="config.json")
    counts = {layers.count for layers in model.stack}
    assert counts == {full, states}
    assert note in model.assumed
    assert ("its list" in model.assumed) == bool(note)
    assert "no context is named, so 32,768" in model.assumed


def test_numbers_may_be_written_as_text() -> None:
    """A few converters write "8" or 8.0; an empty list is not named as a field that was not read."""
    odd = model_from_config(
        MOE | {"num_experts": "16", "num_hidden_layers": 8.0, "mlp_only_layers": []}, name="odd", where="config.json"
    )
    assert (odd.experts, odd.layers) == (16, 8)
    assert "not read" not in odd.assumed


def test_what_is_quantised_is_somewhere(tmp_path: Path) -> None:
    """Rules that exclude attention and mlp of every layer leave the experts, if they are outside mlp (Gemma 4)."""
    model = model_from_config(MOE, name="odd", where="config.json")
    ignore = [f"model.language_model.layers.{layer}.{part}*" for layer in range(8) for part in ("mlp", "self_attn")]
    quant = {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ignore}
    checkpoint = checkpoint_from_config(model, MOE | {"quantization_config": quant}, "odd", tmp_path)
    bits = {
        name: size * 8 / model.parameters_by_component[name] for name, size in checkpoint.bytes_by_component.items()
    }
    assert (bits["attention"], bits["routed_experts"]) == (16, pytest.approx(4.5, rel=0.01))


NUMBERS = """
num_attention_heads num_key_value_heads head_dim v_head_dim kv_lora_rank q_lora_rank qk_rope_head_dim qk_nope_head_dim
index_n_heads index_head_dim index_topk index_kpool sliding_window intermediate_size num_experts num_experts_per_tok
moe_intermediate_size n_shared_experts first_k_dense_replace ssm_state_size mamba_num_heads mamba_head_dim n_groups
linear_num_value_heads linear_key_head_dim full_attention_interval sliding_window_pattern decoder_sparse_step
moe_latent_size max_position_embeddings num_nextn_predict_layers moe_layer_freq mlp_only_layers vocab_size
"""
KINDS = st.lists(st.sampled_from(["full_attention", "sliding_attention", "linear_attention", "mamba", "moe", "x"]))
PLAIN = st.sampled_from([None, 1, 2, 4, 8, 16, 64, 128, [2, 4]])
WILD = PLAIN | st.sampled_from([0, 3, -1, 2**39, 2**41, "8", 1.5, True, [], {}])


def configs(numbers: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {"hidden_size": st.sampled_from([1, 64, 2048, 7168]), "num_hidden_layers": st.integers(1, 12)},
        optional={
            **dict.fromkeys(NUMBERS.split(), numbers),
            "layer_types": KINDS,
            "hybrid_override_pattern": st.text("ME*-", max_size=12),
            "hybrid_layer_pattern": st.lists(st.integers(0, 1), max_size=12),
            "linear_attn_config": st.dictionaries(st.sampled_from(["num_heads", "head_dim", "kda_layers"]), numbers),
        },
    )


BOX: Box = parse_box("1x-h200")


@settings(max_examples=60, deadline=None)
@given(configs(PLAIN) | configs(WILD))
def test_any_combination_of_fields_gives_a_plan_or_one_line(fields: dict[str, Any]) -> None:
    """No traceback: BadInput with one line, a plan, or a model that does not fit the box."""
    config = {"vocab_size": 1000, **fields, "architectures": ["OddForCausalLM"]}
    try:
        model = model_from_config(config, name="odd", where="config.json")
        checkpoint = checkpoint_from_config(model, config, "odd", Path())
        plan = choose_plan(BOX, model, (checkpoint,), Constraints(context=min(1024, model.context)))
    except (BadInput, DoesNotFit) as problem:
        assert "\n" not in problem.message
        return
    assert plan.forecast[0].decode_tok_s > 0
