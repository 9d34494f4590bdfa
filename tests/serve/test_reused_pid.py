"""A pid that the kernel has given to another program is not the engine's."""

import os
import signal
import subprocess
import sys

from moebox.serve import state


def record(name: str, guard: int, tick: int) -> state.Instance:
    """An engine's record."""
    about = {"recipe": "x", "engine": "vllm", "model": "x", "base_url": "http://127.0.0.1:1/v1", "port": 1}
    return state.Instance(id=name, run=f"/tmp/{name}", guard=guard, guard_started=tick, **about)  # type: ignore[arg-type]


def test_a_reused_pid_is_not_alive_and_never_signalled() -> None:
    """The record of an engine whose guard is gone, and whose pid now belongs to another user: dead, and left alone."""
    foreign = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        tick = state.process_start_tick(foreign.pid)
        own = record("run-1", foreign.pid, tick)
        reused = record("run-2", foreign.pid, tick - 1)

        assert own.is_alive
        assert not reused.is_alive
        assert reused.status != "ready"
        assert not record("run-3", 0, state.process_start_tick(0)).is_alive
    finally:
        os.kill(foreign.pid, signal.SIGKILL)
        foreign.wait()
    assert not own.is_alive
