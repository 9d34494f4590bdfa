"""What a layer is made of: kernels counted from its shape, norms inside all-reduces, expert kernels by engine."""

from dataclasses import replace
from pathlib import Path

import pytest

from moebox.checkpoint import deploy
from moebox.checkpoint.disk import model_from_file
from moebox.core import catalogue
from moebox.core.box import Box, Cpu
from moebox.core.deployment import Deployment
from moebox.core.recipe import Hybrid, Parallel, Recipe, Speculate
from moebox.detect.declared import parse_box
from moebox.planner.schedule import Scheduler, SchedulerRules, SimulatedRequest
from moebox.planner.speed import Speed, constants
from moebox.planner.speed.step import GpuStep, expert_kernel_seconds
from tests.planner.deployed import kimi

PHANTOM = Path(__file__).parents[2] / "src" / "moebox" / "phantom" / "weights" / "phantom-q8_0.gguf"


def step(
    model: str, checkpoint: str, *, engine: str = "sglang", gpu: str = "b200", version: str = "", tp: int = 8
) -> GpuStep:
    """The step of a model on eight GPUs, or as many as `tp`."""
    recipe = Recipe(
        name="t",
        engine=engine,  # type: ignore[arg-type]
        model=model,
        checkpoint=checkpoint,
        served_name="t",
        engine_version=version,
        parallel=Parallel(tp=tp),
    )
    found = Speed.for_deployment(deploy(recipe, parse_box(f"{tp}x-{gpu}"))).gpu_step
    assert found is not None
    return found


def test_kernels_are_counted_from_the_shape() -> None:
    """gpt-oss is the plainest layer; norms, quantised inputs and latent attention add kernels, in that order."""
    models = {
        "gpt-oss-120b": "mxfp4",
        "qwen3-235b": "bf16",
        "glm-4.7": "fp8",
        "kimi-k2.6": "int4",
        "deepseek-r1": "fp8",
    }
    each = [step(name, form, engine="vllm", gpu="h200") for name, form in models.items()]
    weights = [one.kernel_layers / one.rank.model.layers for one in each]
    assert weights == sorted(weights)
    assert weights[0] == pytest.approx(1.0)
    assert weights[-1] == pytest.approx(22 / 8)


def test_norms_over_all_heads_cost_an_all_reduce() -> None:
    """MiniMax M2 normalises q and k over all heads: ranks add up squares once more a layer (sglang minimax_m2.py)."""
    minimax, qwen = step("minimax-m2.5", "fp8"), step("qwen3-235b", "bf16")
    assert minimax.norm_reduce_layers == 62
    assert qwen.norm_reduce_layers == 0
    two = 2 * 62 * minimax.fabric.all_reduce(8, 3072 * 2)
    assert minimax.all_reduce_seconds(1) == pytest.approx(two + 62 * minimax.fabric.all_reduce(8, 8))


def test_norms_inside_all_reduces_go_by_version_and_architecture() -> None:
    """SGLang fuses them for DeepSeek on SM100 since 0.5.5, for Qwen3 later, for MiniMax never."""
    assert step("deepseek-r1", "fp8", version="0.5.6").fused_norms
    assert not step("qwen3-235b", "bf16", version="0.5.6").fused_norms
    assert step("qwen3-235b", "bf16").fused_norms
    assert not step("minimax-m2.5", "fp8").fused_norms
    assert not step("deepseek-r1", "fp8", engine="vllm").fused_norms


def test_the_expert_kernel_is_the_engines() -> None:
    """On B200 SGLang leaves MiniMax's fp8 experts to Triton and vLLM does not; old vLLM had slower mxfp4 on Hopper."""
    assert step("minimax-m2.5", "fp8").kernel.kernel == "triton"
    assert step("minimax-m2.5", "fp8", engine="vllm").kernel.kernel == "trtllm"
    assert step("deepseek-r1", "fp8").kernel.kernel == "trtllm"
    old = step("gpt-oss-120b", "mxfp4", engine="vllm", gpu="h100", version="0.10.2").kernel
    new = step("gpt-oss-120b", "mxfp4", engine="vllm", gpu="h100").kernel
    assert old.before
    assert old.bandwidth < new.bandwidth


def test_nvfp4_runs_through_marlin_without_fp4_units() -> None:
    """CUTLASS on RTX Blackwell; Marlin on older GPUs, and everywhere if activations keep 16 bits."""
    assert step("minimax-m2.5", "nvfp4", engine="vllm", gpu="rtx-pro-6000-server").kernel.kernel == "cutlass"
    for model, gpu in (("minimax-m2.5", "h200"), ("qwen3.6-35b", "rtx-3090"), ("qwen3.6-35b", "rtx-5090")):
        kernel = step(model, "nvfp4", engine="vllm", gpu=gpu).kernel
        assert (kernel.kernel, kernel.measured) == ("marlin", False), (model, gpu)


def test_a_grouped_kernels_least_time_grows_with_the_shape() -> None:
    """Timed alone on RTX PRO 6000: 1 token takes 43 us with a hidden size of 2,048 and 79 us with 7,168."""
    small, large = (
        step(model, "nvfp4", engine="vllm", gpu="rtx-pro-6000-server") for model in ("minimax-m2.5", "kimi-k2.6")
    )
    for one, timed in ((small, 53), (large, 80)):
        assert one.kernel.least_us(one.rank, 1) == pytest.approx(timed, rel=0.15)
    assert small.kernel.least_us(small.rank, 64) > small.kernel.least_us(small.rank, 1)


def test_another_engines_row_keeps_this_engines_host() -> None:
    """vLLM on a GPU with rows of SGLang only keeps its own host times: only shares belong to the GPU."""
    kept = [row for row in catalogue.table_rows(constants.Efficiency, "efficiency", "engine") if not row.preset]
    sglang = next(row for row in kept if (row.engine, row.generation) == ("sglang", "hopper"))
    as_vllm = constants.convert_row(sglang, "vllm", ("hopper", "blackwell"))
    vllm = next(row for row in kept if (row.engine, row.generation) == ("vllm", "hopper"))
    assert (as_vllm.prompt_us, as_vllm.step_us) == (vllm.prompt_us, vllm.step_us)
    assert as_vllm.attention_bw == sglang.attention_bw
    assert constants.convert_row(vllm, "vllm", ("hopper",)) is vllm


def test_prompts_beyond_captured_graphs_wait_for_the_host() -> None:
    """vLLM captures graphs up to twice `max_seqs`: layers of a longer prompt cost launches, however few tokens."""
    recipe = Recipe(name="a", engine="vllm", model="qwen3-235b", checkpoint="fp8", served_name="a", max_seqs=64)
    box = parse_box("1x-h200")
    short, long = (Speed.for_deployment(deploy(recipe, box)).step_parts(0, 0, tokens) for tokens in (128, 129))
    assert "waiting for launches" not in short
    assert sum(long.values()) > 1.2 * sum(short.values())
    larger = replace(recipe, flags={"max-cudagraph-capture-size": 2048})
    assert "waiting for launches" not in Speed.for_deployment(deploy(larger, box)).step_parts(0, 0, 512)


def test_few_rows_of_an_expert_are_padded() -> None:
    """A tile of 64 rows: one row counts twice, many hardly more than themselves."""
    found = step("qwen3-235b", "fp8", engine="vllm", gpu="h200")
    shares = [found.kernel.padded_share(found.rank, tokens) for tokens in (1, 1024, 8192)]
    assert shares == pytest.approx([2.0, 1.5, 1.06], abs=0.02)


def test_tensor_parallelism_does_not_cut_the_rows_of_experts() -> None:
    """Timed alone on an H200, SGLang's kernel takes 7.9 ms for 8,192 tokens of GLM-5, on one of eight ranks 1.8."""
    one, eighth = (step("glm-5", "fp8", gpu="h200", tp=tp) for tp in (1, 8))
    layer = [expert_kernel_seconds(each.rank, each.gpu, each.kernel, 8192) / 75 * 1e3 for each in (one, eighth)]
    assert layer == pytest.approx([7.9, 1.8], rel=0.15)
    assert one.kernel.bytes_moved(one.rank, 8192) == eighth.kernel.bytes_moved(eighth.rank, 8192)


def test_prompts_need_logits_of_their_last_token_alone() -> None:
    """A seventh of gpt-oss's active parameters are its head: 8,192 tokens are multiplied by the others."""
    found = step("gpt-oss-120b", "mxfp4", engine="vllm", gpu="h200")
    whole, last = (found.dense_seconds(8192, sampled) for sampled in (8192, 1))
    assert last < 0.7 * whole
    assert found.step_parts(0, 0, 8192, 0)["dense weights"] == last


def test_launches_of_a_prompt_include_experts_and_all_reduces() -> None:
    """Triton's experts take nine launches and TensorRT-LLM's two; one GPU has no all-reduces."""
    triton, trtllm = step("minimax-m2.5", "fp8"), step("minimax-m2.5", "fp8", engine="vllm")
    assert (triton.kernel.kernel, trtllm.kernel.kernel) == ("triton", "trtllm")
    assert triton.launches - trtllm.launches == pytest.approx(62 * 7 / 8)
    alone = replace(triton, rank=replace(triton.rank, tp=1))
    assert triton.launches - alone.launches == pytest.approx(62 * 2 / 8)


def test_all_reduces_of_engines_differ() -> None:
    """8 KiB over eight Hopper GPUs take 3.7 us under SGLang and 5.2 under vLLM, on B200 5.3, 8.1 (aiconfigurator)."""
    taken = {
        (gpu, engine): step("minimax-m2.5", "fp8", engine=engine, gpu=gpu).fabric.all_reduce(8, 1024) * 1e6
        for gpu in ("h200", "b200")
        for engine in ("sglang", "vllm")
    }
    assert list(taken.values()) == pytest.approx([3.7, 5.2, 5.3, 8.1], rel=0.03)


def test_joint_queries_share_a_tile() -> None:
    """Eight heads of four draft tokens fill half a tile of 64: attention takes as long as for one token."""
    plain = step("kimi-k2.6", "int4", engine="vllm")
    drafting = replace(plain, draft_tokens=3)
    assert drafting.cached_attention(32, 8192) == pytest.approx(plain.cached_attention(32, 8192), rel=0.05)


def test_replies_whose_drafts_suit_less_end_later() -> None:
    """Two replies of one length do not end together under speculation; without it they do."""
    recipe = kimi(speculate=Speculate(tokens=3))
    for speculate, apart in ((recipe.speculate, True), (None, False)):
        speed = Speed.for_deployment(deploy(replace(recipe, speculate=speculate), parse_box("8x-b200")))
        rules = SchedulerRules(
            kv_tokens=10**6, context=8192, max_seqs=8, step_tokens=8192, prompts_first=False, reserves_output=False
        )
        scheduler = Scheduler(speed=speed, rules=rules)
        for number in range(4):
            scheduler.submit(SimulatedRequest(id=number, input=100, output=200))
        ends = []
        while (done := scheduler.advance()) is not None:
            ends += [scheduler.done_steps for _ in done.finished]
        assert (len(set(ends)) > 1) is apart
        assert scheduler.used_tokens == pytest.approx(0, abs=1e-6)


def test_a_cpu_gains_little_by_streams() -> None:
    """The embedded engine on two cores: 153 tok/s of one stream and 164 of eight were measured, 1,032 was forecast.

    Every token unpacks the weights for itself and goes over its own cache, by one thread.
    """
    resolved = model_from_file(PHANTOM)
    recipe = Recipe(
        name="t",
        engine="llama.cpp",
        model=resolved.model.name,
        checkpoint=str(PHANTOM),
        served_name="t",
        kv="f16",
        hybrid=Hybrid(threads=1, ubatch=512),
    )
    box = Box(name="t", cpu=Cpu(cores=2, threads=2), ram=24 * 2**30)
    speed = Speed.for_deployment(Deployment(recipe, resolved.model, resolved.checkpoints[0], box))
    low, high = speed.decode_range
    for streams, measured in ((1, 153), (8, 164)):
        rate = speed.decode_tok_s(streams, 1000)
        assert rate * low <= measured <= rate * high, (streams, rate)
