"""The recipes of CONTRIBUTING.md work when they are followed to the letter."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy the package and append every TOML block to the file that the text before it names."""
    folder = tmp_path_factory.mktemp("copy")
    shutil.copytree(ROOT / "src" / "moebox", folder / "moebox", ignore=shutil.ignore_patterns("__pycache__"))
    for before, block in re.findall(r"(`src/moebox/data/\w+\.toml`(?:(?!```).)*)```toml\n(.*?)```", TEXT, re.DOTALL):
        file = folder / re.search(r"src/(moebox/data/\w+\.toml)", before)[1]  # type: ignore[index]
        with file.open("a", encoding="utf-8") as rows:
            rows.write("\n" + block)
    return folder


def run(copy: Path, *arguments: str) -> str:
    """Run moebox from the copy."""
    environment = {**os.environ, "PYTHONPATH": str(copy), "COLUMNS": "120", "MOEBOX_STATE": str(copy / "state")}
    command = [sys.executable, "-m", "moebox", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=copy, check=False)
    assert done.returncode in (0, 1), done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("plan gpt-oss-120b --box 2x-example-96gb", "2x-example-96gb"),
        ("plan example-moe --box 8x-h200", "Example MoE"),
    ],
)
def test_a_row_is_all_that_a_plan_needs(copy: Path, command: str, expected: str) -> None:
    """A GPU or a model is data: the command that the page names plans with it."""
    assert f"`moebox {command}`" in TEXT
    assert expected in run(copy, *command.split())


def test_a_row_is_all_that_a_symptom_needs(copy: Path) -> None:
    """A log with the new line is explained by the new row."""
    log = copy / "engine.log"
    log.write_text("ExampleError: the stars are not aligned\n")
    assert "start it again" in run(copy, "doctor", "logs", str(log))
