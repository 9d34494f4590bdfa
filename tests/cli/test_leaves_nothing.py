"""Commands that cannot begin leave no run folder behind; reports take the form that their name says."""

from pathlib import Path

import pytest

from moebox.cli import main
from moebox.store import durations
from tests.report.making import a_run


@pytest.fixture(autouse=True)
def own_folders(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Runs and remembered times of this test alone, and a PATH without engines."""
    monkeypatch.setenv("MOEBOX_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("MOEBOX_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", "/nowhere")
    return tmp_path / "runs"


@pytest.mark.parametrize(
    "words",
    [
        ["up", "kimi-k26-vllm"],
        ["rehearse", "kimi-k26-vllm"],
        ["rehearse", "kimi-k26-vllm", "--measure"],
        ["climb", "kimi-k26-vllm"],
        ["compare", "kimi-k26-vllm", "kimi-k26-sglang"],
    ],
)
def test_an_engine_that_is_not_installed_leaves_no_run(
    words: list[str], own_folders: Path, capsys: pytest.CaptureFixture[str]
):
    """One line, exit code 3, and nothing in `moebox runs`."""
    assert main(words) == 3
    assert "vllm is not installed here" in capsys.readouterr().err
    assert not own_folders.exists() or list(own_folders.iterdir()) == []


def test_a_recipe_is_forecast_on_the_box_it_was_planned_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """`plan -o` keeps the box in the recipe; --box still overrules it; a file name there is refused."""
    recipe = tmp_path / "recipe.toml"
    assert main(["plan", "kimi-k2.6", "--box", "8x-b200", "-o", str(recipe)]) == 0
    capsys.readouterr()
    assert main(["forecast", str(recipe)]) == 0
    assert "8x-b200" in capsys.readouterr().out
    assert main(["forecast", str(recipe), "--box", "8x-h200"]) == 0
    assert "8x-h200" in capsys.readouterr().out
    assert main(["forecast", "kimi-k26-vllm"]) == 0
    assert "8x-rtx-pro-6000-server" in capsys.readouterr().out
    recipe.write_text(recipe.read_text().replace('box = "8x-b200"', 'box = "/etc/passwd"'))
    assert main(["forecast", str(recipe)]) == 2
    assert "planned_for: box '/etc/passwd': cannot read" in capsys.readouterr().err


@pytest.mark.parametrize("box", ["h200", "H200", "4x-rtx-5090+1x-rtx-4090", "2x8x-h200@25GB/s", "2n-8x-h200"])
def test_every_way_to_name_a_box_is_kept_in_its_recipe(box: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """`forecast` took this machine for those that do not begin with COUNTxGPU alone."""
    recipe = tmp_path / "recipe.toml"
    assert main(["plan", "gpt-oss-120b", "--box", box, "-o", str(recipe)]) == 0
    planned = capsys.readouterr().out
    assert main(["forecast", str(recipe)]) == 0
    assert box.lower() in capsys.readouterr().out.lower()
    assert box.lower() in planned.lower()


def test_a_report_has_the_form_that_its_name_says(
    own_folders: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """-o x.md is Markdown, not HTML under another name, and nothing is written beside it."""
    a_run(own_folders)
    out = tmp_path / "out"
    assert main(["report", "latest", "-o", str(out / "x.md")]) == 0
    assert (out / "x.md").read_text().startswith("# ")
    assert main(["report", "latest", "-o", str(out / "y.html"), "--md"]) == 0
    assert (out / "y.html").read_text().lstrip().startswith("<!doctype html>")
    assert sorted(path.name for path in out.iterdir()) == ["x.md", "y.html", "y.md"]
    assert main(["report", "latest", "-o", str(out / "x.docx")]) == 2
    assert "'.docx'" in capsys.readouterr().err
    assert not (out / "x.docx").exists()


def test_times_are_remembered_and_a_spoilt_file_is_no_error(tmp_path: Path):
    """The next one can say when it will be done; an unreadable file means that it cannot, nothing else."""
    assert durations.last_duration("kernels vllm") is None
    durations.remember_duration("kernels vllm", 41.2)
    assert durations.last_duration("kernels vllm") == 41.2
    (tmp_path / "cache" / "durations.json").write_text("[1, 2")
    assert durations.last_duration("kernels vllm") is None
    for number in range(durations.MAX_ENTRIES + 5):
        durations.remember_duration(f"key {number}", 1.0)
    assert durations.last_duration("key 0") is None
    assert durations.last_duration(f"key {durations.MAX_ENTRIES + 4}") == 1.0
