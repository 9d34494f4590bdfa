"""Engines that the kernel ends for want of memory: recognised among those that a user killed."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from moebox.serve import guard
from moebox.serve.faults import describe_exit

DIES = "import os, pathlib, signal, sys; {}; os.kill(os.getpid(), signal.SIGKILL)"


def guarded(tmp_path: Path, program: str, *, join: str = "") -> dict[str, Any]:
    """What the guard wrote down about an engine that is this Python program; `join` is a control group for both."""
    counter = tmp_path / "memory.events"
    counter.write_text("low 0\noom 0\noom_kill 0\n")
    order = {
        "argv": [sys.executable, "-c", program.replace("COUNTER", str(counter))],
        "env": {},
        "mark": "test",
        "log": str(tmp_path / "log"),
        "state_path": str(tmp_path / "life.json"),
        "cwd": str(tmp_path),
        "oom_files": [] if join else [str(counter)],
    }

    def enter() -> None:
        if join:
            Path(join, "cgroup.procs").write_text(str(os.getpid()))

    guard = subprocess.Popen([sys.executable, "-m", "moebox.serve.guard"], stdin=subprocess.PIPE, preexec_fn=enter)
    assert guard.stdin
    guard.stdin.write(json.dumps(order).encode() + b"\n")
    guard.stdin.flush()
    guard.wait(timeout=120)
    life: dict[str, Any] = json.loads((tmp_path / "life.json").read_text())
    return life


def test_the_kernels_kill_differs_from_a_users(tmp_path: Path):
    """The same SIGKILL, with and without the counter that rises."""
    counted = "pathlib.Path('COUNTER').write_text('oom_kill 1')"
    alone, ended = tmp_path / "alone", tmp_path / "ended"
    for folder in (alone, ended):
        folder.mkdir()
    killed = guarded(alone, DIES.format("0"))
    out = guarded(ended, DIES.format(counted))

    assert (killed["code"], killed["oom"]) == (-signal.SIGKILL, False)
    assert (out["code"], out["oom"]) == (-signal.SIGKILL, True)
    assert "out of memory" in describe_exit(out["code"], oom=True)
    assert describe_exit(killed["code"]) == "was killed by SIGKILL"


def test_this_machine_counts():
    """A file with a count is found here, whatever control groups there are."""
    files = guard.oom_counter_files()

    assert files
    assert guard.count_oom_kills(files) >= 0


@pytest.mark.siege
def test_a_real_kill_for_memory_is_recognised(tmp_path: Path):
    """An engine that takes more than its control group allows, where this may make one."""
    group = Path(guard.GROUPS, "memory" if Path(guard.GROUPS, "memory").is_dir() else "", f"moebox-siege-{os.getpid()}")
    try:
        group.mkdir()
    except OSError as problem:
        print(f"no control group can be made here ({problem.strerror}); the counter alone is tested")
        return
    limit = group / ("memory.limit_in_bytes" if (group / "memory.limit_in_bytes").exists() else "memory.max")
    limit.write_text(str(192 * 2**20))
    try:
        life = guarded(tmp_path, "import time; held = bytearray(b'x') * (1 << 30); time.sleep(60)", join=str(group))
    finally:
        group.rmdir()
    assert (life["code"], life["oom"]) == (-signal.SIGKILL, True)
