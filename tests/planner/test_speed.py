"""The speed model: physics that must hold on any box, and published rows it must come near."""

import math
import statistics
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moebox import phantom
from moebox.checkpoint import resolve_model
from moebox.core import catalogue
from moebox.core.box import Box, Cpu
from moebox.core.recipe import Hybrid, Parallel, Recipe, Runtime, Speculate
from moebox.errors import BadInput
from moebox.planner.choose import choose_plan
from moebox.planner.constraints import Constraints
from moebox.planner.speed import Speed
from moebox.planner.speed.constants import find_efficiency
from tests.planner.deployed import kimi, on
from tests.planner.rows import published


def recipe(**settings: object) -> Recipe:
    """Kimi K2.6 INT4 on eight ranks with an fp8 cache, with a test's changes."""
    return kimi(**{"kv": "fp8", **settings})


def speed(gpu: str = "rtx-pro-6000-server", many: int = 8, **settings: object) -> Speed:
    """Return the speed of that recipe on `many` GPUs."""
    one = recipe(**settings)
    box = Box(name="t", gpus=(catalogue.find_gpu(gpu),) * many)
    return Speed.for_deployment(
        on(box, catalogue.find_model(one.model), catalogue.find_checkpoint(one.model, one.checkpoint), one)
    )


def hybrid(
    layers: int, *, ram: float = 614.4e9, gpus: int = 2, ubatch: int = 4096, engine: str = "ik_llama.cpp"
) -> Speed:
    """Kimi K2.6 Q4_X with experts in RAM but for `layers`."""
    box = Box(
        name="t",
        gpus=(catalogue.find_gpu("rtx-pro-6000-max-q"),) * gpus,
        cpu=Cpu(cores=16),
        ram_bandwidth=int(ram),
    )
    one = recipe(
        engine=engine,
        checkpoint="Q4_X",
        kv="f16",
        hybrid=Hybrid(experts=(tuple(range(1, layers + 1)),), ubatch=ubatch),
    )
    return Speed.for_deployment(
        on(box, catalogue.find_model("kimi-k2.6"), catalogue.find_checkpoint("kimi-k2.6", "Q4_X"), one)
    )


def test_distinct_experts_follow_the_formula() -> None:
    """A batch of B activates E(1 - (1 - k/E)^B) experts: 8 for one token, 188.6 for 32, never more than 384."""
    rank = speed().gpu_step.rank  # type: ignore[union-attr]

    assert rank.distinct_experts(1) == pytest.approx(8)
    assert rank.distinct_experts(32) == pytest.approx(384 * (1 - (1 - 8 / 384) ** 32))
    assert rank.distinct_experts(1e6) == pytest.approx(384)


@given(batch=st.integers(1, 512), context=st.integers(0, 262144), dcp=st.sampled_from([1, 2, 4, 8]))
@settings(max_examples=40, deadline=None)
def test_more_work_never_takes_less_time(batch: int, context: int, dcp: int) -> None:
    """A step grows with batch and context, and total throughput grows with batch at an empty context."""
    model = speed(parallel=Parallel(tp=8, dcp=dcp))
    here = model.step_s(batch, context)

    assert 0 < here < math.inf
    assert model.step_s(batch + 1, context) >= here * 0.999
    assert model.step_s(batch, context + 1000) >= here
    assert model.decode_tok_s(batch + 8, 0) > model.decode_tok_s(batch, 0) * 0.95


@pytest.mark.parametrize("gpu", ["h200", "b200", "rtx-pro-6000-server", "mi300x"])
def test_faster_memory_is_never_slower(gpu: str) -> None:
    """The same GPU with twice the bandwidth decodes at least as fast, and does not reach twice the speed."""
    plain = speed(gpu)
    faster = replace(catalogue.find_gpu(gpu), bandwidth=2 * catalogue.find_gpu(gpu).bandwidth)
    one = recipe()
    box = Box(name="t", gpus=(faster,) * 8)
    quick = Speed.for_deployment(
        on(box, catalogue.find_model("kimi-k2.6"), catalogue.find_checkpoint("kimi-k2.6", "int4"), one)
    )

    for batch in (1, 32, 256):
        assert (
            plain.decode_tok_s(batch, 8192) < quick.decode_tok_s(batch, 8192) < 2.01 * plain.decode_tok_s(batch, 8192)
        )


@pytest.mark.parametrize("gpu", ["h200", "b200"])
def test_more_ranks_help_on_nvlink(gpu: str) -> None:
    """Eight ranks beat four at 32 streams if links are fast."""
    four = speed(gpu, 4, parallel=Parallel(tp=4))
    eight = speed(gpu, 8, parallel=Parallel(tp=8))

    assert eight.decode_tok_s(32, 4096) > four.decode_tok_s(32, 4096)
    assert eight.prefill_s(8192) < four.prefill_s(8192)


def test_a_divided_cache_costs_short_contexts_and_helps_long_ones() -> None:
    """DCP8 on PCIe: 76 instead of 91 tok/s at an empty context, 62 instead of 46 at 131,072 (rtx6kpro wiki, v3)."""
    one = speed(runtime=Runtime(preset="community"))
    eight = speed(runtime=Runtime(preset="community"), parallel=Parallel(tp=8, dcp=8))

    assert eight.decode_tok_s(1, 0) < one.decode_tok_s(1, 0)
    assert eight.decode_tok_s(1, 131072) > one.decode_tok_s(1, 131072)


def test_draft_tokens_gain_tokens_and_cost_time() -> None:
    """EAGLE3 with three draft tokens gains between one and four tokens a step, and a step takes longer."""
    plain, drafting = speed(), speed(speculate=Speculate(tokens=3))

    assert plain.tokens_per_step == 1.0
    assert 1.5 < drafting.tokens_per_step < 4
    assert drafting.step_s(8, 1000) > plain.step_s(8, 1000)


def test_launches_without_graphs_dominate_small_batches() -> None:
    """Without graphs a single stream falls to a fraction, and a large batch suffers less."""
    eager = speed(flags={"enforce-eager": True})

    assert eager.decode_tok_s(1, 0) < 0.4 * speed().decode_tok_s(1, 0)
    assert eager.decode_tok_s(256, 0) > 0.6 * speed().decode_tok_s(256, 0)


def test_steps_that_decode_are_launched_ahead() -> None:
    """magik6k's GLM-4.7 without graphs takes 56 to 62 ms for 1 to 128 streams: the launches, then the GPU, no sum."""
    eager, graphs = speed(flags={"enforce-eager": True}), speed()
    launching = eager.step_s(1, 0)

    for streams in (1, 64, 512):
        assert eager.step_s(streams, 0) == pytest.approx(max(launching, graphs.step_s(streams, 0)))


def test_prompts_cost_more_for_each_token_when_longer() -> None:
    """Prefill falls from 7,357 tok/s at 8k to 4,852 at 129k on the tuned rig (rtx6kpro wiki, v2); ours within 10%."""
    tuned = speed(runtime=Runtime(preset="community"))

    assert tuned.prefill_tok_s(8190) == pytest.approx(7357, rel=0.1)
    assert tuned.prefill_tok_s(128790) == pytest.approx(4852, rel=0.1)
    assert tuned.prefill_s(8192, 65536) > tuned.prefill_s(8192)


def test_experts_on_gpus_speed_up_a_single_stream() -> None:
    """Every expert layer moved from RAM to a GPU helps, and faster RAM does too."""
    rates = [hybrid(layers).decode_tok_s(1, 1000) for layers in (0, 6, 10, 60)]

    assert rates == sorted(rates)
    assert hybrid(6, ram=900e9).decode_tok_s(1, 1000) > rates[1]


def test_a_large_micro_batch_shares_the_copying_of_experts() -> None:
    """Experts cross PCIe once for each micro-batch, so a larger one reads prompts faster."""
    assert hybrid(6, ubatch=8192).prefill_tok_s(16384) > 1.3 * hybrid(6, ubatch=2048).prefill_tok_s(16384)


def test_llama_cpp_runs_without_gpus() -> None:
    """All of it in RAM: slower than with GPUs, but it works."""
    bare = hybrid(0, gpus=0)

    assert 0 < bare.decode_tok_s(1, 1000) < hybrid(0).decode_tok_s(1, 1000)
    assert 0 < bare.prefill_tok_s(2048) < math.inf


def test_gpu_only_engines_refuse_a_box_without_gpus() -> None:
    """vLLM on a box without GPUs is bad input, not a division by zero."""
    with pytest.raises(BadInput, match="needs a GPU"):
        speed(many=0)


def test_unmeasured_gpus_have_a_wider_range() -> None:
    """An engine without published results on a GPU is forecast from its neighbour, with a wider range."""
    row, away = find_efficiency("sglang", "", "ada")
    known = speed(runtime=Runtime(preset="community")).decode_range
    unknown = speed("l40s").decode_range

    assert away > 0
    assert row.generation == "blackwell-rtx"
    assert unknown[0] < known[0] < 1 < known[1] < unknown[1]


@pytest.mark.parametrize(
    "made", [speed(parallel=Parallel(tp=8, dcp=4)), hybrid(6), speed("b200", speculate=Speculate())]
)
def test_lines_add_up_to_the_step(made: Speed) -> None:
    """The lines of `plan --why` sum to the step, and each part names the source of its constants."""
    lines = {line.what: line for line in made.explain_lines(4, 8192)}
    parts = [line for line in lines.values() if line.unit == "ms" and line.what != "step"]

    assert sum(line.value for line in parts) == pytest.approx(lines["step"].value)
    assert lines["decode"].value == pytest.approx(made.decode_tok_s(4, 8192))
    assert all(line.formula and line.source for line in parts)


def test_published_cells_of_the_tuned_rig() -> None:
    """898 decode cells: median error at most 12%, 90th percentile at most 30%; prefill median at most 20%."""
    errors = sorted(abs(case.ratio - 1) for case in published().decode_cells())
    prompts = [abs(case.ratio - 1) for case in published().prefill_cells()]

    assert len(errors) > 800
    assert statistics.median(errors) <= 0.12
    assert errors[int(0.9 * len(errors))] <= 0.30
    assert statistics.median(prompts) <= 0.20


def test_published_rows_of_cpu_and_gpus() -> None:
    """Decoding within 12% at the median, prompts within 30%."""
    cases = list(published().hybrid_rows())

    for group, bound in (("tg", 0.12), ("pp", 0.30)):
        assert statistics.median(abs(case.ratio - 1) for case in cases if case.group == group) <= bound


def test_a_cpu_alone_has_the_range_of_the_unmeasured():
    """The rehearsal model on two Arm cores: 248 tok/s were forecast, -17% to +20%, and 58 came."""
    gguf = str(phantom.gguf_path())
    model, checkpoints = resolve_model(gguf)
    bare = Box(name="mine", gpus=(), cpu=Cpu(cores=2), ram=16 * 2**30, ram_bandwidth=40_000_000_000)
    plan = choose_plan(bare, model, checkpoints, Constraints(engine="llama.cpp"))
    first = plan.forecast[0]
    assert first.high_tok_s > 3 * first.decode_tok_s > 9 * first.low_tok_s
    assert "CPU without a GPU" in plan.basis
