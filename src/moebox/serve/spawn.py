"""One way to put a process under a guard: engines, routers and whatever else must not outlive moebox by accident."""

import contextlib
import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Sequence

from moebox import engines
from moebox.redact import key_spellings
from moebox.serve import oom, state
from moebox.serve.guard import GuardConfig
from moebox.serve.order import PreparedLaunch
from moebox.store import Run

StopSignals = Sequence[tuple[str, float]]  # signals by name, and seconds


def start_guard(name: str, run: Run, config: GuardConfig) -> "subprocess.Popen[bytes]":
    """The guard, told on its stdin what to do; no secret stands in any argv or file."""
    guard = subprocess.Popen(
        [sys.executable, "-m", "moebox.serve.guard", name],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=open(run.path / "guard.log", "ab"),  # noqa: SIM115  (the child's from here on)
        start_new_session=True,
        pass_fds=config.leases,
    )
    assert guard.stdin
    guard.stdin.write(json.dumps(dataclasses.asdict(config)).encode() + b"\n")
    guard.stdin.flush()
    return guard


def send_to_guard(guard: "subprocess.Popen[bytes]", message: bytes) -> None:
    """A word to a guard; one that has ended does not hear it."""
    with contextlib.suppress(OSError, ValueError):
        if guard.stdin:
            guard.stdin.write(message)
            guard.stdin.flush()


def start_engine_guard(
    prepared: PreparedLaunch, run: Run, leases: tuple[int, ...], stop_signals: StopSignals
) -> "subprocess.Popen[bytes]":
    """The guard of an engine, which stops it down `ladder`, or its own where that is empty."""
    name = run.id
    contained = engines.runs_in_container(prepared.recipe)
    after = (prepared.recipe.runtime.kind, "rm", "--force", f"moebox-{name}") if contained else ()
    env = {} if contained or prepared.nodes else prepared.launch.env
    guarded = GuardConfig(
        mark=state.instance_mark(name),
        argv=tuple(prepared.argv),
        # Unbuffered: what a Python engine prints must be in the log before it dies, not after.
        env={"PYTHONUNBUFFERED": "1", **env, **prepared.secrets},
        secrets=tuple(key_spellings(prepared.secrets.values())),
        log=str(run.path / "engine.log"),
        state_path=str(state.guard_state_path(name)),
        cwd=os.getcwd(),
        leases=leases,
        oom_files=tuple(oom.oom_counter_files()),
        stop_signals=tuple(stop_signals),
        cleanup_argv=("scancel", prepared.job) if prepared.job else after,
    )
    return start_guard(name, run, guarded)
