"""Notice within seconds that a server stands still: stopped processes, a wedged driver, a deadlock.

A server counts as alive as soon as anything moves: bytes of a reply, an answer of /health or /metrics, CPU time of its
processes, its GPUs. A stopped process (SIGSTOP, a debugger) in its tree outweighs all but the replies. Servers whose
processes cannot be seen (another machine, another user, behind a container's proxy) are not watched.

A stuck collective looks alive: its kernel spins, the API answers. It is recognised by what does not come: no byte of a
reply and no token in the server's own counters, while its GPUs are busy without memory traffic at a constant low power
(nccl#1550: 100 % at 152 of 700 W; vllm#41725: 96 % at 20 W), or while it counts running requests for longer than the
longest prompt can take to read.
"""

import contextlib
import os
import re
import socket
import threading
import time
import urllib.parse
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import psutil

from moebox import http
from moebox.core.endpoint import Endpoint
from moebox.core.metrics import find_metric, parse_prometheus
from moebox.detect.conditions import server_processes, url_port
from moebox.detect.nvml import load_nvml, query
from moebox.errors import ExternalError
from moebox.escape import printable_line

STILL_CORES = 0.01  # one tick a second; a stopped process uses none
LOG_LINES, LOG_TAIL_BYTES = 5, 32_768
# The line of torch's NCCL watchdog, and of a dump of Python's stack (faulthandler, py-spy) inside a collective.
COLLECTIVE = re.compile(
    r"OpType=(\w+)|distributed_c10d\.py\"?(?:, line |:)\d+\)? in (\w+)|(\w+) \([^)]*distributed_c10d\.py:"
)
# Of one look at a GPU whose kernel only waits; prefill and decode read weights and draw power, and both vary
SPIN_BUSY, SPIN_MEMORY, SPIN_POWER, SPIN_POWER_CHANGE = 90, 5, 0.5, 0.1
COUNTERS = ("prompt_tokens_total", "output_tokens_total", "finished_total", "kv_use")
STEPS = re.compile(r"iteration_tokens|n_decode_total")  # vLLM and llama.cpp count the steps of a long prompt
SLOWEST_PROMPT_TOK_S = 20.0  # a model of 1T parameters in the RAM of a slow host
PROMPT_MARGIN = 3.0
LEAST_SILENCE_S = 900.0  # SGLang counts tokens every 40 steps: 400 s at one in 10 s, and replies may not be streamed
SILENT_S = 3600.0  # if the length of prompts is not known
COUNT_SHARE = 0.25  # of spin_s in silence, after which the server's counters are read

STANDS_STILL = "stands still"  # part of every message about a stall


class ServerStalled(ExternalError):
    """The server stands still."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StallLimits:
    """How long a standstill lasts before it is reported: under 20 s, over the 10 s that a slow server needs a token."""

    still_s: float = 14.0
    interval_s: float = 1.0
    reply_s: float = 1.5  # for /health, and for /metrics
    spin_s: float = 120.0  # GPUs are busy and do nothing, and no token comes
    silent_s: float = SILENT_S  # requests run and no token comes

    def for_prompts(self, tokens: int, tok_s: float = 0.0) -> "StallLimits":
        """The limits while prompts of so many tokens in all are read, by a forecast of at least this speed."""
        if not tokens or self.silent_s != SILENT_S:  # not known, or given
            return self
        return replace(self, silent_s=max(LEAST_SILENCE_S, PROMPT_MARGIN * tokens / (tok_s or SLOWEST_PROMPT_TOK_S)))


DEFAULT_LIMITS = StallLimits()


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuLook:
    """One look at a GPU; None: the driver does not know."""

    busy: int  # percent of the time
    memory: int | None  # percent of the time in which its memory was read or written
    watts: float | None
    limit_w: float | None

    @property
    def spins(self) -> bool:
        """Busy, without the memory traffic or the power of a computation."""
        idle_memory = self.memory is None or self.memory <= SPIN_MEMORY
        little_power = self.watts is None or not self.limit_w or self.watts <= SPIN_POWER * self.limit_w
        return self.busy >= SPIN_BUSY and idle_memory and little_power and (self.memory, self.watts) != (None, None)


class StallWatch:
    """A context manager that watches a server in a thread; `problem` is set once it stands still."""

    def __init__(self, endpoint: Endpoint, limits: StallLimits = DEFAULT_LIMITS, *, nvml: Any = None) -> None:
        self.endpoint, self.limits = endpoint, limits
        self.problem: ServerStalled | None = None
        self._nvml = nvml  # NVIDIA's driver, found by itself
        self._bytes = self._bytes_before = 0
        self._counted: dict[str, float] = {}  # the server's own counters of progress
        self._runs = False  # by its own count, requests run
        self._spin_watts: list[float] = []  # of all its GPUs, at each look since they began to spin
        self._spins_since: float | None = None
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
        moved_at = progressed_at = looked_at = time.monotonic()
        while not self._stop.wait(limits.interval_s):
            began = time.monotonic()
            # A longer pause means that this process or the machine was stopped: count anew
            was_away = began - looked_at > limits.interval_s + limits.still_s / 3
            received, self._bytes_before = self._bytes != self._bytes_before, self._bytes
            if received or was_away:
                self._used_before = self._spins_since = None
                moved_at = progressed_at = looked_at = time.monotonic()
                continue
            tree, used_cpu = self._look_at_processes()
            gpus = gpu_looks(tree, self._nvml)
            self._note_spin(gpus)
            shows_life = used_cpu or any(map(self._answers, ("/health", "/metrics"))) or any(gpu.busy for gpu in gpus)
            is_alive = not self._stopped and shows_life
            if is_alive:
                moved_at = time.monotonic()
                if moved_at - progressed_at >= COUNT_SHARE * limits.spin_s and self._counts_progress():
                    progressed_at, self._spins_since = moved_at, None
            looked_at = time.monotonic()
            still_s = 0.0 if is_alive else looked_at - moved_at
            self.problem = self._find_problem(looked_at, still_s, looked_at - progressed_at)
            if self.problem:
                return

    def _find_problem(self, now: float, still_s: float, silent_s: float) -> ServerStalled | None:
        """The report of a server without a sign of life, or without a token, for so long; None before its deadline."""
        spin_s = now - self._spins_since if self._spins_since and (self._bytes or self._counted) else 0.0
        if still_s >= self.limits.still_s:
            return self._describe(still_s)
        if spin_s >= self.limits.spin_s:
            watts = f" at {self._spin_watts[-1]:.0f} W" if self._spin_watts[-1] else ""
            why = f"its GPUs are busy{watts} without memory traffic: a stuck collective spins like this"
            return self._describe(silent_s, why)
        if self._runs and silent_s >= self.limits.silent_s:
            return self._describe(silent_s, "requests run, and the server counts no token")
        return None

    def _look_at_processes(self) -> tuple[set[int], bool]:
        """The server's processes, and whether they computed since the last look, or ended, which is another fault."""
        used_s, self._stopped, tree = 0.0, [], set(self._pids)
        for pid in self._pids:
            with contextlib.suppress(psutil.Error):
                for process in (root := psutil.Process(pid), *root.children(recursive=True)):
                    tree.add(process.pid)
                    with contextlib.suppress(psutil.Error):
                        used_s += sum(process.cpu_times()[:4])  # with children that have ended
                        if process.status() == psutil.STATUS_STOPPED:
                            self._stopped.append(process.pid)
        now, before = time.monotonic(), self._used_before
        self._used_before = used_s, now
        if before is None or not any(map(psutil.pid_exists, self._pids)):
            return tree, True
        return tree, used_s - before[0] > STILL_CORES * (now - before[1])

    def _counts_progress(self) -> bool:
        """True if the server's own counters of tokens and steps changed since the last look."""
        url = f"{self.endpoint.server_url}/metrics"
        reply = http.get(url, headers=self.endpoint.headers, timeout_s=self.limits.reply_s)
        page = parse_prometheus(reply.text) if reply.ok else {}
        names = {find_metric(figure, page) for figure in COUNTERS} | {name for name in page if STEPS.search(name)}
        before, self._counted = self._counted, {name: page[name] for name in names if name in page}
        self._runs = page.get(find_metric("running", page), 0.0) > 0
        return bool(before) and self._counted != before

    def _note_spin(self, gpus: list[GpuLook]) -> None:
        """Note since when all GPUs are idle or spin, at least one of them, at a power that does not change."""
        self._spin_watts.append(sum(gpu.watts or 0.0 for gpu in gpus))
        spread = max(self._spin_watts) - min(self._spin_watts)
        is_steady = self._spins_since is None or spread <= SPIN_POWER_CHANGE * max(self._spin_watts)
        if is_steady and any(gpu.spins for gpu in gpus) and all(gpu.spins or not gpu.busy for gpu in gpus):
            if self._spins_since is None:
                self._spins_since, self._spin_watts = time.monotonic(), self._spin_watts[-1:]
        else:
            self._spins_since, self._spin_watts = None, []

    def _answers(self, path: str) -> bool:
        """True if the server replies anything, or refuses the connection: then its requests fail by themselves."""
        parts = urllib.parse.urlsplit(self.endpoint.server_url)
        address = (str(parts.hostname), url_port(parts))
        try:
            with socket.create_connection(address, timeout=self.limits.reply_s) as connection:
                connection.sendall(f"GET {parts.path}{path} HTTP/1.0\r\nHost: {parts.netloc}\r\n\r\n".encode())
                connection.recv(1)
        except TimeoutError:
            return False
        except OSError:
            return True
        return True

    def _describe(self, seconds: float, why: str = "") -> ServerStalled:
        pid = next(iter(self._stopped or sorted(self._pids)))
        if self._stopped and not why:
            why = f"process {pid} is stopped (SIGSTOP)"
            hint = f"`kill -CONT {pid}` lets it go on"
        else:
            why = why or "no reply from /health and /metrics, no CPU time, no GPU use"
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


def gpu_looks(tree: set[int], nvml: Any = None) -> list[GpuLook]:
    """Look at the GPUs on which one of these processes computes; none without a driver."""
    nvml = nvml or load_nvml()
    looks = []
    for index in range(query(nvml, 0, "nvmlDeviceGetCount") if nvml else 0):
        handle = query(nvml, None, "nvmlDeviceGetHandleByIndex", index)
        use = query(nvml, None, "nvmlDeviceGetUtilizationRates", handle)
        if use and tree & {process.pid for process in query(nvml, (), "nvmlDeviceGetComputeRunningProcesses", handle)}:
            used = query(nvml, 0, "nvmlDeviceGetPowerUsage", handle)
            limit = query(nvml, 0, "nvmlDeviceGetEnforcedPowerLimit", handle)
            new_look = GpuLook(
                busy=use.gpu,
                memory=getattr(use, "memory", None),
                watts=used / 1e3 if used else None,
                limit_w=limit / 1e3 if limit else None,
            )
            looks.append(new_look)
    return looks
