"""KTransformers against published results, and its plans."""

import dataclasses
import tomllib
from importlib import resources
from typing import Any

import pytest

from moebox import engines
from moebox.core import catalogue
from moebox.core.box import Box, Cpu
from moebox.core.deployment import Deployment
from moebox.core.recipe import Hybrid, Parallel, Recipe
from moebox.engines.ktransformers import memory
from moebox.planner.choose import choose_plan
from moebox.planner.constraints import Constraints
from moebox.planner.speed import Speed

TEXT = resources.files("moebox.data").joinpath("published", "ktransformers.toml").read_text(encoding="utf-8")
ROWS: list[dict[str, Any]] = tomllib.loads(TEXT)["run"]
BY_NAME = {row["name"]: row for row in ROWS}


def deployment(row: dict[str, Any]) -> Deployment:
    """A published run as a deployment on its box."""
    gpu = catalogue.find_gpu(row["gpu"])
    if "memory_gib" in row:
        gpu = dataclasses.replace(gpu, memory=row["memory_gib"] * 2**30)
    cpu = Cpu(sockets=row["sockets"], cores=row["cores"], threads=row["cores"])
    rate = round(row["ram_gb_s"] * 1e9)
    box = Box(name=row["name"], gpus=(gpu,) * row["gpus"], cpu=cpu, ram=2**41, ram_bandwidth=rate)
    model = catalogue.find_model(row["model"])
    form = catalogue.find_checkpoint(model.name, row["checkpoint"])
    recipe = Recipe(
        name="x",
        engine="ktransformers",
        model=model.name,
        checkpoint=row["checkpoint"],
        served_name="x",
        context=30000,
        max_seqs=1,
        batched_tokens=row["chunk"],
        kv="bf16",
        parallel=Parallel(tp=row["gpus"]),
        hybrid=Hybrid(threads=row["cores"], pools=row["sockets"], gpu_experts=row["gpu_experts"]),
    )
    return Deployment(recipe, model, form, box)


@pytest.mark.parametrize("name", [row["name"] for row in ROWS if "pp" in row])
def test_published_prompts_are_in_the_range(name: str) -> None:
    """Three lengths on one to eight GPUs: copying a layer's experts is what a short prompt waits for."""
    row = BY_NAME[name]
    speed = Speed.for_deployment(deployment(row))
    low, high = speed.range_factors("prompt")
    for tokens, seen in row["pp"].items():
        assert low < seen / speed.prefill_tok_s(int(tokens)) < high, (tokens, seen)


@pytest.mark.parametrize("name", [row["name"] for row in ROWS if "tg_tok_s" in row])
def test_published_decode_is_in_the_range(name: str) -> None:
    """Two reports that disagree, so the range is wide."""
    row = BY_NAME[name]
    speed = Speed.for_deployment(deployment(row))
    low, high = speed.decode_range
    assert low < row["tg_tok_s"] / speed.decode_tok_s(1, 2048) < high


@pytest.mark.parametrize(("name", "tokens"), [("kt-2x4090", 65536), ("kt-4x4090", 80000), ("kt-8x4090", 100000)])
def test_the_makers_table_of_experts_is_reproduced(name: str, tokens: int) -> None:
    """As many experts on GPUs of 48 GB as they recommend for that cache, give or take a few."""
    row = deployment(BY_NAME[name])
    requested = dataclasses.replace(row.recipe, context=tokens, memory_utilization=0.94)
    empty = dataclasses.replace(requested, hybrid=Hybrid(gpu_experts=0))
    most = memory.max_gpu_experts(row.with_recipe(empty))
    assert most == pytest.approx(BY_NAME[name]["gpu_experts"], abs=12)


def test_it_is_planned_on_request_and_shown_beside_others() -> None:
    """One GPU and much RAM: the recipe fits, launches, and never displaces what is measured better."""
    box = Box(
        name="attic",
        gpus=(catalogue.find_gpu("rtx-pro-6000-workstation"),),
        cpu=Cpu(model="Intel(R) Xeon(R) 6960P", cores=72, threads=144),
        ram=768 * 2**30,
        ram_bandwidth=614_400_000_000,
    )
    model = catalogue.find_model("kimi-k2.6")
    forms = catalogue.published_checkpoints(model.name)
    requested = choose_plan(box, model, forms, Constraints(engine="ktransformers"))
    free = choose_plan(box, model, forms, Constraints())

    assert requested.memory.fits
    assert requested.recipe.hybrid is not None
    assert (requested.recipe.hybrid.gpu_experts or 0) > 10
    launch = engines.build_launch(
        Deployment(requested.recipe, model, catalogue.find_checkpoint(model.name, "int4"), box)
    )
    assert ("--kt-method", "RAWINT4") in zip(launch.argv, launch.argv[1:], strict=False)
    assert free.recipe.engine != "ktransformers"


def test_the_launch_has_only_flags_of_its_fork_of_sglang() -> None:
    """sglang-kt 0.7.2 refused --language-model-only and has no flag for thinking: 30 of 139 launches ended at once."""
    row = deployment(BY_NAME["kt-4x4090"])
    model = catalogue.find_model("kimi-k2.6")
    recipe = dataclasses.replace(row.recipe, model=model.name, checkpoint="int4", vision=False, thinking=False)
    kimi = Deployment(recipe, model, catalogue.find_checkpoint(model.name, "int4"), row.box)

    engines.check_recipe(kimi)
    argv = engines.build_launch(kimi).argv
    assert "--language-model-only" not in argv
    assert "--default-chat-template-kwargs" not in argv
    assert any("thinking" in refusal.text for refusal in engines.find_refusals(kimi))
    assert engines.memory_budget(kimi).devices[0].weights["vision"] > 0
