"""Nodes that differ, from the command line over real ssh: one line each, exit code 3, nothing left running."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from moebox.cli import main
from moebox.serve import node_checks, state
from tests.cluster.conftest import Cluster, hosts

pytestmark = pytest.mark.engine
ACTS = {
    "clock": "import time; real = time.time; time.time = lambda: real() + 3600",
    "gpus": "import os; os.environ['PATH'] = '{folder}:' + os.environ['PATH']",
    "engine": "import shutil, os; shutil.which = lambda name: None; os.path.exists = lambda path: False",
    "port": "import socket; real = socket.create_connection; "
    "socket.create_connection = lambda way, **more: real((way[0], 1), **more)",
    "silent": "import sys; sys.exit(0)",
}
SAYS = {
    "clock": "the clock of s2 is 3",
    "gpus": "nodes differ: s1 has no GPU, s2 1× NVIDIA H200",
    "engine": "s2: the engine is not on PATH there",
    "port": "s2: cannot reach 127.0.0.1 port 29501: Connection refused",
    "silent": "s2 does not answer",
}


@pytest.fixture
def node_python(tmp_path: Path) -> Path:
    """A Python that does to the agent what NODE_FAULT says, before it begins."""
    path = tmp_path / "python"
    acts = {name: act.format(folder=tmp_path) for name, act in ACTS.items()}
    path.write_text(
        f"#!{sys.executable}\nimport os, sys\n"
        f"exec({acts!r}.get(os.environ.get('NODE_FAULT'), ''))\n"
        "exec(compile(sys.argv[2], 'agent', 'exec'))\n"
    )
    path.chmod(0o755)
    smi = tmp_path / "nvidia-smi"
    smi.write_text("#!/bin/sh\necho NVIDIA H200\n")
    smi.chmod(0o755)
    return path


@pytest.mark.parametrize("fault", list(ACTS))
def test_a_node_that_differs_is_one_line(
    fault: str,
    ssh: Cluster,
    spanning: Callable[..., Path],
    node_python: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("NODE_FAULT", fault)
    monkeypatch.setattr(node_checks, "REACH_S", 3.0)
    monkeypatch.setattr(node_checks, "REACH_BYTES", 1 << 20)
    hosts(tmp_path)
    words = ["up", str(spanning()), "--hosts", str(tmp_path / "hosts"), "--set", f"nodes.python={node_python}"]

    assert main(words) == 3
    error = capfd.readouterr().err
    assert SAYS[fault] in " ".join(error.split())
    assert "Traceback" not in error
    assert state.list_instances() == []
