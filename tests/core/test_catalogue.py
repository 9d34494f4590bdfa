"""The catalogue's figures against what their makers and independent counts published."""

import pytest

from moebox.core import catalogue
from moebox.core.model import Checkpoint, Model
from moebox.core.recipe import Recipe
from moebox.core.symptom import KnownScan, Symptom, known_scan
from moebox.detect.declared import gpu_by_alias
from moebox.errors import UnknownName
from moebox.sizing import kv


def form(model: str, name: str) -> tuple[Model, Checkpoint]:
    return catalogue.find_model(model), catalogue.find_checkpoint(model, name)


def test_the_kimi_text_core_has_1026_billion_parameters_and_31_7_active():
    """1,026,408,232,448 by exact count of the tensor shapes; ik_llama.cpp prints 1026.41 B when it loads one."""
    kimi = catalogue.find_model("kimi-k2-instruct")
    assert kimi.total_parameters == 1_026_408_232_448
    assert kimi.active_parameters == 31_687_095_808
    assert catalogue.find_model("kimi-k2.6").text_parameters == kimi.total_parameters


@pytest.mark.parametrize(
    ("model", "name", "published"),
    [
        ("kimi-k2.6", "int4", 595.15e9),  # safetensors index of the family; NVIDIA NIM support matrix: 595 GB
        ("kimi-k2-instruct", "fp8", 1.029e12),  # 1.03 TB as published
        ("kimi-k2-thinking", "int4", 594.2e9),  # 594 GB as published
        ("kimi-k2.6", "nvfp4", 595.219e9),  # a published disk image of it: 595,219,173,376 bytes
        ("kimi-k2.6", "Q4_X", 544.0 * 2**30),  # ubergarm's page: 544 GiB
        ("kimi-k2.6", "IQ3_K", 460.0 * 2**30),  # ubergarm's page: 460 GiB
        ("gpt-oss-120b", "mxfp4", 65.2e9),  # 65.2 GB of safetensors on the Hub
    ],
)
def test_checkpoint_sizes_match_what_was_published(model: str, name: str, published: float):
    """Within a tenth of a percent: the planner stands on these."""
    assert form(model, name)[1].total_bytes == pytest.approx(published, rel=1e-3)


def test_mla_keeps_576_elements_a_layer_and_token():
    """35,136 bytes a token in fp8 and 70,272 in bf16, over Kimi's 61 layers."""
    kimi = catalogue.find_model("kimi-k2.6")
    assert kimi.attention.kv_width == 576
    assert kimi.kv_bytes_per_token("fp8") == 35_136
    assert kimi.kv_bytes_per_token("bf16") == 70_272
    assert kimi.kv_bytes_per_token("q8_0") == 37_332


@pytest.mark.parametrize(
    ("model", "billions"),
    [
        ("deepseek-v3", 671.03),
        ("deepseek-v3.2", 671.88),
        ("glm-5", 743.91),
        ("glm-4.7", 352.8),
        ("qwen3-235b", 235.09),
        ("minimax-m2.5", 228.69),
        ("gpt-oss-120b", 116.83),
        ("kimi-k2.6-reap-519b", 519.5),
    ],
)
def test_totals_of_the_other_models(model: str, billions: float):
    """Within 0.1% of the makers' own counts (MTP layers left out, as they leave them out)."""
    assert catalogue.find_model(model).total_parameters / 1e9 == pytest.approx(billions, rel=1e-3)


@pytest.mark.parametrize(
    ("model", "billions", "active"),
    [
        ("glm-5.3", 743.0, 39.0),  # 753.33 in the Hub's metadata with the prediction layer of 9.95
        ("glm-4.6", 355.0, 32.0),
        ("glm-4.5-air", 106.0, 12.0),  # 110.47 in the Hub's metadata with the prediction layer of 3.62
        ("qwen3-235b-2507", 235.0, 22.0),
        ("qwen3-235b-2507-think", 235.0, 22.0),
        ("qwen3-coder-480b", 480.0, 35.0),
        ("qwen3-next-80b", 80.0, 3.0),
        ("qwen3.6-35b", 35.0, 3.0),
        ("hy3", 295.0, 21.0),
        ("mimo-v2.6-flash", 309.0, 15.0),
        ("mimo-v2.6-pro", 1020.0, 42.0),
        ("laguna-s-2.1", 118.0, 8.0),
        ("laguna-xs-2.1", 33.4, 3.0),
        ("laguna-m.1", 225.0, 23.0),
        ("inkling", 952.0, 41.0),  # the Hub's metadata, with eight prediction layers; its card says 975
        ("inkling-small", 266.0, 12.0),  # the same; its card says 276
        ("longcat-2.0", 1638.6, 51.0),  # 1.6T and 33 to 56 active are published
        ("deepseek-v4-flash-0731", 284.0, 13.0),
        ("deepseek-v4.1-flash", 748.0, 16.0),
        ("glm-5.3-flash", 313.33, 18.0),  # 321.32 in the Hub's metadata with prediction layer and vision tower
        ("qwen3.8-flash-next", 176.0, 6.0),
        ("nemotron-3-nano", 31.6, 3.2),
        ("nemotron-3-super", 120.6, 12.7),
        ("nemotron-3-ultra", 550.0, 55.0),
    ],
)
def test_parameters_are_within_a_percent_of_the_published_count(model: str, billions: float, active: float):
    """Active ones within the rounding of a published whole number of billions."""
    found = catalogue.find_model(model)
    assert found.text_parameters / 1e9 == pytest.approx(billions, rel=0.01)
    assert abs(found.active_parameters / 1e9 - active) < max(1.4, 0.03 * active)


@pytest.mark.parametrize(
    ("model", "name", "published"),
    [
        ("qwen3-coder-480b", "awq", 252e9),  # the Hub's API
        ("qwen3-235b-2507", "bf16", 470.2e9),
        ("hy3", "bf16", 590e9),
        ("laguna-s-2.1", "bf16", 235e9),
        ("laguna-s-2.1", "fp8", 121e9),
        ("laguna-s-2.1", "nvfp4", 72e9),
        ("minimax-m3", "awq", 258.0e9),
        ("minimax-m3", "mxfp8", 440e9),
        ("qwen3.5-122b", "nvfp4", 78e9),
        ("mimo-v2.6-flash", "fp8-mxfp4", 172.93e9 - 2.4e9),  # less its prediction layers
        ("glm-5.3-flash", "nvfp4", 204e9 - 14.9e9),  # less its prediction layer in bf16
        ("qwen3.8-flash-next", "bf16", 335.28 * 2**30 - 5.2e9),
        ("qwen3.8-flash-next", "nvfp4", 132.68e9 - 2.6e9),
        ("nemotron-3-super", "nvfp4", 80e9),
    ],
)
def test_computed_sizes_are_within_a_percent_of_the_repositories(model: str, name: str, published: float):
    """Bits per component, chosen from configs or sizes, add up to what a listing shows."""
    assert form(model, name)[1].total_bytes == pytest.approx(published, rel=0.01)


@pytest.mark.parametrize(
    ("model", "token", "sequence"),
    [
        ("glm-5.3-flash", 11 * (656 + 33), 147_619_840),  # latent, a key of 132 bytes for 4 tokens; KDA states
        ("qwen3.8-flash-next", 12 * (1024 + 64), 115_458_048),  # keys in bf16, one for 4 tokens
        ("nemotron-3-nano", 6 * 512, 49_082_368),
        ("nemotron-3-super", 8 * 512, 170_229_760),
        ("nemotron-3-ultra", 12 * 512, 407_961_600),
        ("deepseek-v4.1-flash", 3 * (292 + 66) + 584 + 132, 40 * 128 * 584),  # 4 of 38 layers own a cache
        ("qwen3-next-80b", 12 * 1024, 39_518_208),  # its states are bf16
    ],
)
def test_cache_and_state_are_those_of_vllm_0_32(model: str, token: int, sequence: int):
    """Bytes of a token in fp8 and of a sequence on one GPU, as vLLM's cache specifications compute them."""
    recipe = Recipe(name="r", served_name="r", model=model, checkpoint="bf16", engine="vllm", kv="fp8")
    found = catalogue.find_model(model)
    assert kv.token_bytes(found, recipe) == token
    assert kv.sequence_bytes(found, recipe) == sequence


def test_glm_4_6_has_the_parsers_of_its_own_template():
    """It shares its shape with GLM-4.7, but its tool calls have another format."""
    assert catalogue.find_model("glm-4.6").tool_parser == "glm45"
    assert catalogue.find_model("glm-4.7").tool_parser == "glm47"


def test_every_row_of_the_catalogue_has_a_source():
    """A figure without a source does not ship."""
    assert all(gpu.source for gpu in catalogue.gpus().values())
    for model in catalogue.models().values():
        assert model.source
        assert all(one.source for one in catalogue.published_checkpoints(model.name))
        assert catalogue.published_checkpoints(model.name), model.name


def test_components_of_a_checkpoint_are_components_of_its_model():
    """Bytes are accounted to components the model really has."""
    for model in catalogue.models().values():
        for one in catalogue.published_checkpoints(model.name):
            assert set(one.bytes_by_component) <= set(model.parameters_by_component)
            assert all(size > 0 for size in one.bytes_by_component.values())


@pytest.mark.parametrize("name", ["Kimi K2.6", " kimi-k2.6 ", "moonshotai/Kimi-K2.6"])
def test_a_model_is_found_as_screens_and_the_hub_write_it(name: str):
    """Plans print titles with spaces; they can be given back."""
    assert catalogue.find_model(name).name == "kimi-k2.6"


def test_an_unknown_model_suggests_the_nearest():
    """A typing error costs one line."""
    with pytest.raises(UnknownName) as caught:
        catalogue.find_model("kimi-k26")
    assert "kimi-k2.6" in (caught.value.hint or "")


def test_the_required_gpus_are_known():
    """Every GPU that moebox is made for."""
    wanted = "rtx-pro-6000-server rtx-pro-6000-workstation rtx-pro-6000-max-q rtx-5090 rtx-4090 rtx-3090 a100-80gb "
    wanted += "h100 h200 b200 b300 gb10 l40s mi300x"
    assert set(wanted.split()) <= set(catalogue.gpus())


def test_rows_by_word_are_those_of_the_whole_table():
    """Rows that do not mention a word are not parsed; those that mean it are all there."""
    checkpoints = catalogue.load_table("checkpoints")["checkpoint"]
    for model in catalogue.models().values():
        published = catalogue.published_checkpoints(model.name)
        assert [each.name for each in published] == [row["name"] for row in checkpoints if model.name in row["models"]]
        assert all(catalogue.find_model(name) == model for name in (model.name, *model.aliases, model.repo))
    scans = catalogue.table_rows(KnownScan, "kernels", "scan")
    assert all(known_scan(engine=s.engine, version=s.version, sm=s.arch[3:], kv=s.kv) == s for s in scans)
    foreseen = [each for each in catalogue.table_rows(Symptom, "symptoms", "symptom") if each.foresee]
    assert [s for s in catalogue.table_rows(Symptom, "symptoms", "symptom", "foresee") if s.foresee] == foreseen
    assert all(gpu_by_alias(name) == gpu for name, gpu in catalogue.gpus().items())
