"""`moebox ps`, `moebox down` and `moebox logs`: list the engines that moebox started, stop them, print their logs."""

import os
import re
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from moebox import codec, files
from moebox.cli.flags import All, AsJson
from moebox.cli.output import print_lines, print_note, print_parts, print_result
from moebox.core.box import GpuProcess
from moebox.detect import nvml
from moebox.errors import BadInput, refuse_if
from moebox.escape import escape_invisible
from moebox.loose import Document
from moebox.serve import state
from moebox.serve.stop import kill_orphans, list_containers, remove_container, stop_instance, stop_services
from moebox.serve.tail import LogTail
from moebox.store import Run, plain
from moebox.store.log import log_pieces
from moebox.units import format_gib, format_seconds


def ps(*, json: AsJson = False) -> int:
    """List the engines that moebox started: ready, starting, exited, and orphaned processes or containers.

    The processes on each GPU follow, other users' too, as far as the driver and the kernel show them.
    """
    restore_interrupted()
    rows, driver = list_engines(), nvml.load_nvml()
    holders = nvml.list_holders(driver) if driver else {}

    def show() -> None:
        lines = [line for row in rows for line in _engine_lines(row)] or ["nothing is running"]
        print_lines([*lines, *gpu_lines(holders)])

    return print_result(json, {"engines": rows, "gpus": {str(index): held for index, held in holders.items()}}, show)


def restore_interrupted() -> None:
    """Start endpoints again whose upgrade was killed, and report them."""
    if (files.moebox_state() / "upgrades").is_dir():
        from moebox.flows.switch import recover_upgrades

        names = recover_upgrades(print_note)
        print_lines([f"an upgrade of {name} was interrupted; its endpoint was restored" for name in names], stderr=True)


SHARED = ("id", "status", "engine", "recipe", "base_url", "model", "gpus", "run", "started", "container")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRow:
    """An engine with a record, or orphaned processes and containers without one."""

    id: str
    status: str
    engine: str = ""
    recipe: str = ""
    base_url: str = ""
    model: str = ""
    gpus: tuple[int, ...] = ()
    run: str = ""
    pid: int | None = None
    started: float = 0.0
    code: int | None = None
    lost_log_bytes: int = 0
    left: tuple[int, ...] = ()  # processes without a guard
    container: str = ""


def list_engines() -> list[EngineRow]:
    """Return every engine with a record, then orphaned processes and containers."""
    orphans, containers = state.orphan_processes(), list_containers()
    rows = []
    for instance in state.list_instances():
        guard, left = instance.guard_state, tuple(orphans.pop(instance.id, ()))
        own = codec.pick_fields(instance, SHARED) | {"lost_log_bytes": guard.lost_bytes}
        rows.append(EngineRow(**own, pid=guard.engine or None, code=guard.code, left=left))
        if instance.is_alive:
            containers.pop(instance.id, None)
    for name in sorted({*orphans, *containers}):
        left, container = tuple(orphans.get(name, ())), containers.get(name, ("", ""))[1]
        rows.append(EngineRow(id=name, status="left behind", left=left, container=container))
    return rows


def gpu_lines(holders: Mapping[int, Sequence[GpuProcess]]) -> list[str]:
    """Return a line for each process on a GPU: how much it holds, whose it is, and its engine if moebox started it."""
    lines = []
    for index, processes in holders.items():
        for process in processes:
            owner = f"{process.name or 'a process'} of {process.user or 'an unknown user'} (pid {process.pid})"
            engine = f", engine {process.instance.partition('@')[0]}" if process.instance else ""
            lines.append(f"GPU {index}  {format_gib(process.bytes)}  {owner}{engine}")
    return lines


def _engine_lines(row: EngineRow) -> list[str]:
    """Return two lines for an engine, and one more if it should be removed."""
    status = f"exited ({row.code})" if row.status == "exited" else row.status
    age = format_seconds(time.time() - row.started) if row.started else ""
    lines = [f"{row.id}  {status}  {age}".rstrip()]
    if row.base_url:
        gpus = f"  GPUs {','.join(map(str, row.gpus))}" if row.gpus else ""
        lines.append(f"  {row.engine}  {row.base_url}  model {row.model}{gpus}")
    left = [f"{len(row.left)} processes"] if row.left else []
    left += [f"container {row.container}"] if row.status == "left behind" and row.container else []
    if left or row.status in ("exited", "lost"):
        lines.append(f"  `moebox down {row.id}` removes it" + (f" ({', '.join(left)} left)" if left else ""))
    return lines


def down(name: str | None = None, /, *, all_: All = False, json: AsJson = False) -> int:
    """Stop an engine: SIGINT, SIGTERM, then SIGKILL, each after a while; its orphaned processes are ended too.

    Args:
        name: The engine's id (or its beginning) or its recipe's name. Default: the only one.
        all_: Stop every engine, and remove what earlier ones left behind.
    """
    refuse_if(all_ and name, "either a name or --all")
    instances = state.list_instances()
    # found before anything is stopped: what an engine leaves now is its own
    orphans = {*state.orphan_processes(), *list_containers()} - {instance.id for instance in instances}
    chosen = sorted(orphans if all_ else orphans & {name or ""})
    is_any = all_ or not (name or any(instance.is_alive for instance in instances))
    services = stop_services(*(state.held_services() if is_any else [name or ""]))
    if not all_:
        instances = [] if chosen or services else [state.find_instance(name)]
    between = {"was": "a service between two starts", "signals": ["SIGTERM"]}
    stopped: list[Document] = [{"id": service, **between} for service in services]
    stopped += [{"id": each.id, "was": each.status, "signals": stop_instance(each)} for each in instances]
    for orphan in chosen:
        containers = list_containers()
        if orphan in containers:
            remove_container(*containers[orphan])
        signals = ["SIGKILL"] if kill_orphans(orphan) else []
        stopped.append({"id": orphan, "was": "left behind", "signals": signals})
    lines = [f"{row['id']}: {row['was']}, now stopped" for row in stopped] or ["nothing was running"]
    return print_result(json, {"stopped": stopped}, lambda: print_parts(*lines))


COLOURS = re.compile(r"\x1b\[[\d;]*m")  # engines colour their logs; left out rather than escaped
BLOCK = 65536


def logs(
    name: str | None = None,
    /,
    *,
    follow: Annotated[bool, Parameter(name=("--follow", "-f"), negative=())] = False,
    lines: Annotated[int | None, Parameter(name=("--lines", "-n"))] = None,
) -> int:
    """Print the log of an engine, running or not.

    Args:
        name: The engine's id (or its beginning), its recipe's name, or a run. Default: the only running engine.
        follow: Keep printing until the engine ends or Ctrl-C.
        lines: Print only the last N lines.
    """
    refuse_if(lines is not None and lines < 0, f"--lines {lines}: must not be negative")
    instance = None
    try:
        instance = state.find_instance(name)
        path = Path(instance.run) / "engine.log"
    except BadInput:
        if name is None:
            raise
        path = Run.open(name).path / "engine.log"
    for piece in log_pieces(path):
        plain.refuse_unusual(piece)
    if lines is None:
        for piece in log_pieces(path)[:-1]:  # a long log is kept in pieces: its beginning, and the newest
            with open(piece, "rb") as file:
                while data := file.read(BLOCK):
                    print_bytes(data)
    tail = LogTail(path, start=last_lines_offset(path, lines) if lines is not None else 0)
    while True:
        data = tail.read_new()
        if data:
            print_bytes(data)
        elif not follow or not instance or not instance.is_alive:
            return 0
        else:
            time.sleep(0.2)


def print_bytes(data: bytes) -> None:
    """Print a part of a log: unchanged into a file or pipe, without control sequences on a terminal."""
    if sys.stdout.isatty():
        data = escape_invisible(COLOURS.sub("", data.decode("utf-8", "replace").replace("\r\n", "\n"))).encode()
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def last_lines_offset(path: Path, wanted: int) -> int:
    """Return where the last `wanted` lines begin."""
    try:
        with open(path, "rb") as file:  # a piece of a log, which is not large
            last = deque(file, maxlen=wanted)
            return file.seek(0, os.SEEK_CUR) - sum(map(len, last))
    except FileNotFoundError:
        return 0
