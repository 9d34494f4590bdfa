"""Properties of the memory model that hold for every model, box and recipe."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from moebox.checkpoint import deploy
from moebox.core import catalogue
from moebox.core.box import Box
from moebox.core.model import Checkpoint, Model
from moebox.core.recipe import Hybrid, Parallel, Recipe, Speculate
from moebox.engines import memory_budget
from moebox.sizing import shards
from tests.planner.boxes import box_with
from tests.planner.deployed import kimi, on

MODELS = ("kimi-k2.6", "glm-4.7", "glm-5.1", "qwen3-235b", "gpt-oss-120b", "deepseek-v3")
GPUS = ("rtx-pro-6000-server", "h200", "b200", "rtx-5090", "rtx-4090")


@st.composite
def served(draw: st.DrawFn) -> tuple[Box, Model, Checkpoint, Recipe]:
    """Draw a recipe of a GPU-only engine on a box with enough GPUs."""
    model = catalogue.find_model(draw(st.sampled_from(MODELS)))
    forms = [one for one in catalogue.published_checkpoints(model.name) if one.format == "safetensors"]
    form = draw(st.sampled_from(forms))
    tp, pp = draw(st.sampled_from((1, 2, 4, 8))), draw(st.sampled_from((1, 2, 3)))
    dcp = draw(st.sampled_from([size for size in (1, 2, 4, 8) if size <= tp]))
    recipe = Recipe(
        name="x",
        engine=draw(st.sampled_from(("vllm", "sglang"))),
        model=model.name,
        checkpoint=form.name,
        served_name="x",
        context=draw(st.integers(1, 300_000)),
        max_seqs=draw(st.sampled_from((None, 1, 64, 1024))),
        kv=draw(st.sampled_from(("bf16", "fp8"))),
        memory_utilization=draw(st.sampled_from((None, 0.5, 0.9, 0.97))),
        vision=draw(st.booleans()),
        parallel=Parallel(tp=tp, pp=pp, dcp=dcp, ep=draw(st.booleans())),
        speculate=draw(st.sampled_from((None, Speculate()))),
    )
    spare = draw(st.integers(0, 2))
    return box_with(tp * pp + spare, draw(st.sampled_from(GPUS))), model, form, recipe


@settings(max_examples=60, deadline=None)
@given(case=served())
def test_the_parts_of_a_device_sum_to_it(case: tuple[Box, Model, Checkpoint, Recipe]) -> None:
    """Weights, draft, cache, activations, overhead and what is free are the whole GPU, to the byte."""
    memory = memory_budget(on(*case))

    assert len(memory.devices) == len(case[0].gpus)
    for one in memory.devices:
        assert one.weights_total + one.draft + one.kv + one.activations + one.overhead + one.free == one.total
        assert min(one.weights_total, one.draft, one.kv, one.activations, one.overhead) >= 0
    if memory.fits:
        assert min(one.free for one in memory.devices) >= 0
        assert memory.kv_tokens >= case[3].context


@settings(max_examples=60, deadline=None)
@given(case=served(), extra=st.integers(0, 64 * 2**30))
def test_more_memory_never_fits_less(case: tuple[Box, Model, Checkpoint, Recipe], extra: int) -> None:
    """A GPU with more memory holds at least as many tokens, and fits whatever the smaller one fitted.

    GPUs stay on one side of the size at which engines change their defaults; across it they may plan for more.
    """
    box, model, form, recipe = case
    recipe = replace(
        recipe, max_seqs=recipe.max_seqs or 64, batched_tokens=4096, memory_utilization=recipe.memory_utilization or 0.9
    )
    larger = replace(box, gpus=tuple(replace(gpu, memory=gpu.memory + extra) for gpu in box.gpus))
    small, large = memory_budget(on(box, model, form, recipe)), memory_budget(on(larger, model, form, recipe))

    assert large.kv_tokens >= small.kv_tokens
    assert large.shortfall <= small.shortfall
    assert large.fits or not small.fits


@settings(max_examples=40, deadline=None)
@given(
    gpus=st.integers(0, 4),
    placed=st.lists(st.integers(0, 9), max_size=4),
    ubatch=st.sampled_from((128, 512, 4096)),
    ram=st.integers(0, 2**40),
    context=st.integers(1, 400_000),
    engine=st.sampled_from(("llama.cpp", "ik_llama.cpp")),
)
def test_the_parts_of_gpus_and_ram_sum_under_llama_cpp(
    gpus: int, placed: list[int], ubatch: int, ram: int, context: int, engine: str
) -> None:
    """With experts in RAM the parts also sum to the byte, and more RAM never fits less."""
    model, form = catalogue.find_model("kimi-k2.6"), catalogue.find_checkpoint("kimi-k2.6", "Q4_X")
    experts = tuple(tuple(range(1 + 10 * i, 1 + 10 * i + count)) for i, count in enumerate(placed[:gpus]))
    recipe = Recipe(
        name="x",
        engine=engine,  # type: ignore[arg-type]
        model=model.name,
        checkpoint=form.name,
        served_name="x",
        context=context,
        kv="f16",
        hybrid=Hybrid(experts=experts, ubatch=ubatch),
    )
    box = box_with(gpus, "rtx-pro-6000-server", ram=ram)
    memory, more = (
        memory_budget(on(box, model, form, recipe)),
        memory_budget(on(replace(box, ram=ram + 2**36), model, form, recipe)),
    )

    for one in memory.devices:
        assert one.weights_total + one.draft + one.kv + one.activations + one.overhead + one.free == one.total
    assert more.fits or not memory.fits
    total = sum(one.weights_total for one in memory.devices)
    tied = form.bytes_by_component["embed"] if model.tied else 0
    assert abs(total - tied - (form.total_bytes - form.bytes_by_component.get("vision", 0))) < 100


@given(layers=st.integers(1, 200), pp=st.integers(1, 16))
def test_stages_hold_every_layer_once(layers: int, pp: int) -> None:
    """Pipeline stages differ by at most one layer and lose none."""
    if pp > layers:
        return
    sizes = shards.stage_layers(layers, pp)

    assert sum(sizes) == layers
    assert max(sizes) - min(sizes) <= 1


def test_mla_is_copied_by_tp_and_divided_by_dcp() -> None:
    """Eight ranks hold eight copies of the latent; DCP8 makes one pool of eight parts."""
    model, form = catalogue.find_model("kimi-k2.6"), catalogue.find_checkpoint("kimi-k2.6", "int4")
    box = box_with(8, "h200")
    one = kimi(max_seqs=16, kv="bf16", memory_utilization=0.9)
    plain = memory_budget(on(box, model, form, one))
    split = memory_budget(on(box, model, form, replace(one, parallel=Parallel(tp=8, dcp=8))))

    assert plain.kv_bytes_per_token == split.kv_bytes_per_token == 61 * 576 * 2
    assert 7.8 < split.kv_tokens / plain.kv_tokens <= 8


def test_gqa_splits_by_head_until_each_rank_has_one() -> None:
    """Qwen3's four KV heads: a token costs half on TP2, a quarter on TP4 and no less on TP8."""
    model, form = catalogue.find_model("qwen3-235b"), catalogue.find_checkpoint("qwen3-235b", "fp8")
    costs = []
    for tp in (1, 2, 4, 8):
        recipe = Recipe(
            name="x",
            engine="vllm",
            model="q",
            checkpoint="fp8",
            served_name="x",
            parallel=Parallel(tp=tp),
            context=1024,
        )
        costs.append(memory_budget(on(box_with(tp, "b200"), model, form, recipe)).kv_bytes_per_token)

    assert [costs[0] / cost for cost in costs] == [1, 2, 4, 4]


def test_a_gpu_that_others_use_has_less_room() -> None:
    """Memory held by other programs is overhead on that GPU, and a utilization beyond what is free does not start."""
    model, form = catalogue.find_model("kimi-k2.6"), catalogue.find_checkpoint("kimi-k2.6", "int4")
    box = box_with(8, "rtx-pro-6000-server")
    busy = replace(box.gpus[0], memory_free=70 * 2**30)
    held = replace(box, gpus=(busy, *box.gpus[1:]))
    recipe = kimi(max_seqs=64, memory_utilization=0.9)

    assert memory_budget(on(box, model, form, recipe)).fits
    assert not memory_budget(on(held, model, form, recipe)).fits
    assert memory_budget(on(held, model, form, recipe)).shortfall > 10 * 2**30


def test_what_comes_after_profiling_counts_against_the_gpu() -> None:
    """vLLM's Triton workspace is allocated outside the utilization: at 0.985 there is no room left for 2 GiB of it."""
    box = Box(name="t", gpus=(catalogue.find_gpu("rtx-pro-6000-server"),) * 8)
    recipe = kimi(context=8192, kv="bf16", memory_utilization=0.985)
    few, many = (memory_budget(deploy(replace(recipe, max_seqs=seqs, context=65536), box)) for seqs in (16, 1024))
    assert few.fits
    assert not many.fits
    assert many.shortfall > 2**29
