"""Every line of `--why` can be checked with a calculator: the formulas are what the model computes."""

import math
import re
from dataclasses import replace

import pytest

from moebox.checkpoint import deploy
from moebox.core.recipe import Parallel, Speculate
from moebox.detect.declared import parse_box
from moebox.planner.speed import Speed
from tests.planner.deployed import kimi

RECIPE = kimi(kv="bf16")
CHECKED = ("host", "small kernels", "dense weights", "experts", "attention", "all-reduce", "context parallel", "draft")
CHECKED += ("waiting for launches",)


def computed(formula: str) -> float:
    """A formula's value: its units are chosen so that they cancel to milliseconds."""
    text = formula.partition(";")[0]
    text = re.sub(r"\b(ms|MB|GB/s|GFLOP|TFLOP/s)\b|(?<=\d) (?=[A-Z])", "", text)
    text = re.sub(r"[A-Za-z/]*FLOP/?s?|MB|GB/s|ms", "", text)
    text = text.replace("×", "*").replace("²", "**2").replace("√", "sqrt")
    assert re.fullmatch(r"[\d.\s+\-*/()sqrt]+", text), text
    return float(eval(text, {"__builtins__": {}, "sqrt": math.sqrt}))  # noqa: S307 - only digits, operators and sqrt


@pytest.mark.parametrize(
    ("box", "changes"),
    [
        ("8x-rtx-pro-6000-server", {}),
        ("8x-b200", {}),
        ("8x-h200", {"parallel": Parallel(tp=8, dcp=4)}),
        ("8x-b200", {"speculate": Speculate(tokens=3), "kv": "fp8"}),
        ("8x-b200", {"model": "gpt-oss-120b", "checkpoint": "mxfp4"}),
        ("8x-b200", {"model": "deepseek-v3.2", "checkpoint": "fp8"}),
        ("16x-h200", {"parallel": Parallel(tp=8, pp=2)}),
        ("8x-b200", {"engine": "sglang", "flags": {"disable-cuda-graph": True}}),
        ("8x-b200", {"engine": "sglang", "parallel": Parallel(tp=2, dp=4, ep=True)}),
        ("8x-h200", {"engine_version": "0.12.0"}),
    ],
)
@pytest.mark.parametrize(("streams", "context"), [(1, 4096), (32, 4096)])
def test_a_calculator_agrees(box: str, changes: dict[str, object], streams: int, context: int) -> None:
    """Every part of a step, its sum and the rate."""
    recipe = replace(RECIPE, **changes)  # type: ignore[arg-type]
    lines = {
        line.what: line for line in Speed.for_deployment(deploy(recipe, parse_box(box))).explain_lines(streams, context)
    }
    for name in CHECKED:
        if name in lines:
            assert computed(lines[name].formula) == pytest.approx(lines[name].value, rel=2e-3, abs=2e-4), name
    parts = [line.value for name, line in lines.items() if name not in ("step", "decode", "range")]
    assert sum(parts) == pytest.approx(lines["step"].value)
    assert "to " in lines["range"].source
