"""What the tests of `moebox run` share: a recipe whose engine is the oracle, a story as a process, and its remains."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from moebox import codec
from moebox.cli import main
from moebox.core.pipeline import STEPS, StepName
from moebox.core.recipe import Climb, Hybrid, Listen, Recipe, Runtime
from moebox.flows.pipeline import PIPELINE
from moebox.phantom import gguf_path
from moebox.store import JournalEntry, Run

ROOT = Path(__file__).parents[2]
ENGINE = "tests.verify.oracle.engine"
WAIT_S = 120.0  # for what comes within a second or two on an idle machine
MEASURED = 64  # max_tokens of a measurement in a pipeline without a model's name
# The Nth such request: each level warms up with as many requests as it has streams and then sends four of each.
SECOND_LEVEL = 8
ASKED: dict[StepName, tuple[str | int, int]] = {
    "up": ("any", 1),
    "verify": ("any", 12),
    "climb": ("any", 3),
    "bench": (MEASURED, SECOND_LEVEL),
}


def weights(folder: Path) -> Path:
    """Weights whose headers can be read, under a path that tells this test's engines from others."""
    path = folder / "oracle.gguf"
    path.symlink_to(gguf_path())
    return path


def oracle_recipe(folder: Path) -> Path:
    """A recipe file whose engine is the oracle: a process that answers every question of the checks rightly."""
    made = Recipe(
        name="oracle",
        engine="llama.cpp",
        model="kimi-k2.6",
        checkpoint=str(weights(folder)),
        served_name="oracle-k2",
        context=2048,
        max_seqs=2,
        hybrid=Hybrid(),
        listen=Listen(port=0),
        runtime=Runtime(entry=f"{sys.executable} -m {ENGINE}"),
        climb=Climb(contexts=(2048,), speculate=(), settings={}),
    )
    path = folder / "recipe.toml"
    path.write_text(codec.to_toml(made))
    return path


def only(*names: StepName, streams: str = "1") -> list[str]:
    """Words for a pipeline of the plan and these steps alone; memory is not measured."""
    wanted = ("plan", *names)
    left = [name for name in STEPS[: STEPS.index(wanted[-1])] if name not in wanted]
    words = ["--effort", "quick", "--ram-bandwidth", "20GB/s", "--concurrency", streams, "--until", wanted[-1]]
    return [*words, *(["--skip", ",".join(left)] if left else [])]


def begin(*words: str) -> "subprocess.Popen[str]":
    """`moebox run` as a process."""
    command = [sys.executable, "-m", "moebox", "run", *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def resume(run: Run, capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    """The pipeline's JSON after --resume, which must end well."""
    capsys.readouterr()
    assert main(["run", "--resume", run.id, *words, "--json"]) == 0
    reported: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert all(one["state"] in ("done", "skipped", "waiting") for one in reported["steps"])
    return reported


def until(found: Any, what: str) -> Any:
    """Wait for `found()` to be true; what it gave."""
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        if value := found():
            return value
        time.sleep(0.02)
    raise AssertionError(f"waited in vain: {what}")


def the_run() -> Run:
    """The only run of this test."""
    home = Path(os.environ["MOEBOX_RUNS"])
    found = until(lambda: [one for one in home.glob("*") if (one / PIPELINE).exists()], "a run was begun")
    return Run(found[0])


def events(run: Run, kind: str, **data: object) -> list[JournalEntry]:
    """Those of this kind with this data."""
    entries = run.read_journal().entries
    return [entry for entry in entries if entry.kind == kind and data.items() <= entry.event.data.items()]


def oracles() -> list[psutil.Process]:
    """Engines of this test that are alive."""
    mark = str(Path(os.environ["MOEBOX_RUNS"]).parent)
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        words = " ".join(process.info["cmdline"] or ())
        if ENGINE in words and mark in words and process.info["status"] != psutil.STATUS_ZOMBIE:
            found.append(process)
    return found


def gone() -> bool:
    """No engine is left, within the time a guard takes to climb down."""
    until(lambda: not oracles(), "every engine is gone")
    return True


def measured(run: Run) -> dict[Path, bytes]:
    """What was measured so far."""
    return {path: path.read_bytes() for path in run.path.glob("measurements/*")}


def halves(run: Run) -> list[Path]:
    """Files that were being written."""
    return list(run.path.rglob("*.part"))


class Hold:
    """Makes the oracle wait in the middle of one request until `go`."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.path, self._monkeypatch = path, monkeypatch

    def at(self, which: str | int, number: int = 1) -> None:
        """In its Nth chat request with these max_tokens, or `any`; before it listens for `start`."""
        self._monkeypatch.setenv("MOEBOX_ORACLE_HOLDS", f"{self.path},{which},{number}")

    def wait(self) -> None:
        """Until it waits."""
        until(self.path.exists, f"the oracle waits ({os.environ['MOEBOX_ORACLE_HOLDS']})")

    def go(self) -> None:
        """Let it go on, and never wait again."""
        self.path.with_name(f"{self.path.name}.go").touch()


def held_in(step: StepName, recipe: Path, hold: Hold) -> tuple["subprocess.Popen[str]", Run]:
    """A pipeline in the middle of that step: its engine waits before it answers. In a bench, one level is measured."""
    hold.at(*ASKED[step])
    moebox = begin("--recipe", str(recipe), *only(step, streams="1,2"))
    hold.wait()
    return moebox, the_run()
