"""Ranks in processes of their own under a conductor: one log, one end, the first cause named, nothing left behind.

The nodes here are this machine, reached without ssh or Slurm; tests/cluster does the same over both.
"""

import contextlib
import inspect
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from moebox import codec, http
from moebox.core.engine_event import NodeFacts
from moebox.errors import MoeboxError
from moebox.serve import agent, node_checks
from moebox.serve.agent import MASTER, processes_with_mark
from moebox.serve.conduct import Conductor, start_agents
from moebox.serve.node_checks import measure_links, require_same_setup
from moebox.serve.nodes import read_hosts
from moebox.serve.preflight import find_free_port
from tests.ranks import of_rank

ENGINE = Path(__file__).parents[1] / "cluster" / "engine.py"
PATIENCE_S = 60.0


def command(*argv: str, **env: str) -> agent.RankCommand:
    return {"argv": argv, "env": env, "other_names": (), "waits_for": 0}


def order(tmp_path: Path, *, mode: str = "", lifeline_s: float = 20.0) -> agent.AgentConfig:
    port, meeting = find_free_port(), find_free_port()
    ranks = []
    for rank in range(2):
        argv = (sys.executable, str(ENGINE), "serve", "m", "--nnodes", "2", "--node-rank", str(rank))
        argv += ("--master-addr", MASTER, "--port", str(port))
        ranks.append(command(*argv, SMALL_ENGINE=mode, SMALL_ENGINE_PORT=str(meeting)))
    return agent.AgentConfig(
        mark=f"{tmp_path.name}-{port}",
        names=("a", "b"),
        master="127.0.0.1",
        addresses=("127.0.0.1", "127.0.0.1"),
        ranks=tuple(ranks),
        agent_argvs=((sys.executable, "-c", inspect.getsource(agent)),) * 2,
        secret_names=(),
        cwd=str(tmp_path),
        stop_signals=(("SIGINT", 1.0), ("SIGKILL", 5.0)),
        lifeline_s=lifeline_s,
    )


@pytest.mark.parametrize(
    ("lines", "rank"),
    [
        (["RuntimeError: [pair.cc:534] Connection closed by peer [10.0.0.2]", "0 1", "1 1"], 1),
        (["0 1", "[1 b] torch.distributed.DistBackendError: ncclRemoteError", "1 1"], 0),
        (["RuntimeError: Connection reset by peer", "0 1", "1 -9"], 1),
        (["1 1", "0 1"], 1),
    ],
)
def test_a_rank_that_lost_another_is_not_the_cause_whichever_is_heard_first(
    lines: list[str], rank: int, tmp_path: Path
) -> None:
    conductor = Conductor(order(tmp_path))
    for line in lines:
        ended = re.fullmatch(r"(\d) (-?\d+)", line)
        text = f"moebox-agent: rank {ended[1]} ended with {ended[2]}" if ended else line
        conductor.note_line(text.encode())

    assert conductor.first_cause().rank == rank


@contextlib.contextmanager
def conducted(tmp_path: Path, asked: agent.AgentConfig) -> Iterator["subprocess.Popen[bytes]"]:
    path = tmp_path / "nodes.json"
    path.write_text(codec.to_json(asked))
    with open(tmp_path / "log", "wb") as log:
        running = subprocess.Popen([sys.executable, "-m", "moebox.serve.conduct", str(path)], stdout=log, stderr=log)
    try:
        yield running
    finally:
        running.kill()
        running.wait()
        for pid in processes_with_mark(asked["mark"]):
            os.kill(pid, signal.SIGKILL)


def url(asked: agent.AgentConfig) -> str:
    return f"http://127.0.0.1:{asked['ranks'][0]['argv'][-1]}"


def serving(asked: agent.AgentConfig) -> None:
    body = {"messages": [], "max_tokens": 4}
    until = time.monotonic() + PATIENCE_S
    while not http.post_json(f"{url(asked)}/v1/chat/completions", body).ok:
        assert time.monotonic() < until, "it never served"
        time.sleep(0.1)


def nothing_left(asked: agent.AgentConfig) -> None:
    until = time.monotonic() + PATIENCE_S
    while processes_with_mark(asked["mark"]):
        assert time.monotonic() < until, f"left: {processes_with_mark(asked['mark'])}"
        time.sleep(0.1)


def test_two_ranks_serve_as_one_with_one_log_and_stop_without_a_trace(tmp_path: Path) -> None:
    asked = order(tmp_path)
    with conducted(tmp_path, asked) as running:
        serving(asked)
        assert len(processes_with_mark(asked["mark"])) == 4  # two ranks with a worker each
        running.send_signal(signal.SIGINT)
        assert running.wait(PATIENCE_S) == 0
        nothing_left(asked)
    log = (tmp_path / "log").read_text()
    assert "[1 b] INFO" in log
    assert "\nINFO" in log  # rank 0 speaks plainly, so that its engine's lines are understood
    assert "rank 1 joined" in log


def test_a_rank_that_is_killed_is_named_and_takes_the_others_down(tmp_path: Path) -> None:
    asked = order(tmp_path)
    with conducted(tmp_path, asked) as running:
        serving(asked)
        os.kill(min(of_rank(asked["mark"], 1)), signal.SIGKILL)
        assert running.wait(PATIENCE_S) == 9
        nothing_left(asked)
    assert "moebox: rank 1 on b was killed by SIGKILL; the other ranks were stopped" in (tmp_path / "log").read_text()


def test_a_rank_that_dies_while_loading_is_named_with_its_own_words(tmp_path: Path) -> None:
    asked = order(tmp_path, mode="die-loading")
    with conducted(tmp_path, asked) as running:
        assert running.wait(PATIENCE_S) == 1
        nothing_left(asked)
    log = (tmp_path / "log").read_text()
    assert "[1 b] torch.OutOfMemoryError: CUDA out of memory" in log
    assert "moebox: rank 1 on b ended with code 1" in log


def test_a_head_that_is_killed_leaves_no_rank_running(tmp_path: Path) -> None:
    asked = order(tmp_path, lifeline_s=3.0)
    with conducted(tmp_path, asked) as running:
        serving(asked)
        running.kill()
        nothing_left(asked)


def test_a_program_that_is_not_there_is_named(tmp_path: Path) -> None:
    good = order(tmp_path)
    asked: agent.AgentConfig = {**good, "ranks": (good["ranks"][0], command("/nowhere/engine"))}
    with conducted(tmp_path, asked) as running:
        assert running.wait(PATIENCE_S) == 127
        nothing_left(asked)
    assert "rank 1 on b cannot be started: No such file or directory" in (tmp_path / "log").read_text()


def test_the_way_between_nodes_is_tried_and_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_checks, "REACH_BYTES", 4 << 20)
    monkeypatch.setattr(node_checks, "REACH_S", 3.0)
    asked = order(tmp_path)

    way = measure_links(asked, [NodeFacts()], find_free_port())
    assert way.tcp_bytes_s > 1e6
    assert 0 < way.round_trip_us < 1e6
    other = measure_links(asked, [NodeFacts()], find_free_port(), workers_listen=True)
    assert other.tcp_bytes_s > 1e6

    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(MoeboxError, match="Address already in use"),
    ):
        measure_links(asked, [NodeFacts()], taken.getsockname()[1])


def test_another_program_on_the_network_is_not_taken_for_a_node() -> None:
    """A caller without the token gets no reply, and the node that has it is still accepted."""
    token = b"f" * 32
    listening = socket.create_server(("127.0.0.1", 0))
    order: agent.AgentConfig = {
        "addresses": ["127.0.0.1", "127.0.0.1"],
        "port": listening.getsockname()[1],
        "reach_s": 30.0,
        "reach_bytes": 1 << 20,
        "reach_token": token.decode(),
        "workers_listen": False,
    }
    came: list[int] = []
    thread = threading.Thread(target=lambda: came.append(agent.echo_links(listening, 1, token, 30.0)))
    thread.start()
    for wrong in (b"p" * 50, b"f" * 31 + b"x" + b"p"):
        with socket.create_connection(listening.getsockname(), timeout=10) as other:
            other.sendall(wrong)
            with contextlib.suppress(ConnectionResetError):
                assert other.recv(1) == b""
    way = agent.dial_node("127.0.0.1", order)
    thread.join()
    listening.close()

    assert way["rate"]
    assert came == [1]


def test_secrets_reach_a_rank_and_stand_in_no_file_and_no_argv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENGINE_KEY", "very-secret")
    show = command(sys.executable, "-c", "import os; print('it has', len(os.environ['ENGINE_KEY']))")
    asked: agent.AgentConfig = {**order(tmp_path), "ranks": (show, show), "secret_names": ["ENGINE_KEY"]}
    assert "very-secret" not in codec.to_json(asked)
    agents = start_agents(asked, "run")
    output = b""
    for process in agents:  # their stdin stays open: its end would stop the rank
        process.wait(PATIENCE_S)
        output += process.stdout.read() if process.stdout else b""
        process.communicate()
    assert output.count(b"it has 11") == 2


def facts(rank: int, **fields: object) -> NodeFacts:
    plain: dict[str, object] = {"rank": rank, "host": "h", "time": 100.0, "program": "/bin/vllm", "version": "0.32.0"}
    plain |= {"gpus": ["NVIDIA H200"] * 8, "asked_at": 99.0, "heard_at": 101.0, **fields}
    return codec.decode(NodeFacts, plain, where="test")


@pytest.mark.parametrize(
    ("other", "says"),
    [
        ({"gpus": ["NVIDIA H200"] * 7}, "nodes differ: a has 8× NVIDIA H200, b 7× NVIDIA H200"),
        ({"gpus": []}, "nodes differ: a has 8× NVIDIA H200, b no GPU"),
        ({"version": "0.31.0"}, "nodes differ: a has version 0.32.0, b 0.31.0"),
        ({"program": ""}, "b: the engine is not on PATH there"),
        ({"weights": False}, "b: the checkpoint is not there"),
        ({"time": 142.0}, "the clock of b is 41 s off this machine's"),
        ({"time": 0.0}, "the clock of b is 99 s off this machine's"),
    ],
)
def test_nodes_that_differ_are_one_line(other: dict[str, object], says: str) -> None:
    with pytest.raises(MoeboxError) as problem:
        require_same_setup([facts(0), facts(1, **other)], ("a", "b"))

    assert problem.value.message == says


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "lists no node"),
        ("a\na", "a is listed twice"),
        ("a b c", "line 1: a node is a name"),
        ("ok\n-oProxyCommand=evil", "line 2: a node is a name"),
        ("a; rm", "line 1"),
    ],
)
def test_a_hosts_file_that_cannot_be_meant_is_one_line(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "hosts"
    path.write_text(text)
    with pytest.raises(MoeboxError, match=says):
        read_hosts(path, python="python3")


def test_a_hosts_file_names_nodes_and_their_addresses(tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    path.write_text("# ours\nn1 10.0.0.1\n\nroot@n2  # the other\n")

    found = read_hosts(path, python="python3")
    assert (found.names, found.addresses) == (("n1", "root@n2"), ("10.0.0.1", "n2"))
