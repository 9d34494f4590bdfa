"""benchmarks/calibration_cpu.py, with boots whose steps are known instead of servers."""

import importlib.util
import random
from pathlib import Path
from types import ModuleType

import pytest

from moebox.core.calibration import Boot, DecodeStep, PrefillStep
from moebox.core.recipe import Recipe

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "calibration_cpu.py"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The benchmark as a module, beside the one it imports."""
    monkeypatch.syspath_prepend(SCRIPT.parent)
    spec = importlib.util.spec_from_file_location("calibration_cpu", SCRIPT)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Server:
    """Steps of 60 ms and 10 ms a layer, 512 tokens in 1 s and 0.4 s a layer; every third boot disturbed."""

    def __init__(self, seed: int, *, prompts: bool = True) -> None:
        self.chance, self.boots, self.prompts = random.Random(seed), 0, prompts

    def boot(self, recipe: Recipe, home: Path, depth: int) -> Boot:
        """What one boot shows."""
        self.boots += 1
        slow = self.chance.uniform(1.1, 1.5) if self.boots % 3 == 0 else self.chance.uniform(1.0, 1.015)
        reading = [PrefillStep(tokens=tokens, seconds=slow * tokens / 512 * (1 + 0.4 * depth)) for tokens in (128, 512)]
        return Boot(
            layers=depth,
            decode=(DecodeStep(batch=1, context=256, seconds=slow * (0.06 + 0.01 * depth)),),
            prefill=tuple(reading) if self.prompts else (),
        )


@pytest.mark.parametrize("seed", range(5))
def test_disturbed_boots_do_not_move_the_figure(script: ModuleType, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every third boot is up to half as slow again; all figures stay within what is asked for."""
    server = Server(seed)
    monkeypatch.setattr(script, "booted", server.boot)
    recipe = script.recipe_of("llama.cpp", "llama-server", 2)
    rows = list(script.compared(recipe, script.measured(recipe, Path(), (4, 8, 11))))

    assert [row.what for row in rows] == ["decode at 256", "prompt of 128", "prompt of 512"]
    assert all(row.met for row in rows), [(row.what, row.off) for row in rows]
    assert server.boots > 6  # doubtful depths were booted a third time


def test_figures_that_are_missing_are_no_success(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """No prompt was timed: said, and exit code 1."""
    monkeypatch.setattr(script, "booted", Server(1, prompts=False).boot)
    for name in ("MOEBOX_STATE", "MOEBOX_CALIBRATIONS"):  # set by the script; as they were afterwards
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setattr("sys.argv", ["calibration_cpu.py", "--llama", "llama-server", "--out", str(tmp_path)])
    assert script.main() == 1
    output = capsys.readouterr().out
    assert "| llama.cpp | decode at 256 |" in output
    assert "2 of 3 figures are missing" in output
