"""vLLM or SGLang on a real GPU, from the command line: rehearse, up, verify, bench, climb, compare, kill, plan."""

import dataclasses
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from moebox import codec
from moebox.core.recipe import Climb, Recipe
from moebox.detect import nvml
from tests.driving import moebox, up, written
from tests.engine_gpu.conftest import recipe_for

pytestmark = pytest.mark.gpu
RUNGS = 12
TOLERANCE = 0.03  # plan against reality
WATCHED = ("weights", "cache", "kv")
GONE_S = 60


def on_gpu() -> set[int]:
    """Processes that hold memory of the first GPU."""
    driver = nvml.load()
    return {pid for pid, _ in nvml.processes(driver, 0)} if driver else set()


def test_a_rehearsal_with_the_phantom_passes_every_rung(rehearsal: Path) -> None:
    """Boot, a prompt beyond a block, decode, the ladder, down: by one command."""
    told = moebox("rehearse", rehearsal, "--phantom", "--json").good().document
    steps = {step["name"]: step["detail"] for step in told["steps"]}
    assert told["verdict"] == "pass"
    assert f"{RUNGS} " in steps["answers"], steps


def test_every_rung_is_green_on_a_running_engine(server: dict[str, Any]) -> None:
    """The whole ladder with its usual trials."""
    told = moebox("verify", server["base_url"], "--json").document
    failing = {rung["name"]: rung.get("evidence") for rung in told["rungs"] if rung["verdict"] != "pass"}
    assert not failing
    assert len(told["rungs"]) == RUNGS


def test_a_benchmark_of_fresh_prompts(server: dict[str, Any]) -> None:
    """All requests complete, at one stream and at eight."""
    words = ("--input", "256", "--output", "64", "--concurrency", "1,8", "--requests", "24", "--json")
    told = moebox("bench", server["base_url"], *words).good().document
    rows = told.get("rows") or told.get("results") or told.get("levels") or [told]
    assert all(row["completed"] == 24 and row["output_throughput"] > 0 for row in rows)


def test_a_server_compared_with_itself_shows_no_difference(server: dict[str, Any]) -> None:
    """As right, and no gain that is not there."""
    words = ("--concurrency", "1", "--questions", "8", "--rounds", "3", "--json")
    told = moebox("compare", server["base_url"], server["base_url"], *words).good().document
    assert told


def test_one_step_of_a_climb(rehearsal: Path, server: dict[str, Any], folders: Path) -> None:
    """A longer context: restarted, verified, measured, kept. The shared engine leaves the GPU room for it."""
    recipe = codec.read_toml(Recipe, rehearsal)
    step = dataclasses.replace(
        recipe,
        name="climbing",
        context=1024,
        memory_utilization=0.3,
        listen=dataclasses.replace(recipe.listen, port=recipe.listen.port + 1),
        climb=Climb(contexts=(1024, 2048), speculate=("none",)),
    )
    words = ("--concurrency", "2", "--rounds", "2", "--questions", "6", "--json")
    told = moebox("climb", written(step, folders), *words).good().document
    assert told["recipe"]["context"] == 2048


def test_kill_nine_in_the_middle_of_a_benchmark(rehearsal: Path, folders: Path) -> None:
    """The benchmark ends with errors named, the guard cleans up, and the GPU's memory is free again."""
    before = on_gpu()
    recipe = codec.read_toml(Recipe, rehearsal)
    mortal = dataclasses.replace(
        recipe,
        name="mortal",
        memory_utilization=0.3,
        listen=dataclasses.replace(recipe.listen, port=recipe.listen.port + 2),
    )
    with up(written(mortal, folders)) as started:
        words = ["bench", started["base_url"], "--input", "256", "--output", "512", "--concurrency", "4"]
        load = subprocess.Popen(
            [sys.executable, "-m", "moebox", *words, "--requests", "64", "--json"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        time.sleep(5)
        engine_process = psutil.Process(started["pid"])
        for victim in [engine_process, *engine_process.children(recursive=True)]:
            os.kill(victim.pid, signal.SIGKILL)
        _, err = load.communicate(timeout=120)
        assert load.returncode in (1, 3), err[-2000:]
    until = time.monotonic() + GONE_S
    while on_gpu() - before and time.monotonic() < until:
        time.sleep(1)
    assert not on_gpu() - before
    listed = moebox("ps", "--json").good().out
    assert "mortal" not in listed


def test_the_plan_is_what_the_engine_reports(engine: str, cut: Path, folders: Path) -> None:
    """Kimi's shapes in four layers: weights and cache of the plan within 3 % of the engine's own figures."""
    recipe = recipe_for(engine, "kimi-4", cut, memory_utilization=0.6, context=8192, max_seqs=16)
    recipe = dataclasses.replace(recipe, flags={**recipe.flags, "load-format": "dummy"})
    with up(written(recipe, folders)) as started:
        rows = {row["what"]: row for row in started["reality"]}
    off = {name: row["real"] / row["planned"] - 1 for name, row in rows.items() if row["planned"]}
    print({name: f"{share:+.2%}" for name, share in off.items()})
    assert {"weights", "cache"} <= off.keys()
    wrong = {name: f"{share:+.1%}" for name, share in off.items() if abs(share) > TOLERANCE and name in WATCHED}
    assert not wrong
