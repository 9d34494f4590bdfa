"""An endpoint that one command measures is refused to the others, until that command has ended."""

import subprocess
import sys

import pytest

from moebox.cli import main
from moebox.errors import ExternalError
from moebox.serve.state import hold_endpoint
from tests.bench.server import good, serving

HOLD = """
import sys
from moebox.serve.state import hold_endpoint

with hold_endpoint(sys.argv[1], "moebox run, r-1"):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("command", ["bench", "verify", "task"])
def test_a_second_command_is_refused_in_one_line(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Another process measures the endpoint: the command names it, sends nothing, and exits with 3."""
    with serving(good) as server:
        child = subprocess.Popen(
            [sys.executable, "-c", HOLD, f"{server.url}/v1"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        try:
            assert child.stdout
            assert child.stdout.readline() == "held\n"
            assert main([command, server.url, "--model", "m"]) == 3
        finally:
            child.kill()
            child.communicate()
    error = capsys.readouterr().err
    assert "is being measured by moebox run, r-1" in error
    assert "wait until it ends" in error


def test_a_killed_holder_holds_nothing() -> None:
    """The hold ends with the process, and one process may hold several endpoints."""
    url = "http://127.0.0.1:9"
    child = subprocess.Popen(
        [sys.executable, "-c", HOLD, url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout
    child.stdout.readline()
    with pytest.raises(ExternalError, match="is being measured by"), hold_endpoint(url, "moebox bench"):
        pass
    child.kill()
    child.communicate()
    with hold_endpoint(url, "moebox bench"), hold_endpoint("http://127.0.0.1:10", "moebox bench"):
        pass
