"""Two nodes over real Slurm and over real ssh: start, serve, stop; every kind of death named, nothing left anywhere."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from moebox import detect, http
from moebox.checkpoint import deploy
from moebox.cli import main
from moebox.errors import ExternalError, MoeboxError
from moebox.flows.recipes import load_recipe
from moebox.serve import node_checks, state
from moebox.serve.faults import LaunchFailed
from moebox.serve.nodes import prepare_nodes
from moebox.serve.session import EngineSession
from moebox.serve.stop import stop_instance
from moebox.serve.where import NodePrograms, NodeSelection, NodeSettings, SlurmJob
from moebox.store import Run
from tests.cluster.conftest import SLURM, Cluster, hosts, ranks_gone, said, session, until
from tests.ranks import of_rank

pytestmark = pytest.mark.engine
Spanning = Callable[..., Path]


@pytest.fixture(autouse=True)
def small_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is measured here: a few megabytes show that the way is open."""
    monkeypatch.setattr(node_checks, "REACH_BYTES", 4 << 20)


def processes(running: EngineSession, rank: int) -> list[int]:
    """Processes of one rank."""
    return of_rank(state.instance_mark(running.run.id), rank)


def to_its_end(running: EngineSession) -> None:
    running.wait_ready(patience_s=60)
    running.wait_until_exit()


@pytest.mark.parametrize("way", ["slurm", "ssh"])
def test_two_nodes_serve_as_one_and_stop_without_a_trace(
    way: str, spanning: Spanning, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    request.getfixturevalue(way)
    with session(spanning(), SLURM if way == "slurm" else hosts(tmp_path)) as running:
        running.wait_ready(patience_s=60)
        body = {"model": "small", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
        assert http.post_json(f"{running.endpoint.base_url}/chat/completions", body).ok
        log = running.log.read_text()
        assert f"[1 {'n2' if way == 'slurm' else 's2'}] INFO" in log


@pytest.mark.parametrize("way", ["slurm", "ssh"])
def test_a_rank_killed_under_traffic_is_named(
    way: str, spanning: Spanning, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    request.getfixturevalue(way)
    with session(spanning(), SLURM if way == "slurm" else hosts(tmp_path)) as running:
        running.wait_ready(patience_s=60)
        os.kill(min(processes(running, 1)), signal.SIGKILL)
        with pytest.raises(LaunchFailed):
            running.wait_until_exit()
        name = "n2" if way == "slurm" else "s2"
        assert (
            f"moebox: rank 1 on {name} was killed by SIGKILL; the other ranks were stopped" in running.log.read_text()
        )


def test_a_rank_that_runs_out_of_memory_while_loading_is_explained(slurm: Cluster, spanning: Spanning) -> None:
    with session(spanning("die-loading"), SLURM) as running:
        with pytest.raises(LaunchFailed, match="memory") as problem:
            running.wait_ready(patience_s=60)
        assert "[1 n2]" in str(problem.value.hint)


def test_a_rank_that_dies_when_it_is_ready_is_named(slurm: Cluster, spanning: Spanning) -> None:
    with session(spanning("die-ready"), SLURM) as running:
        with pytest.raises(LaunchFailed):
            to_its_end(running)
        assert "moebox: rank 1 on n2 ended with code 1" in running.log.read_text()


@pytest.mark.parametrize("way", ["slurm", "ssh"])
def test_an_agent_that_is_killed_takes_its_rank_and_the_others_with_it(
    way: str, spanning: Spanning, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    request.getfixturevalue(way)
    with session(spanning(), SLURM if way == "slurm" else hosts(tmp_path)) as running:
        running.wait_ready(patience_s=60)
        agent = int(Path(f"/proc/{min(processes(running, 1))}/stat").read_text().rsplit(")", 1)[1].split()[1])
        os.kill(agent, signal.SIGKILL)
        with pytest.raises(LaunchFailed):
            running.wait_until_exit()
        assert "rank 1 on" in running.log.read_text().splitlines()[-1]


@pytest.mark.parametrize("victim", ["conductor", "guard"])
def test_a_killed_head_leaves_no_rank_and_no_allocation(victim: str, slurm: Cluster, spanning: Spanning) -> None:
    with session(spanning(), SLURM) as running:
        running.wait_ready(patience_s=60)
        pid = running.guard.pid if victim == "guard" else running.instance.guard_state.engine
        os.kill(pid, signal.SIGKILL)
        ranks_gone(state.instance_mark(running.run.id))
        until(lambda: not said(["squeue", "--noheader"]).strip(), "the allocation stays")


def test_an_allocation_that_is_cancelled_leaves_no_process_that_ignores_it(slurm: Cluster, spanning: Spanning) -> None:
    """As a time limit does: Slurm ends what hangs below its step, and loses sight of what an ended agent left."""
    with session(spanning("stubborn"), SLURM) as running:
        running.wait_ready(patience_s=60)
        subprocess.run(["scancel", running.instance.job], check=True)
        ranks_gone(state.instance_mark(running.run.id))


def test_a_moebox_that_is_killed_leaves_nothing(slurm: Cluster, spanning: Spanning) -> None:
    words = [sys.executable, "-m", "moebox", "up", str(spanning()), "--slurm", "--set"]
    words += [f"nodes.python={sys.executable}"]
    moebox = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    until(lambda: any(one.ready for one in state.list_instances()), "it never served")
    (instance,) = state.list_instances()
    moebox.kill()
    moebox.wait()
    ranks_gone(state.instance_mark(instance.id))
    until(lambda: not said(["squeue", "--noheader"]).strip(), "the allocation stays")
    stop_instance(instance)


def test_detached_nodes_are_listed_and_stopped(
    slurm: Cluster, spanning: Spanning, capfd: pytest.CaptureFixture[str]
) -> None:
    began = time.monotonic()
    assert main(["up", str(spanning()), "--slurm", "--set", f"nodes.python={sys.executable}", "--detach"]) == 0
    (instance,) = state.list_instances()
    assert instance.job
    assert instance.status == "ready"
    assert main(["down"]) == 0
    assert time.monotonic() - began < 600  # a bound for a hung suite, not a figure
    ranks_gone(state.instance_mark(instance.id))


def test_what_cannot_start_is_one_line_and_leaves_no_allocation(
    slurm: Cluster, spanning: Spanning, tmp_path: Path
) -> None:
    deployment = deploy(load_recipe(str(spanning())))
    run = Run.create("span")
    with pytest.raises(ExternalError, match=r"Slurm: .*partition"):
        prepare_nodes(
            deployment,
            run,
            NodeSelection(slurm=True, settings=NodeSettings(slurm=SlurmJob(partition="nowhere"))),
            lambda _: None,
        )
    with pytest.raises(ExternalError, match="n1 does not answer"):
        prepare_nodes(
            deployment,
            run,
            NodeSelection(slurm=True, settings=NodeSettings(nodes=NodePrograms(python="/nowhere/python3"))),
            lambda _: None,
        )
    until(lambda: not said(["squeue", "--noheader"]).strip(), "the allocation stays")


def test_hosts_that_do_not_answer_are_one_line(ssh: Cluster, spanning: Spanning, tmp_path: Path) -> None:
    deployment = deploy(load_recipe(str(spanning())))
    run = Run.create("span")
    with pytest.raises(MoeboxError, match="the recipe spans 2 nodes and the hosts file lists 1"):
        prepare_nodes(deployment, run, hosts(tmp_path, "s1\n"), lambda _: None)
    with pytest.raises(ExternalError, match=r"nowhere\.invalid does not answer"):
        prepare_nodes(deployment, run, hosts(tmp_path, "s1 127.0.0.1\nnowhere.invalid 127.0.0.1\n"), lambda _: None)
    with pytest.raises(ExternalError, match=r"s2: cannot reach 127\.0\.0\.99|s1: port"):
        prepare_nodes(deployment, run, hosts(tmp_path, "s1 192.0.2.1\ns2 127.0.0.1\n"), lambda _: None)


def test_the_network_between_nodes_is_timed_and_kept_with_the_box(
    ssh: Cluster, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    hosts(tmp_path)
    words = ["box", "--box", "2x8x-h200", "--hosts", str(tmp_path / "hosts"), "--node-python", sys.executable]
    assert main([*words, "--save", str(tmp_path / "two")]) == 0
    assert "measured between nodes" in " ".join(capfd.readouterr().out.split())
    box = detect.load_box(str(tmp_path / "two" / "box.toml"))
    assert (box.network_measured or 0) > 1e5
    assert (box.network_us or 0) > 0


def test_nodes_are_asked_for_when_a_recipe_spans_several(
    spanning: Spanning, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["up", str(spanning())]) == 2
    assert "spans 2 nodes, and none is named" in capsys.readouterr().err
