"""Every text config of the collection becomes a model: weights counted, cache and state by formula, and a plan."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from moebox.checkpoint import resolve_model
from moebox.checkpoint.config import model_from_config
from moebox.core.layers import Compressed, Gqa, Layers, Linear, Mla
from moebox.core.model import Model
from moebox.core.recipe import Recipe
from moebox.detect.declared import parse_box
from moebox.errors import BadInput
from moebox.planner.choose import choose_plan
from moebox.planner.constraints import Constraints
from moebox.sizing.kv import sequence_bytes, token_bytes
from tests.sampling import one_in

CONFIGS = Path(__file__).parent / "configs"
# Billions of parameters as their makers publish them; with a vision tower or prediction layer if they count it.
PUBLISHED = {
    "MiniMaxAI--MiniMax-M2": 229,
    "MiniMaxAI--MiniMax-M3": 427,
    "Qwen--Qwen3-235B": 235,
    "Qwen--Qwen3.5-122B": 122,
    "Qwen--Qwen3.5-397B": 397,
    "XiaomiMiMo--MiMo-V2-Flash": 309,
    "deepseek-ai--DeepSeek-R1": 671,
    "deepseek-ai--DeepSeek-V3": 671,
    "deepseek-ai--DeepSeek-V4-Flash": 284,
    "deepseek-ai--DeepSeek-V4-Pro": 1574,  # "1.6T" with its prediction layer
    "moonshotai--Kimi-K2": 1027,
    "moonshotai--Kimi-K3": 2800,
    "nvidia--DeepSeek-V3": 671,
    "nvidia--DeepSeek-V4-Flash": 284,
    "nvidia--DeepSeek-V4-Pro": 1574,
    "nvidia--GLM-5": 744,
    "nvidia--Kimi-K2": 1027,
    "nvidia--MiniMax-M2": 229,
    "nvidia--MiniMax-M3": 427,
    "nvidia--Qwen3.5-397B": 397,
    "openai--gpt-oss-120b": 117,
    "stepfun-ai--Step-3.7-Flash": 196,
    "zai-org--GLM-5": 744,
}
FILES = sorted(CONFIGS.glob("*.json"))


def read(name: str) -> Model:
    """The model of one config."""
    path = CONFIGS / f"{name}.json"
    return model_from_config(json.loads(path.read_text()), name=name, where=path.name)


def test_the_collection_is_whole() -> None:
    """39 configs, and each has a published count."""
    assert len(FILES) == 39
    assert all(any(file.stem.startswith(known) for known in PUBLISHED) for file in FILES)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_parameters_are_within_a_percent_of_the_published_count(file: Path) -> None:
    """The sum over components, counted from the shape alone."""
    known = max((name for name in PUBLISHED if file.stem.startswith(name)), key=len)
    assert read(file.stem).total_parameters / 1e9 == pytest.approx(PUBLISHED[known], rel=0.01)


@pytest.mark.parametrize("file", one_in(4, FILES), ids=lambda file: file.stem)
def test_every_config_gives_a_plan(file: Path) -> None:
    """On a box that holds the largest of them, each is planned; none is refused for its kind of layers."""
    box = parse_box("8x-b300")
    model, checkpoints = resolve_model(str(file))
    roomy = box if model.total_parameters < 2e12 else replace(box, gpus=box.gpus * 2, name="16x-b300")
    plan = choose_plan(roomy, model, checkpoints, Constraints(context=8192))
    assert plan.memory.fits
    assert plan.forecast[0].decode_tok_s > 0


def kinds(model: Model) -> dict[str, int]:
    """Layers by the name of their kind."""
    found: dict[str, int] = {}
    for layers in model.stack:
        name = type(layers.kind).__name__
        if isinstance(layers.kind, Gqa) and layers.kind.window:
            name = "window"
        found[name] = found.get(name, 0) + layers.count
    return found


def test_mixed_stacks_are_lists_of_kinds() -> None:
    """As the publishers describe them."""
    assert kinds(read("moonshotai--Kimi-K3")) == {"Mla": 24, "Linear": 69}
    assert kinds(read("Qwen--Qwen3.5-397B-A17B")) == {"Gqa": 15, "Linear": 45}
    assert kinds(read("XiaomiMiMo--MiMo-V2-Flash")) == {"Gqa": 9, "window": 39}
    assert kinds(read("openai--gpt-oss-120b")) == {"Gqa": 18, "window": 18}
    assert kinds(read("deepseek-ai--DeepSeek-V4-Pro")) == {"Compressed": 61}
    assert kinds(read("MiniMaxAI--MiniMax-M3")) == {"Gqa": 60}


def test_an_indexer_on_some_layers_costs_only_there() -> None:
    """GLM-5.2 has 21 indexers in 78 layers; the others take the choice of the one before."""
    model = read("zai-org--GLM-5.2")
    owning = [
        layers.count for layers in model.stack if layers.mla and layers.mla.indexer and not layers.mla.indexer.shared
    ]
    assert owning == [21]
    recipe = Recipe(name="x", engine="vllm", model="x", checkpoint="x", served_name="x", kv="bf16")
    assert token_bytes(model, recipe) == 78 * 576 * 2 + 21 * (128 + 4)


def test_cache_and_state_by_formula() -> None:
    """Growth a token, and what a sequence keeps however long it is."""
    recipe = Recipe(name="x", engine="vllm", model="x", checkpoint="x", served_name="x", kv="bf16")
    qwen = read("Qwen--Qwen3.5-397B-A17B")
    assert token_bytes(qwen, recipe) == 15 * 2 * 2 * 256 * 2
    # 64 heads of 128 x 128 in float32, and three inputs of 2 x 2,048 + 8,192 channels in bf16
    assert sequence_bytes(qwen, recipe) == 45 * (64 * 128 * 128 * 4 + 3 * 12288 * 2)
    oss = read("openai--gpt-oss-120b")
    assert token_bytes(oss, recipe) == 18 * 2 * 8 * 64 * 2
    assert sequence_bytes(oss, recipe) == 18 * 128 * 2 * 8 * 64 * 2
    four = Compressed(heads=64, head_dim=512, q_lora=1024, o_lora=1024, o_groups=8, window=128, ratio=4)
    assert four.entries_per_token * four.entry_width(8) == 128


def test_a_window_is_read_no_further_than_it_reaches() -> None:
    """Attention of windows, states and selectors does not grow with the context; the full kind's does."""
    window = Gqa(heads=64, kv_heads=8, head_dim=64, window=128)
    state = Linear(heads=64, key_heads=16, key_dim=128, value_dim=128)
    full = Mla(heads=64, q_lora=1536, kv_lora=512, nope=128, rope=64, v=128)
    assert window.entries_read(100_000) == 128
    assert state.entries_read(100_000) == state.entries_read(10)
    assert full.entries_read(100_000) == 100_000


@pytest.mark.parametrize(
    ("change", "word"),
    [({"compress_ratios": [4]}, "compress_ratios"), ({"index_n_heads": -1}, "index_n_heads")],
)
def test_a_broken_stack_is_refused_by_field(change: dict[str, object], word: str) -> None:
    """One line that names the field."""
    config = json.loads((CONFIGS / "deepseek-ai--DeepSeek-V4-Flash.json").read_text()) | change
    with pytest.raises(BadInput, match=word):
        model_from_config(config, name="x", where="x.json")


def test_more_linear_layers_than_layers_are_refused() -> None:
    """A config that contradicts itself."""
    config = json.loads((CONFIGS / "Qwen--Qwen3.5-397B-A17B.json").read_text())
    config["text_config"]["num_hidden_layers"] = 12
    with pytest.raises(BadInput, match="only 12"):
        model_from_config(config, name="x", where="x.json")


def test_layers_without_a_kind_cannot_be() -> None:
    """A row of the catalogue that names none is a mistake in the table."""
    with pytest.raises(AssertionError):
        _ = Layers(count=3).kind
