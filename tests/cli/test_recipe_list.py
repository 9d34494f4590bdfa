"""`moebox recipes`: what can be started by name, and how it did."""

import json
from pathlib import Path

import pytest

from moebox.cli import main
from moebox.cli.completion import complete
from moebox.flows.recipes import shipped_recipes
from tests.report.making import a_run


def test_recipes_of_all_sources_are_listed_with_their_last_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """Saved, of a run and shipped; the name in the list starts the recipe; a broken file says why."""
    monkeypatch.setenv("MOEBOX_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    saved = tmp_path / "data" / "moebox" / "recipes"
    saved.mkdir(parents=True)
    text = shipped_recipes()["kimi-k26-ik"].read_text()
    (saved / "mine.toml").write_text(text.replace('"kimi-k26-ik"', '"mine"'))
    (saved / "torn.toml").write_text("engine = \n")
    run = a_run(tmp_path / "runs")
    recipe = text.replace('"kimi-k26-ik"', '"of-a-run"')
    run.write_file("recipe.toml", recipe)
    rehearsal = a_run(tmp_path / "runs", name="phantom")
    rehearsal.write_file("recipe.toml", text.replace('"kimi-k26-ik"', '"phantom"'))

    assert main(["recipes", "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)["recipes"]}
    sources = {"mine": "saved", "torn": "saved", "of-a-run": "run", "phantom": "shipped"}
    assert {name: rows[name]["source"] for name in sources} == sources
    assert rows.keys() == sources.keys() | shipped_recipes().keys()
    assert (rows["of-a-run"]["run"], rows["of-a-run"]["box"]) == (run.id, "2x-rtx-pro-6000-max-q")
    assert "passed" in rows["of-a-run"]["result"]
    assert "tok/s" in rows["of-a-run"]["result"]
    assert rows["phantom"]["result"] == rows["of-a-run"]["result"]
    assert "torn.toml: not valid TOML" in rows["torn"]["about"]
    assert rows["mine"]["result"] == ""

    assert main(["recipes"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert any("of-a-run" in line and "ik_llama.cpp" in line and "passed" in line for line in lines)
    assert main(["render", "of-a-run"]) == 0
    assert "of-a-run" in capsys.readouterr().out
    assert "of-a-run" in complete(["up", "of"])
    assert main(["render", "of-a-rum"]) == 2
    assert "did you mean of-a-run" in capsys.readouterr().err


def test_many_recipes_of_runs_leave_the_others_on_the_screen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """24 lines hold the newest of them, and how many are older."""
    monkeypatch.setenv("MOEBOX_RUNS", str(tmp_path / "runs"))
    monkeypatch.chdir(tmp_path)
    text = shipped_recipes()["kimi-k26-vllm"].read_text()
    for number in range(30):
        folder = tmp_path / "runs" / f"20261101-1200{number:02d}-run-x-0000"
        folder.mkdir(parents=True)
        (folder / "recipe.toml").write_text(text.replace('"kimi-k26-vllm"', f'"own{number:02d}"'))
    assert main(["recipes"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 23
    assert "own29" in lines[1]
    assert any("phantom" in line for line in lines)
    assert any("older ones of runs: --json" in line for line in lines)
