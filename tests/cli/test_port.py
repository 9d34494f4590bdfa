"""A port that is none: one line and exit code 2 from every command that takes one, by flag or in a recipe."""

from pathlib import Path

import pytest

from moebox.cli import main

RECIPE = """
name = "far"
engine = "vllm"
model = "kimi-k2.6"
checkpoint = "int4"
served_name = "kimi"

[listen]
port = 99999
"""


@pytest.mark.parametrize("port", ["99999", "-1"])
@pytest.mark.parametrize(
    "words",
    [
        ["run", "kimi-k2.6", "--box", "8x-b200", "--twin"],
        ["up", "kimi-k26-vllm", "--dry-run"],
        ["twin", "kimi-k2.6", "--box", "8x-b200"],
        ["ui"],
    ],
    ids=lambda words: words[0],
)
def test_a_flag(
    words: list[str], port: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before anything is made or started."""
    monkeypatch.setenv("MOEBOX_RUNS", str(tmp_path / "runs"))

    assert main([*words, f"--port={port}"]) == 2

    assert capsys.readouterr().err.startswith(f"error: --port {port} is out of range")
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    "words", [["up", "--dry-run"], ["twin", "--box", "8x-b200"], ["run", "--twin", "--box", "8x-b200", "--recipe"]]
)
def test_a_recipe(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is read and refused before a run is made of it."""
    monkeypatch.setenv("MOEBOX_RUNS", str(tmp_path / "runs"))
    recipe = tmp_path / "far.toml"
    recipe.write_text(RECIPE)

    assert main([*words, str(recipe)]) == 2

    assert "listen.port 99999 is out of range" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()
