"""Data-parallel attention with expert parallelism: planned, launched, read back, simulated."""

import pytest

from moebox.checkpoint import deploy
from moebox.core import catalogue
from moebox.core.recipe import Parallel
from moebox.engines.engine import load_engine
from moebox.errors import BadInput
from moebox.planner.choose import choose_plan
from moebox.planner.constraints import Constraints
from moebox.planner.simulate import SimulatedWorkload, scheduler_rules, simulate
from moebox.planner.speed import Speed
from tests.chain.parse_back import parse_command
from tests.planner.boxes import box_with

BOX = box_with(8, "b200")
MODEL = catalogue.find_model("deepseek-v3.1")
FORMS = catalogue.published_checkpoints("deepseek-v3.1")


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_constrained_groups_are_planned_and_launched(engine: str) -> None:
    """Eight groups of one GPU; the command, read back, is the same layout."""
    plan = choose_plan(BOX, MODEL, FORMS, Constraints(engine=engine, tp=1, dp=8, ep=8))
    assert plan.recipe.parallel == Parallel(tp=1, dp=8, ep=True)
    deployment = deploy(plan.recipe, BOX)
    words = [part for word in load_engine(engine).arguments(deployment) for part in word]
    entry = ["vllm", "serve"] if engine == "vllm" else ["sglang", "serve"]
    assert parse_command(engine, [*entry, *words]).parallel == plan.recipe.parallel
    if engine == "sglang":
        assert words[words.index("--tp-size") + 1] == "8"
        assert "--enable-dp-attention" in words


def test_more_groups_than_gpus_do_not_fit() -> None:
    """One line with both numbers."""
    with pytest.raises(BadInput, match="takes 16 GPUs and 8x-b200 has 8"):
        choose_plan(BOX, MODEL, FORMS, Constraints(tp=4, dp=4))


def test_many_streams_gain_and_one_loses() -> None:
    """Every group reads all attention weights, but each stream's cache is on one GPU only."""
    rates = {}
    for name, spread in {
        "tp": Constraints(engine="sglang", tp=8, ep=8),
        "dp": Constraints(engine="sglang", tp=1, dp=8, ep=8),
    }.items():
        recipe = choose_plan(BOX, MODEL, FORMS, spread).recipe
        speed = Speed.for_deployment(deploy(recipe, BOX))
        rates[name] = speed.decode_tok_s(1, 4096), speed.decode_tok_s(512, 16384)
        done = simulate(
            speed,
            scheduler_rules(recipe, 10**6, speed),
            SimulatedWorkload(input=512, output=64, requests=64, concurrency=16),
        )
        assert done.completed == 64
    assert rates["dp"][0] < rates["tp"][0]
    assert rates["dp"][1] > rates["tp"][1]
