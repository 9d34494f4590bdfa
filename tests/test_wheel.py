"""The package as users get it: built as a wheel and an sdist, used without the checkout."""

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LARGEST = 35e6  # bytes: what pipx or uvx downloads before the first answer
BUILD = "import sys; from hatchling import build; build.build_wheel(sys.argv[1]); build.build_sdist(sys.argv[1])"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Wheel and sdist of this tree, built by the build backend itself."""
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run([sys.executable, "-c", BUILD, str(folder)], cwd=ROOT, check=True, capture_output=True)
    return next(folder.glob("*.whl")), next(folder.glob("*.tar.gz"))


def test_wheel_and_sdist_are_small_enough_to_try(built: tuple[Path, Path]):
    assert all(path.stat().st_size < LARGEST for path in built)


def test_the_sdist_builds_and_tests_itself(built: tuple[Path, Path]):
    """Whoever packages moebox for a distribution needs sources, tests and licence."""
    with tarfile.open(built[1]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}

    assert {"LICENSE", "README.md", "pyproject.toml", "src/moebox/cli/__init__.py", "tests/conftest.py"} <= names
    assert not any(name.startswith((".venv", "out/", "gpu/", "runs/")) for name in names)


@pytest.fixture(scope="module")
def installed(built: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel laid out as an installer does it: files and metadata, nothing of the checkout."""
    folder = tmp_path_factory.mktemp("site")
    with zipfile.ZipFile(built[0]) as wheel:
        wheel.extractall(folder)  # noqa: S202  (built a moment ago)
    return folder


def moebox(installed: Path, *words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run it in a process that sees the wheel first, and no folder of the checkout."""
    program = (
        f"import sys, moebox; assert moebox.__file__.startswith({str(installed)!r}), moebox.__file__;"
        "from moebox.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    env = {**os.environ, "PYTHONPATH": str(installed)}  # before what an editable install adds, for children too
    return subprocess.run(
        [sys.executable, "-c", program, *words], cwd=cwd, env=env, capture_output=True, text=True, check=False
    )


def test_the_wheel_has_a_man_page_and_completion(installed: Path):
    """Installers put what is under data/share where man, bash, zsh and fish look for it."""
    (share,) = installed.glob("*.data/data/share")
    page = (share / "man" / "man1" / "moebox.1").read_text(encoding="utf-8")

    assert ".B moebox plan" in page
    assert {"bash-completion/completions/moebox", "zsh/site-functions/_moebox"} <= {
        str(path.relative_to(share)) for path in share.rglob("*")
    }
    assert "moebox --complete" in (share / "fish" / "vendor_completions.d" / "moebox.fish").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "words",
    [
        ["plan", "kimi-k2.6", "--box", "8x-rtx-pro-6000-server", "--json"],
        ["render", "kimi-k26-vllm", "--as", "compose"],
        ["models", "show", "kimi-k2.6"],
        ["doctor", "logs", str(ROOT / "tests" / "logs" / "vllm-0.32-port-in-use.log")],
    ],
    ids=lambda words: words[0],
)
def test_the_wheel_works_without_the_checkout(installed: Path, tmp_path: Path, words: list[str]):
    """Tables, templates and engines are all inside."""
    done = moebox(installed, *words, cwd=tmp_path)

    assert done.returncode in (0, 1), done.stderr
    assert done.stdout


def test_the_wheel_runs_its_main_job(installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """`uvx moebox run`: plan, start and report on the rehearsal model, its weights included."""
    monkeypatch.setenv("MOEBOX_RUNS", str(tmp_path / "runs"))
    done = moebox(installed, "run", "--yes", "--until", "up", "--skip", "rehearse", cwd=tmp_path)

    assert done.returncode == 0, done.stderr + done.stdout
    assert "✓ up" in done.stdout
