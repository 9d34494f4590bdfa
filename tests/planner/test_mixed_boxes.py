"""Boxes with GPUs of several kinds: only those that a recipe uses count, and no group mixes vendors."""

from dataclasses import replace
from pathlib import Path

import pytest

from moebox import cli
from moebox.checkpoint import deploy
from moebox.core.plan import Plan
from moebox.detect.declared import parse_box
from moebox.engines import find_refusals
from moebox.planner.choose import choose_plan
from moebox.planner.constraints import Constraints
from tests.planner.boxes import facts


def plan(model: str, box: str, **constraints: object) -> Plan:
    """Plan a catalogue model on a box of that name."""
    return choose_plan(parse_box(box), *facts(model), Constraints(**constraints))  # type: ignore[arg-type]


@pytest.mark.parametrize("model", ["deepseek-v3.1", "kimi-k2.6-reap-519b"])
@pytest.mark.parametrize("box", ["8x-h100+2x-rtx-5090", "2x-rtx-5090+8x-h100"])
def test_gpus_that_stay_free_change_nothing(model: str, box: str) -> None:
    """It ran on the eight H100, but warned of SM120's shared memory and was forecast as slow as an RTX 5090."""
    alone, beside = plan(model, "8x-h100", engine="vllm"), plan(model, box, engine="vllm")

    assert replace(beside.recipe, env={}) == replace(alone.recipe, env={})
    assert beside.answer_tok_s == alone.answer_tok_s
    assert "SM120" not in str((beside.reasons, beside.refused, beside.warnings))
    assert not any("different kinds" in each.text for each in beside.warnings)


def test_a_group_of_several_kinds_is_refused_by_any_of_them() -> None:
    """An fp8 cache on an H200 and a PRO 6000 together: the second has no room for its tile."""
    box = parse_box("4x-h200+4x-rtx-pro-6000-server")
    recipe = replace(plan("kimi-k2.6", "8x-h200", engine="vllm").recipe, kv="fp8")
    refusals = find_refusals(deploy(recipe, box))
    assert any("102,400" in each.text for each in refusals if each.severity == "fatal")


@pytest.mark.parametrize("name", ["2x-mi300x+2x-h100", "8x-b200+8x-mi355x"])
def test_two_vendors_in_one_box_are_refused(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """One group over both was planned. Each can be planned for, and the hint shows how."""
    first, second = name.split("+")
    assert cli.main(["plan", "minimax-m2.7", "--box", name]) == 2
    error = capsys.readouterr().err
    assert "AMD" in error
    assert "NVIDIA" in error
    assert f"--box {first}" in error
    assert f"--box {second}" in error


def test_a_box_file_of_two_vendors_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also in the short format of a box file."""
    path = tmp_path / "both.toml"
    path.write_text('gpus = ["4x-mi300x", "4x-h100"]\n')
    assert cli.main(["plan", "deepseek-v3.1", "--box", str(path)]) == 2
    assert "4 of AMD and 4 of NVIDIA" in capsys.readouterr().err
