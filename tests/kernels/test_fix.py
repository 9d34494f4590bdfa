"""vLLM's fp8 cache on SM120: avoided, fixed or refused in one line, never a crash after minutes of loading."""

import dataclasses
from pathlib import Path

import pytest

from moebox import detect
from moebox.checkpoint import deploy
from moebox.core import catalogue, symptom
from moebox.core.box import Box
from moebox.core.recipe import Recipe, Runtime
from moebox.errors import AnswerIsNo
from moebox.flows.recipes import load_recipe
from moebox.planner.choose import choose_plan
from moebox.planner.constraints import Constraints
from moebox.planner.warnings import known_issues
from moebox.serve import preflight
from moebox_kernels.patch import BACKUP_SUFFIX

MEND = "moebox doctor kernels --engine vllm --kv fp8 --fix --apply"


@pytest.fixture(scope="module")
def box() -> Box:
    return detect.load_box("8x-rtx-pro-6000")


def fp8(**changes: object) -> Recipe:
    """The shipped vLLM recipe, with an fp8 cache asked for by hand."""
    return dataclasses.replace(load_recipe("kimi-k26-vllm"), kv="fp8", engine_version="", **changes)  # type: ignore[arg-type]


def test_the_plan_keeps_clear_of_it(box: Box) -> None:
    """Unasked, the stock engine gets a bf16 cache, and the plan says why."""
    model = catalogue.find_model("kimi-k2.6")
    found = choose_plan(box, model, catalogue.published_checkpoints(model.name), Constraints(engine="vllm"))
    assert found.recipe.kv == "bf16"
    assert not any(one.severity == "fatal" for one in found.warnings)


def test_asked_for_it_is_one_line_that_names_the_fix(box: Box, tmp_path: Path) -> None:
    """Before anything starts; an engine that carries the patch goes on."""
    venv = tmp_path / "venv"
    ops = venv / "lib/python3.12/site-packages/vllm/v1/attention/ops"
    ops.mkdir(parents=True)
    (venv / "bin").mkdir()
    program = venv / "bin/vllm"
    program.write_text(f"#!{venv}/bin/python\n")
    argv = (str(program), "serve")
    with pytest.raises(AnswerIsNo, match="102,400") as refused:
        preflight.check_kernels(deploy(fp8()), argv, lambda: box)
    assert MEND in (refused.value.hint or "")
    (ops / f"triton_decode_attention.py{BACKUP_SUFFIX}").touch()
    preflight.check_kernels(deploy(fp8()), argv, lambda: box)
    with pytest.raises(AnswerIsNo):  # what is in an image was not patched
        preflight.check_kernels(
            deploy(fp8(runtime=Runtime(kind="docker", image="vllm/vllm-openai"))), argv, lambda: box
        )


def test_what_is_not_concerned_starts(box: Box) -> None:
    """A bf16 cache, a patched image, other cards, and models with sparse attention, whose kernels are others."""
    argv = ("vllm", "serve")
    preflight.check_kernels(deploy(dataclasses.replace(fp8(), kv="bf16")), argv, lambda: box)
    preflight.check_kernels(deploy(fp8(runtime=Runtime(kind="docker", preset="community"))), argv, lambda: box)
    preflight.check_kernels(deploy(fp8()), argv, lambda: detect.load_box("8x-h200"))
    preflight.check_kernels(deploy(fp8(model="deepseek-v3.2")), argv, lambda: box)


@pytest.mark.parametrize(
    ("model", "concerned"),
    [("kimi-k2.6", True), ("deepseek-v3.1", True), ("deepseek-v3.2", False), ("deepseek-v4-flash", False)],
)
def test_sparse_attention_has_other_kernels(box: Box, model: str, concerned: bool) -> None:
    """Neither the symptom base nor the table of compiled kernels speaks of them."""
    recipe = fp8(model=model)
    found = symptom.predicted_symptoms(engine="vllm", version="0.32.0", sm="12.0", model=model, recipe=recipe)
    assert any(one.id == "smem-vllm-mla-fp8" for one in found) == concerned
    issues = known_issues(deploy(recipe, box))
    assert any("shared memory" in one.text for one in issues) == concerned
