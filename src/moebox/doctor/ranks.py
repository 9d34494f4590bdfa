"""Start the processes of a test, follow their steps, and end them at a deadline.

A collective that hangs cannot be interrupted from inside, so each process is the leader of its own group, which is
killed as a whole.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from moebox.core import registry
from moebox.environment import chosen_environment

PROGRAM = Path(__file__).with_name("rank_program.py")
START_S = 180.0  # to import torch from a cold disk, for all ranks at once
POLL_S = 0.05
KILL_S = 5.0  # a killed process that the kernel does not end in this time waits in the driver
MESSAGE_BYTES = 4000  # of standard error that are kept of each rank

Outcome = Literal["good", "hung", "died"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRun:
    """What became of the processes of one test."""

    outcome: Outcome
    steps: tuple[tuple[dict[str, Any], ...], ...]  # of each rank, in order
    message: str = ""  # the end of standard error of the rank that failed, or of the first
    seconds: float = 0.0
    unkillable: tuple[int, ...] = ()  # process ids

    @property
    def progress(self) -> str:
        """How far each rank came: "rank 0 joined, rank 1 ready"."""
        last = (steps[-1].get("step", "?") if steps else "not started" for steps in self.steps)
        return ", ".join(f"rank {rank} {step}" for rank, step in enumerate(last))

    def all_steps(self, name: str) -> list[dict[str, Any]]:
        return [step for steps in self.steps for step in steps if step.get("step") == name]


def run_ranks(
    commands: Sequence[Sequence[str]], *, deadline_s: float, start_s: float = START_S, env: Mapping[str, str] = {}
) -> RankRun:
    """Run one process for each command until all end, one fails, or the deadline passes; none is left behind.

    The deadline starts when every rank has printed its first step, because imports may take minutes.
    """
    began = time.monotonic()
    limit = began + start_s
    ready = False
    outcome: Outcome = "good"
    failed = 0
    with tempfile.TemporaryDirectory(prefix="moebox-ranks-") as folder:
        files = [(Path(folder, f"{rank}.out"), Path(folder, f"{rank}.err")) for rank in range(len(commands))]
        processes: list[subprocess.Popen[bytes]] = []
        unkillable: list[int] = []
        try:
            for command, (out, err) in zip(commands, files, strict=True):
                with out.open("wb") as stdout, err.open("wb") as stderr:
                    new_process = subprocess.Popen(
                        command,
                        stdin=subprocess.DEVNULL,
                        stdout=stdout,
                        stderr=stderr,
                        env=chosen_environment(env),
                        start_new_session=True,
                    )
                    processes.append(new_process)
            while any(process.poll() is None for process in processes):
                if not ready and all(out.stat().st_size for out, _ in files):
                    ready, limit = True, time.monotonic() + deadline_s
                if any(map(subprocess.Popen.poll, processes)) or time.monotonic() > limit:
                    break
                time.sleep(POLL_S)
            dead = [rank for rank, process in enumerate(processes) if process.poll()]
            if dead:
                outcome, failed = "died", dead[0]
            elif any(process.poll() is None for process in processes):
                outcome = "hung"
        except OSError as problem:
            return RankRun(outcome="died", steps=(), message=f"{commands[0][0]}: {problem.strerror}")
        finally:
            for process in processes:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)  # also what a rank that ended has left
            for process in processes:
                try:
                    process.wait(timeout=KILL_S)
                except subprocess.TimeoutExpired:
                    unkillable.append(process.pid)
        return RankRun(
            outcome=outcome,
            steps=tuple(_read_steps(out) for out, _ in files),
            message=files[failed][1].read_bytes()[-MESSAGE_BYTES:].decode("utf-8", "replace").strip(),
            seconds=time.monotonic() - began,
            unkillable=tuple(unkillable),
        )


def _read_steps(path: Path) -> tuple[dict[str, Any], ...]:
    """The complete lines that are JSON objects; libraries may print others."""
    steps = []
    for line in path.read_bytes().split(b"\n")[:-1]:
        with contextlib.suppress(ValueError):
            step = json.loads(line)
            steps += [step] if isinstance(step, dict) else []
    return tuple(steps)


def find_torch_python() -> str:
    """The Python of an installed engine, of the active environment or of PATH that has torch; "" if none has."""
    candidates = []
    for traits in registry.all_traits():
        program = shutil.which(traits.program[0]) if traits.program else None
        if program:
            candidates.append(str(Path(program).resolve().with_name("python")))
            with contextlib.suppress(OSError), open(program, "rb") as file:
                first = file.readline(500).decode("utf-8", "replace")
                candidates += [first[2:].split()[0]] if first.startswith("#!/") and "python" in first else []
    if environment := os.environ.get("VIRTUAL_ENV"):
        candidates.append(f"{environment}/bin/python")
    candidates += [sys.executable, shutil.which("python3") or ""]
    code = "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is None)"
    for python in dict.fromkeys(filter(None, candidates)):
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            done = subprocess.run([python, "-c", code], capture_output=True, timeout=30, check=False)
            if done.returncode == 0:
                return python
    return ""
