"""Draft models in launch files: complete if the engine supports them, absent otherwise."""

from pathlib import Path

import pytest

from moebox import codec
from moebox.checkpoint import deploy
from moebox.cli import main
from moebox.core.recipe import Recipe
from moebox.core.setting import with_settings
from moebox.engines import build_launch
from moebox.render import render
from moebox.render.pieces import DRAFT_MARK
from tests.serve.rendered import recipes
from tests.siege import readback


def test_a_draft_beside_kt_kernel_leaves_the_entry_whole() -> None:
    """An engine that ignores the draft gets the same script as without one."""
    recipe = recipes()["experts-in-ram"]
    drafting = with_settings(recipe, {"speculate": {"method": "eagle3", "draft": "a/draft", "tokens": 2}})

    assert render(deploy(drafting), "script") == render(deploy(recipe), "script")


def test_a_draft_with_the_name_of_the_internal_mark_is_kept() -> None:
    """In a file without variables the mark is not replaced."""
    name = f"/data/{DRAFT_MARK}"
    drafting = with_settings(
        recipes()["kimi-k26-vllm"], {"speculate": {"method": "eagle3", "draft": name, "tokens": 2}}
    )
    words = readback.kubernetes(render(deploy(drafting), "k8s"))

    assert sum(f'"model":"{name}"' in word for word in words) == 1


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
@pytest.mark.parametrize("method", ["mtp", "ngram"])
def test_a_method_without_a_draft_model_gets_none(engine: str, method: str) -> None:
    """MTP and n-grams are rendered without a draft model, with the engine's whole command line."""
    settings = {"engine": engine, "model": "deepseek-v3.2", "checkpoint": "fp8", "flags": {}, "served_name": "d"}
    recipe = with_settings(recipes()["kimi-k26-sglang"], settings | {"tool_parser": "", "reasoning_parser": ""})
    drafting = deploy(with_settings(recipe, {"speculate": {"method": method, "draft": "", "tokens": 1}}))
    wanted = list(build_launch(drafting).argv)
    script = render(drafting, "script")

    assert ("SGLANG_ENABLE_SPEC_V2" in script) == (engine == "sglang" and method == "mtp")
    assert sorted(readback.unit(render(drafting, "systemd"))[1:]) == sorted(wanted)
    assert f'\nexec {" ".join(wanted[:2])} "${{args[@]}}"' in script
    assert 'ENABLE_EAGLE3="${ENABLE_EAGLE3:-1}"' in script
    assert "EAGLE3_MODEL" not in script


def test_a_script_offers_no_draft_that_the_plan_dropped(tmp_path: Path) -> None:
    """No ENABLE_EAGLE3 if the draft does not run under the recipe's DCP."""
    path = tmp_path / "r.toml"
    assert main(["plan", "kimi-k2.6", "--box", "8x-rtx-pro-6000-server", "--dcp", "8", "-o", str(path)]) == 0
    recipe = codec.read_toml(Recipe, path)

    assert recipe.climb.speculate == ()
    assert "EAGLE3" not in render(deploy(recipe), "script")
    assert "ENABLE_EAGLE3" in render(deploy(with_settings(recipe, {"climb.speculate": ["none", "eagle3"]})), "script")
