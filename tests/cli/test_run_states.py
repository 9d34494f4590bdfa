"""Commands that fail or are interrupted: their run has that state, its reason, and a command that goes on."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from moebox.core.recipe import Runtime
from tests.driving import moebox, written
from tests.embedded import phantom_recipe


def run_state() -> str:
    (row,) = moebox("runs", "--json").document["runs"]
    assert isinstance(row["state"], str)
    return row["state"]


def shown_run() -> str:
    return " ".join(moebox("runs", "show").out.split())


def interrupt(words: list[str], after: str) -> str:
    """Interrupt a command once it has printed a line with this text; return all that it printed on stderr."""
    argv = [sys.executable, "-m", "moebox", *words]
    child = subprocess.Popen(argv, env=os.environ, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    assert child.stderr
    printed = ""
    for line in child.stderr:
        printed += line
        if after in line:
            child.send_signal(signal.SIGINT)
            break
    printed += child.stderr.read()
    assert child.wait() == 130, printed
    return printed


def test_a_comparison_that_fails_says_so(tmp_path: Path):
    """The program of side A ends at once; the next step is the same command."""
    a = written(phantom_recipe(name="bad", runtime=Runtime(entry="false")), tmp_path)
    b = written(phantom_recipe(name="good"), tmp_path)
    failed = moebox("compare", a, b, "--effort", "quick", "--set", "questions=1", "--concurrency", "1")
    assert failed.code == 3, failed.err
    assert run_state() == "failed in compare"
    assert "compare failed: llama.cpp ended with code 1" in shown_run()
    assert f"next moebox compare {a} {b} --effort quick --set questions=1 --concurrency 1" in shown_run()


def test_an_interrupted_comparison_says_so(tmp_path: Path):
    """Nothing of it is kept, so the next step is the same command."""
    a, b = (str(written(phantom_recipe(name=name), tmp_path)) for name in "ab")
    printed = interrupt(["compare", a, b], after="run: ")
    assert "interrupted; a comparison cannot be resumed, and keeps no part of its measurements" in printed
    assert run_state() == "interrupted in compare"
    assert f"next moebox compare {a} {b} " in shown_run()


def test_an_interrupted_upgrade_names_its_whole_command(tmp_path: Path):
    """The next step had lost what the two versions are judged by."""
    path = str(written(phantom_recipe(name="ph"), tmp_path))
    printed = interrupt(["upgrade", path, "max_seqs=2", "--by", "alive,speed=5%"], after="starting the old")
    assert "interrupted; the old version is what runs; the same command tries the new one anew" in printed
    assert "so far" not in printed
    assert run_state() == "interrupted in upgrade"
    assert f"next moebox upgrade {path} max_seqs=2 --by alive,speed=5%" in shown_run()


def test_a_verification_whose_server_is_gone_says_so(tmp_path: Path):
    """A quality measurement needs log-probabilities of a server that answers."""
    path = written(phantom_recipe(name="ph"), tmp_path)
    started = moebox("up", path, "--detach", "--json").good().document
    url = started["base_url"]
    moebox("down", started["id"]).good()
    failed = moebox("quality", url, "--model", "phantom")
    assert failed.code == 3, failed.err
    assert moebox("runs", "--json").document["runs"][0]["state"] == "failed in quality"
    assert f"next moebox quality {url} --model phantom" in shown_run()
