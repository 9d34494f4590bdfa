"""llama.cpp over two nodes by its own RPC backend: the real servers, the phantom's weights, Slurm and ssh."""

import dataclasses
import os
import re
import signal
import sys
from pathlib import Path

import pytest

from moebox import codec, engines, http
from moebox.checkpoint import deploy
from moebox.cli import main
from moebox.core.box import Box, Cpu
from moebox.core.deployment import Deployment
from moebox.core.recipe import Listen, Parallel, Runtime
from moebox.flows.recipes import load_recipe
from moebox.serve import node_checks, state
from moebox.serve.agent import processes_with_mark
from moebox.serve.faults import LaunchFailed
from moebox.serve.session import EngineSession
from tests.cluster.conftest import SLURM, Cluster, hosts, quiet_port, ranks_gone, session
from tests.embedded import phantom_recipe

pytestmark = pytest.mark.engine
PATIENCE_S = 300


@pytest.fixture(autouse=True)
def few_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is measured here: a few megabytes show that the way is open."""
    monkeypatch.setattr(node_checks, "REACH_BYTES", 4 << 20)


@pytest.fixture
def rpc(tmp_path: Path) -> Path:
    """A recipe that keeps the experts on the first node and everything else of every layer on the second."""
    folder = Path(os.environ.get("MOEBOX_LLAMA_BUILDS", ".venv-llama")) / "rpc" / "bin"
    assert (folder / "llama-server").exists(), "`make test-cluster` builds it: scripts/llama-build.sh rpc"
    recipe = phantom_recipe(
        name="rpc",
        model="phantom",
        max_seqs=1,
        parallel=Parallel(nodes=2),
        runtime=Runtime(entry=str(folder.absolute() / "llama-server")),
        listen=Listen(port=quiet_port()),
        flags={"repack": False},  # symptom llama-repacked-…
    )
    path = tmp_path / "rpc.toml"
    path.write_text(codec.to_toml(recipe))
    return path


def worker(running: EngineSession) -> int:
    """The process of the second node's RPC server."""
    for pid in processes_with_mark(state.instance_mark(running.run.id)):
        if b"rpc-server" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0]:
            return pid
    raise AssertionError("no RPC server runs")


def answer(running: EngineSession) -> str:
    body = {
        "model": "phantom",
        "messages": [{"role": "user", "content": "Say the word apple and nothing else."}],
        "max_tokens": 24,
        "temperature": 0,
    }
    reply = http.post_json(f"{running.endpoint.base_url}/chat/completions", body, timeout_s=120)
    assert reply.ok, reply
    return reply.text


@pytest.mark.parametrize("way", ["slurm", "ssh"])
def test_a_real_engine_serves_from_two_nodes_and_leaves_nothing(
    way: str, rpc: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    request.getfixturevalue(way)
    with session(rpc, hosts(tmp_path) if way == "ssh" else SLURM) as running:
        running.wait_ready(patience_s=PATIENCE_S)
        assert "completion_tokens" in answer(running)
        log = running.log.read_text()
        name = "n2" if way == "slurm" else "s2"
        assert f"[1 {name}] Accepted client connection" in log  # one log for both
        port = load_recipe(str(rpc)).listen.port + 1
        assert f"RPC0[127.0.0.1:{port}] model buffer size" in log  # weights lie on the second node
        assert "CPU model buffer size" in log or "CPU_Mapped model buffer size" in log  # and on the first


def test_whole_layers_lie_where_the_plan_put_them(rpc: Path, slurm: Cluster) -> None:
    """Two of the phantom's five layers and the output on the second node, by the server's own words."""
    recipe = load_recipe(str(rpc))
    assert recipe.hybrid
    hybrid = dataclasses.replace(recipe.hybrid, split=(3,), gpu_layers=3)
    rpc.write_text(codec.to_toml(dataclasses.replace(recipe, hybrid=hybrid)))
    spanning = deploy(load_recipe(str(rpc)))
    box = Box(name="two", cpu=Cpu(cores=1), ram=64 << 30, ram_bandwidth=10**10, nodes=2)
    memory = engines.memory_budget(Deployment(spanning.recipe, spanning.model, spanning.checkpoint, box))
    with session(rpc) as running:
        running.wait_ready(patience_s=PATIENCE_S)
        assert "completion_tokens" in answer(running)
        log = running.log.read_text()
    away = next(device for device in memory.devices if device.device == "ram1")
    weights = re.search(r"RPC0\[\S+\] model buffer size = +([\d.]+) MiB", log)
    cache = re.search(r"RPC0\[\S+\] KV buffer size = +([\d.]+) MiB", log)
    assert weights
    assert cache
    assert away.weights_total / 2**20 == pytest.approx(float(weights[1]), rel=0.03)
    assert away.kv / 2**20 == pytest.approx(float(cache[1]), rel=0.03)


def test_a_worker_killed_under_traffic_is_named(rpc: Path, slurm: Cluster) -> None:
    with session(rpc) as running:
        running.wait_ready(patience_s=PATIENCE_S)
        os.kill(worker(running), signal.SIGKILL)
        with pytest.raises(LaunchFailed):
            running.wait_until_exit()
        assert "moebox: rank 1 on n2 was killed by SIGKILL; the other ranks were stopped" in running.log.read_text()


def test_a_closed_port_and_a_missing_worker_are_one_line(
    rpc: Path, ssh: Cluster, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_checks, "REACH_S", 3.0)
    path = tmp_path / "hosts"
    words = ["up", str(rpc), "--hosts", str(path), "--set", f"nodes.python={sys.executable}"]
    path.write_text("s1 127.0.0.1\ns2 192.0.2.1\n")  # an address that the node has not
    assert main(words) == 3
    assert "port" in capfd.readouterr().err
    path.write_text("s1 127.0.0.1\ns2 127.0.0.1\n")
    lonely = tmp_path / "llama-server"
    lonely.symlink_to(Path(deploy(load_recipe(str(rpc))).recipe.runtime.entry))
    rpc.write_text(rpc.read_text().replace(deploy(load_recipe(str(rpc))).recipe.runtime.entry, str(lonely)))
    assert main(words) == 3
    assert "s2: the engine is not on PATH there" in capfd.readouterr().err


def test_it_is_started_listed_and_stopped_from_the_command_line(
    rpc: Path, slurm: Cluster, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["up", str(rpc), "--slurm", "--set", f"nodes.python={sys.executable}", "--detach"]) == 0
    (instance,) = state.list_instances()
    assert main(["ps"]) == 0
    assert main(["down"]) == 0
    ranks_gone(state.instance_mark(instance.id))
