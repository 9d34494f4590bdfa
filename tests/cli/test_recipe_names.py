"""A recipe by name works wherever a recipe is taken."""

import json
import shlex
from pathlib import Path

import pytest

from moebox.cli import main
from moebox.flows.recipes import shipped_recipes


@pytest.mark.parametrize("name", sorted(shipped_recipes()))
def test_every_shipped_recipe_is_forecast_rendered_and_planned(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """`run --recipe kimi-k26-vllm` said "no such file" while `up` took it."""
    box = ["--box", "8x-rtx-pro-6000-server", "--ram", "1024GiB"]

    assert main(["forecast", name, *box, "--decode", "--json"]) == 0
    assert main(["render", name]) == 0
    assert main(["up", name, "--dry-run"]) == 0
    assert main(["run", "--recipe", name, "--twin", *box, "--until", "plan", "--yes", "--runs", str(tmp_path)]) == 0
    capsys.readouterr()


def test_the_rehearsal_model_has_a_name_to_start_by(capsys: pytest.CaptureFixture[str]):
    assert main(["up", "phantom", "--dry-run"]) == 0
    text = capsys.readouterr().out
    assert "moebox.serve.embedded" in text
    assert main(["up", "phantom", "--dry-run", "--port", "18080", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["argv"] == shlex.split(document["command"])
    assert document["base_url"] == "http://127.0.0.1:18080/v1"


def test_the_rehearsal_model_is_run_by_its_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """`up phantom` worked while `run phantom` said "unknown model"; a bare `run` means the same."""
    words = ["--until", "plan", "--ram-bandwidth", "20GB/s", "--yes", "--json", "--runs", str(tmp_path)]
    assert main(["run", "phantom", *words]) == 0
    reported = json.loads(capsys.readouterr().out)
    assert reported["request"]["model"] == ""
    assert "run-phantom" in reported["run"]


def test_the_rehearsal_model_is_among_what_is_known(capsys: pytest.CaptureFixture[str]):
    assert main(["up", "nosuch", "--dry-run"]) == 2
    assert "phantom" in capsys.readouterr().err


def test_an_unknown_name_is_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    assert main(["run", "--recipe", "kimi-k26-vlm", "--yes", "--runs", str(tmp_path)]) == 2
    assert "kimi-k26-vllm" in capsys.readouterr().err


def test_a_recipe_of_a_later_moebox_is_not_guessed_at(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What its settings mean is not known here."""
    recipe = tmp_path / "later.toml"
    recipe.write_text(
        'format = 99\nname = "later"\nengine = "vllm"\nmodel = "kimi-k2.6"\ncheckpoint = "int4"\nserved_name = "k"\n'
    )
    assert main(["up", str(recipe), "--dry-run"]) == 2
    assert "format 99 is newer than this moebox" in capsys.readouterr().err
