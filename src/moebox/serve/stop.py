"""Stop engines that another moebox process started, and kill processes that lost their guard."""

import contextlib
import os
import shutil
import signal
import subprocess
from pathlib import Path

from moebox.core.endpoint import endpoint_from_url
from moebox.core.engine_event import EngineStopped
from moebox.detect.host import run_program
from moebox.engines import LABEL
from moebox.serve import kv_store, state
from moebox.serve.agent import send_signal
from moebox.serve.guard import STOP_SIGNALS
from moebox.serve.state import find_key, wait_for
from moebox.store import Run

MARGIN_S = 15.0  # beyond the waits of STOP_SIGNALS, for the guard to clean up


def stop_instance(instance: state.Instance) -> list[str]:
    """Save the slots of an engine that keeps them, stop it, remove its record. Return the signals that were needed."""
    if instance.is_alive:
        if instance.kv_store and instance.ready:
            endpoint = endpoint_from_url(instance.base_url, "", key=find_key(instance.key_env, instance.base_url))
            kv_store.keep_slots(endpoint, Path(instance.kv_store), Run(Path(instance.run)))
        with contextlib.suppress(ProcessLookupError):
            os.kill(instance.guard, signal.SIGTERM)
        patience_s = sum(wait for _, wait in STOP_SIGNALS) + MARGIN_S
        if not wait_for(lambda: not instance.is_alive, patience_s, every_s=0.05):
            with contextlib.suppress(ProcessLookupError):
                os.kill(instance.guard, signal.SIGKILL)
    signals = list(instance.guard_state.signals)
    swept = kill_orphans(instance.id)
    if instance.container:
        remove_container(instance.runtime, instance.container)
    release_job(instance.job)
    if os.path.isdir(instance.run):
        Run(Path(instance.run)).add_event(EngineStopped(id=instance.id, signals=tuple(signals), swept=swept))
    state.forget_instance(instance.id)
    return signals + ["SIGKILL"] * bool(swept)


def stop_services(*names: str) -> list[str]:
    """Stop the processes that keep these recipes up while no engine of them runs. Return those that were there."""
    running = {instance.recipe for instance in state.list_instances() if instance.is_alive}
    idle = {name: pid for name, pid in state.held_services().items() if name in names and name not in running}
    send_signal(list(filter(None, idle.values())), signal.SIGTERM)
    wait_for(lambda: not idle.keys() & state.held_services(), MARGIN_S, every_s=0.05)
    return list(idle)


def kill_orphans(name: str) -> int:
    """Kill every process of an engine that has no guard. Return their number."""
    found = state.orphan_processes().get(name, [])
    send_signal(found, signal.SIGKILL)
    return len(found)


def release_job(job: str) -> None:
    """Release a Slurm allocation; not an error if it is gone."""
    if job and shutil.which("scancel"):
        subprocess.run(["scancel", job], capture_output=True, timeout=60, check=False)


def remove_container(tool: str, name: str) -> None:
    """Remove a container; not an error if it is gone already."""
    run_program([tool, "rm", "--force", name], seconds=60)


def list_containers() -> dict[str, tuple[str, str]]:
    """Containers that moebox started, by instance: the tool (docker or podman) and the container's name."""
    found: dict[str, tuple[str, str]] = {}
    for tool in ("docker", "podman"):
        columns = f'{{{{.Names}}}}\t{{{{.Label "{LABEL}"}}}}'
        argv = [tool, "ps", "--all", "--filter", f"label={LABEL}", "--format", columns]
        for line in run_program(argv, seconds=20)[0].splitlines():
            name, _, instance = line.partition("\t")
            if instance:
                found[instance] = (tool, name)
    return found
