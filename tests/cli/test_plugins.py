"""Commands of other packages: found by their entry point, listed, run; a broken one is a warning."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

GREET = '''"""Greet."""

from moebox.cli.flags import AsJson
from moebox.cli.output import print_lines, print_result


def greet(name: str, *, json: AsJson = False) -> int:
    """Greet NAME.

    Args:
        name: Whom to greet.
    """
    return print_result(json, {"name": name}, lambda: print_lines([f"hello {name}"]))
'''
COMMANDS = 'COMMANDS = {"greet": ("mine.greet:greet", "Greet a user."), "doctor mine": ("mine.greet:greet", "Look.")}\n'


def run_moebox(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run moebox with the packages of a folder installed."""
    argv = [sys.executable, "-m", "moebox", *words]
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(folder), *filter(None, sys.path)])}
    return subprocess.run(argv, capture_output=True, text=True, env=env, check=False)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a package that declares commands."""
    package, info = tmp_path / "mine", tmp_path / "mine-1.0.dist-info"
    package.mkdir()
    info.mkdir()
    (package / "__init__.py").write_text(COMMANDS + 'SECTIONS = {"Show": ("greet",)}\n')
    (package / "greet.py").write_text(GREET)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[moebox.commands]\nmine = mine\n")
    return tmp_path


def test_a_command_of_another_package_is_listed_and_runs(folder: Path) -> None:
    """At the top and under a group of moebox's, with --json and help."""
    assert run_moebox(folder, "greet", "Ada").stdout == "hello Ada\n"
    assert '"name": "Ada"' in run_moebox(folder, "doctor", "mine", "Ada", "--json").stdout
    overview = run_moebox(folder, "--help").stdout
    assert "Show:       runs, report, pack, greet" in overview
    assert "fleet" in overview
    assert "Whom to greet." in run_moebox(folder, "greet", "--help").stdout


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("import nothing_like_that\n", "No module named 'nothing_like_that'"),
        ("", "has no attribute 'COMMANDS'"),
        ('COMMANDS = {"plan": ("mine.greet:greet", "")}\n', "moebox has `plan` already"),
    ],
)
def test_a_package_that_cannot_be_used_is_left_out(folder: Path, text: str, reason: str) -> None:
    """moebox works without it, and one line says why."""
    (folder / "mine" / "__init__.py").write_text(text)
    done = run_moebox(folder, "models", "show", "kimi-k2.6")
    assert done.returncode == 0
    assert done.stderr.startswith("warning: commands of mine are left out")
    assert reason in done.stderr
    assert done.stderr.count("\n") == 1
