"""Every module loads first in a process of its own, and every command shows its help there.

One process forks a child for each module. It goes up the layers of the import rule and keeps loaded what is below; that
hides no cycle, because nothing below imports from above, and the whole takes seconds.
"""

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import moebox
from moebox.core.event import LevelBegan
from moebox.store import Run

SOURCE = Path(moebox.__file__).parent
ROOT = Path(__file__).resolve().parents[1]
# The probe runs in the engine's environment, which alone has PyTorch and Triton.
ELSEWHERE = "moebox.kernels.probe."
LOADER = """
import importlib, json, os, sys
import cyclopts, httpx2, jinja2, msgspec, psutil, rich.console, rich.table, starlette.applications, uvicorn

failed = {}
for layer in json.load(sys.stdin):
    for name in layer:
        read, write = os.pipe()
        child = os.fork()
        if not child:
            try:
                importlib.import_module(name)
            except BaseException as problem:
                os.write(write, repr(problem)[:2000].encode())
            os._exit(0)
        os.close(write)
        with open(read, "rb") as answer:
            told = answer.read().decode()
        os.waitpid(child, 0)
        if told:
            failed[name] = told
    for name in layer:
        if name not in failed:
            importlib.import_module(name)
print(json.dumps(failed))
"""
HELPER = """
import json, os, sys
import cyclopts, httpx2, jinja2, msgspec, psutil, rich.console, rich.table, starlette.applications, uvicorn
import moebox.flows.run, moebox.report.chapters
from moebox.cli import COMMANDS, GROUPS, main

os.environ["COLUMNS"] = "80"
for name in [*COMMANDS, *GROUPS, ""]:
    child = os.fork()
    if not child:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os._exit(main([*name.split(), "--help"]))
    code = os.waitpid(child, 0)[1]
    if code:
        print(name, code)
"""


def modules() -> list[str]:
    """Every module of the package that this environment can load."""
    names = [
        ".".join(("moebox", *path.relative_to(SOURCE).with_suffix("").parts)).removesuffix(".__init__")
        for path in sorted(SOURCE.rglob("*.py"))
        if path.name != "__main__.py"
    ]
    return [name for name in names if not name.startswith(ELSEWHERE)]


def layers() -> list[list[str]]:
    """The modules by layer of the import rule, the lowest first."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    rule = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    left = modules()
    found: list[list[str]] = []
    for layer in reversed(rule):
        packages = tuple(package.strip() for package in layer.split("|"))
        here = [name for name in left if f"{name}.".startswith(tuple(f"{package}." for package in packages))]
        left = [name for name in left if name not in here]
        found.append(here)
    return [*found, left]


def fresh(program: str, given: str = "") -> str:
    """What a new interpreter prints that runs `program`."""
    done = subprocess.run(
        [sys.executable, "-c", program], input=given, capture_output=True, text=True, env=os.environ, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_module_loads_first():
    """No import works only because another module was loaded before it."""
    assert len(modules()) > 250
    assert json.loads(fresh(LOADER, json.dumps(layers()))) == {}


def test_every_command_shows_its_help():
    """`moebox COMMAND --help` in a process of its own: exit code 0 and no traceback."""
    assert fresh(HELPER) == ""


def test_runs_show_works_in_a_fresh_process():
    """It crashed on a circular import unless a report had been made in the same process before."""
    Run.create("here").event(LevelBegan(concurrency=1))
    done = subprocess.run(
        [sys.executable, "-m", "moebox", "runs", "show", "latest"], capture_output=True, text=True, check=False
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert "here" in done.stdout


def test_a_suite_has_folders_of_its_own():
    """Also what a fixture of the session's scope starts is not the user's: their `moebox down` must not see it."""
    home = Path.home()
    for name in ("MOEBOX_RUNS", "MOEBOX_STATE", "XDG_STATE_HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME"):
        assert os.environ[name]
        assert not Path(os.environ[name]).is_relative_to(home / ".local"), name
        assert not Path(os.environ[name]).is_relative_to(home / ".cache"), name
