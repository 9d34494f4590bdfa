"""One way to put a process under a guard: engines, routers and whatever else must not outlive moebox by accident."""

import contextlib
import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Sequence

from moebox import engines
from moebox.redact import spellings
from moebox.serve import oom, state
from moebox.serve.guard import GuardOrder
from moebox.serve.order import Order
from moebox.store import Run

Ladder = Sequence[tuple[str, float]]  # signals by name, and seconds


def under_guard(name: str, run: Run, order: GuardOrder) -> "subprocess.Popen[bytes]":
    """The guard, told on its stdin what to do; no secret stands in any argv or file."""
    guard = subprocess.Popen(
        [sys.executable, "-m", "moebox.serve.guard", name],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=open(run.path / "guard.log", "ab"),  # noqa: SIM115  (the child's from here on)
        start_new_session=True,
        pass_fds=order.leases,
    )
    assert guard.stdin
    guard.stdin.write(json.dumps(dataclasses.asdict(order)).encode() + b"\n")
    guard.stdin.flush()
    return guard


def tell(guard: "subprocess.Popen[bytes]", words: bytes) -> None:
    """A word to a guard; one that has ended does not hear it."""
    with contextlib.suppress(OSError, ValueError):
        if guard.stdin:
            guard.stdin.write(words)
            guard.stdin.flush()


def engine_guard(order: Order, run: Run, leases: tuple[int, ...], ladder: Ladder) -> "subprocess.Popen[bytes]":
    """The guard of an engine, which stops it down `ladder`, or its own where that is empty."""
    name = run.id
    contained = engines.runs_in_container(order.recipe)
    after = (order.recipe.runtime.kind, "rm", "--force", f"moebox-{name}") if contained else ()
    env = {} if contained or order.nodes else order.launch.env
    guarded = GuardOrder(
        mark=state.mark(name),
        argv=tuple(order.argv),
        # Unbuffered: what a Python engine prints must be in the log before it dies, not after.
        env={"PYTHONUNBUFFERED": "1", **env, **order.secrets},
        hide=tuple(spellings(order.secrets.values())),
        log=str(run.path / "engine.log"),
        life=str(state.life_path(name)),
        cwd=os.getcwd(),
        leases=leases,
        oom=tuple(oom.counters()),
        ladder=tuple(ladder),
        after=("scancel", order.job) if order.job else after,
    )
    return under_guard(name, run, guarded)
