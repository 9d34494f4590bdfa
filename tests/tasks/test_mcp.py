"""The user's own MCP servers as tools; `make test-mcp` runs these in an environment with the official package."""

import os
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from moebox.cli import main
from moebox.errors import BadInput
from moebox.tasks.mcp_tools import McpAddress, McpServers, parse_addresses
from moebox.tasks.tools import AgentTool, ToolRefused, ToolServerDied

from .conftest import ROOT, do

SCRIPT = Path(__file__).with_name("mcp_server.py")
STDIO = McpAddress(name="dice", command=(sys.executable, str(SCRIPT), "stdio"))


def test_addresses_are_commands_or_urls():
    """And nothing else."""
    found = parse_addresses(["a=python -m x --y 'z w'", "b=http://127.0.0.1:9/mcp"])

    assert found[0].command == ("python", "-m", "x", "--y", "z w")
    assert found[1].url == "http://127.0.0.1:9/mcp"
    for bad in ("nothing", "=x", "a b=x", "a='", "a= "):
        with pytest.raises(BadInput):
            parse_addresses([bad])
    with pytest.raises(BadInput, match="same name"):
        parse_addresses(["a=x", "a=y"])


def test_without_the_package_it_is_one_line(
    server: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """Exit code 3, and what to install."""
    monkeypatch.setitem(sys.modules, "mcp", None)

    assert main(["task", server, "--model", "solve", "--mcp", "dice=python x.py"]) == 3
    assert "pip install 'moebox[mcp]'" in capsys.readouterr().err


def named(servers: McpServers, name: str) -> AgentTool:
    return next(tool for tool in servers.tools() if tool.name == name)


@pytest.fixture(params=["stdio", "http"])
def servers(request: pytest.FixtureRequest) -> Iterator[McpServers]:
    """A live server, over either transport."""
    if request.param == "stdio":
        found = McpServers([STDIO], call_s=2)
        yield found
        found.close()
        return
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen([sys.executable, str(SCRIPT), "http", str(port)], stderr=subprocess.DEVNULL)
    for _ in range(200):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                break
        time.sleep(0.1)
    found = McpServers([McpAddress(name="dice", url=f"http://127.0.0.1:{port}/mcp")], call_s=2)
    yield found
    found.close()
    process.kill()
    process.wait()


@pytest.mark.engine
def test_tools_are_listed_and_called(servers: McpServers):
    """With the server's own schema; a refusal is an answer, and one that never answers is left."""
    assert [tool.name for tool in servers.tools()] == ["roll", "refuse", "crash", "sleep"]
    assert named(servers, "roll").parameters["required"] == ["sides"]
    assert named(servers, "roll").run({"sides": 1}) == "rolled 1"
    with pytest.raises(ToolRefused, match="refuse"):
        named(servers, "refuse").run({})
    with pytest.raises(ToolRefused, match="did not answer within 2 s"):
        named(servers, "sleep").run({})


@pytest.mark.engine
def test_a_server_that_crashes_ends_the_job_and_is_started_again_for_the_next(server: str, tmp_path: Path):
    """Two jobs: each crashes it, each reports it, and then a third works."""
    servers = McpServers([STDIO], call_s=5)
    try:
        crashed = do(server, "mcp-crash", "errand", tmp_path, seeds=(0, 1), more_tools=servers.tools)
        worked = do(server, "mcp", "errand", tmp_path, more_tools=servers.tools)
    finally:
        servers.close()

    assert [result.end for result in crashed.results] == ["tool", "tool"]
    assert "died in crash" in crashed.results[0].wrong
    assert worked.results[0].solved
    assert worked.results[0].all_calls[0].answer == "rolled 2"


@pytest.mark.engine
def test_a_server_that_cannot_be_started_is_reported():
    """Before any job."""
    servers = McpServers([McpAddress(name="none", command=("/no/such/command",))])
    with pytest.raises(ToolServerDied, match="none"):
        servers.tools()
    servers.close()


@pytest.mark.engine
def test_the_command_takes_it_whole(server: str, tmp_path: Path):
    """As a person types it."""
    words = [sys.executable, "-m", "moebox", "task", server, "--model", "mcp", "--jobs", "1", "--family", "errand"]
    words += ["--seed", "0", "--mcp", f"dice={shlex.join(STDIO.command)}"]
    env = {**os.environ, "MOEBOX_RUNS": str(tmp_path)}
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=ROOT, env=env)

    assert done.returncode == 0, done.stderr
    assert "solved: 1 of 1" in done.stdout
