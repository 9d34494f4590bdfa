"""A box that was said at `plan` is the box of every later command: forecast, fleet plan, a run's recipe."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from moebox import codec
from moebox.cli import main
from moebox.core.box import Box
from moebox.core.recipe import Recipe
from moebox_fleet.plan_command import find_candidate
from moebox_fleet.users import find_workload

CPU = "cpu = { sockets = 1, cores = 16 }\n"
SHORT = 'name = "attic"\ngpus = ["2x-rtx-pro-6000-max-q"]\nram = "768GiB"\nram_bandwidth = "614GB/s"\n' + CPU


def said(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    """The JSON document of a command that succeeds."""
    assert main([*words, "--json"]) == 0
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


@pytest.fixture(params=["short", "saved", "ram alone", "named"])
def words(request: pytest.FixtureRequest, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """A box as people give it to `plan`; its file is gone afterwards."""
    memory = ["--ram", "768GiB", "--ram-bandwidth", "614GB/s"]
    if request.param == "ram alone":
        return memory
    if request.param == "named":
        return ["--box", "2x-rtx-pro-6000-max-q", *memory]
    folder = tmp_path / "files"
    folder.mkdir()
    (folder / "box.toml").write_text(SHORT)
    if request.param == "saved":
        assert main(["box", "--box", str(folder / "box.toml"), "--save", str(folder)]) == 0
        capsys.readouterr()
        assert "[[gpus]]" in (folder / "box.toml").read_text()
    return ["--box", str(folder / "box.toml")]


def test_a_recipe_is_forecast_as_it_was_planned(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A box file, and RAM given without a box, were forgotten: this machine was forecast instead."""
    path = tmp_path / "r.toml"
    plan = said(capsys, "plan", "glm-5.1", *words, "--engine", "ik_llama.cpp", "-o", str(path))
    shutil.rmtree(tmp_path / "files", ignore_errors=True)
    (row, *_) = plan["forecast"]
    load = ["--context", str(row["context"]), "--concurrency", str(row["concurrency"])]
    forecast = said(capsys, "forecast", str(path), "--decode", *load)
    member = find_candidate(str(path), "", find_workload("chat"))

    assert forecast["box"] == plan["box"] == member.box.name
    assert forecast["rows"][0]["decode_tok_s"] == row["decode_tok_s"]
    assert member.model.rules.kv_tokens == plan["memory"]["kv_tokens"]
    assert member.box.ram == 768 * 2**30


def test_the_box_named_again_keeps_its_ram(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The RAM of the plan was dropped, and the forecast was a guess."""
    path, box = tmp_path / "r.toml", "2x-rtx-pro-6000-max-q"
    said(capsys, "plan", "glm-5.1", "--box", box, "--ram", "768GiB", "--ram-bandwidth", "614GB/s", "-o", str(path))

    assert said(capsys, "forecast", str(path), "--box", box) == said(capsys, "forecast", str(path))


def test_a_run_keeps_the_box_in_its_recipe(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["run", "gpt-oss-120b", "--box", "1x-h200", "--twin", "--until", "plan", "--yes"]
    assert main([*words, "--json"]) == 0
    folder = Path(json.loads(capsys.readouterr().out)["run"])

    assert codec.read_toml(Recipe, folder / "recipe.toml").planned_for.box == "1x-h200"


def test_a_simulated_run_of_a_recipe_is_on_the_recipes_box(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The twin was of the planned box, and the run's folder and report were of this machine."""
    path = tmp_path / "r.toml"
    said(capsys, "plan", "gpt-oss-120b", "--box", "1x-h200", "-o", str(path))
    folder = Path(said(capsys, "run", "--recipe", str(path), "--twin", "--until", "plan", "--yes")["run"])

    assert codec.read_toml(Box, folder / "box.toml").name == "1x-h200"


def test_a_real_run_of_a_recipe_takes_no_other_box(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The engine was started here, and its figures were kept as those of the box that was named."""
    assert main(["run", "--recipe", "kimi-k26-vllm", "--box", "8x-b200", "--runs", str(tmp_path)]) == 2
    assert "8x-b200 is not this machine" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
