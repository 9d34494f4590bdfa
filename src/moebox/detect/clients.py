"""The connections of a server on this machine, and its GPUs' throttling, as figures for `moebox watch`."""

import ipaddress
import struct
from collections import Counter, defaultdict
from pathlib import Path

from moebox.core.conditions import THROTTLE_REASONS
from moebox.detect.conditions import HostSample, socket_rows
from moebox.detect.nvml import load_nvml

ESTABLISHED = "01"  # of /proc/net/tcp
POWER_CAP = 0x4  # normal under load
BUSY_PERCENT = 10  # of utilization; clocks of an idle GPU mean nothing


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
