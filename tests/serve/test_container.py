"""docker and podman, as far as they can be had without them: a stand-in that runs the engine's process itself."""

import dataclasses
import json
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from moebox.checkpoint import deploy
from moebox.core.recipe import Recipe, Runtime
from moebox.errors import ExternalError
from moebox.serve.session import engine_session, launch_engine, prepare_launch
from moebox.serve.stop import list_containers
from moebox.store import Run
from tests.serve.conftest import ENGINE, QUICK

STAND_IN = """#!{python}
# Writes down how it was called; `run` becomes the engine, `ps` lists what was run and not removed.
import json, os, pathlib, sys
calls = pathlib.Path({calls!r})
with calls.open("a") as file:
    file.write(json.dumps(sys.argv[1:]) + "\\n")
if sys.argv[1] == "run":
    os.execv(sys.executable, [sys.executable, {engine!r}, "good", *sys.argv])
if sys.argv[1] == "ps":
    rows = [json.loads(line) for line in calls.read_text().splitlines()]
    gone = {{row[2] for row in rows if row[0] == "rm"}}
    for row in rows:
        if row[0] == "run":
            name, label = row[row.index("--name") + 1], row[row.index("--label") + 1]
            if name not in gone:
                print(name + "\\t" + label.split("=", 1)[1])
"""


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[list[str]]]:
    """A `docker` on PATH, and what it was asked."""
    folder = tmp_path / "bin"
    folder.mkdir()
    written = tmp_path / "calls.jsonl"
    tool = folder / "docker"
    tool.write_text(STAND_IN.format(python=sys.executable, calls=str(written), engine=str(ENGINE)))
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))
    return lambda: [json.loads(line) for line in written.read_text().splitlines()] if written.exists() else []


def contained(recipe: Recipe) -> Recipe:
    """The recipe in docker."""
    return dataclasses.replace(recipe, runtime=Runtime(kind="docker"))


def test_a_container_is_named_labelled_and_removed(acting, run: Run, calls) -> None:  # type: ignore[no-untyped-def]
    """The engine's command stands behind docker's; the label finds it again, and stopping removes it by name."""
    with engine_session(deploy(contained(acting("good"))), run, patience_s=30, stop_signals=QUICK) as session:
        argv = next(call for call in calls() if call[0] == "run")
        assert f"moebox.run={run.id}" in argv
        assert "--ipc=host" in argv
        assert list_containers() == {run.id: ("docker", f"moebox-{run.id}")}
        assert session.instance.container == f"moebox-{run.id}"

    assert ["rm", "--force", f"moebox-{run.id}"] in calls()
    assert list_containers() == {}


def test_a_key_reaches_a_container_by_name_only(acting, run: Run, calls, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    """docker gets the variable's name and takes its value from the environment."""
    monkeypatch.setenv("MY_KEY", "sk-secret-1234567890")
    recipe = contained(acting("good"))
    recipe = dataclasses.replace(recipe, listen=dataclasses.replace(recipe.listen, key_env="MY_KEY"))
    with engine_session(deploy(recipe), run, patience_s=30, stop_signals=QUICK):
        argv = next(call for call in calls() if call[0] == "run")
        assert argv[argv.index("VLLM_API_KEY") - 1] == "-e"
        assert "sk-secret" not in shlex.join(argv)


def test_a_missing_container_tool_is_reported(acting, run: Run, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    """Without docker on PATH nothing starts."""
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(ExternalError, match="docker is not installed here"):
        launch_engine(prepare_launch(deploy(contained(acting("good")))), run)
