"""Rendered files really run on the two-node Slurm: a job over both nodes, and a fleet of two jobs behind a router."""

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from moebox import codec, http
from moebox.checkpoint import deploy
from moebox.core.recipe import Parallel
from moebox.flows.recipes import load_recipe
from moebox.render import render
from moebox_fleet.render import render_fleet
from tests.cluster.conftest import Cluster, no_jobs, quiet_port, said, until

pytestmark = pytest.mark.engine
VENV = Path(os.environ.get("MOEBOX_ROUTER_VENV", ".venv-router")).absolute()
CHAT = {"model": "small", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}


@pytest.fixture(autouse=True)
def loopback_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rendered jobs listen on every address of their node; these must not."""
    monkeypatch.setattr("moebox.render.cluster.ALL_ADDRESSES", "127.0.0.1")


def serves(port: int) -> bool:
    return http.post_json(f"http://127.0.0.1:{port}/v1/chat/completions", CHAT).ok


def submitted(path: Path) -> str:
    done = subprocess.run(
        ["sbatch", "--parsable", str(path)], capture_output=True, text=True, cwd=path.parent, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def no_job() -> bool:
    return not said(["squeue", "--noheader"]).strip()


@pytest.fixture
def jobs_end() -> Iterator[None]:
    yield
    no_jobs()


def test_a_rendered_job_serves_from_two_nodes_and_ends_as_one(
    slurm: Cluster, spanning: Callable[..., Path], tmp_path: Path, jobs_end: None
) -> None:
    recipe = load_recipe(str(spanning()))
    path = tmp_path / "span.sbatch"
    path.write_text(render(deploy(recipe), "slurm"))
    job = submitted(path)
    log = tmp_path / f"span-{job}.log"
    until(
        lambda: serves(recipe.listen.port), f"it never served: {log.read_text() if log.exists() else said(['squeue'])}"
    )
    assert "node 1 of 2" in log.read_text()
    workers = said(["pgrep", "-f", f"engine.py serve .*--node-rank 1 .*{recipe.listen.port}|--node-rank 1"]).split()
    assert workers
    subprocess.run(["scancel", job], check=True)
    until(lambda: no_job() and not serves(recipe.listen.port), "the job stays")


@contextlib.contextmanager
def rendered_fleet(spanning: Callable[..., Path], folder: Path) -> Iterator[tuple["subprocess.Popen[bytes]", int]]:
    """A fleet of two members as its rendered script starts it, and the router's port; ended when the block is."""
    recipe = replace(load_recipe(str(spanning())), parallel=Parallel())
    (folder / "member.toml").write_text(codec.to_toml(recipe))
    port = quiet_port()
    path = folder / "fleet.toml"
    path.write_text(
        f'name = "pair"\n[router]\nport = {port}\n[[member]]\nname = "m"\nrecipe = "member.toml"\ncount = 2\n'
    )
    out = folder / "out"
    out.mkdir()
    for name, text in render_fleet(path, "slurm").items():
        (out / name).write_text(text)
    with open(folder / "fleet.log", "wb") as log:
        fleet = subprocess.Popen(
            ["bash", str(out / "fleet.sh")],
            env={**os.environ, "PYTHON": str(VENV / "bin" / "python")},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield fleet, port
    finally:
        os.killpg(fleet.pid, signal.SIGTERM)
        fleet.wait(60)


def test_a_rendered_fleet_submits_its_members_and_serves_and_its_end_cancels_them(
    slurm: Cluster, spanning: Callable[..., Path], tmp_path: Path, jobs_end: None
) -> None:
    with rendered_fleet(spanning, tmp_path) as (fleet, port):
        until(lambda: serves(port) or fleet.poll() is not None, (tmp_path / "fleet.log").read_text())
        assert fleet.poll() is None, (tmp_path / "fleet.log").read_text()
        assert len(said(["squeue", "--noheader"]).splitlines()) == 2
    until(no_job, "a member stays")


def asked_for() -> int:
    return len(said(["squeue", "--noheader"]).splitlines())


def engines() -> int:
    return len(said(["pgrep", "-f", "engine.py serve"]).split())


@pytest.mark.parametrize(("seen", "number"), [(asked_for, 1), (asked_for, 2), (engines, 1), (engines, 2)])
def test_a_rendered_fleet_that_is_ended_while_it_starts_leaves_nothing(
    slurm: Cluster,
    spanning: Callable[..., Path],
    tmp_path: Path,
    jobs_end: None,
    seen: Callable[[], int],
    number: int,
) -> None:
    """Before all of its members are asked for, and before they serve: none is left in the queue, nor their engines."""
    with rendered_fleet(spanning, tmp_path):
        until(lambda: seen() >= number, "it does not get so far")
    until(no_job, "a member stays")
    until(lambda: not engines(), "an engine stays")
