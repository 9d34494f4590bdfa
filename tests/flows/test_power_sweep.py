"""Power caps, with a stand-in for NVIDIA's driver that writes the cap to a file: swept, and restored after kill -9."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from moebox import codec
from moebox.core.recipe import Recipe
from moebox.serve import state

from .test_climb import recipe  # noqa: F401  (a fixture)

ROOT = Path(__file__).parents[2]
STAND_IN = ROOT / "tests" / "serve" / "stand_in_nvml"
# Sweeps the recipe in argv[1]. Below 420 W the speed falls by a tenth; with MOEBOX_HOLD it waits under a lower cap.
SWEEP = """
import json, os, sys, time
from pathlib import Path
from moebox import codec
from moebox.core.recipe import Recipe
from moebox.flows.pace import SpeedRounds
from moebox.flows.tune_state import sweep_caps
from moebox.flows.trials import TrialRunner
from moebox.flows.walk import ClimbEffort
from moebox.store import Run

def measure(endpoint, *, concurrency, rounds, tokens):
    cap = int(Path(os.environ["MOEBOX_STAND_IN_NVML"]).read_text())
    time.sleep(600 if os.environ.get("MOEBOX_HOLD") and cap < 600000 else 0.3)
    rate = 100.0 if cap >= 420000 else 90.0
    return SpeedRounds(concurrency=4, tok_s=(rate, rate * 1.001, rate * 0.999), ttft_ms=(20.0,) * 3)

recipe = codec.read_toml(Recipe, Path(sys.argv[1]))
effort = ClimbEffort(measure_speed=measure, patience_s=120)
runner = TrialRunner(recipe, Run.create("tune"), effort, lambda kind, news: None, None)
rows, best = sweep_caps(runner, recipe)
print(json.dumps({"rows": codec.to_plain(rows), "best": best}))
"""


@pytest.fixture
def cap(recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:  # noqa: F811
    """The file with the cap in milliwatts; a recipe for the oracle is beside it."""
    file = tmp_path / "cap"
    file.write_text("600000")
    (tmp_path / "recipe.toml").write_text(codec.to_toml(recipe))
    monkeypatch.setenv("MOEBOX_STAND_IN_NVML", str(file))
    monkeypatch.setenv("PYTHONPATH", f"{STAND_IN}:{ROOT}")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    return file


def start_sweep(cap: Path) -> "subprocess.Popen[str]":
    words = [sys.executable, "-c", SWEEP, str(cap.with_name("recipe.toml"))]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_the_sweep_finds_the_lowest_cap_that_costs_little(cap: Path):
    """Tokens per joule of each cap; none below what the GPU allows; the cap in force is back at the end."""
    out, err = start_sweep(cap).communicate(timeout=120)

    assert out, err
    found = json.loads(out)
    assert [row["cap_w"] for row in found["rows"]] == [600, 540, 480, 420, 360, 350]
    assert found["best"] == 420
    assert found["rows"][3]["tokens_per_joule"] > found["rows"][0]["tokens_per_joule"] > 0  # 100/420 and 100/600
    assert found["rows"][4]["gain"]["high"] < -0.05
    assert cap.read_text() == "600000"
    assert not list(cap.parent.rglob("power.json"))


def test_kill_9_restores_the_cap(cap: Path, monkeypatch: pytest.MonkeyPatch):
    """moebox is killed under a lower cap: the engine's guard restores it, and ends."""
    monkeypatch.setenv("MOEBOX_HOLD", "1")
    sweep = start_sweep(cap)
    until = time.monotonic() + 120
    while cap.read_text() in ("", "600000") and sweep.poll() is None and time.monotonic() < until:
        time.sleep(0.02)
    assert cap.read_text() == "540000"
    sweep.send_signal(signal.SIGKILL)
    sweep.communicate()

    while (cap.read_text() != "600000" or state.orphan_processes()) and time.monotonic() < until:
        time.sleep(0.05)
    assert cap.read_text() == "600000"
    assert not list(cap.parent.rglob("power.json"))
    assert state.orphan_processes() == {}


def test_an_account_that_may_not_change_caps_is_one_line(cap: Path, monkeypatch: pytest.MonkeyPatch):
    """The driver's reason; nothing is left to restore."""
    monkeypatch.setenv("MOEBOX_STAND_IN_DENIES", "1")
    out, err = start_sweep(cap).communicate(timeout=120)

    assert not out
    assert "does not let this account change power caps: Insufficient Permissions" in err
    assert not list(cap.parent.rglob("power.json"))
    assert os.path.exists(cap)
