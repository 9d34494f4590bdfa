"""Attention by backend: which one an engine takes on a GPU, and what a step takes with it."""

import csv
from pathlib import Path
from statistics import geometric_mean, median

import pytest

from moebox import codec
from moebox.checkpoint import deploy
from moebox.core import catalogue
from moebox.core.calibration import Boot
from moebox.core.catalogue import table_rows
from moebox.core.recipe import Parallel, Recipe
from moebox.detect.declared import parse_box
from moebox.engines.engine import load_engine
from moebox.planner.speed import Speed
from moebox.planner.speed.attention import AttentionBackend, find_backends
from moebox.planner.speed.step import GpuStep
from tests.planner import rows
from tests.planner.test_measured import H200

TIMED = Path(__file__).parents[2] / "benchmarks" / "kernels" / "attention-h200.csv"
SHAPE = ("heads", "kv_heads", "dim", "batch", "context", "new")


def step_of(model: str, checkpoint: str, box: str, engine: str, **changes: object) -> GpuStep:
    """Return the step of a model on all GPUs of a box."""
    recipe = Recipe(
        name="t",
        engine=engine,  # type: ignore[arg-type]
        model=model,
        checkpoint=checkpoint,
        served_name="t",
        parallel=Parallel(tp=int(box.partition("x")[0])),
        **changes,  # type: ignore[arg-type]
    )
    found = Speed.for_deployment(deploy(recipe, parse_box(box))).gpu_step
    assert found is not None
    return found


def test_triton_reads_one_long_context_slowly() -> None:
    """SGLang runs hybrid models on SM120 with Triton, which hardly divides one sequence; FlashInfer can be named."""
    box = "4x-rtx-pro-6000-server"
    default = step_of("qwen3.5-397b", "nvfp4", box, "sglang", kv="fp8")
    named = step_of("qwen3.5-397b", "nvfp4", box, "sglang", kv="fp8", flags={"attention-backend": "flashinfer"})
    assert (default.attention["gqa"].name, named.attention["gqa"].name) == ("triton", "flashinfer")
    assert default.cached_attention(1, 131072) > 5 * named.cached_attention(1, 131072)
    assert default.cached_attention(64, 32768) < 1.3 * named.cached_attention(64, 32768)  # many sequences fill the GPU


@pytest.mark.parametrize(
    ("kept", "model", "checkpoint", "decode_off", "prompt_off"),
    [
        ("sglang-gpt-oss-36", "gpt-oss-120b", "mxfp4", 0.12, 0.20),  # all of its layers
        ("sglang-qwen-36", "qwen3-235b", "fp8", 0.14, 0.20),  # one step of 18 beyond 12 %
        ("sglang-minimax-12", "minimax-m2.5", "fp8", 0.12, 0.20),
        ("sglang-fa3-qwen-24", "qwen3-235b", "fp8", 0.12, 0.20),
        ("sglang-fa3-minimax-24", "minimax-m2.5", "fp8", 0.12, 0.20),
        ("sglang-fa3-kimi-12", "kimi-k2.6", "int4", 0.18, 0.20),  # 12 layers hide what a step takes besides
        ("sglang-fa3-dsv3-12", "deepseek-v3", "fp8", 0.19, 0.26),  # without DeepGEMM, which such installs have
        ("sglang-glm-air-46", "glm-4.5-air", "fp8", 0.21, 0.32),  # all of its layers; no tuned expert kernel
    ],
)
def test_sglang_on_an_h200_is_forecast_by_published_rows(
    kept: str, model: str, checkpoint: str, decode_off: float, prompt_off: float
) -> None:
    """SGLang 0.5.15; nothing was fitted to these boots. What even routing adds to a step is taken off."""
    made, flags = rows.published(), {"attention-backend": "fa3" if "fa3" in kept else "triton"}
    recipe = made.recipe_of("sglang", model, checkpoint, kv="bf16", max_seqs=64, flags=flags, engine_version="0.5.15")
    layers = int(kept.rpartition("-")[2])
    speed = made.speed_of(made.box_of("1x-h200"), recipe, layers)
    real = codec.decode(Boot, codec.load_json(H200 / f"{kept}.json"), where=kept)
    routing_us = 1.8 if "gpt-oss" in kept else load_engine("sglang").even_routing_us  # there: random logits
    routing_s = 1e-6 * routing_us * (layers - deploy(recipe).model.dense_layers)
    off = [speed.step_s(step.batch, step.context) / (step.seconds - routing_s) - 1 for step in real.decode]
    assert len(off) >= 13
    assert max(map(abs, off)) < decode_off
    first = [(speed.prefill_s(prompt.tokens) + speed.request_s) / prompt.seconds - 1 for prompt in real.prefill]
    assert len(first) == 5
    assert max(map(abs, first)) <= prompt_off


@pytest.mark.parametrize(
    ("model", "checkpoint", "version", "flags", "captured"),
    [
        ("qwen3-235b", "fp8", "0.5.9", {}, False),
        ("qwen3-235b", "fp8", "0.5.10", {}, True),
        ("qwen3-235b", "fp8", "0.5.23", {"cuda-graph-backend-prefill": "disabled"}, False),
        ("qwen3-235b", "fp8", "0.5.23", {"disable-prefill-cuda-graph": True}, False),
        ("kimi-k2.6", "int4", "0.5.15", {}, False),
        ("kimi-k2.6", "int4", "0.5.18", {}, True),
        ("glm-5", "fp8", "0.5.23", {}, False),
        ("qwen3-next-80b", "fp8", "0.5.14", {}, False),
        ("qwen3-next-80b", "fp8", "0.5.15", {}, True),
        ("qwen3-235b", "fp8", "0.5.14", {"moe-a2a-backend": "deepep"}, False),
        ("qwen3-235b", "fp8", "0.5.14", {"moe-a2a-backend": "none"}, True),
        ("kimi-k2.6", "int4", "nightly-dev-20261101-ab12cd34", {}, True),
    ],
)
def test_sglang_reads_prompts_in_graphs_by_its_rules(
    model: str, checkpoint: str, version: str, flags: dict[str, str | bool], captured: bool
) -> None:
    """By version, flags and architecture (server_args.py of 0.5.9 to 0.5.23)."""
    found = step_of(model, checkpoint, "8x-h200", "sglang", engine_version=version, flags=flags)
    assert bool(found.captured_tokens) == captured


def test_the_cpu_that_a_gpu_comes_with_launches_for_it() -> None:
    """GB300 has Grace, B300 whatever its owner chose, unless the box says otherwise."""
    grace, other = (step_of("deepseek-v4-flash", "fp8-mxfp4", box, "sglang") for box in ("4x-gb300", "4x-b300"))
    assert grace.host_factor == pytest.approx(1 / 0.58)
    assert other.host_factor == 1


@pytest.mark.parametrize("kv", ["bf16", "fp8"])
def test_tritons_row_on_hopper_is_what_was_timed(kv: str) -> None:
    """The geometric mean of shapes for one long sequence, medians of many sequences and of pieces of prompts."""
    gpu, one, many, prompts = catalogue.find_gpu("h200"), [], [], []
    with TIMED.open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            heads, kv_heads, dim, batch, context, new = (int(row[name]) for name in SHAPE)
            if (row["backend"], row["kv"]) != ("triton", kv) or heads == kv_heads:
                continue
            seconds, read = float(row["ms"]) / 1e3, 4 * batch * context * kv_heads * dim / (1 if kv == "bf16" else 2)
            if new >= 4096:
                prompts.append(4 * heads * dim * new * (context + new / 2) / seconds / gpu.bf16)
            elif new == 1 and batch <= 2 and context >= 16384:
                one.append(1e9 * seconds / context * 128 / dim)
            elif new == 1 and batch >= 16 and read > 150e6:
                many.append(read / seconds / gpu.bandwidth)
    found = step_of("minimax-m2.5", "fp8", "8x-h200", "sglang", kv=kv, flags={"attention-backend": "triton"})
    row = found.attention["gqa"]
    assert row.stream_ns == pytest.approx(geometric_mean(one), rel=0.01)
    assert row.bandwidth == pytest.approx(median(many), rel=0.03)
    assert row.prompt == pytest.approx(median(prompts), rel=0.03)


def test_tritons_prompts_walk_beyond_the_window() -> None:
    """SGLang's kernel masks tiles outside a window and still visits them; those of earlier pieces it does not visit."""
    found = {
        name: step_of("gpt-oss-120b", "mxfp4", "1x-h200", "sglang", flags={"attention-backend": name})
        for name in ("triton", "fa3")
    }
    ratios = {
        name: step.prompt_attention(8192, 0, 1) / step.prompt_attention(1024, 7168, 1) for name, step in found.items()
    }
    assert ratios["triton"] > 1.5 * ratios["fa3"]
    many = found["triton"].prompt_attention(8192, 0, 16)
    assert many < found["triton"].prompt_attention(8192, 0, 1)


def test_backends_differ_by_generation_and_cache() -> None:
    """An fp8 cache has half the bytes; FlashAttention 3 on Hopper gains less than half of that, B200 nearly all."""
    gains = {}
    for gpu in ("h200", "b200"):
        wide, narrow = (step_of("minimax-m2.5", "fp8", f"8x-{gpu}", "vllm", kv=kv) for kv in ("bf16", "fp8"))
        gains[gpu] = wide.cached_attention(64, 32768) / narrow.cached_attention(64, 32768)
    assert gains["h200"] < 1.5 < 1.8 < gains["b200"]


def test_a_token_selector_takes_time_of_its_own() -> None:
    """GLM-5 selects tokens in every layer, GLM-5.2 shares selections; older SGLang took longer for them."""
    every, shared = (step_of(model, "fp8", "8x-h200", "sglang") for model in ("glm-5", "glm-5.2"))
    old = step_of("glm-5", "fp8", "8x-h200", "sglang", engine_version="0.5.9")
    assert every.cached_attention(1, 8192) > 1.5 * shared.cached_attention(1, 8192)
    assert old.cached_attention(1, 8192) > every.cached_attention(1, 8192)


def test_long_prompts_of_token_selectors_pay_for_heads_that_a_rank_has_not() -> None:
    """FlashMLA pads 8 heads to 64: GLM-5's modules take 5.2 ms a layer for 8,192 tokens on an H200 (aiconfigurator)."""
    step = step_of("glm-5", "fp8", "8x-h200", "sglang", kv="bf16")
    attention = {size: step.prompt_attention(size, 0, 1) / 78 * 1e3 for size in (2048, 4096, 8192)}
    assert 3 < attention[8192] < 5
    assert attention[2048] < 0.1 * attention[4096]  # up to the selection prompts are expanded to ordinary heads
    assert step.prompt_attention(8192, 0, 8) < 0.2 * step.prompt_attention(8192, 0, 1)  # eight prompts of 1,024
    whole = step_of("glm-5", "fp8", "1x-h200", "sglang", kv="bf16").prompt_attention(8192, 0, 1)
    assert step.prompt_attention(8192, 0, 1) > 0.9 * whole  # all 64 heads on one rank


def test_a_named_expert_kernel_is_forecast() -> None:
    """DeepGEMM takes longer than TensorRT-LLM's kernel on B200 if few tokens are computed (MiniMax M3, June 2026)."""
    usual = step_of("minimax-m3", "mxfp8", "8x-b200", "vllm")
    named = step_of("minimax-m3", "mxfp8", "8x-b200", "vllm", flags={"moe-backend": "deep_gemm"})
    assert (usual.kernel.kernel, named.kernel.kernel) == ("trtllm", "deepgemm")
    assert sum(named.step_parts(4, 1536).values()) > 2 * sum(usual.step_parts(4, 1536).values())


def test_boxes_are_ordered_as_published() -> None:
    """Kimi under vLLM: B200 answers faster than H200 at every load (InferenceX, 2026), B300 faster than B200."""
    for streams in (1, 4, 16, 64):
        rates = {}
        for gpu in ("h200", "b200", "b300"):
            step = step_of("kimi-k2.5", "int4", f"8x-{gpu}", "vllm")
            rates[gpu] = streams / sum(step.step_parts(streams, 8192).values())
        assert rates["h200"] < rates["b200"] < rates["b300"]


def test_directions_count_beyond_the_spread_of_both_setups() -> None:
    """gpt-oss-120b at 64 streams on 8x H100 was published at 7.36 and 11.42 ms: 9.70 ms on four is no other speed."""
    pairs = [pair for pair in rows.pairs().load_pairs() if pair.name.startswith("gpt-oss-120b C64: 8x-h100")]
    same = next(pair for pair in pairs if "4x-h100" in pair.name and pair.row["output"] == "1024")
    assert abs(same.published) > 0.1
    assert not same.counts


def test_pairs_that_were_never_fitted_have_the_published_direction() -> None:
    """Kimi on H200, B200 and B300 with one vLLM version: forecasts differ as published runs do."""
    scored = [pair for pair in rows.pairs().load_pairs(use="score") if pair.counts]
    assert scored
    assert all(pair.published * pair.predict() > 0 for pair in scored)


def test_unknown_links_are_assumed_and_stated() -> None:
    """GeForce GPUs have no peer access unless it was detected; `--why` states what is assumed of the links."""
    geforce, workstation = (
        step_of("minimax-m2.5", "nvfp4", f"8x-{gpu}", "vllm").fabric for gpu in ("rtx-5090", "rtx-pro-6000-server")
    )
    assert geforce.extra_us > workstation.extra_us == 0
    assert geforce.state.startswith("no peer access")
    assert "assumed" in workstation.state


@pytest.mark.parametrize(
    ("engine", "named", "kv"), [("sglang", "fa3", "bf16"), ("sglang", "triton", "fp8"), ("vllm", "flashinfer", "bf16")]
)
def test_a_named_backend_without_figures_on_a_gpu_is_between_those_on_others(engine: str, named: str, kv: str) -> None:
    """On a GPU on which nobody timed it, it does not get the speed of the engine's default backend."""
    recipe = rows.published().recipe_of(engine, "qwen3-235b", "fp8", kv=kv, flags={"attention-backend": named})
    found = find_backends(recipe, "a generation of 2030", "Qwen3MoeForCausalLM")["gqa"]
    timed = [row for row in table_rows(AttentionBackend, "attention", "backend") if (row.name, row.kv) == (named, kv)]
    assert found.name == named
    assert min(row.prompt for row in timed) <= found.prompt <= max(row.prompt for row in timed)
