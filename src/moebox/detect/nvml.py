"""The GPUs of this machine, as NVIDIA's driver reports them.

`pynvml` is passed in, so that a test can use recorded answers of a real driver. A machine without a driver is a valid
box without GPUs.
"""

import contextlib
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations, starmap
from pathlib import Path
from typing import Any

from moebox.core import catalogue
from moebox.core.box import Gpu, GpuProcess, Link, LinkKind, Pcie
from moebox.loose import drop_empty
from moebox.site import user_name

INSTANCE_ENV = "MOEBOX_INSTANCE"  # set for every process of an engine that moebox started

# Shared memory one block may opt in to, by compute capability (CUDA C++ programming guide, technical specifications).
_SMEM = {"8.0": 166912, "8.6": 101376, "8.9": 101376, "9.0": 232448, "10.0": 232448, "10.3": 232448}
_SMEM |= {"12.0": 101376, "12.1": 101376}
_MIN_SMEM = 49152  # available on every CUDA device

# NVML_TOPOLOGY_* levels, nearest first.
_LEVELS: dict[int, LinkKind] = {0: "pix", 10: "pix", 20: "pxb", 30: "phb", 40: "node", 50: "sys"}
_SWITCH = "switch"  # the far end of an NVLink that is not a GPU


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverReport:
    version: str = ""
    cuda: str = ""
    gpus: tuple[Gpu, ...] = ()
    numbers: tuple[int, ...] = ()  # of the GPUs, if not all are visible
    links: tuple[Link, ...] = ()


def load_nvml() -> Any | None:
    """Return the initialised NVML module, or None without a driver."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    return pynvml


def query(nvml: Any, default: Any, function: str, *arguments: Any) -> Any:
    """Call an NVML function; return `default` if this GPU or driver does not support it."""
    try:
        return _decoded(getattr(nvml, function)(*arguments))
    except (nvml.NVMLError, AttributeError):
        return default


def gpu_processes(nvml: Any, index: int) -> list[tuple[int, int]]:
    """Ids of processes that compute on a GPU, and the bytes that each uses; empty if the driver does not list them."""
    handle = query(nvml, None, "nvmlDeviceGetHandleByIndex", index)
    return _device_processes(nvml, handle) if handle else []


def _device_processes(nvml: Any, handle: Any) -> list[tuple[int, int]]:
    rows = query(nvml, [], "nvmlDeviceGetComputeRunningProcesses", handle)
    return [(int(row.pid), int(row.usedGpuMemory or 0)) for row in rows]


def list_holders(nvml: Any) -> dict[int, list[GpuProcess]]:
    """Return the processes on each GPU of this machine that has any, as far as the driver and the kernel show them."""
    count = query(nvml, 0, "nvmlDeviceGetCount")
    held = {index: list(starmap(identify_process, gpu_processes(nvml, index))) for index in range(count)}
    return drop_empty(held)


def read_driver(nvml: Any, *, sysfs: Path = Path("/sys"), only: str | None = None) -> DriverReport:
    """Read every GPU and the links between them; `only` is the value of CUDA_VISIBLE_DEVICES."""
    every = [*map(nvml.nvmlDeviceGetHandleByIndex, range(nvml.nvmlDeviceGetCount()))]
    numbers = tuple(range(len(every)))
    if only is not None:
        numbers = visible_gpu_numbers(only, [str(query(nvml, "", "nvmlDeviceGetUUID", handle)) for handle in every])
    handles = [every[number] for number in numbers]
    cuda = query(nvml, 0, "nvmlSystemGetCudaDriverVersion")  # 13020 for 13.2
    return DriverReport(
        version=query(nvml, "", "nvmlSystemGetDriverVersion"),
        cuda=f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else "",
        gpus=tuple(_read_gpu(nvml, handle, sysfs) for handle in handles),
        numbers=numbers if len(numbers) < len(every) else (),
        links=tuple(_read_link(nvml, handles, a, b) for a, b in combinations(range(len(handles)), 2)),
    )


def visible_gpu_numbers(only: str, uuids: Sequence[str]) -> tuple[int, ...]:
    """Numbers of the GPUs that CUDA shows to programs: listed by number or UUID, up to the first unknown one.

    If a part of a GPU (MIG) is listed, all GPUs count.
    """
    if "MIG-" in only:
        return tuple(range(len(uuids)))
    numbers: list[int] = []
    for word in map(str.strip, only.split(",")):
        if len(word) <= len("GPU-"):
            found = [at for at in range(len(uuids)) if word == str(at)]
        else:  # the beginning of a UUID
            found = [at for at, uuid in enumerate(uuids) if uuid.startswith(word)]
        if len(found) != 1:
            break
        numbers += found
    return tuple(numbers)


def _read_gpu(nvml: Any, handle: Any, sysfs: Path) -> Gpu:
    title = str(_decoded(nvml.nvmlDeviceGetName(handle)))
    major, minor = query(nvml, (0, 0), "nvmlDeviceGetCudaComputeCapability", handle)
    sm = f"{major}.{minor}"
    memory = query(nvml, None, "nvmlDeviceGetMemoryInfo", handle)
    size = memory.total if memory else 0  # boards that share a name differ in memory
    rows = (row for row in catalogue.load_table("gpus")["driver"] if size >= row.get("min_memory", 0))
    name = next((row["name"] for row in rows if re.search(row["pattern"], title)), None)
    known = catalogue.gpus()[name] if name else _unknown_gpu(nvml, handle, title, sm)
    bus = _bus_id(nvml, "nvmlDeviceGetPciInfo", handle)
    try:
        numa = int((sysfs / "bus/pci/devices" / bus[-12:] / "numa_node").read_text())
    except (OSError, ValueError):
        numa = -1  # as the kernel writes it if the machine has just one node
    width = query(nvml, 0, "nvmlDeviceGetCurrPcieLinkWidth", handle)
    pcie = Pcie(
        generation=query(nvml, 0, "nvmlDeviceGetCurrPcieLinkGeneration", handle),
        width=width,
        max_generation=query(nvml, 0, "nvmlDeviceGetMaxPcieLinkGeneration", handle),
        max_width=query(nvml, width, "nvmlDeviceGetMaxPcieLinkWidth", handle),
    )
    return replace(
        known,
        title=title,
        memory=int(memory.total) if memory else known.memory,
        memory_free=int(memory.free) if memory else None,
        holders=tuple(
            replace(identify_process(pid, size), user="")  # boxes are stored and shared
            for pid, size in _device_processes(nvml, handle)
        ),
        sm=sm if major else known.sm,
        smem=_SMEM.get(sm, known.smem),
        pcie=pcie if width else None,
        numa=numa if numa >= 0 else None,
        mig=bool(query(nvml, (0,), "nvmlDeviceGetMigMode", handle)[0]),
        max_clock=query(nvml, 0, "nvmlDeviceGetMaxClockInfo", handle, getattr(nvml, "NVML_CLOCK_SM", 1)),
        power_limit=query(nvml, 0, "nvmlDeviceGetEnforcedPowerLimit", handle) // 1000,
    )


def identify_process(pid: int, size: int, *, proc: Path = Path("/proc")) -> GpuProcess:
    """Find the name and owner of a process, and the instance if moebox started it for this user."""
    name, user, environment = "", "", b""
    with contextlib.suppress(OSError):  # gone, in another container, or another user's environment
        user = user_name((proc / str(pid)).stat().st_uid)
        name = (proc / str(pid) / "comm").read_text(errors="replace").strip()
        environment = (proc / str(pid) / "environ").read_bytes()
    variables = dict(part.partition(b"=")[::2] for part in environment.split(b"\0"))
    instance = variables.get(INSTANCE_ENV.encode(), b"").decode(errors="replace")
    return GpuProcess(pid=pid, name=name, bytes=size, user=user, instance=instance)


def _unknown_gpu(nvml: Any, handle: Any, title: str, sm: str) -> Gpu:
    """A GPU that is not in the catalogue: the driver's facts, the rest marked unverified."""
    bus = query(nvml, 0, "nvmlDeviceGetMemoryBusWidth", handle)
    clock = query(nvml, 0, "nvmlDeviceGetMaxClockInfo", handle, getattr(nvml, "NVML_CLOCK_MEM", None))
    cores = query(nvml, 0, "nvmlDeviceGetNumGpuCores", handle)
    graphics = query(nvml, 0, "nvmlDeviceGetMaxClockInfo", handle, getattr(nvml, "NVML_CLOCK_SM", None))
    name = re.sub(r"[^a-z0-9]+", "-", title.lower().removeprefix("nvidia ")).strip("-")
    return Gpu(
        name=name,
        title=title,
        memory=0,
        # Both edges of the memory clock carry data, as nvidia-smi's own bandwidth figures assume.
        bandwidth=bus // 8 * clock * 2 * 10**6,
        # Two operations per core and clock, and tensor cores at four times that: the ratio of Ampere and Ada, a floor.
        bf16=float(cores * graphics * 10**6 * 2 * 4),
        sms=cores // 128,
        sm=sm,
        smem=_SMEM.get(sm, _MIN_SMEM),
        unverified=("bandwidth", "bf16", "sms"),
        source="driver; not in the catalogue",
    )


def _read_link(nvml: Any, handles: list[Any], a: int, b: int) -> Link:
    lanes = _nvlink_lanes(nvml, handles[a], handles[b])
    level = query(nvml, 50, "nvmlDeviceGetTopologyCommonAncestor", handles[a], handles[b])
    read_access = getattr(nvml, "NVML_P2P_CAPS_INDEX_READ", 0)
    status = query(nvml, None, "nvmlDeviceGetP2PStatus", handles[a], handles[b], read_access)
    p2p = None if status is None else status == getattr(nvml, "NVML_P2P_STATUS_OK", 0)
    kind: LinkKind = "nvlink" if lanes else _LEVELS.get(int(level), "sys")
    return Link(a=a, b=b, kind=kind, p2p=p2p, lanes=lanes)


def _nvlink_lanes(nvml: Any, device: Any, other: Any) -> int:
    """Active NVLinks from `device` to `other`, or to a switch that both are connected to."""
    ends: Counter[str] = Counter()
    for link in range(getattr(nvml, "NVML_NVLINK_MAX_LINKS", 18)):
        if not query(nvml, 0, "nvmlDeviceGetNvLinkState", device, link):
            continue
        kind = query(nvml, None, "nvmlDeviceGetNvLinkRemoteDeviceType", device, link)
        is_switch = kind == getattr(nvml, "NVML_NVLINK_DEVICE_TYPE_SWITCH", 2)
        ends[_SWITCH if is_switch else _bus_id(nvml, "nvmlDeviceGetNvLinkRemotePciInfo", device, link)] += 1
    target = _bus_id(nvml, "nvmlDeviceGetPciInfo", other)
    return (ends[target] if target else 0) or ends[_SWITCH]


def _bus_id(nvml: Any, function: str, *arguments: Any) -> str:
    return str(_decoded(getattr(query(nvml, None, function, *arguments), "busId", ""))).lower()


def _decoded(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value
