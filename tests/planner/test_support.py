"""What an engine cannot run yet is refused by engine and version, not by model."""

import random
from dataclasses import replace
from typing import Any

import pytest

from moebox.checkpoint import deploy
from moebox.core import catalogue, families
from moebox.core.recipe import Parallel, Recipe
from moebox.engines import find_refusals
from moebox.engines.engine import load_engine
from moebox.engines.support import deployment_support, failures_fixed_by_settings
from moebox.errors import DoesNotFit, MoeboxError
from moebox.planner.choose import choose_plan
from moebox.planner.constraints import Constraints
from moebox.planner.speed import Speed
from tests.planner.boxes import box_with
from tests.sampling import one_in

B200 = box_with(8, "b200")
RAM = box_with(1, "rtx-pro-6000-server", ram=2**41, ram_bandwidth=614_400_000_000)
NEW = (
    "kimi-k3",
    "deepseek-v4-flash",
    "deepseek-v4-pro",
    "qwen3.5-397b",
    "minimax-m3",
    "mimo-v2-flash",
    "step-3.7-flash",
    "glm-5.2",
)


@pytest.mark.parametrize("name", NEW)
def test_new_architectures_have_a_row(name: str) -> None:
    """Each names the source of its figures, and some engine runs it."""
    row = families.architecture_support(catalogue.find_model(name))
    assert row is not None
    assert row.source
    assert any(first != families.NEVER for first in row.first.values())


def fatal(recipe: Recipe) -> list[str]:
    """Return the fatal refusals of a recipe."""
    found = load_engine(recipe.engine).find_refusals(deploy(recipe, B200))
    return [refusal.text for refusal in found if refusal.severity == "fatal"]


def test_a_version_from_before_is_refused_with_the_first_that_runs_it() -> None:
    """vLLM 0.26 does not know Kimi K3; 0.27 does, and so does the newest."""
    recipe = Recipe(
        name="t", engine="vllm", model="kimi-k3", checkpoint="mxfp4", served_name="t", parallel=Parallel(tp=8)
    )
    refusals = fatal(replace(recipe, engine_version="0.26.0"))
    assert [text for text in refusals if "vLLM 0.26.0 does not run Kimi K3" in text and "0.27.0 is the first" in text]
    assert not [text for text in fatal(replace(recipe, engine_version="0.27.1")) if "does not run" in text]
    assert not [text for text in fatal(recipe) if "does not run" in text]


def test_an_engine_that_never_runs_it_is_not_considered() -> None:
    """ik_llama.cpp has no Kimi K3: a box with RAM gets llama.cpp, and --engine ik_llama.cpp is refused."""
    model = catalogue.find_model("kimi-k3")
    plan = choose_plan(RAM, model, catalogue.published_checkpoints("kimi-k3"), Constraints())
    assert plan.recipe.engine == "llama.cpp"
    with pytest.raises(MoeboxError, match=r"ik_llama\.cpp does not read|does not run"):
        choose_plan(RAM, model, catalogue.published_checkpoints("kimi-k3"), Constraints(engine="ik_llama.cpp"))


def test_a_slowdown_of_many_requests_leaves_one_stream_as_it_is() -> None:
    """vLLM 0.24 to 0.26 with Qwen3.6-35B in FP8 lost a factor of five with 40 requests at once, and not with one."""
    recipe = Recipe(
        name="t",
        engine="vllm",
        engine_version="0.25.0",
        model="qwen3.6-35b",
        checkpoint="fp8",
        served_name="t",
        max_seqs=64,
        parallel=Parallel(tp=2),
    )
    speed = Speed.for_deployment(deploy(recipe, box_with(2, "rtx-pro-6000-server")))
    assert [speed.known_share(streams) for streams in (1, 32, 40, 64)] == [1.0, 1.0, 0.2, 0.2]
    assert "reported slowdown" in speed.step_parts(64, 1024)


def test_an_fp8_cache_is_not_planned_for_triton_on_ampere() -> None:
    """SGLang reads Kimi's latent cache with Triton, which has no fp8e4nv before SM89; vLLM refuses fp8 there too."""
    place = box_with(8, "a100-80gb", ram=2**40, ram_bandwidth=300_000_000_000)
    for engine in ("sglang", "vllm"):
        model, known = catalogue.find_model("kimi-k2.6"), catalogue.published_checkpoints("kimi-k2.6")
        assert choose_plan(place, model, known, Constraints(engine=engine)).recipe.kv == "bf16"


SAMPLED = random.Random(20261117).sample(
    [
        (model, box, engine)
        for model in ("kimi-k2.6", "glm-5.3", "glm-5.3-flash", "deepseek-v4-flash", "minimax-m3", "qwen3.5-122b", "hy3")
        for box in (
            (2, "rtx-pro-6000-server"),
            (4, "rtx-5090"),
            (8, "h200"),
            (8, "a100-80gb"),
            (8, "mi300x"),
            (4, "b300"),
        )
        for engine in ("", "vllm", "sglang", "llama.cpp")
    ],
    48,
)


@pytest.mark.parametrize(("model", "box", "engine"), one_in(12, SAMPLED, unpack=True))
def test_no_default_plan_is_known_not_to_start(model: str, box: tuple[int, str], engine: str) -> None:
    """What the matrix knows to fail is not planned, and a row on wrong answers is at least a warning."""
    place = box_with(*box, ram=2**40, ram_bandwidth=300_000_000_000)
    try:
        plan = choose_plan(
            place,
            catalogue.find_model(model),
            catalogue.published_checkpoints(model),
            Constraints(engine=engine or None),
        )
    except MoeboxError:
        return  # nothing fits or runs: refused, which is no plan
    deployment = deploy(plan.recipe, place)
    states = {support.state for _, support in deployment_support(deployment)}
    assert states.isdisjoint({"no-start", "crashes", "hangs", "wrong"}), plan.recipe
    rows = [match.row for _, support in deployment_support(deployment) for match in support.matches]
    shown = {warning.text: warning.severity for warning in (*plan.warnings, *find_refusals(deployment))}
    for row in (row for row in rows if row.state == "wrong"):
        assert shown.get(row.text) in ("warning", "fatal"), row.id


def test_a_flag_without_which_a_model_does_not_start_is_planned() -> None:
    """MiniMax-M3's layers need pages of 128 tokens in vLLM: the plan sets them, with the reason, and forecasts so."""
    place = box_with(8, "h200", ram=2**40)
    forms = catalogue.published_checkpoints("minimax-m3")
    plan = choose_plan(place, catalogue.find_model("minimax-m3"), forms, Constraints(engine="vllm"))
    assert plan.recipe.flags["block-size"] == 128
    assert any("× 128)) × 128 ×" in line.formula for line in plan.why)
    assert any(reason.startswith("flags.block-size = 128: MiniMax-M3") for reason in plan.reasons)
    assert plan.memory.kv_tokens % 128 == 0
    assert {support.state for _, support in deployment_support(deploy(plan.recipe, place))} != {"no-start"}


def test_a_lack_of_memory_is_not_blamed_on_a_flag_that_is_planned() -> None:
    """MiniMax-M3 on two RTX PRO 6000: its weights do not fit, whatever the pages are."""
    forms = catalogue.published_checkpoints("minimax-m3")
    with pytest.raises(DoesNotFit, match=r"needs .* GB more on each GPU"):
        choose_plan(
            box_with(2, "rtx-pro-6000-server"), catalogue.find_model("minimax-m3"), forms, Constraints(engine="vllm")
        )


def test_a_flag_that_the_recipe_sets_is_not_set_otherwise() -> None:
    """Only what a recipe leaves open is filled in, also if its own value is false."""
    model = catalogue.find_model("minimax-m3")
    form = catalogue.published_checkpoints("minimax-m3")[0]
    flags: tuple[dict[str, Any], ...] = ({}, {"block-size": 16}, {"block-size": False})
    found = []
    for each in flags:
        recipe = Recipe(name="t", engine="vllm", model=model.name, checkpoint=form.name, served_name="t", flags=each)
        found.append(len(failures_fixed_by_settings(deploy(recipe, box_with(8, "h200")))))
    assert found == [1, 0, 0]
