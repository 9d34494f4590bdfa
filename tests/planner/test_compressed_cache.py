"""DeepSeek V4's cache: fp8 in every engine that serves it, and no refusal about other models' kernels."""

from dataclasses import replace

import pytest

from moebox.checkpoint import deploy
from moebox.core.plan import PlanWarning
from moebox.core.recipe import Parallel, Recipe
from moebox.engines import build_launch, find_refusals
from moebox.errors import DoesNotFit
from moebox.planner.choose import choose_plan
from moebox.planner.constraints import Constraints
from tests.planner.boxes import box_with, facts

BOXES = ((8, "h200"), (8, "b200"), (4, "rtx-pro-6000-server"), (8, "rtx-pro-6000-server"), (8, "mi300x"))
RECIPE = Recipe(
    name="t",
    engine="vllm",
    model="deepseek-v4-flash",
    checkpoint="fp8-mxfp4",
    served_name="t",
    context=65536,
    parallel=Parallel(tp=8),
)


def fatal(recipe: Recipe, gpu: str) -> list[PlanWarning]:
    """Return the fatal refusals of a recipe on eight such GPUs."""
    return [each for each in find_refusals(deploy(recipe, box_with(8, gpu))) if each.severity == "fatal"]


@pytest.mark.parametrize(("count", "gpu"), BOXES)
@pytest.mark.parametrize(("engine", "word"), [("vllm", "fp8"), ("sglang", "fp8_e4m3")])
def test_the_launch_requests_the_only_cache_that_starts(count: int, gpu: str, engine: str, word: str) -> None:
    """vLLM asserts "fp8_ds_mla layout only supports fp8 kv-cache", SGLang a store of packed fp8, on every GPU."""
    box = box_with(count, gpu)
    if engine == "vllm" and gpu == "mi300x":
        with pytest.raises(DoesNotFit, match="does not run on 8x-mi300x with --engine vllm"):
            choose_plan(box, *facts("deepseek-v4-flash"), Constraints(engine=engine))
        return
    plan = choose_plan(box, *facts("deepseek-v4-flash"), Constraints(engine=engine))
    argv = build_launch(deploy(plan.recipe, box)).argv

    assert argv[argv.index("--kv-cache-dtype") + 1] == word
    assert not [each for each in plan.warnings if each.severity == "fatal"]
    assert any("an fp8 cache: " in line for line in plan.reasons)
    assert "TRITON_MLA" not in str((plan.reasons, plan.refused, plan.warnings))


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
@pytest.mark.parametrize("gpu", ["h200", "b200", "rtx-pro-6000-server", "mi300x"])
def test_a_bf16_cache_is_refused_and_fp8_is_not(engine: str, gpu: str) -> None:
    """For a recipe that a user wrote; the remedy is the type that starts."""
    assert 'kv = "fp8"' in [each.remedy for each in fatal(replace(RECIPE, engine=engine, kv="bf16"), gpu)]
    unsupported = engine == "vllm" and gpu == "mi300x"  # vLLM's recipe names MI325X and MI355X alone
    assert bool(fatal(replace(RECIPE, engine=engine, kv="fp8"), gpu)) == unsupported


def test_auto_is_fp8_in_sglang_and_fails_in_older_vllm() -> None:
    """The assertion of vLLM before 0.30 has "got auto"; newer ones and SGLang set fp8 for it."""
    assert fatal(replace(RECIPE, kv="auto", engine_version="0.29.0"), "h200")
    assert not fatal(replace(RECIPE, kv="auto"), "h200")
    assert not fatal(replace(RECIPE, kv="auto", engine="sglang"), "h200")


def test_bf16_rows_start_with_the_backend_that_has_them() -> None:
    """FlashInfer's, on SM10x alone."""
    asked = replace(RECIPE, kv="bf16", flags={"attention-backend": "FLASHINFER_MLA_SPARSE_DSV4"})
    assert not fatal(asked, "b200")
    assert fatal(asked, "h200")


def test_both_engines_count_the_same_entry() -> None:
    """448 fp8, 64 bf16 and eight scales: 584 bytes an entry in both engines."""
    box, known = box_with(8, "h200"), facts("deepseek-v4-flash")
    sizes = {
        choose_plan(box, *known, Constraints(engine=name)).memory.kv_bytes_per_token for name in ("vllm", "sglang")
    }
    assert len(sizes) == 1


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_gpus_before_hopper_have_no_kernels_for_it(engine: str) -> None:
    """As for V3.2's sparse attention: FlashMLA's and FlashInfer's begin at Hopper."""
    found = fatal(replace(RECIPE, engine=engine, kv="fp8"), "a100-80gb")
    assert any("sparse attention kernels" in each.text for each in found)
