"""Memory and speed count the same bytes: one module computes what a rank holds and reads."""

import dataclasses
import random

import pytest

from moebox.core import catalogue
from moebox.core.box import Gpu
from moebox.core.layers import Compressed
from moebox.core.plan import DeviceMemory
from moebox.core.recipe import Parallel, Recipe
from moebox.detect.declared import parse_box
from moebox.engines import budget
from moebox.planner.speed import Speed
from moebox.sizing import kv, shards
from moebox.sizing.rank import rank_work
from tests.planner.deployed import on

NAMES = sorted(catalogue.models())


def recipe_of(model: str, tp: int, *, engine: str = "vllm", kv_type: str = "bf16") -> Recipe:
    """A plain recipe."""
    return Recipe(
        name="x",
        engine=engine,  # type: ignore[arg-type]
        model=model,
        checkpoint="x",
        served_name="x",
        kv=kv_type,
        parallel=Parallel(tp=tp),
    )


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("tp", [1, 4, 8])
def test_what_a_rank_holds_is_what_it_reads(name: str, tp: int) -> None:
    """Attention, shared experts, router, norms and head of one rank, in both models of the box."""
    model = catalogue.find_model(name)
    for checkpoint in catalogue.published_checkpoints(name):
        recipe = recipe_of(name, tp)
        held = shards.weights_per_gpu(model, checkpoint, recipe.parallel, 0, vision_share=0.0)
        idle = {"routed_experts", "vision", "mtp"} | ({"embed"} if not model.tied else set())
        kept = sum(size for part, size in held.items() if part not in idle) - shards.absorbed_kv_bytes(
            model, tp, model.layers
        )
        assert rank_work(model, checkpoint, recipe).dense_bytes == pytest.approx(kept, rel=1e-6)


def test_the_indexer_is_copied_to_every_rank() -> None:
    """DeepSeek-V3.2 reads 3.09 GB of attention on each of eight ranks, not 2.34."""
    model, checkpoint = catalogue.find_model("deepseek-v3.2"), catalogue.find_checkpoint("deepseek-v3.2", "fp8")
    whole = shards.replicated_share(model, 8)
    attention = checkpoint.bytes_by_component["attention"]
    assert attention * (whole + (1 - whole) / 8) / 1e9 == pytest.approx(3.09, abs=0.01)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kv_type", ["bf16", "fp8"])
def test_a_full_cache_is_read_as_it_is_held(name: str, kv_type: str) -> None:
    """One query at a context within every window and selection reads what the cache holds of it."""
    model = catalogue.find_model(name)
    recipe = recipe_of(name, 4, kv_type=kv_type)
    rank = rank_work(model, catalogue.published_checkpoints(name)[0], recipe)
    context = 100
    held = context * kv.token_bytes(model, recipe)
    windows = sum(
        layers.count * context * kv.entry_bytes(layers.kind, recipe) for layers in model.stack if layers.kind.window
    )
    borrowed = sum(  # entries that a layer before holds
        layers.count * context / layers.kind.ratio * kv.entry_bytes(layers.kind, recipe)
        for layers in model.stack
        if isinstance(layers.kind, Compressed) and layers.kind.borrowed
    )
    states = 2 * sum(layers.count * layers.kind.state_bytes(4) for layers in model.stack)  # read and written
    assert rank.cache_bytes_read(context) == pytest.approx(held + windows + borrowed + states, rel=1e-3)


def test_grouped_heads_are_divided_by_tensor_parallelism() -> None:
    """Qwen3 has four KV heads: TP4 reads a quarter of the cache a rank, TP8 no less than one head."""
    model, checkpoint = catalogue.find_model("qwen3-235b"), catalogue.published_checkpoints("qwen3-235b")[0]
    read = {
        tp: rank_work(model, checkpoint, recipe_of("qwen3-235b", tp)).cache_bytes_read(30_000) for tp in (1, 2, 4, 8)
    }
    assert read[2] == read[1] / 2
    assert read[4] == read[1] / 4
    assert read[8] == read[4]


def test_grouped_heads_divided_show_in_the_forecast() -> None:
    """At a long context the attention of four ranks takes a quarter of one rank's time."""
    model, checkpoint = catalogue.find_model("qwen3-235b"), catalogue.published_checkpoints("qwen3-235b")[0]
    box = parse_box("8x-b200")
    times = {}
    for tp in (1, 4):
        speed = Speed.for_deployment(on(box, model, checkpoint, recipe_of("qwen3-235b", tp)))
        times[tp] = speed.step_parts(32, 30_000)["attention"]
    assert times[4] == pytest.approx(times[1] / 4)


def test_every_gpu_of_a_kind_has_the_whole_budget_of_its_kind() -> None:
    """GPU budgets are copied field by field, for speed: a field added to DeviceMemory must not be lost there."""
    parts = {field.name: number for number, field in enumerate(dataclasses.fields(DeviceMemory), 1)}
    first = DeviceMemory(**{**parts, "device": "gpu0", "weights": {"attention": 7}})  # type: ignore[arg-type]

    class OneBudget:
        """Every rank has the same budget."""

        def cache_tokens(self, gpu: Gpu, stage: int) -> int:
            return 1

        def missing_bytes(self, gpu: Gpu, stage: int) -> int:
            return 0

        def device_budget(self, gpu: Gpu, stage: int, tokens: int) -> DeviceMemory:
            return first

    box, model = parse_box("2x-b200"), catalogue.find_model("qwen3-235b")
    deployment = on(box, model, catalogue.published_checkpoints(model.name)[0], recipe_of(model.name, 2))
    devices = budget.budget_over_ranks(deployment, OneBudget()).devices
    assert devices == tuple(dataclasses.replace(first, device=f"gpu{index}") for index in range(2))


@pytest.mark.parametrize(("name", "checkpoint"), [("kimi-k2.6", "int4"), ("gpt-oss-120b", "mxfp4")])
@pytest.mark.parametrize("tokens", [8, 64, 512])
def test_whole_experts_make_the_fullest_rank_read_more(name: str, checkpoint: str, tokens: int) -> None:
    """Under expert parallelism the slowest rank decides: within a quarter of random routing over eight ranks."""
    model, weights = catalogue.find_model(name), catalogue.find_checkpoint(name, checkpoint)
    assert model.moe
    sliced = recipe_of(name, 8)
    whole = dataclasses.replace(sliced, parallel=Parallel(tp=8, ep=True))
    draw, fullest = random.Random(1), []
    for _ in range(100):
        used = {expert for _ in range(tokens) for expert in draw.sample(range(model.moe.experts), model.moe.used)}
        fullest.append(max(sum(expert % 8 == rank for expert in used) for rank in range(8)))
    work = rank_work(model, weights, whole)
    read = work.expert_bytes_read(tokens) / work.expert_bytes / model.moe_layers

    assert read == pytest.approx(sum(fullest) / len(fullest), rel=0.25)
    assert work.expert_bytes_read(8) > 1.1 * rank_work(model, weights, sliced).expert_bytes_read(8)
