"""Every module loads first in a process of its own, and every command shows its help there.

A module whose imports stand in no circle with it loads first if it loads after them, so one process loads all modules
once, the lowest first, and forks a child only for each member of a circle. That the circles are all there is checked:
loading a module may load nothing that comes after it.
"""

import ast
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import moebox
from moebox.core.event import LoadBegan
from moebox.store import Run
from tests.sampling import one_in

SOURCE = Path(moebox.__file__).parent
ROOT = Path(__file__).resolve().parents[1]
# The probe runs in the engine's environment, which alone has PyTorch and Triton.
ELSEWHERE = "moebox_kernels.probe."
LOADER = """
import importlib, json, os, sys
import cyclopts, httpx2, jinja2, msgspec, psutil, rich.console, rich.table, starlette.applications, uvicorn

def alone(name):
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
        problem = answer.read().decode()
    os.waitpid(child, 0)
    return problem

circles = json.load(sys.stdin)
failed, later = {}, {name for circle in circles for name in circle}
for circle in circles:
    later.difference_update(circle)
    for name in circle:
        if len(circle) > 1 and (problem := alone(name)):
            failed[name] = problem
    for name in circle:
        try:
            importlib.import_module(name)
        except BaseException as problem:
            failed.setdefault(name, repr(problem)[:2000])
    if early := sorted(later.intersection(sys.modules)):
        failed.setdefault(circle[0], f"loads {early[0]}, which its import statements do not show")
print(json.dumps(failed))
"""
HELPER = """
import json, os, sys
import cyclopts, httpx2, jinja2, msgspec, psutil, rich.console, rich.table, starlette.applications, uvicorn
import moebox.flows.trials, moebox.flows.run, moebox.planner.choose, moebox.report.page
from moebox.cli import COMMANDS, GROUPS, main

os.environ["COLUMNS"] = "80"
for name in [*COMMANDS, *GROUPS, ""][int(sys.stdin.read()) :: 4]:
    child = os.fork()
    if not child:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os._exit(main([*name.split(), "--help"]))
    code = os.waitpid(child, 0)[1]
    if code:
        print(name, code)
"""


def modules() -> dict[str, Path]:
    """Every module of the package that this environment can load, and its file."""
    named = {
        ".".join(("moebox", *path.relative_to(SOURCE).with_suffix("").parts)).removesuffix(".__init__"): path
        for path in sorted(SOURCE.rglob("*.py"))
        if path.name != "__main__.py"
    }
    return {name: path for name, path in named.items() if not name.startswith(ELSEWHERE)}


def statements(body: list[ast.stmt]) -> Iterator[ast.Import | ast.ImportFrom]:
    """Imports that run when a module is loaded: none in functions, none for type checkers alone.

    A package that loads its names on first use lists them for type checkers.
    """
    lazy = any(isinstance(statement, ast.FunctionDef) and statement.name == "__getattr__" for statement in body)
    for statement in body:
        if isinstance(statement, ast.Import | ast.ImportFrom):
            yield statement
        elif isinstance(statement, ast.If) and "TYPE_CHECKING" in ast.unparse(statement.test) and not lazy:
            continue
        elif not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            inner = (getattr(statement, field, []) for field in ("body", "orelse", "finalbody", "handlers"))
            yield from statements([piece for pieces in inner for piece in pieces])


def imported(name: str, path: Path) -> set[str]:
    """What is loaded before a module is: the packages around it, and what it imports."""
    parts = name.split(".")
    found = {".".join(parts[:count]) for count in range(1, len(parts))}
    for statement in statements(ast.parse(path.read_text()).body):
        if isinstance(statement, ast.Import):
            found |= {alias.name for alias in statement.names}
        elif statement.module:
            found |= {statement.module, *(f"{statement.module}.{alias.name}" for alias in statement.names)}
    return found


def circles() -> list[list[str]]:
    """The modules in an order in which each comes after all it imports; those that import one another are together."""
    graph = {name: imported(name, path) for name, path in modules().items()}
    reached = {name: reach(name, graph) for name in graph}
    order = sorted(graph, key=lambda name: (len(reached[name]), sorted(reached[name]), name))
    return [list(members) for _, members in itertools.groupby(order, key=lambda name: reached[name])]


def reach(name: str, graph: dict[str, set[str]]) -> set[str]:
    """The module and all that is loaded with it."""
    found, left = set(), [name]
    while left:
        here = left.pop()
        if here in graph and here not in found:
            found.add(here)
            left.extend(graph[here])
    return found


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
    assert json.loads(fresh(LOADER, json.dumps(circles()))) == {}


@pytest.mark.parametrize("first", one_in(4, range(4)))
def test_every_command_shows_its_help(first: int):
    """`moebox COMMAND --help` in a process of its own: exit code 0 and no traceback."""
    assert fresh(HELPER, str(first)) == ""


def test_runs_show_works_in_a_fresh_process():
    """It crashed on a circular import unless a report had been made in the same process before."""
    Run.create("here").add_event(LoadBegan(concurrency=1))
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
