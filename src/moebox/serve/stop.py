"""Stopping engines that another moebox started, and sweeping up what lost its guard."""

import contextlib
import os
import shutil
import signal
import subprocess
from pathlib import Path

from moebox.core.event import EngineStopped
from moebox.engines import LABEL
from moebox.serve import state
from moebox.serve.guard import STOP_SIGNALS
from moebox.serve.wait import wait_for
from moebox.store import Run

MARGIN_S = 15.0  # beyond the whole ladder, for the guard to notice and clean up


def stop_instance(instance: state.Instance) -> list[str]:
    """Stop it and forget it; the signals that were needed."""
    if instance.is_alive:
        _end_guard(instance)
    signals = list(instance.guard_state.signals)
    swept = kill_orphans(instance.id)
    if instance.container:
        remove_container(instance.runtime, instance.container)
    if instance.job and shutil.which("scancel"):
        subprocess.run(["scancel", instance.job], capture_output=True, timeout=60, check=False)
    if os.path.isdir(instance.run):
        Run(Path(instance.run)).add_event(EngineStopped(id=instance.id, signals=tuple(signals), swept=swept))
    state.forget_instance(instance.id)
    return signals + ["SIGKILL"] * bool(swept)


def _end_guard(instance: state.Instance) -> None:
    """Ask the guard to stop its engine; kill it where it does not come to an end."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(instance.guard, signal.SIGTERM)
    patience_s = sum(wait for _, wait in STOP_SIGNALS) + MARGIN_S
    if not wait_for(lambda: not instance.is_alive, patience_s, every_s=0.05):
        with contextlib.suppress(ProcessLookupError):
            os.kill(instance.guard, signal.SIGKILL)


def kill_orphans(name: str) -> int:
    """Kill every process that carries the mark of an engine without a guard; how many there were."""
    found = state.orphan_processes().get(name, [])
    for pid in found:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    return len(found)


def remove_container(tool: str, name: str) -> None:
    """By name; gone already is as good."""
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        subprocess.run([tool, "rm", "--force", name], capture_output=True, timeout=60, check=False)


def list_containers() -> dict[str, tuple[str, str]]:
    """Containers that moebox started, by its instance: the tool and the container's name."""
    found: dict[str, tuple[str, str]] = {}
    for tool in ("docker", "podman"):
        if shutil.which(tool) is None:
            continue
        ask = [
            tool,
            "ps",
            "--all",
            "--filter",
            f"label={LABEL}",
            "--format",
            f'{{{{.Names}}}}\t{{{{.Label "{LABEL}"}}}}',
        ]
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            done = subprocess.run(ask, capture_output=True, text=True, timeout=20, check=False)
            for line in done.stdout.splitlines():
                name, _, instance = line.partition("\t")
                if instance:
                    found[instance] = (tool, name)
    return found
