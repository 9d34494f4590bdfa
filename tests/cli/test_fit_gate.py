"""A recipe that does not fit its box is refused at every door, with both numbers and a setting that fits."""

import json
import re
from pathlib import Path

import pytest

from moebox.cli import main
from tests.driving import recipe_text

BOX = ["--box", "8x-rtx-pro-6000-server"]
NUMBERS = r"does not fit on 8x-rtx-pro-6000-server: gpu\d needs ([\d.,]+) GB and has ([\d.,]+) GB"


@pytest.fixture
def too_large(tmp_path: Path) -> str:
    """A recipe that fits, with half of its GPUs taken away."""
    path = tmp_path / "recipe.toml"
    text = recipe_text("kimi-k2.6", *BOX, "--engine", "vllm")
    assert "tp = 8" in text
    path.write_text(re.sub(r"tp = 8", "tp = 4", text))
    return str(path)


@pytest.mark.parametrize("words", [["render"], ["up", "--dry-run"]])
def test_nothing_is_written_for_a_recipe_that_does_not_fit(
    too_large: str, capsys: pytest.CaptureFixture[str], words: list[str]
):
    """`render` and `up --dry-run` exit with 1 and print nothing but the reason; --force prints the command."""
    assert main([words[0], too_large, *words[1:]]) == 1
    printed = capsys.readouterr()
    numbers = re.search(NUMBERS, " ".join(printed.err.split()))

    assert printed.out == ""
    assert numbers
    assert float(numbers[1].replace(",", "")) > float(numbers[2].replace(",", ""))
    assert "parallel.tp = 8 fits" in printed.err
    assert main([words[0], too_large, *words[1:], "--force"]) == 0
    assert "vllm serve" in capsys.readouterr().out


def test_the_named_setting_fits(too_large: str, capsys: pytest.CaptureFixture[str]):
    """The setting in the hint makes the recipe pass the gate."""
    path = Path(too_large)
    path.write_text(path.read_text().replace("tp = 4", "tp = 8"))
    assert main(["render", too_large]) == 0
    assert "does not fit" not in capsys.readouterr().err


def test_a_forecast_begins_with_the_misfit(too_large: str, capsys: pytest.CaptureFixture[str]):
    """The first line is the reason, the exit code 1, and 0 with --force; JSON has it as `fits`."""
    assert main(["forecast", too_large, "--decode"]) == 1
    shown = capsys.readouterr().out
    assert re.match(f"fatal: .*{NUMBERS}", " ".join(shown.split()))
    assert main(["forecast", too_large, "--decode", "--force", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["fits"] is False
    assert "does not fit" in document["warnings"][0]["text"]


@pytest.mark.parametrize("setting", ["parallel.tp=4", "kv_tiers.ram_gib=2000"])
def test_up_forecast_and_twin_refuse_alike(tmp_path: Path, capsys: pytest.CaptureFixture[str], setting: str):
    """The same recipe gets the same sentence and exit code 1 from each; a forecast goes on below it, without offers."""
    path = tmp_path / "recipe.toml"
    box = "8x-rtx-pro-6000-server+256GB"
    path.write_text(recipe_text("kimi-k2.6", "--box", box, "--engine", "vllm"))
    changed = [str(path), "--set", setting]
    texts = []
    for words in (["up", *changed, "--dry-run"], ["twin", *changed, "--port", "0"], ["forecast", *changed]):
        assert main(words) == 1
        printed = capsys.readouterr()
        texts.append(" ".join((printed.err + printed.out).split()))
    reason, remedy = re.match(r"error: (.*) hint: (.*); --force goes on", texts[0]).groups()  # type: ignore[union-attr]
    assert "does not fit on" in reason
    assert texts[1] == f"error: {reason} hint: {remedy}"
    assert texts[2].startswith(f"fatal: {reason}; {remedy}. These speeds are hypothetical.")
    assert main(["forecast", *changed, "--workload", "agents", "--concurrency", "4"]) == 1
    printed = capsys.readouterr()
    shown = " ".join((printed.err + printed.out).split())
    assert reason in shown
    assert "--set kv_tiers" not in shown


def test_a_cache_from_the_engines_log_replaces_the_judgement(too_large: str, capsys: pytest.CaptureFixture[str]):
    """simulation.kv_tokens says that the engine runs: forecast and twin both believe it."""
    words = [too_large, "--set", "simulation.kv_tokens=200k"]
    assert main(["forecast", *words]) == 0
    assert "does not fit" not in capsys.readouterr().out
    assert main(["twin", *words, "--port", "0", "--set", "simulation.accept=2"]) == 2
    assert "simulation.accept=2 is not a share" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["plan", "--users", "4", "--slo", "ttft=2s"], ["render"]])
def test_a_fleet_with_such_a_member_is_refused(
    too_large: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, words: list[str]
):
    """`fleet plan` and `fleet render` name the member's numbers before any simulation."""
    fleet = tmp_path / "fleet.toml"
    member = f'[[member]]\nname = "one"\nrecipe = "{too_large}"\n'
    fleet.write_text(f'name = "two"\n[router]\nkind = "sglang-router"\nport = 8080\n{member}')

    assert main(["fleet", words[0], str(fleet), *words[1:]]) == 1
    assert re.search(NUMBERS, " ".join(capsys.readouterr().err.split()))


def test_the_named_context_is_one_that_the_model_has(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """A context far beyond the box gets a hint within the model's own limit, not one that engines refuse."""
    path = tmp_path / "recipe.toml"
    assert main(["plan", "gpt-oss-120b", *BOX, "--engine", "vllm", "-o", str(path)]) == 0
    capsys.readouterr()
    assert main(["up", str(path), "--dry-run", "--set", "context=99999999"]) == 1
    assert "context = 131072 fits" in capsys.readouterr().err


def test_checkpoints_that_share_a_name_are_listed_once(capsys: pytest.CaptureFixture[str]):
    """gpt-oss has mxfp4 weights in two formats; the hint names mxfp4 once."""
    assert main(["plan", "gpt-oss-120b", *BOX, "--checkpoint", "zzz"]) == 2
    assert capsys.readouterr().err.count("mxfp4") == 1
