"""A real collective of gloo that never ends, on the CPU: the stall report names it from the engine's own dump."""

import os
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from moebox.core.endpoint import Endpoint, endpoint_from_url
from moebox.detect.stall import StallLimits
from moebox.doctor.ranks import find_torch_python
from moebox.verify.runner import run_checks

QUICK = StallLimits(still_s=4.0, interval_s=0.2, reply_s=0.4)
# Two ranks; the second joins the group and then leaves the first alone in its all-reduce, as a crashed worker does.
ENGINE = """
import faulthandler, http.server, os, sys, time
os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "GLOO_SOCKET_IFNAME": "lo"}
import torch
import torch.distributed as group
import torch.multiprocessing as processes

def second(path):
    group.init_process_group("gloo", init_method=f"file://{path}", rank=1, world_size=2)
    time.sleep(600)

class Talk(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
    def do_POST(self):
        faulthandler.dump_traceback_later(1, exit=False)  # as engines do for a step that takes too long
        group.all_reduce(torch.ones(4))
    def log_message(self, *_): pass

if __name__ == "__main__":
    processes.get_context("fork").Process(target=second, args=(sys.argv[1],), daemon=True).start()
    group.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=0, world_size=2)
    server = http.server.HTTPServer(("127.0.0.1", 0), Talk)
    print(server.server_port, flush=True)
    server.serve_forever()
"""


@pytest.fixture
def wedged(tmp_path: Path) -> Iterator[Endpoint]:
    """An engine of two ranks that wedges with its first request, and its log."""
    python = find_torch_python()
    if not python:
        pytest.skip("no Python with torch")
    program, log = tmp_path / "engine.py", tmp_path / "engine.log"
    program.write_text(ENGINE)
    with open(log, "wb") as out:
        words = [python, str(program), str(tmp_path / "rendezvous")]
        process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=out, text=True, start_new_session=True)
    assert process.stdout
    try:
        endpoint = endpoint_from_url(f"127.0.0.1:{process.stdout.readline().strip()}", "m")
        yield replace(endpoint, log=str(log))
    finally:
        os.killpg(process.pid, signal.SIGKILL)  # both ranks
        process.wait()


def test_a_wedged_collective_is_named(wedged: Endpoint) -> None:
    """Nothing answers, nothing computes: the check ends with the collective that the log's dump shows."""
    results = run_checks(wedged, only=["alive"], stall_limits=QUICK)

    assert "stands still" in results.stopped
    assert "its log shows the collective all_reduce" in results.stopped
