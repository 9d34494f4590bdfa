"""vLLM or SGLang on a real GPU, from the command line: rehearse, up, verify, bench, climb, compare, kill, plan.

Every test takes less than three minutes beside its boot and can be run alone with `-k`; results are printed
at once, so that a run that is cut off shows what it found: run with `-s`.
"""

import dataclasses
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from moebox import codec
from moebox.core.recipe import Climb, Recipe
from moebox.detect import nvml
from moebox.serve.state import marked_processes
from moebox.verify.options import CHECK_NAMES
from tests.driving import Done, failures_without_quirk, moebox, up, written
from tests.engine_gpu.conftest import recipe_for

pytestmark = pytest.mark.gpu
UNTRIED = {"vision"}  # the phantom sees nothing
GROUPS = {
    "first": CHECK_NAMES[:6],
    "forms": CHECK_NAMES[6:9],
    "agents": CHECK_NAMES[9:11],
    "long": CHECK_NAMES[11:14],
    "edges": CHECK_NAMES[14:],
}
TOLERANCE = 0.03  # plan against reality
WATCHED = ("weights", "cache", "kv")
GONE_S = 60
BOOTING_S = 150


def log(text: str) -> None:
    """Print a line with the time."""
    print(f"[{time.strftime('%H:%M:%S')}] {text}", flush=True)


def run_moebox(*words: str | Path) -> Done:
    """Run a command to its end and print how long it took."""
    began = time.monotonic()
    done = moebox(*words)
    log(f"moebox {words[0]}: exit {done.code} after {time.monotonic() - began:.0f} s")
    if done.code:
        log(done.err[-2000:])
    return done


def unexpected_failures(results: dict[str, Any]) -> dict[str, str]:
    """Print every check; return those that failed without a known quirk or were skipped without reason."""
    for check in results["rungs"]:
        log(f"{check['verdict']:<4} {check['name']:<13} {check['seconds']:5.1f} s  {check['reason'][:200]}")
        for probe in check["probes"]:
            if probe["verdict"] not in ("pass", "skip"):
                log(f"       {probe['verdict']} {probe['name']}: {probe['reason'][:400]}")
    skipped = {check["name"]: check["reason"] for check in results["rungs"] if check["verdict"] == "skip"}
    return failures_without_quirk(results) | {name: reason for name, reason in skipped.items() if name not in UNTRIED}


def on_gpu() -> set[int]:
    """Processes that hold memory of the first GPU."""
    driver = nvml.load_nvml()
    return {pid for pid, _ in nvml.gpu_processes(driver, 0)} if driver else set()


@contextmanager
def nothing_left() -> Iterator[None]:
    """After the block the GPU and the process table are as before it."""
    gpu, engines = on_gpu(), set(marked_processes())
    yield
    until = time.monotonic() + GONE_S
    while (on_gpu() - gpu or set(marked_processes()) - engines) and time.monotonic() < until:
        time.sleep(1)
    processes, instances = on_gpu() - gpu, set(marked_processes()) - engines
    log(f"left on the GPU: {processes or 'nothing'}; engines left: {instances or 'none'}")
    assert not processes
    assert not instances


def test_a_rehearsal_with_the_phantom_passes_every_check(rehearsal: Path) -> None:
    """One command boots, reads a prompt beyond a block, decodes, runs the checks and stops."""
    document = run_moebox("rehearse", rehearsal, "--phantom", "--json").good().document
    steps = {step["name"]: step["detail"] for step in document["steps"]}
    for name, detail in steps.items():
        log(f"{name}: {detail}")
    assert document["verdict"] == "pass"  # known quirks of the engine are named in the step
    assert steps["answers"].startswith("answered right on ")
    assert "out of time" not in steps["answers"]


@pytest.mark.parametrize("group", GROUPS)
def test_every_check_is_green_on_a_running_engine(group: str, server: dict[str, Any]) -> None:
    """All checks with their usual trials, a group at a time."""
    results = run_moebox("verify", server["base_url"], "--only", ",".join(GROUPS[group]), "--json").document
    assert unexpected_failures(results) == {}
    assert [check["name"] for check in results["rungs"]] == list(GROUPS[group])


def test_a_benchmark_of_fresh_prompts(server: dict[str, Any]) -> None:
    """All requests complete, at one stream and at eight."""
    words = ("--input", "256", "--output", "64", "--concurrency", "1,8", "--requests", "24", "--json")
    document = run_moebox("bench", server["base_url"], *words).good().document
    rows = document.get("rows") or document.get("results") or document.get("levels") or [document]
    for row in rows:
        log(f"{row['completed']} completed, {row['output_throughput']:.0f} tok/s")
    assert all(row["completed"] == 24 and row["output_throughput"] > 0 for row in rows)


def test_a_server_compared_with_itself_shows_no_difference(server: dict[str, Any]) -> None:
    """Equally many right answers, and no difference in speed."""
    words = ("--concurrency", "1", "--set", "questions=8", "--set", "rounds=3", "--json")
    document = run_moebox("compare", server["base_url"], server["base_url"], *words).good().document
    log(document["verdict"])
    assert document["as_good"]
    assert document["answers"]["right_a"]["passed"] == document["answers"]["right_b"]["passed"]


@pytest.mark.usefixtures("free_gpu")
def test_one_step_of_a_climb(rehearsal: Path, folders: Path) -> None:
    """A longer context is started, verified, measured and kept."""
    recipe = codec.read_toml(Recipe, rehearsal)
    step = dataclasses.replace(
        recipe,
        name="climbing",
        context=2048,
        memory_utilization=0.3,
        listen=dataclasses.replace(recipe.listen, port=recipe.listen.port + 1),
        climb=Climb(contexts=(2048, 4096), speculate=("none",)),
    )
    words = ("--concurrency", "2", "--rounds", "2", "--questions", "6", "--json")
    with nothing_left():
        document = run_moebox("climb", written(step, folders), *words).good().document
    for row in document["steps"]:
        log(f"{row['change']}: {row['verdict']}")
    assert document["recipe"]["context"] == 4096


def mortal_recipe(rehearsal: Path, folders: Path, name: str, port: int) -> Path:
    """The phantom on another port and in less memory."""
    recipe = codec.read_toml(Recipe, rehearsal)
    listen = dataclasses.replace(recipe.listen, port=recipe.listen.port + port)
    return written(dataclasses.replace(recipe, name=name, memory_utilization=0.3, listen=listen), folders)


@pytest.mark.usefixtures("free_gpu")
def test_kill_nine_of_the_engine_in_the_middle_of_a_benchmark(rehearsal: Path, folders: Path) -> None:
    """The benchmark ends with errors named, the guard cleans up, and the GPU's memory is free again."""
    with nothing_left(), up(mortal_recipe(rehearsal, folders, "mortal", 2)) as started:
        words = ["bench", started["base_url"], "--input", "256", "--output", "512", "--concurrency", "4"]
        load = subprocess.Popen(
            [sys.executable, "-m", "moebox", *words, "--requests", "64", "--json"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        time.sleep(5)
        engine_process = psutil.Process(started["pid"])
        victims = [engine_process, *engine_process.children(recursive=True)]
        log(f"kill -9 of {[victim.pid for victim in victims]}")
        for victim in victims:
            os.kill(victim.pid, signal.SIGKILL)
        _, err = load.communicate(timeout=120)
        log(f"bench ended with {load.returncode}: {err[-500:]}")
        assert load.returncode in (1, 3), err[-2000:]
    assert "mortal" not in moebox("ps", "--json").good().out


@pytest.mark.usefixtures("free_gpu")
def test_kill_nine_of_moebox_in_the_middle_of_a_boot_leaves_no_engine(rehearsal: Path, folders: Path) -> None:
    """The guard stops the engine after moebox was killed."""
    recipe = mortal_recipe(rehearsal, folders, "orphaned", 4)
    before = on_gpu()
    with nothing_left():
        words = [sys.executable, "-m", "moebox", "rehearse", str(recipe), "--phantom", "--json"]
        command = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        until = time.monotonic() + BOOTING_S
        while not on_gpu() - before and command.poll() is None and time.monotonic() < until:
            time.sleep(0.5)
        booting = on_gpu() - before
        log(f"kill -9 of moebox {command.pid} while {booting} hold the GPU")
        command.kill()
        command.wait()
        assert booting, "the engine never used the GPU"


@pytest.mark.usefixtures("free_gpu")
def test_the_plan_is_what_the_engine_reports(engine: str, cut: Path, folders: Path) -> None:
    """Kimi's shapes in four layers: weights and cache of the plan within 3 % of the engine's own figures."""
    recipe = recipe_for(engine, "kimi-4", cut, memory_utilization=0.6, context=8192, max_seqs=16)
    recipe = dataclasses.replace(recipe, flags={**recipe.flags, "load-format": "dummy"})
    with nothing_left(), up(written(recipe, folders)) as started:
        rows = {row["what"]: row for row in started["reality"]}
    for name, row in rows.items():
        log(f"{name}: planned {row['planned']}, real {row['real']}")
    off = {name: row["real"] / row["planned"] - 1 for name, row in rows.items() if row["planned"]}
    log(f"engine against plan: { ({name: f'{share:+.2%}' for name, share in off.items()}) }")
    assert {"weights", "cache"} <= off.keys()
    wrong = {name: f"{share:+.1%}" for name, share in off.items() if abs(share) > TOLERANCE and name in WATCHED}
    assert not wrong
