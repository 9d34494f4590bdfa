"""One way to put a process under a guard: engines, routers and whatever else must not outlive moebox by accident."""

import dataclasses
import json
import subprocess
import sys

from moebox.serve.guard import GuardOrder
from moebox.store import Run


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
