"""The memory model against published starts, each with its source in data/published/memory.toml."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from moebox import detect
from moebox.checkpoint import deploy
from moebox.core import catalogue
from moebox.core.recipe import Hybrid, Parallel, Recipe, Speculate
from moebox.engines import memory_budget
from moebox.engines.engine import load_engine
from moebox.engines.sglang import memory as sglang
from tests.planner.boxes import EIGHT, MAX_Q_BOX
from tests.planner.deployed import kimi, on
from tests.planner.rows import accuracy_memory

GIB, MIB = 2**30, 2**20
TABLE = accuracy_memory()
CONFIGS = Path(__file__).parents[1] / "checkpoint" / "configs"


def name(row: Any) -> str:
    """Name a row in test output."""
    return f"{row.run} {row.settings_text}".replace(" ", "-")


@pytest.mark.parametrize("row", TABLE.published_starts("weights"), ids=name)
def test_weights_on_a_gpu_are_within_three_percent_of_the_log(row: Any) -> None:
    """What tensor parallelism slices, copies and repacks, as engines log it after loading."""
    assert TABLE.forecast_weights_gib(row) == pytest.approx(row.weights_gib, rel=0.03)


@pytest.mark.parametrize("row", [row for row in TABLE.published_starts("pool") if row.held], ids=name)
def test_kv_pools_are_within_four_percent_of_the_log(row: Any) -> None:
    """Tokens of cache by engine, image, utilization, DCP and draft, as the engines printed them."""
    assert TABLE.forecast_kv_tokens(row) == pytest.approx(row.kv_tokens, rel=0.04)


def test_the_tables_are_whole() -> None:
    """37 pools with known settings and 8 weights are held; four more are within 5%, and two of vLLM 0.22.1 19% off."""
    pools = TABLE.published_starts("pool")
    others = sorted(abs(TABLE.forecast_kv_tokens(row) / row.kv_tokens - 1) for row in pools if not row.held)

    assert len([row for row in pools if row.held]) == 37
    assert len(TABLE.published_starts("weights")) == 8
    assert all(row.source for kind in ("pool", "weights") for row in TABLE.published_starts(kind))
    assert others[3] < 0.05
    assert others[-1] < 0.20


def test_sglang_counts_the_draft_on_the_last_stage() -> None:
    """An EAGLE3 draft takes its share of 6.03 GB less the shared embedding, outside the fraction, and has a cache."""
    model, checkpoint = catalogue.find_model("kimi-k2.6"), catalogue.find_checkpoint("kimi-k2.6", "int4")
    plain = kimi(engine="sglang", context=65536, memory_utilization=0.9, parallel=Parallel(tp=4, pp=2))
    drafting = replace(plain, speculate=Speculate(method="eagle3", draft="lightseekorg/kimi-k2.6-eagle3.1-mla"))
    without = memory_budget(on(EIGHT, model, checkpoint, plain))
    with_draft = memory_budget(on(EIGHT, model, checkpoint, drafting))
    size = (6_031_261_696 - model.vocab * model.hidden * 2) // 4

    assert [device.draft for device in without.devices] == [0] * 8
    assert [device.draft for device in with_draft.devices] == [0] * 4 + [size] * 4
    gpu, caches = EIGHT.gpus[0], [sglang.SglangRanks(on(EIGHT, model, checkpoint, each)) for each in (drafting, plain)]
    assert caches[0].cache_tokens(gpu, 1) < caches[1].cache_tokens(gpu, 1)
    tight = replace(drafting, memory_utilization=0.99)  # leaves less outside the fraction than a step takes
    ranks = sglang.SglangRanks(on(EIGHT, model, checkpoint, tight))
    assert ranks.missing_bytes(gpu, 1) - ranks.missing_bytes(gpu, 0) == pytest.approx(size, abs=2)


def test_sglang_picks_the_fractions_of_the_january_report() -> None:
    """0.848 for the text model; 0.7714564 for the one with a vision tower, which cost 175,000 tokens of cache."""
    gpu = EIGHT.gpus[0]
    thinking, k25 = catalogue.find_model("kimi-k2-thinking"), catalogue.find_model("kimi-k2.5")
    plain = next(row for row in TABLE.published_starts("pool") if row.run == "K2-Thinking NVFP4").recipe

    assert sglang.automatic_fraction(gpu, thinking, plain) == pytest.approx(0.848, abs=1e-9)
    assert sglang.automatic_fraction(gpu, k25, plain) == pytest.approx(0.7714564, abs=1e-5)


def llama(engine: str, form: str, experts: tuple[tuple[int, ...], ...], ubatch: int, context: int = 131072) -> Recipe:
    """Return a recipe as in the published runs of both llama.cpp servers."""
    ik = engine == "ik_llama.cpp"
    hybrid = Hybrid(experts=experts, ubatch=ubatch, mla=3 if ik else None, attention_buffer=512 if ik else None)
    return Recipe(
        name="x",
        engine=engine,  # type: ignore[arg-type]
        model="kimi-k2.6",
        checkpoint=form,
        served_name="x",
        context=context,
        max_seqs=1,
        kv="f16",
        hybrid=hybrid,
    )


def test_llama_cpp_places_tensors_and_cache_as_fit_params_prints_them() -> None:
    """b11669, Kimi K2.6 in Q4_X over two GPUs at 131,072: 5,233 + 4,464 and 5,919 + 4,320 MiB; host 545,510."""
    model = catalogue.find_model("kimi-k2.6")
    form = catalogue.find_checkpoint("kimi-k2.6", "Q4_X")
    first, last, ram = memory_budget(on(MAX_Q_BOX, model, form, llama("llama.cpp", "Q4_X", (), 512))).devices

    assert [round(one.weights_total / MIB) for one in (first, last)] == pytest.approx([5233, 5919], abs=1)
    assert [round(one.kv / MIB) for one in (first, last)] == [4464, 4320]
    assert ram.weights_total / MIB == pytest.approx(545_510, rel=0.001)


@pytest.mark.parametrize(
    ("gpus", "ubatch", "context", "seen"),
    [
        (1, 512, 65536, [440]),
        (1, 512, 262144, [632]),
        (1, 4096, 131072, [4032]),
        (1, 8192, 131072, [8064]),
        (2, 512, 131072, [344, 460]),
        (2, 4096, 131072, [2752, 3686]),
        (2, 4096, 262144, [3776, 3862]),
        (2, 8192, 131072, [5504, 7372]),
    ],
)
def test_compute_buffers_are_those_of_fit_params(gpus: int, ubatch: int, context: int, seen: list[int]) -> None:
    """MiB of llama-fit-params b11669 for Kimi K2.6 in Q4_X with all experts in RAM, by micro-batch and context."""
    from moebox.engines.ggml.memory import compute_bytes

    model, recipe = catalogue.find_model("kimi-k2.6"), llama("llama.cpp", "Q4_X", (), ubatch, context)
    sizes = [compute_bytes(model, recipe, last=i == gpus - 1, alone=gpus == 1) / MIB for i in range(gpus)]

    assert sizes == pytest.approx(seen, rel=0.03)


@pytest.mark.parametrize(
    ("counts", "ubatch", "seen"),
    [((0, 0), 512, (11, 11)), ((2, 2), 4096, (35, 36.5)), ((3, 3), 4096, (43, 44)), ((5, 5), 4096, (56, 56))],
)
def test_ik_llama_cpp_fills_the_gpus_as_in_the_max_q_write_up(
    counts: tuple[int, int], ubatch: int, seen: tuple[float, float]
) -> None:
    """VRAM of the K2.6 write-up: ~11 GiB bare, mid to high 30s with 2+2, 43/44 with 3+3, 52/60 with ten layers."""
    model = catalogue.find_model("kimi-k2.6")
    form = catalogue.find_checkpoint("kimi-k2.6", "IQ3_K")
    head, tail = counts
    layers = (tuple(range(1, 1 + head)), tuple(range(61 - tail, 61)))
    memory = memory_budget(on(MAX_Q_BOX, model, form, llama("ik_llama.cpp", "IQ3_K", layers, ubatch)))
    used = [(one.total - one.free) / GIB - 0.62 for one in memory.devices[:2]]

    assert sum(used) == pytest.approx(sum(seen), rel=0.06)


def test_triton_mla_workspace_is_sixteen_gib_at_vllm_defaults() -> None:
    """TP8 + DCP8 at 64k with 1,024 sequences: 16 GiB a GPU, 1.0 with 64 sequences (vLLM 0.32 sources)."""
    from dataclasses import replace

    from moebox.core.recipe import Parallel
    from moebox.engines.vllm import memory as vllm

    model, gpu = catalogue.find_model("kimi-k2.6"), EIGHT.gpus[0]
    recipe = kimi(parallel=Parallel(tp=8, dcp=8))

    assert vllm.workspace_bytes(gpu, model, recipe) / GIB == pytest.approx(16, rel=0.01)
    assert vllm.workspace_bytes(gpu, model, replace(recipe, max_seqs=64)) / GIB == pytest.approx(1.0, rel=0.01)
    assert vllm.workspace_bytes(gpu, model, replace(recipe, context=262144)) / GIB == pytest.approx(47, rel=0.01)


# layers, share of the GPU, eager or not, and what vLLM 0.26 logged: tokens of cache, GiB of weights, GiB at the peak
BOOTS = [
    (4, 0.9, False, 20_579_536, 32.76, 4.21 + 0.31),
    (8, 0.9, False, 6_031_840, 69.31, 4.21 + 0.29),
    (12, 0.9, False, 1_178_352, 105.86, 4.21 + 0.35),
    (4, 0.6, True, 10_839_744, 32.76, 4.38),
]


@pytest.mark.parametrize(("layers", "share", "eager", "tokens", "weight_gib", "peak_gib"), BOOTS)
def test_the_pool_of_kimi_shapes_on_one_h200(
    layers: int, share: float, eager: bool, tokens: int, weight_gib: float, peak_gib: float, tmp_path: Path
) -> None:
    """int4, 8,192 tokens a step (15 November 2026): the cache is right because its parts are."""
    whole = json.loads((CONFIGS / "moonshotai--Kimi-K2.5.json").read_text())
    text = {**whole["text_config"], "num_hidden_layers": layers}
    (tmp_path / "config.json").write_text(json.dumps(text))
    recipe = Recipe(
        name="cut",
        engine="vllm",
        engine_version="0.26.0",
        model=str(tmp_path),
        checkpoint=str(tmp_path),
        served_name="cut",
        context=32768,
        max_seqs=16 if eager else 64,
        batched_tokens=8192,
        memory_utilization=share,
        flags={"load-format": "dummy", **({"enforce-eager": True} if eager else {})},
    )
    planned = memory_budget(deploy(recipe, detect.load_box("1x-h200")))

    (gpu,) = planned.devices
    assert planned.kv_tokens == pytest.approx(tokens, rel=0.01)
    assert sum(gpu.weights.values()) == pytest.approx(weight_gib * GIB, rel=0.003)
    assert gpu.activations == pytest.approx(peak_gib * GIB, rel=0.05)


@pytest.mark.parametrize(
    ("box", "engine", "formula"),
    [
        ("1x-h200", "sglang", "as triton_kernels lay them out"),
        ("1x-rtx-pro-6000-server", "vllm", "× 1.09, padded to multiples of 256 and 128"),
        ("8x-rtx-pro-6000-server", "vllm", "× 1.138, padded to multiples of 256 and 128"),
        ("1x-b200", "vllm", "× 1.138, padded to multiples of 256 and 256"),
    ],
)
def test_mxfp4_experts_take_more_than_their_files(box: str, engine: str, formula: str) -> None:
    """vLLM's Marlin takes 65.97 GiB for gpt-oss-120b on one GPU (vllm#23278), 60.7 in files; the formula says why."""
    gpus = int(box.partition("x")[0])
    recipe = Recipe(
        name="t",
        engine=engine,  # type: ignore[arg-type]
        model="gpt-oss-120b",
        checkpoint="mxfp4",
        served_name="t",
        parallel=Parallel(tp=gpus),
    )
    deployment = deploy(recipe, detect.load_box(box))
    memory = memory_budget(deployment)
    line = next(each for each in load_engine(engine).memory_lines(deployment, memory) if "routed_experts" in each.what)
    assert line.formula.endswith(formula)
    weights = memory.devices[0].weights
    assert weights["routed_experts"] == line.value
    if box == "1x-rtx-pro-6000-server":
        assert sum(weights.values()) / GIB == pytest.approx(65.97, rel=0.01)
