"""Notice within seconds that a server stands still: stopped processes, a wedged driver, a deadlock.

A server counts as alive as soon as anything moves: bytes of a reply, an answer of /health or /metrics, CPU time of its
processes, its GPUs. A stopped process (SIGSTOP, a debugger) in its tree outweighs all but the replies. Servers whose
processes cannot be seen (another machine, another user, behind a container's proxy) are not watched.
"""

import contextlib
import os
import re
import socket
import threading
import time
import urllib.parse
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import psutil

from moebox.core.endpoint import Endpoint
from moebox.detect.conditions import server_processes
from moebox.detect.nvml import load_nvml
from moebox.errors import ExternalError
from moebox.escape import printable_line

STILL_CORES = 0.01  # one tick a second; a stopped process uses none
LOG_LINES, LOG_TAIL_BYTES = 5, 32_768
# The line of torch's NCCL watchdog, and of a dump of Python's stack (faulthandler, py-spy) inside a collective.
COLLECTIVE = re.compile(
    r"OpType=(\w+)|distributed_c10d\.py\"?(?:, line |:)\d+\)? in (\w+)|(\w+) \([^)]*distributed_c10d\.py:"
)


STANDS_STILL = "stands still"  # part of every message about a stall


class ServerStalled(ExternalError):
    """The server stands still."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StallLimits:
    """How long a standstill lasts before it is reported: under 20 s, over the 10 s that a slow server needs a token."""

    still_s: float = 14.0
    interval_s: float = 1.0
    reply_s: float = 1.5  # for /health, and for /metrics


DEFAULT_LIMITS = StallLimits()


class StallWatch:
    """A context manager that watches a server in a thread; `problem` is set once it stands still."""

    def __init__(self, endpoint: Endpoint, limits: StallLimits = DEFAULT_LIMITS) -> None:
        self.endpoint, self.limits = endpoint, limits
        self.problem: ServerStalled | None = None
        self._bytes = self._bytes_before = 0
        self._used_before: tuple[float, float] | None = None  # CPU seconds of the server, and when they were read
        self._pids: frozenset[int] = frozenset()
        self._stopped: list[int] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="stall", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()  # the thread may wait for a reply for some seconds more

    def note_progress(self, received: int) -> None:
        """Note how many bytes or tokens have come so far."""
        self._bytes = received

    def raise_if_stalled(self) -> None:
        if self.problem:
            raise self.problem

    def _watch(self) -> None:
        limits = self.limits
        self._pids = server_processes(self.endpoint.server_url) or frozenset()
        if not self._pids:
            return
        moved_at = looked_at = time.monotonic()
        while not self._stop.wait(limits.interval_s):
            began = time.monotonic()
            # A longer pause means that this process or the machine was stopped: count anew
            was_away = began - looked_at > limits.interval_s + limits.still_s / 3
            if self._moves() or was_away:
                moved_at = time.monotonic()
            looked_at = time.monotonic()
            if looked_at - moved_at >= limits.still_s:
                self.problem = self._describe(looked_at - moved_at)
                return

    def _moves(self) -> bool:
        """True if anything moved since the last look."""
        received, self._bytes_before = self._bytes != self._bytes_before, self._bytes
        if received:
            self._used_before = None
            return True
        used_s, self._stopped, tree = 0.0, [], set(self._pids)
        for pid in self._pids:
            with contextlib.suppress(psutil.Error):
                for process in (root := psutil.Process(pid), *root.children(recursive=True)):
                    tree.add(process.pid)
                    with contextlib.suppress(psutil.Error):
                        used_s += sum(process.cpu_times()[:4])  # with children that have ended
                        if process.status() == psutil.STATUS_STOPPED:
                            self._stopped.append(process.pid)
        if self._stopped:
            return False
        if not any(psutil.pid_exists(pid) for pid in self._pids):
            return True  # it died, which is another fault
        now, before = time.monotonic(), self._used_before
        self._used_before = used_s, now
        if before is None or used_s - before[0] > STILL_CORES * (now - before[1]):
            return True
        return any(self._answers(path) for path in ("/health", "/metrics")) or _uses_gpu(tree)

    def _answers(self, path: str) -> bool:
        """True if the server replies anything, or refuses the connection: then its requests fail by themselves."""
        parts = urllib.parse.urlsplit(self.endpoint.server_url)
        address = (str(parts.hostname), parts.port or (443 if parts.scheme == "https" else 80))
        try:
            with socket.create_connection(address, timeout=self.limits.reply_s) as connection:
                connection.sendall(f"GET {parts.path}{path} HTTP/1.0\r\nHost: {parts.netloc}\r\n\r\n".encode())
                connection.recv(1)
        except TimeoutError:
            return False
        except OSError:
            return True
        return True

    def _describe(self, seconds: float) -> ServerStalled:
        pid = next(iter(self._stopped or sorted(self._pids)))
        if self._stopped:
            why = f"process {pid} is stopped (SIGSTOP)"
            hint = f"`kill -CONT {pid}` lets it go on"
        else:
            why = "no reply from /health and /metrics, no CPU time, no GPU use"
            hint = f"`py-spy dump --pid {pid}` or `gdb -p {pid}` shows where it hangs"
        lines = last_log_lines(Path(self.endpoint.log), count=LOG_TAIL_BYTES) if self.endpoint.log else []
        found = [match for line in lines if (match := COLLECTIVE.search(line))]
        if found:  # all ranks wait in it, or one does not come
            why += f"; its log shows the collective {found[-1][found[-1].lastindex or 0]}"
        if lines := lines[-LOG_LINES:]:
            hint = "\n".join([f"{hint}; the last lines of {self.endpoint.log}:", *(f"  {line}" for line in lines)])
        text = f"the server at {self.endpoint.base_url} {STANDS_STILL}: nothing came for {seconds:.0f} s, {why}"
        return ServerStalled(text, hint=hint)


def last_log_lines(path: Path, count: int = LOG_LINES) -> list[str]:
    """Return the last lines of a log, made printable; none if it cannot be read."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - LOG_TAIL_BYTES))
            lines = file.read(LOG_TAIL_BYTES).decode(errors="replace").splitlines()
    except OSError:
        return []
    return [printable_line(line)[:200] for line in lines if line.strip()][-count:]


def _uses_gpu(tree: set[int]) -> bool:
    """True if a GPU on which one of these processes computes is in use. False without a driver."""
    nvml = load_nvml()
    if nvml is None:
        return False
    try:
        handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
        return any(
            nvml.nvmlDeviceGetUtilizationRates(handle).gpu > 0
            for handle in handles
            if tree & {process.pid for process in nvml.nvmlDeviceGetComputeRunningProcesses(handle)}
        )
    except nvml.NVMLError:  # the driver refuses the question
        return False
