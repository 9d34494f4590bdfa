"""Watch the machine while something is measured: CPU of others, memory pressure, disks, GPU clocks and errors.

A thread takes a sample each second from /proc and NVML. It costs well under one percent of a core; if one sample takes
longer than expected (thousands of processes), samples are taken less often.
"""

import contextlib
import ipaddress
import os
import socket
import struct
import threading
import time
import urllib.parse
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from moebox.core.conditions import THROTTLE_REASONS, Conditions, GpuConditions
from moebox.detect.limits import allowed_cpus
from moebox.detect.nvml import load_nvml, query

INTERVAL_S = 1.0
COST_SHARE = 0.005  # of a core that sampling may use
TICKS = os.sysconf("SC_CLK_TCK")
NAMES_SHOWN = 3
LISTENING, ESTABLISHED = "0A", "01"  # of /proc/net/tcp
POWER_CAP = 0x4  # normal under load
BUSY_PERCENT = 10  # of utilization; clocks of an idle GPU mean nothing
PROXIES = {"docker-proxy", "rootlessport", "conmon", "pasta", "slirp4netns"}  # they listen for a container's server
THROTTLED_SHARE = 0.05  # of the samples below which a reason is a blip


@dataclass(frozen=True, slots=True)
class HostSample:
    when: float
    busy: float  # CPU seconds since boot, without idle, waiting for disks, and guests counted twice
    steal: float
    total: float
    ours: frozenset[int]
    ours_s: float  # CPU seconds of our living processes and of the children that they have waited for
    others: dict[int, tuple[str, float]]
    elsewhere: frozenset[int]  # processes that ran last on a CPU that is not ours
    stall_s: float | None
    disk_read: int | None


def read_host(roots: Iterable[int], proc: Path = Path("/proc")) -> HostSample:
    """Read one sample of the CPUs that we may use; `roots` are processes that count as ours with all descendants."""
    roots = list(roots)
    cpus = allowed_cpus(roots)
    lines = [line.split() for line in (proc / "stat").read_text().splitlines() if line.startswith("cpu")]
    counts = [[int(value) / TICKS for value in line[1:9]] for line in lines[1:] if int(line[0][3:]) in cpus]
    user, nice, system, idle, iowait, irq, softirq, steal = map(sum, zip(*counts, strict=True))
    processes: dict[int, tuple[int, str, float, float]] = {}  # parent, name, CPU seconds alone, and with ended children
    elsewhere = set()
    for entry in proc.iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError, ValueError, IndexError):  # it ended meanwhile
                text = (entry / "stat").read_text(errors="replace")
                name, rest = text[text.index("(") + 1 : text.rindex(")")], text[text.rindex(")") + 2 :].split()
                own_s, children_s = ((int(rest[i]) + int(rest[i + 1])) / TICKS for i in (11, 13))
                processes[int(entry.name)] = int(rest[1]), name, own_s, own_s + children_s
                if int(rest[36]) not in cpus:
                    elsewhere.add(int(entry.name))
    children = defaultdict(list)
    for pid, (parent, *_) in processes.items():
        children[parent].append(pid)
    ours: set[int] = set()
    left = list(roots)
    while left:
        pid = left.pop()
        if pid not in ours and pid in processes:
            ours.add(pid)
            left += children[pid]
    stall_s = disk_read = None
    with contextlib.suppress(OSError, ValueError, IndexError):
        line = (proc / "pressure" / "memory").read_text().split("\n", 1)[0]
        stall_s = int(line.rsplit("total=", 1)[1]) / 1e6
    with contextlib.suppress(OSError, ValueError, IndexError):
        text = (proc / "vmstat").read_text()
        disk_read = int(text.split("\npgpgin ", 1)[1].split("\n", 1)[0]) * 1024
    return HostSample(
        when=time.monotonic(),
        busy=user + nice + system + irq + softirq,
        steal=steal,
        total=user + nice + system + idle + iowait + irq + softirq + steal,
        ours=frozenset(ours),
        ours_s=sum(processes[pid][3] for pid in ours),
        others={pid: (name, used) for pid, (_, name, used, _) in processes.items() if pid not in ours},
        elsewhere=frozenset(elsewhere),
        stall_s=stall_s,
        disk_read=disk_read,
    )


@dataclass(slots=True)
class _GpuSamples:
    clocks: list[float] = field(default_factory=list)
    max_clock: float | None = None
    milliwatts: list[float] = field(default_factory=list)
    temperatures: list[float] = field(default_factory=list)
    reasons: Counter[str] = field(default_factory=Counter)
    busy_samples: int = 0
    is_ours: bool = False  # the server computes on it
    others: set[str] = field(default_factory=set)
    xids: list[int] = field(default_factory=list)
    ecc_before: int = 0
    ecc_after: int = 0


def url_port(parts: urllib.parse.SplitResult) -> int:
    return parts.port or (443 if parts.scheme == "https" else 80)


def server_processes(url: str) -> frozenset[int] | None:
    """Find the processes on this machine that listen at a URL.

    Empty if the server is on another machine; None if it is on this one and cannot be identified: another user's, or
    behind a container's proxy.
    """
    parts = urllib.parse.urlsplit(url)
    port = url_port(parts)
    try:
        addresses = {found[4][0] for found in socket.getaddrinfo(parts.hostname, port, type=socket.SOCK_STREAM)}
        local = {address.address for each in psutil.net_if_addrs().values() for address in each}
        if not any(ipaddress.ip_address(address).is_loopback or address in local for address in addresses):
            return frozenset()
        sockets = listening_sockets(port)
        pids = frozenset(pid for pid in psutil.pids() if sockets & open_files(pid))
        is_proxy = any(psutil.Process(pid).name() in PROXIES for pid in pids)
    except (OSError, ValueError, psutil.Error):
        return None
    return None if is_proxy or not pids else pids


def socket_rows(port: int, state: str, proc: Path = Path("/proc")) -> Iterator[list[str]]:
    """Yield the rows of the kernel's tables of TCP sockets at a port of this machine, in one state."""
    for name in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            rows = map(str.split, (proc / "net" / name).read_text(encoding="ascii").splitlines()[1:])
            yield from (row for row in rows if row[3] == state and row[1].endswith(f":{port:04X}"))


def listening_sockets(port: int) -> set[str]:
    """The sockets that listen on a port of this machine, named as processes have them open."""
    return {f"socket:[{row[9]}]" for row in socket_rows(port, LISTENING)}


def open_files(pid: int) -> set[str]:
    """What a process has open; psutil takes ten times as long where sockets are many."""
    found = set()
    with contextlib.suppress(OSError):  # it ended, or is another user's
        for entry in os.scandir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                found.add(os.readlink(entry.path))
    return found


class ConditionsWatch:
    """A context manager that samples until it is left; `result()` gives the conditions of that time."""

    def __init__(self, roots: Iterable[int] | None = (), *, nvml: Any = None, interval_s: float = INTERVAL_S) -> None:
        """Count this process and `roots` (the server's) with their descendants as ours; None: the server is unknown."""
        self._knows_server = roots is not None
        self._roots = {os.getpid(), *(roots or ())}
        self._interval_s = interval_s
        self._nvml = nvml
        self._handles: list[Any] = []
        self._gpus: list[_GpuSamples] = []
        self._host: list[HostSample] = []
        self._names: defaultdict[str, float] = defaultdict(float)
        self._peak = 0.0
        self._gap_s = 0.0
        self._other_s = 0.0
        self._events: Any = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample_until_stopped, name="conditions", daemon=True)

    def __enter__(self) -> "ConditionsWatch":
        if self._nvml is None:
            self._nvml = load_nvml()
        if self._nvml is not None:
            self._open_gpus()
        self._sample()
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        self._thread.join()
        self._sample()
        if self._events is not None:
            self._ask("nvmlEventSetFree", self._events)

    def _sample_until_stopped(self) -> None:
        wait_s = self._interval_s
        while not self._stop.wait(wait_s):
            began = time.thread_time()
            self._sample()
            wait_s = max(self._interval_s, (time.thread_time() - began) / COST_SHARE)

    def _ask(self, name: str, *arguments: Any) -> Any:
        """A driver's answer, or None: drivers refuse single questions, and may be unloaded at any moment."""
        return query(self._nvml, None, name, *arguments)

    def _open_gpus(self) -> None:
        nvml = self._nvml
        self._events = self._ask("nvmlEventSetCreate")
        for index in range(self._ask("nvmlDeviceGetCount") or 0):
            handle = self._ask("nvmlDeviceGetHandleByIndex", index)
            if handle is None:
                continue
            max_clock = self._ask("nvmlDeviceGetMaxClockInfo", handle, nvml.NVML_CLOCK_SM)
            if self._events is not None:
                self._ask("nvmlDeviceRegisterEvents", handle, nvml.nvmlEventTypeXidCriticalError, self._events)
            self._handles.append(handle)
            self._gpus.append(_GpuSamples(max_clock=max_clock, ecc_before=self._uncorrected_errors(handle)))

    def _ask_numbers(self, name: str, *arguments: Any) -> list[float]:
        """A driver's answer in a list, [] if there is none."""
        answer = self._ask(name, *arguments)
        return [] if answer is None else [float(answer)]

    def _uncorrected_errors(self, handle: Any) -> int:
        kind, since_boot = self._nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, self._nvml.NVML_VOLATILE_ECC
        return int(self._ask("nvmlDeviceGetTotalEccErrors", handle, kind, since_boot) or 0)

    def _sample(self) -> None:
        with contextlib.suppress(OSError, ValueError, IndexError):  # a system without /proc
            sample = read_host(self._roots)
            if self._host:
                before = self._host[-1]
                passed = sample.when - before.when
                self._gap_s = max(self._gap_s, passed)
                other_s = max(sample.busy - before.busy - (sample.ours_s - before.ours_s), 0.0)
                self._other_s += other_s
                if passed > self._interval_s / 2:
                    self._peak = max(self._peak, other_s / passed)
                for pid, (name, used) in sample.others.items():
                    if pid not in sample.elsewhere:
                        self._names[name] += used - before.others[pid][1] if pid in before.others else used
                self._host[1:] = [sample]
            else:
                self._host.append(sample)
        for handle, gpu in zip(self._handles, self._gpus, strict=True):
            self._sample_gpu(handle, gpu)
        if self._events is not None:
            while event := self._ask("nvmlEventSetWait_v2", self._events, 0):
                index = self._ask("nvmlDeviceGetIndex", event.device) or 0
                if index < len(self._gpus):
                    self._gpus[index].xids.append(int(event.eventData))

    def _sample_gpu(self, handle: Any, gpu: _GpuSamples) -> None:
        nvml = self._nvml
        load = self._ask("nvmlDeviceGetUtilizationRates", handle)
        if load is None or load.gpu > 10:  # clocks of an idle GPU mean nothing
            gpu.busy_samples += 1
            gpu.clocks += self._ask_numbers("nvmlDeviceGetClockInfo", handle, nvml.NVML_CLOCK_SM)
            reasons = self._ask("nvmlDeviceGetCurrentClocksThrottleReasons", handle) or 0
            gpu.reasons.update(name for bit, name in THROTTLE_REASONS.items() if reasons & bit)
        gpu.milliwatts += self._ask_numbers("nvmlDeviceGetPowerUsage", handle)
        gpu.temperatures += self._ask_numbers("nvmlDeviceGetTemperature", handle, nvml.NVML_TEMPERATURE_GPU)
        ours = self._host[-1].ours if self._host else frozenset()
        processes = self._ask("nvmlDeviceGetComputeRunningProcesses", handle) or ()
        gpu.is_ours |= any(process.pid in ours for process in processes)
        if not gpu.is_ours and processes:  # in a container the driver reports the host's process numbers
            minor = self._ask("nvmlDeviceGetMinorNumber", handle)
            gpu.is_ours = minor is not None and any(
                f"/dev/nvidia{minor}" in open_files(pid) for pid in ours - {os.getpid()}
            )
        for process in processes:
            if process.pid not in ours:
                name = self._host[-1].others.get(process.pid, ("", 0.0))[0] if self._host else ""
                gpu.others.add(name or f"process {process.pid}")
        gpu.ecc_after = self._uncorrected_errors(handle)

    def result(self) -> Conditions:
        gpus = tuple(
            GpuConditions(
                index=index,
                clock_mhz=sum(gpu.clocks) / len(gpu.clocks) if gpu.clocks else None,
                max_clock_mhz=gpu.max_clock,
                power_w=sum(gpu.milliwatts) / len(gpu.milliwatts) / 1000 if gpu.milliwatts else None,
                temperature_c=max(gpu.temperatures, default=None),
                throttled=tuple(
                    (name, count / gpu.busy_samples)
                    for name, count in gpu.reasons.most_common()
                    if count / gpu.busy_samples >= THROTTLED_SHARE
                ),
                other_processes=tuple(sorted(gpu.others)) if self._knows_server else (),
                xids=tuple(gpu.xids),
                ecc_errors=max(gpu.ecc_after - gpu.ecc_before, 0),
            )
            for index, gpu in enumerate(self._gpus)
            if gpu.is_ours or not self._knows_server  # a GPU that the server does not use disturbs nothing
        )
        cores = len(allowed_cpus(self._roots))
        if len(self._host) < 2:
            return Conditions(seconds=0.0, samples=len(self._host), cores=cores, gpus=gpus)
        first, last = self._host[0], self._host[-1]
        seconds = max(last.when - first.when, 1e-9)
        names = sorted(self._names, key=lambda name: -self._names[name])
        floor_s = 0.02 * seconds  # programs below this share of a core are not worth a name
        return Conditions(
            seconds=seconds,
            samples=max(round(seconds / self._interval_s), 1) + 1,
            cores=cores,
            busy_cores=(last.busy - first.busy) / seconds,
            other_cores=self._other_s / seconds if self._knows_server else None,
            other_cores_peak=self._peak if self._knows_server else None,
            steal=(last.steal - first.steal) / max(last.total - first.total, 1e-9),
            memory_stall=None
            if first.stall_s is None or last.stall_s is None
            else (last.stall_s - first.stall_s) / seconds,
            disk_read=None if first.disk_read is None or last.disk_read is None else last.disk_read - first.disk_read,
            longest_gap_s=self._gap_s,
            others=tuple(name for name in names[:NAMES_SHOWN] if self._names[name] >= floor_s),
            gpus=gpus,
        )


# The same machine as `moebox watch` sees it: connections of a server, and how GPUs and others behave between two looks.


def sample_connections(port: int, proc: Path = Path("/proc")) -> tuple[dict[str, float], str]:
    """Return figures about the clients connected to a port, and the address of the worst or largest one.

    unread_bytes: the most that the kernel holds for one client that has not read it.
    """
    connections: Counter[str] = Counter()
    unread, slowest = 0, ""
    for _, _, remote, _, queues, *_ in socket_rows(port, ESTABLISHED, proc):
        client = decode_address(remote.rpartition(":")[0])
        connections[client] += 1
        waiting = int(queues.partition(":")[0], 16)
        if waiting > unread:
            unread, slowest = waiting, f"{client} port {int(remote.rpartition(':')[2], 16)}"
    if not connections:
        return {}, ""
    top, count = connections.most_common(1)[0]
    figures = {"unread_bytes": float(unread), "clients": float(len(connections))}
    figures |= {"connections": float(connections.total()), "top_client_share": count / connections.total()}
    return figures, slowest if unread else top


def compare_hosts(before: HostSample, now: HostSample) -> tuple[dict[str, float], str]:
    """Return the cores that the engine used between two samples, the share of others, and the largest of those."""
    used: defaultdict[str, float] = defaultdict(float)
    for pid, (name, seconds) in now.others.items():
        if pid not in now.elsewhere:
            used[name] += seconds - before.others.get(pid, (name, 0.0))[1]
    own_s = max(now.ours_s - before.ours_s, 0.0)
    share = max(now.busy - before.busy - own_s, 0.0) / max(now.total - before.total, 1e-9)
    figures = {"other_cpu": min(share, 1.0), "engine_cpu": own_s / max(now.when - before.when, 1e-9)}
    return figures, max(used, key=used.__getitem__, default="")


def decode_address(text: str) -> str:
    """Return an address of /proc/net/tcp, which writes 32-bit words in the machine's byte order."""
    words = [int(text[at : at + 8], 16) for at in range(0, len(text), 8)]
    return str(ipaddress.ip_address(struct.pack(f"={len(words)}I", *words)))


def sample_throttling() -> dict[str, float]:
    """Return busy GPUs that lower their clocks, the highest temperature, the lowest clock and all watts; {} unknown."""
    nvml = load_nvml()
    if nvml is None:
        return {}
    throttled, hottest, clocks, watts = 0, 0.0, list[float](), 0.0
    try:
        for handle in map(nvml.nvmlDeviceGetHandleByIndex, range(nvml.nvmlDeviceGetCount())):
            hottest = max(hottest, float(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)))
            clocks.append(float(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)))
            watts += nvml.nvmlDeviceGetPowerUsage(handle) / 1000
            if nvml.nvmlDeviceGetUtilizationRates(handle).gpu > BUSY_PERCENT:
                reasons = nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)
                throttled += any(reasons & bit for bit in THROTTLE_REASONS if bit != POWER_CAP)
    except nvml.NVMLError:  # the driver refuses the question
        return {}
    figures = {"gpu_throttled": float(throttled), "gpu_temperature": hottest, "gpu_watts": watts}
    return {**figures, "gpu_clock": min(clocks)} if clocks else {}
