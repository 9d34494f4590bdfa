"""One rule of what can be divided, asked by plan, up, forecast and render."""

from pathlib import Path
from typing import Any

import pytest

from moebox.checkpoint import deploy
from moebox.cli import main
from moebox.core.recipe import Parallel, Recipe
from moebox.core.setting import with_settings
from moebox.flows.recipes import load_recipe, shipped_recipes
from moebox.sizing.layout import layout_problem

QWEN = Recipe(name="qwen", engine="vllm", model="qwen3-235b", checkpoint="Qwen/Qwen3-235B-A22B-FP8", served_name="qwen")
QWEN_TP8 = """
name = "qwen"
engine = "{engine}"
model = "qwen3-235b"
checkpoint = "Qwen/Qwen3-235B-A22B-FP8"
served_name = "qwen"
context = 32768
parallel = {{ tp = 8, ep = {ep} }}
"""


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
@pytest.mark.parametrize(
    "command", [["up", "RECIPE", "--dry-run"], ["forecast", "RECIPE", "--box", "8x-b200"], ["render", "RECIPE"]]
)
def test_experts_narrower_than_a_quantisation_block_are_refused_everywhere(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, engine: str, command: list[str]
) -> None:
    """Qwen3-235B fp8 at TP8 without EP ends while loading (vllm#17569); with EP it is accepted."""
    file = tmp_path / "qwen.toml"
    words = [str(file) if word == "RECIPE" else word for word in command]
    file.write_text(QWEN_TP8.format(engine=engine, ep="false"))
    assert main(words) == 2
    error = capsys.readouterr().err
    assert "an expert's width of 1536 is not divisible by TP8 in fp8-block groups of 128" in error
    assert "parallel.ep = true" in error

    file.write_text(QWEN_TP8.format(engine=engine, ep="true"))
    assert main(words) == 0


def test_a_plan_with_that_layout_gives_the_same_reason(capsys: pytest.CaptureFixture[str]) -> None:
    """`plan` refuses the constraints with the words of `up`."""
    words = ["plan", "qwen3-235b", "--box", "8x-b200", "--engine", "vllm", "--checkpoint", "fp8", "--tp", "8"]
    assert main([*words, "--ep", "1"]) == 2
    assert "an expert's width of 1536 is not divisible by TP8" in capsys.readouterr().err
    assert main([*words, "--ep", "8"]) == 0


@pytest.mark.parametrize(
    ("changes", "setting", "reason"),
    [
        ({"parallel": Parallel(tp=6)}, "tp", "64 attention heads of Qwen3 235B-A22B are not divisible by TP6"),
        ({"parallel": Parallel(tp=4, dp=2)}, "tp", "TP4×DP2 in fp8-block groups of 128"),
        ({"parallel": Parallel(pp=95)}, "pp", "94 layers are not enough for 95 stages"),
        ({"parallel": Parallel(tp=1, dp=3, ep=True)}, "ep", "128 experts are not divisible by 3 ranks"),
        ({"parallel": Parallel(tp=4, dcp=3)}, "dcp", "TP4 is not divisible by DCP3"),
        ({"parallel": Parallel(tp=4, dcp=2)}, "dcp", "DCP2 needs 2 copies of the cache; TP4 holds 1"),
        ({"parallel": Parallel(tp=4, nodes=3)}, "nodes", "4 GPUs are not divisible by 3 nodes"),
        ({"parallel": Parallel(tp=2), "engine": "llama.cpp"}, "tp", "distributes layers over the GPUs by itself"),
        ({"parallel": Parallel(tp=2, ep=True), "engine": "ktransformers"}, "ep", "does not place whole experts"),
        ({"parallel": Parallel(pp=2), "engine": "ktransformers"}, "pp", "does not divide a model that way"),
    ],
)
def test_each_impossible_layout_has_its_reason(changes: dict[str, Any], setting: str, reason: str) -> None:
    """Heads, layers, experts, cache copies, nodes, and what the engine can shard."""
    problem = layout_problem(deploy(with_settings(QWEN, changes)))
    assert problem is not None
    assert problem.setting == setting
    assert reason in problem.reason


@pytest.mark.parametrize("parallel", [Parallel(), Parallel(tp=4), Parallel(tp=8, ep=True), Parallel(tp=4, pp=2)])
def test_possible_layouts_have_no_problem(parallel: Parallel) -> None:
    """TP4 leaves each rank three whole blocks of 128."""
    assert layout_problem(deploy(with_settings(QWEN, {"parallel": parallel}))) is None


def test_shipped_recipes_have_possible_layouts() -> None:
    """The rule refuses none of them."""
    for name in shipped_recipes():
        assert layout_problem(deploy(load_recipe(name))) is None
