"""What moebox does not know gets a result with its uncertainty, not the confidence of what it knows."""

import json
import re
from pathlib import Path

import pytest

from moebox.cli import main
from moebox_fleet.plan_command import find_candidate
from moebox_fleet.users import find_workload
from tests.checkpoint.tiny import DEEPSEEK2, TENSORS, folder, gguf, shard

pytestmark = pytest.mark.usefixtures("plans_once")
BOX = ["--box", "4x-rtx-pro-6000-server"]
NEW_GPU = (
    'gpus = ["2x-rtx-6090"]\ngpu_types.rtx-6090 = { like = "rtx-5090", memory = "48GiB", bandwidth = "2.5TB/s" }\n'
)


def read_forecast(words: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[str, str]:
    """Run a command and return its output and errors, each as one line."""
    assert main(words) == 0
    printed = capsys.readouterr()
    return " ".join(printed.out.split()), " ".join(printed.err.split())


def find_range(out: str, reason: str) -> tuple[int, int]:
    """The percentages of a range, of which `reason` is the reason."""
    found = re.search(rf"-(\d+)% to \+(\d+)% \({re.escape(reason)}", out)
    assert found, out
    return int(found[1]), int(found[2])


@pytest.fixture
def recipe(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """A recipe whose forecast stands on published results."""
    path = tmp_path / "recipe.toml"
    out, _ = read_forecast(["plan", "gpt-oss-120b", *BOX, "-o", str(path)], capsys)
    assert find_range(out, "80% of")[1] < 40
    return str(path)


NEWER = [("0.40.0", "is"), ("nightly", "may be"), ("1a2b3c4d", "may be"), ("0.1.dev19253+g5f76ae224", "may be")]


@pytest.mark.parametrize(("version", "relation"), NEWER)
def test_a_newer_engine_version_widens_the_range(
    recipe: str, version: str, relation: str, capsys: pytest.CaptureFixture[str]
):
    """No published result is of vLLM 0.40 or a commit: the widest range, and a line names the version that is known."""
    out, _ = read_forecast(["forecast", recipe, "--set", f"engine_version={version}"], capsys)
    assert "80% of" not in out
    assert find_range(out, f"no results of vLLM {version} are known)") > (40, 70)
    assert f"warning: vLLM {version} {relation} newer than 0.32.0, the newest that moebox knows" in out


@pytest.mark.parametrize("version", [version for version, _ in NEWER])
def test_flags_of_a_newer_version_are_passed_on_with_a_warning(
    recipe: str, version: str, capsys: pytest.CaptureFixture[str]
):
    """moebox cannot know that vLLM 0.40 or a commit lacks a flag; of 0.32 it does."""
    words = ["up", recipe, "--dry-run", "--set", "flags.brand-new=3", "--set"]
    out, err = read_forecast([*words, f"engine_version={version}"], capsys)
    assert "--brand-new 3" in out
    assert "are those of 0.32.0, which does not have --brand-new" in err
    assert main([*words, "engine_version=0.32.0"]) == 2
    assert "vllm 0.32.0 has no flag --brand-new" in capsys.readouterr().err


def test_a_branch_counts_as_newer_and_a_flag_is_no_version(recipe: str, capsys: pytest.CaptureFixture[str]):
    """Any branch can be installed and named; what begins with a dash is a mistake."""
    assert main(["forecast", recipe, "--set", "engine_version=-0.5"]) == 2
    assert "engine_version: '-0.5' is not a version" in capsys.readouterr().err
    for branch in ("master", "my-branch"):
        _, err = read_forecast(["up", recipe, "--dry-run", "--set", f"engine_version={branch}"], capsys)
        assert f"{branch} may be newer than 0.32.0" in err


def prompt_seconds(recipe: str, capsys: pytest.CaptureFixture[str], *settings: str, tokens: int = 256) -> float:
    """Forecast how long a prompt takes with these settings."""
    words = [word for setting in settings for word in ("--set", setting)]
    assert main(["forecast", recipe, "--prefill", "--input", str(tokens), "--json", *words]) == 0
    row = json.loads(capsys.readouterr().out)["rows"][0]
    return float(row["ttft_s"])


@pytest.fixture
def sglang_recipe(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    path = str(tmp_path / "sglang.toml")
    read_forecast(["plan", "qwen3-235b", "--box", "8x-h200", "--engine", "sglang", "-o", path], capsys)
    return path


def test_one_version_or_flag_in_several_spellings_has_one_forecast(
    sglang_recipe: str, capsys: pytest.CaptureFixture[str]
):
    """With a v, with a suffix, by the image's tag; flags with dashes before them or underscores within."""
    image = "runtime.image=lmsysorg/sglang:v0.5.9-cu130"
    old = prompt_seconds(sglang_recipe, capsys, "engine_version=0.5.9")
    assert old > prompt_seconds(sglang_recipe, capsys, "engine_version=0.5.15")
    for same in (["engine_version=v0.5.9"], ["engine_version=0.5.9-RC1"], ["runtime.kind=docker", image]):
        assert prompt_seconds(sglang_recipe, capsys, *same) == old
    eager = prompt_seconds(sglang_recipe, capsys, "flags.disable-prefill-cuda-graph=true")
    for flag in ("--disable-prefill-cuda-graph", "disable_prefill_cuda_graph"):
        assert prompt_seconds(sglang_recipe, capsys, f"flags.{flag}=true") == eager
    text = Path(sglang_recipe).read_text()
    Path(sglang_recipe).write_text(text.replace("[flags]", "[flags]\nlog_level = 'info'\nlog-level = 'debug'"))
    assert main(["forecast", sglang_recipe]) == 2
    assert "log_level and another spelling of it are both there" in capsys.readouterr().err


def test_fewer_graphs_are_never_faster(recipe: str, sglang_recipe: str, capsys: pytest.CaptureFixture[str]):
    """Neither for prompts nor for decoding, whichever flag turns them off."""
    usual = prompt_seconds(sglang_recipe, capsys)
    some = prompt_seconds(sglang_recipe, capsys, "flags.cuda-graph-max-bs-prefill=128")
    assert usual < some <= prompt_seconds(sglang_recipe, capsys, "flags.disable-cuda-graph=true")
    none = prompt_seconds(recipe, capsys, "flags.enforce-eager=true", tokens=64)
    assert none >= prompt_seconds(recipe, capsys, "flags.max-cudagraph-capture-size=0", tokens=64)
    some = ((sglang_recipe, "disable-decode-cuda-graph=true"), (recipe, "max-cudagraph-capture-size=0"))
    for name, flag in (*some, (sglang_recipe, "cuda-graph-max-bs-decode=4"), (recipe, "max-cudagraph-capture-size=4")):
        words = ["forecast", name, "--decode", "--context", "8192", "--concurrency", "8", "--json"]
        rates = []
        for more in ([], ["--set", f"flags.{flag}"]):
            assert main([*words, *more]) == 0
            rates.append(json.loads(capsys.readouterr().out)["rows"][0]["decode_tok_s"])
        assert rates[1] < rates[0] / 1.5


def test_images_have_tags_that_exist(sglang_recipe: str, capsys: pytest.CaptureFixture[str]):
    """A release's own, or latest; for a branch or a commit the recipe must name one."""
    words = ["up", sglang_recipe, "--dry-run", "--set", "runtime.kind=docker", "--set"]
    assert "lmsysorg/sglang:v0.5.15 " in read_forecast([*words, "engine_version=v0.5.15"], capsys)[0]
    assert "lmsysorg/sglang:latest " in read_forecast([*words, "engine_version=latest"], capsys)[0]
    assert main([*words, "engine_version=main"]) == 2
    assert "no image of SGLang main is known" in capsys.readouterr().err


def test_the_hint_for_an_unknown_gpu_works(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """The two lines of the hint make a box file that plans, with a range as wide as that of an unknown model."""
    assert main(["plan", "gpt-oss-120b", "--box", "2x RTX 6090"]) == 2
    hint = " ".join(capsys.readouterr().err.split())
    assert "did you mean rtx-5090" in hint
    assert "gpus = ['2x-rtx-6090']" in hint
    file, start = tmp_path / "box.toml", hint.index("gpus = ")
    file.write_text(hint[start:].replace(" and gpu_types.", "\ngpu_types."))
    out, _ = read_forecast(["plan", "gpt-oss-120b", "--box", str(file), "--ram", "256GiB"], capsys)
    assert "rtx-6090 is unknown: computed from the bytes read for a token" in out


def test_a_described_gpu_stays_in_the_recipe(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """The recipe holds the description, so that a forecast elsewhere has the same figures."""
    box, path = tmp_path / "box.toml", tmp_path / "recipe.toml"
    box.write_text(NEW_GPU)
    assert main(["plan", "gpt-oss-120b", "--box", str(box), "-o", str(path), "--json"]) == 0
    planned = json.loads(capsys.readouterr().out)
    box.unlink()
    out, _ = read_forecast(["forecast", str(path)], capsys)
    assert find_range(out, "rtx-6090 is unknown") > (40, 70)
    assert planned


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ('like = "rtx-5090", memory = "48", bandwidth = "2TB/s"', "memory = '48' is not the size"),
        ('like = "rtx-5090", memory = "48GiB", bandwidth = "2"', "bandwidth = '2' is not a GPU's"),
        ('like = "rtx-9999", memory = "48GiB", bandwidth = "2TB/s"', "unknown GPU 'rtx-9999'"),
        ('like = "rtx-5090", memory = "48GiB"', "bandwidth"),
        (
            'like = "rtx-5090", memory = "48GiB", bandwidth = "2TB/s", vram = 3',
            "unknown setting 'gpu_types.rtx-6090.vram'",
        ),
    ],
)
def test_a_wrong_description_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str], row: str, message: str):
    """Units, unknown names and missing fields are named with the file."""
    box = tmp_path / "box.toml"
    box.write_text(f'gpus = ["2x-rtx-6090"]\ngpu_types.rtx-6090 = {{ {row} }}\n')
    assert main(["box", "--box", str(box)]) == 2
    assert message in capsys.readouterr().err


ODD = {
    "architectures": ["OddMoeForCausalLM"],
    "hidden_size": 4096,
    "num_hidden_layers": 48,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "n_routed_experts": 128,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 1536,
    "vocab_size": 151552,
    "rope_theta": 1000000,
    "bos_token_id": 7,
}


@pytest.mark.parametrize("words", [["plan", *BOX, "--why"], ["models", "show"]])
def test_unknown_weights_name_what_was_not_understood(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str]
):
    """An unknown quantisation counts with its stated bits; fields that were not read are named."""
    quant = {"quant_method": "zq5", "bits": 5}
    config = {**ODD, "engram_table_size": 10**6, "quantum_rank": 77, "quantization_config": quant}
    (tmp_path / "config.json").write_text(json.dumps(config))
    out, _ = read_forecast([*words, str(tmp_path)], capsys)
    assert "no engine is known to run OddMoeForCausalLM" in out
    assert "not read, and not counted: engram_table_size, quantum_rank" in out
    assert "quantisation zq5 is unknown: sizes are as 5.6 bits a weight, no engine is known to load it" in out
    assert "rope_theta" not in out


def test_unknown_weights_without_odd_fields_have_no_such_notes(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Fields that change no size are not listed."""
    (tmp_path / "config.json").write_text(json.dumps(ODD))
    out, _ = read_forecast(["plan", *BOX, "--why", str(tmp_path)], capsys)
    assert "not counted" not in out
    assert "-0.000000" not in out
    assert "quantisation" not in out


NO_EXPERTS = {name: value for name, value in ODD.items() if "expert" not in name and "moe" not in name}
ONE_EXPERT = 3 * 4096 * 1536  # parameters


@pytest.mark.parametrize(
    ("fields", "expert_layers"),
    [
        ({"moe_config": {"num_experts": 128, "top_k": 8, "intermediate_size": 1536}}, 48),
        ({"ffn_config": {"moe_num_experts": 128, "moe_top_k": 8, "ffn_hidden_size": 1536}}, 48),
        ({"n_experts": 128, "moe_k": 8, "expert_dim": 1536}, 48),
        ({"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 1536, "moe_layer_frequency": 2}, 24),
        ({"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 1536, "expert_layer_period": 2}, 24),
        ({"num_experts": 128, "moe_topk": 8, "moe_intermediate_size": 1536, "moe_layers_enum": "4,5,6,7"}, 4),
        (
            {
                "num_experts": 128,
                "moe_k": 8,
                "moe_intermediate_size": 1536,
                "mlp_only_layers": [0, 1],
                "decoder_sparse_step": 2,
            },
            23,
        ),
    ],
)
def test_experts_are_counted_wherever_the_config_states_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], fields: dict[str, object], expert_layers: int
):
    """Experts in an object of their own, under another name, or in some layers only are weights all the same."""
    (tmp_path / "config.json").write_text(json.dumps({**NO_EXPERTS, "intermediate_size": 8192, **fields}))
    assert main(["models", "show", str(tmp_path), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["parameters"]["by_component"]["routed_experts"] == expert_layers * 128 * ONE_EXPERT
    out, _ = read_forecast(["models", "show", str(tmp_path)], capsys)
    assert "8 of 128 experts are read" in out
    assert "not counted" not in out


def test_a_size_for_each_layer_is_named_if_the_largest_counts(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """A list of equal sizes needs no note."""
    config = {**ODD, "n_routed_experts": [64] * 20 + [128] * 28, "num_key_value_heads": [8] * 48}
    (tmp_path / "config.json").write_text(json.dumps(config))
    out, _ = read_forecast(["plan", *BOX, "--why", str(tmp_path)], capsys)
    assert "the largest value counts for every layer: n_routed_experts" in out
    assert "num_key_value_heads" not in out


def test_a_tensor_type_of_a_newer_format_is_sized_by_its_place_in_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """Both formats state where each tensor lies, so bytes are known; that no engine is known to load it is noted."""
    sizes = {}
    for name, width in {"F8_E4M3": 1, "F5_NEW": 0.625}.items():
        made = folder(tmp_path / name, {**ODD, "num_hidden_layers": 1})
        parts = {"model.layers.0.mlp.experts.0.up_proj.weight": (name, [1536, 4096], int(1536 * 4096 * width))}
        shard(made / "model.safetensors", parts)
        assert main(["models", "show", str(made), "--json"]) == 0
        sizes[name] = json.loads(capsys.readouterr().out)["checkpoints"][0]["bytes"]
    assert sizes["F5_NEW"] == sizes["F8_E4M3"] * 0.625
    out, _ = read_forecast(["plan", *BOX, str(tmp_path / "F5_NEW")], capsys)
    assert "quantisation F5_NEW is unknown: sizes are from the files, no engine is known to load it" in out
    assert find_range(out, "the architecture is unknown and the quantisation is unknown") > (55, 120)


def test_a_gguf_type_that_is_in_no_table_is_planned(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """ggml gets new types every few months: the bytes are those up to the next tensor, and the range is wide."""
    path, recipe = tmp_path / "new.gguf", tmp_path / "recipe.toml"
    tensors = [(name, shape, 977 if "exps" in name else kind) for name, shape, kind in TENSORS]
    gguf(path, DEEPSEEK2, tensors)
    assert main(["models", "show", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["checkpoints"][0]["bytes"] > 0
    out, _ = read_forecast(["plan", str(path), *BOX, "--ram", "64GiB", "--context", "2048", "-o", str(recipe)], capsys)
    assert "quantisation ggml-type-977 is unknown" in out
    assert "the quantisation is unknown" in out
    assert main(["up", str(recipe), "--dry-run", "--json"]) == 0
    printed = capsys.readouterr()
    notes = json.loads(printed.out)["notes"]
    assert any("quantisation ggml-type-977 is unknown" in note for note in notes), notes
    assert all(note[:40] in printed.err for note in notes)


def test_a_fleet_has_the_range_of_a_serving_forecast(recipe: str, capsys: pytest.CaptureFixture[str]):
    """`fleet plan` and `forecast --input --output` state the same range for the same recipe on the same box."""
    words = ["forecast", recipe, "--input", "512", "--output", "64", "--concurrency", "1"]
    out, _ = read_forecast(words, capsys)
    candidate = find_candidate(recipe, "4x-rtx-pro-6000-server", find_workload("chat"))
    low, high = candidate.speed_range
    assert f"expect {low - 1:+.0%} to {high - 1:+.0%} ({candidate.model.speed.basis_text('serving')})" in out
