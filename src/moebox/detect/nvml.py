"""The GPUs of this machine, as NVIDIA's driver reports them.

`pynvml` is passed in, so a test can hand over answers recorded from a real driver. A machine without a
driver is a valid box without GPUs.
"""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, takewhile
from pathlib import Path
from typing import Any, TypeVar

from moebox.core import catalogue
from moebox.core.box import Gpu, GpuProcess, Link, LinkKind, Pcie

T = TypeVar("T")
INSTANCE_ENV = "MOEBOX_INSTANCE"  # every process of an engine that moebox started carries it

# Shared memory one block may opt in to, by compute capability (CUDA C++ programming guide, technical specifications).
_SMEM = {"8.0": 166912, "8.6": 101376, "8.9": 101376, "9.0": 232448, "10.0": 232448, "10.3": 232448}
_SMEM |= {"12.0": 101376, "12.1": 101376}
_SMEM_LEAST = 49152  # what every CUDA device gives without asking

# NVML_TOPOLOGY_* levels, nearest first.
_LEVELS: dict[int, LinkKind] = {0: "pix", 10: "pix", 20: "pxb", 30: "phb", 40: "node", 50: "sys"}
_SWITCH = "switch"  # the far end of an NVLink that is no GPU


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverReport:
    """What the driver says about the machine."""

    version: str = ""
    cuda: str = ""
    gpus: tuple[Gpu, ...] = ()
    numbers: tuple[int, ...] = ()  # of the GPUs, where not all are visible
    links: tuple[Link, ...] = ()


def load_nvml() -> Any | None:
    """The initialised NVML module, or None where there is no driver."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    return pynvml


def gpu_processes(nvml: Any, index: int) -> list[tuple[int, int]]:
    """Process ids that compute on a GPU, and the bytes each holds there; empty where the driver does not tell."""
    ask = _asker(nvml)
    return _computing(nvml, ask, ask(lambda: nvml.nvmlDeviceGetHandleByIndex(index), None))


def _computing(nvml: Any, ask: Any, handle: Any) -> list[tuple[int, int]]:
    rows: list[Any] = ask(lambda: nvml.nvmlDeviceGetComputeRunningProcesses(handle), []) if handle else []
    return [(int(row.pid), int(row.usedGpuMemory or 0)) for row in rows]


def read_driver(nvml: Any, *, sysfs: Path = Path("/sys"), only: str | None = None) -> DriverReport:
    """Every GPU and the links between them; `only` is what CUDA_VISIBLE_DEVICES says."""
    ask = _asker(nvml)
    every = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
    numbers = (
        tuple(range(len(every)))
        if only is None
        else visible_gpu_numbers(only, [_uuid(nvml, ask, each) for each in every])
    )
    handles = [every[number] for number in numbers]
    return DriverReport(
        version=ask(lambda: _text(nvml.nvmlSystemGetDriverVersion()), ""),
        cuda=_cuda(ask(nvml.nvmlSystemGetCudaDriverVersion, 0)),
        gpus=tuple(_gpu(nvml, ask, handle, sysfs) for handle in handles),
        numbers=numbers if len(numbers) < len(every) else (),
        links=tuple(_link(nvml, ask, handles, a, b) for a, b in combinations(range(len(handles)), 2)),
    )


def _cuda(number: int) -> str:
    """13020 as 13.2; "" for 0, which is no answer."""
    return f"{number // 1000}.{number % 1000 // 10}" if number else ""


def visible_gpu_numbers(only: str, uuids: Sequence[str]) -> tuple[int, ...]:
    """Numbers of the GPUs that CUDA shows to programs: listed by number or UUID, up to the first it does not know.

    Parts of GPUs (MIG) are not told apart: where one is listed, all GPUs count.
    """
    if "MIG-" in only:
        return tuple(range(len(uuids)))
    named = (_called(word.strip(), uuids) for word in only.split(","))
    return tuple(at for (at,) in takewhile(lambda found: len(found) == 1, named))


def _called(word: str, uuids: Sequence[str]) -> list[int]:
    """Numbers of the GPUs that a number or the beginning of a UUID means."""
    if len(word) <= len("GPU-"):
        return [at for at in range(len(uuids)) if word == str(at)]
    return [at for at, uuid in enumerate(uuids) if uuid.startswith(word)]


def _uuid(nvml: Any, ask: Any, handle: Any) -> str:
    return str(ask(lambda: _text(nvml.nvmlDeviceGetUUID(handle)), ""))


def _asker(nvml: Any) -> Callable[[Callable[[], T], T], T]:
    def ask(question: Callable[[], T], otherwise: T) -> T:
        """The driver's answer, or `otherwise` where this GPU or driver has none."""
        try:
            return question()
        except (nvml.NVMLError, AttributeError):
            return otherwise

    return ask


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _gpu(nvml: Any, ask: Any, handle: Any, sysfs: Path) -> Gpu:
    title = _text(nvml.nvmlDeviceGetName(handle))
    major, minor = ask(lambda: nvml.nvmlDeviceGetCudaComputeCapability(handle), (0, 0))
    memory = ask(lambda: nvml.nvmlDeviceGetMemoryInfo(handle), None)
    known = _known(title, memory.total if memory else 0) or _unknown(nvml, ask, handle, title, f"{major}.{minor}")
    mode = ask(lambda: nvml.nvmlDeviceGetMigMode(handle)[0], 0)
    return replace(
        known,
        title=title,
        memory=int(memory.total) if memory else known.memory,
        memory_free=int(memory.free) if memory else None,
        holders=_holders(nvml, ask, handle),
        sm=f"{major}.{minor}" if major else known.sm,
        smem=_SMEM.get(f"{major}.{minor}", known.smem),
        pcie=_pcie(nvml, ask, handle),
        numa=_numa(nvml, ask, handle, sysfs),
        mig=bool(mode),
    )


def _holders(nvml: Any, ask: Any, handle: Any) -> tuple[GpuProcess, ...]:
    """Processes that compute on a GPU, by what /proc says of them."""
    return tuple(identify_process(pid, size) for pid, size in _computing(nvml, ask, handle))


def identify_process(pid: int, size: int, *, proc: Path = Path("/proc")) -> GpuProcess:
    """Who a process is: its name, and the instance that moebox started it as."""
    try:
        name = (proc / str(pid) / "comm").read_text(errors="replace").strip()
        environment = (proc / str(pid) / "environ").read_bytes()
    except OSError:  # another user's, or gone
        name, environment = "", b""
    variables = dict(part.partition(b"=")[::2] for part in environment.split(b"\0"))
    instance = variables.get(INSTANCE_ENV.encode(), b"").decode(errors="replace")
    return GpuProcess(pid=pid, name=name, bytes=size, instance=instance)


def _known(title: str, memory: int) -> Gpu | None:
    """The catalogue's GPU for a driver's name; boards that share a name differ in memory."""
    for row in catalogue.load_table("gpus")["driver"]:
        if re.search(row["pattern"], title) and memory >= row.get("min_memory", 0):
            return catalogue.gpus()[row["name"]]
    return None


def _unknown(nvml: Any, ask: Any, handle: Any, title: str, sm: str) -> Gpu:
    """A GPU that is not in the catalogue: what the driver tells, the rest marked unverified."""
    bus = ask(lambda: nvml.nvmlDeviceGetMemoryBusWidth(handle), 0)
    clock = ask(lambda: nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_MEM), 0)
    cores = ask(lambda: nvml.nvmlDeviceGetNumGpuCores(handle), 0)
    graphics = ask(lambda: nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM), 0)
    name = re.sub(r"[^a-z0-9]+", "-", title.lower().removeprefix("nvidia ")).strip("-")
    return Gpu(
        name=name,
        title=title,
        memory=0,
        # Both edges of the memory clock carry data, as nvidia-smi's own bandwidth figures assume.
        bandwidth=bus // 8 * clock * 2 * 10**6,
        # Two operations a core and clock, and tensor cores at four times that: the ratio of Ampere and Ada, a floor.
        bf16=float(cores * graphics * 10**6 * 2 * 4),
        sms=cores // 128,
        sm=sm,
        smem=_SMEM.get(sm, _SMEM_LEAST),
        unverified=("bandwidth", "bf16", "sms"),
        source="driver; not in the catalogue",
    )


def _pcie(nvml: Any, ask: Any, handle: Any) -> Pcie | None:
    width = ask(lambda: nvml.nvmlDeviceGetCurrPcieLinkWidth(handle), 0)
    if not width:
        return None
    return Pcie(
        generation=ask(lambda: nvml.nvmlDeviceGetCurrPcieLinkGeneration(handle), 0),
        width=width,
        max_generation=ask(lambda: nvml.nvmlDeviceGetMaxPcieLinkGeneration(handle), 0),
        max_width=ask(lambda: nvml.nvmlDeviceGetMaxPcieLinkWidth(handle), width),
    )


def _numa(nvml: Any, ask: Any, handle: Any, sysfs: Path) -> int | None:
    """The NUMA node of a GPU's slot; None where the machine has just one."""
    bus = ask(lambda: _text(nvml.nvmlDeviceGetPciInfo(handle).busId), "").lower()
    try:
        node = int((sysfs / "bus/pci/devices" / bus[-12:] / "numa_node").read_text())
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None


def _link(nvml: Any, ask: Any, handles: list[Any], a: int, b: int) -> Link:
    lanes = _nvlinks(nvml, ask, handles[a], handles[b])
    level = ask(lambda: nvml.nvmlDeviceGetTopologyCommonAncestor(handles[a], handles[b]), 50)
    read_ok = getattr(nvml, "NVML_P2P_CAPS_INDEX_READ", 0)
    status = ask(lambda: nvml.nvmlDeviceGetP2PStatus(handles[a], handles[b], read_ok), None)
    p2p = None if status is None else status == getattr(nvml, "NVML_P2P_STATUS_OK", 0)
    kind: LinkKind = "nvlink" if lanes else _LEVELS.get(int(level), "sys")
    return Link(a=a, b=b, kind=kind, p2p=p2p, lanes=lanes)


def _nvlinks(nvml: Any, ask: Any, device: Any, other: Any) -> int:
    """Active NVLinks from `device` that end at `other`, or at a switch that both hang on."""
    target = ask(lambda: _text(nvml.nvmlDeviceGetPciInfo(other).busId).lower(), "")
    links = range(getattr(nvml, "NVML_NVLINK_MAX_LINKS", 18))
    ends = Counter(_far_end(nvml, ask, device, link) for link in links)
    return (ends[target] if target else 0) or ends[_SWITCH]


def _far_end(nvml: Any, ask: Any, device: Any, link: int) -> str:
    """Where an NVLink ends: a GPU by its bus, or a switch; "" for one that is down or does not say."""
    if not ask(lambda: nvml.nvmlDeviceGetNvLinkState(device, link), 0):
        return ""
    kind = ask(lambda: nvml.nvmlDeviceGetNvLinkRemoteDeviceType(device, link), None)
    if kind == getattr(nvml, "NVML_NVLINK_DEVICE_TYPE_SWITCH", 2):
        return _SWITCH
    return str(ask(lambda: _text(nvml.nvmlDeviceGetNvLinkRemotePciInfo(device, link).busId).lower(), ""))
