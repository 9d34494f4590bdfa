"""GGUF rows name verified files, and plans for RAM boxes launch one of them."""

import re
from pathlib import Path
from typing import Any

import pytest

from moebox import codec
from moebox.checkpoint import deploy
from moebox.cli import main
from moebox.core import catalogue
from moebox.core.recipe import Recipe
from moebox.engines.engine import load_engine
from moebox.planner.choose import choose_plan
from moebox.planner.constraints import Constraints
from tests.planner.boxes import box_with
from tests.sampling import one_in

ROWS = [row for row in catalogue.load_table("checkpoints")["checkpoint"] if row["format"] == "gguf"]
IN_RAM = (
    "deepseek-v3",
    "deepseek-r1",
    "deepseek-v3.1",
    "deepseek-v3.2",
    "glm-4.7",
    "glm-5",
    "glm-5.1",
    "glm-5.2",
    "qwen3-235b",
    "qwen3.5-122b",
    "qwen3.5-397b",
    "minimax-m2.5",
    "minimax-m2.7",
    "gpt-oss-120b",
    "kimi-k2-thinking",
    "kimi-k2.5",
    "kimi-k2.6",
)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['models'][0]} {row['name']}")
def test_a_row_names_its_file_or_is_marked_unverified(row: dict[str, object]) -> None:
    """Repository, folder and first shard, as many shards as in its name, and a source."""
    assert row["source"]
    if row.get("unverified"):
        return
    assert row["repo"]
    assert str(row["file"]).endswith(".gguf")
    counted = re.search(r"-00001-of-(\d{5})\.gguf$", str(row["file"]))
    assert row["shards"] == (int(counted.group(1)) if counted else 1)


@pytest.mark.parametrize("row", one_in(3, ROWS), ids=lambda row: f"{row['models'][0]} {row['name']}")
def test_up_names_the_file_or_refuses_with_the_reason(
    row: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`up --dry-run` prints no command that the engine refuses: an unknown file is one line and exit code 2."""
    for engine in row["engines"]:
        names = {"name": "r", "served_name": "r", "model": row["models"][0], "checkpoint": row["name"]}
        recipe = Recipe(**names, engine=engine, context=4096)
        path = tmp_path / "recipe.toml"
        path.write_text(codec.to_toml(recipe))
        code = main(["up", str(path), "--dry-run"])
        shown = capsys.readouterr()
        assert code == (0 if row.get("file") else 2), shown.err
        if code:
            assert f"{row['name']} of " in shown.err
            assert "known" in shown.err
            assert "hint:" in shown.err
        elif engine == "ik_llama.cpp":
            assert f"--hf-repo {row['repo']} --hf-file {row['file']}" in shown.out
        else:
            assert f"-hf {row['repo']}:{row['name']}" in shown.out


@pytest.mark.parametrize("engine", ["llama.cpp", "ik_llama.cpp"])
@pytest.mark.parametrize("name", IN_RAM)
def test_a_box_with_ram_ends_in_a_launch(name: str, engine: str) -> None:
    """The plan uses a verified file, and the command names it if the engine needs that."""
    box = box_with(1, "rtx-5090", ram=768 * 2**30, ram_bandwidth=460_800_000_000)
    model = catalogue.find_model(name)
    plan = choose_plan(box, model, catalogue.published_checkpoints(name), Constraints(engine=engine))
    form = catalogue.find_checkpoint(name, plan.recipe.checkpoint)
    words = [part for word in load_engine(engine).arguments(deploy(plan.recipe, box)) for part in word]
    assert not form.unverified
    assert not [warning for warning in plan.warnings if warning.severity == "fatal"]
    assert form.repo in " ".join(words)
    if engine == "ik_llama.cpp":
        assert form.file in words
