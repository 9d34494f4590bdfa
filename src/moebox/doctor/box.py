"""Is the machine fit to serve: what a launch trips over, checked before one starts.

A check takes facts and returns a verdict, so a captured box can be judged anywhere; only `limits` and `memory`
ask this machine. What could not be read is said to be unknown, never passed.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from moebox.core.box import Box, Gpu, Host, Link
from moebox.units import format_gb, format_gib, plural

HostVerdict = Literal["pass", "warn", "fail", "unknown"]
GIB = 2**30

# CUDA 13 needs the R580 driver; SM120 came with R570 (CUDA toolkit release notes, table of minimum drivers).
DRIVER_CUDA_13, DRIVER_SM120 = 580, 570
# vLLM's and SGLang's ranks share buffers in /dev/shm; a container's default of 64 MiB is the usual failure.
SHM_LEAST, SHM_GOOD = 1 * GIB, 16 * GIB
FILES_LEAST, FILES_GOOD = 4096, 65536  # vLLM warns below 65,535 (system_utils.py)
PROCESSES_GOOD = 16384
DISK_GOOD = 700 * 10**9  # a native Kimi K2 checkpoint is 595 GB and needs room beside it
DISK_LEAST = 20 * 10**9
DEFAULT_SWAPPINESS = 60  # vm.swappiness as kernels come


@dataclass(frozen=True, slots=True, kw_only=True)
class UserLimits:
    """What this user may use; None is no limit."""

    files: int | None = None
    processes: int | None = None
    locked: int | None = None  # bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class PageSettings:
    """How host memory is handed out."""

    huge_total: int = 0  # pages reserved
    transparent: str = ""  # always, madvise or never
    numa_balancing: bool | None = None
    swappiness: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCheck:
    """One thing looked at."""

    name: str
    verdict: HostVerdict
    found: str
    fix: str = ""


def check_box(
    box: Box, *, limits: UserLimits | None = None, pages: PageSettings | None = None, need: int = 0
) -> list[HostCheck]:
    """Every check that applies; `need` is the bytes a download will take, where known."""
    checks = [*_gpus(box), *_links(box)]
    host = box.host
    if host:
        checks += [*_host(box, host), _disk(host, need)]
    else:
        checks.append(HostCheck(name="host", verdict="unknown", found="the box is described, not detected"))
    if limits:
        checks += _limits(limits)
    if pages:
        checks += _pages(box, pages)
    return checks


def check_this_machine(box: Box, *, need: int = 0) -> list[HostCheck]:
    """Every check of this machine, its limits and memory included: the set that `doctor box` and `run` share."""
    return check_box(box, limits=read_limits(), pages=read_page_settings(), need=need)


def _gpus(box: Box) -> Iterator[HostCheck]:
    if not box.gpus:
        yield HostCheck(
            name="gpus",
            verdict="warn",
            found="no GPU is seen",
            fix="`nvidia-smi` must list the GPUs; without one only the embedded and CPU engines run",
        )
        return
    mixed = " of different kinds; the smallest decides" if box.is_mixed else ""
    yield HostCheck(name="gpus", verdict="warn" if mixed else "pass", found=f"{plural(len(box.gpus), 'GPU')}{mixed}")
    for number, gpu in enumerate(box.gpus):
        yield from _gpu(number, gpu)


def _gpu(number: int, gpu: Gpu) -> Iterator[HostCheck]:
    if gpu.mig:
        mend = f"nvidia-smi -i {number} -mig 0"
        yield HostCheck(name=f"gpu{number} mig", verdict="fail", found="the GPU is divided (MIG)", fix=mend)
    if gpu.memory_free is not None and gpu.memory_free < 0.9 * gpu.memory:
        found = f"{format_gib(gpu.memory - gpu.memory_free)} of {format_gib(gpu.memory)} in use"
        yield HostCheck(name=f"gpu{number} memory", verdict="warn", found=found, fix="`nvidia-smi` names who holds it")
    if gpu.pcie:
        yield _slot(number, gpu.pcie.width, gpu.pcie.max_width)


def _slot(number: int, width: int, most: int) -> HostCheck:
    name, found = f"gpu{number} pcie", f"x{width} of x{most}"
    if width * 2 <= most:
        mend = (
            "reseat the GPU or riser, check the slot's bifurcation in the BIOS; all-reduce runs at the narrowest link"
        )
        return HostCheck(name=name, verdict="fail" if width <= 4 else "warn", found=found, fix=mend)
    return HostCheck(name=name, verdict="pass", found=found)


def _links(box: Box) -> Iterator[HostCheck]:
    if len(box.gpus) < 2:
        return
    asked = [link for link in box.links if link.p2p is not None]
    yield _peers(asked)
    if asked:
        yield from _far(box.links)


def _far(links: Sequence[Link]) -> Iterator[HostCheck]:
    far = sum(link.kind in ("node", "sys") for link in links)
    if far:
        found = f"{far} of {len(links)} pairs cross a CPU socket or root complex"
        yield HostCheck(
            name="topology", verdict="warn", found=found, fix="keep a tensor-parallel group on one side where it fits"
        )


def _peers(asked: list[Link]) -> HostCheck:
    if not asked:
        return HostCheck(name="p2p", verdict="unknown", found="not read from the driver")
    without = [f"{link.a}-{link.b}" for link in asked if not link.p2p]
    if not without:
        return HostCheck(name="p2p", verdict="pass", found="every pair of GPUs")
    more = " …" if len(without) > 6 else ""
    return HostCheck(
        name="p2p",
        verdict="warn",
        found=f"no peer access between {', '.join(without[:6])}{more}",
        fix="IOMMU off or passthrough, ACS off, and the driver's ForceP2P on PCIe boxes; else NCCL_P2P_DISABLE=1",
    )


def _host(box: Box, host: Host) -> Iterator[HostCheck]:
    if box.gpus:
        yield _driver(box, host.driver)
        yield from _iommu(host, several=len(box.gpus) > 1)
    yield _shm(host.shm, several=len(box.gpus) > 1)
    if "docker" in host.runtimes and box.gpus and "nvidia-ctk" not in host.runtimes:
        mend = "install the NVIDIA container toolkit"
        yield HostCheck(
            name="containers", verdict="warn", found="docker is there, the toolkit that gives it GPUs is not", fix=mend
        )


def _driver(box: Box, version: str) -> HostCheck:
    major = _leading(version)
    least = DRIVER_SM120 if any(gpu.sm.startswith("12.") for gpu in box.gpus) else 0
    if not major:
        return HostCheck(name="driver", verdict="unknown", found="its version cannot be read")
    if major < least:
        return HostCheck(name="driver", verdict="fail", found=version, fix=f"SM120 GPUs need {least} or newer")
    if major < DRIVER_CUDA_13:
        mend = f"{DRIVER_CUDA_13} or newer runs engines built with CUDA 13, as today's wheels are"
        return HostCheck(name="driver", verdict="warn", found=version, fix=mend)
    return HostCheck(name="driver", verdict="pass", found=version)


def _leading(version: str) -> int:
    """The first number of a version; 0 where it has none."""
    first = version.partition(".")[0]
    return int(first) if first.isdigit() else 0


def _iommu(host: Host, *, several: bool) -> Iterator[HostCheck]:
    if host.iommu == "on":
        mend = "boot with iommu=pt or iommu=off (amd_iommu=off): translated P2P hangs NCCL or faults"
        yield HostCheck(name="iommu", verdict="fail" if several else "warn", found="translating", fix=mend)
    elif host.iommu:
        yield HostCheck(name="iommu", verdict="pass", found=host.iommu)
    else:
        yield HostCheck(name="iommu", verdict="unknown", found="cannot be read")
    if several:
        yield _acs(host.acs)


def _acs(acs: str) -> HostCheck:
    if not acs:
        return HostCheck(name="acs", verdict="unknown", found="not readable (run `lspci` as root)")
    if not acs.startswith("on"):
        return HostCheck(name="acs", verdict="pass", found=acs)
    mend = "switch ACS off in the BIOS, or per port: setpci -s PORT ECAP_ACS+6.w=0"
    return HostCheck(name="acs", verdict="warn", found=f"{acs}: peer traffic detours through the root", fix=mend)


def _shm(size: int, *, several: bool) -> HostCheck:
    mend = "mount -o remount,size=32G /dev/shm; in containers --ipc=host or --shm-size 32g"
    least, good = (SHM_LEAST, SHM_GOOD) if several else (0, SHM_LEAST)
    return _graded("shared memory", format_gib(size), size, least, good, mend)


def _graded(name: str, found: str, size: int, least: int, good: int, mend: str) -> HostCheck:
    """Enough, too little to run well, or too little to run."""
    if size >= good:
        return HostCheck(name=name, verdict="pass", found=found)
    return HostCheck(name=name, verdict="fail" if size < least else "warn", found=found, fix=mend)


def _disk(host: Host, need: int) -> HostCheck:
    found, mend = (
        f"{format_gb(host.disk_free)} free at {host.disk_path or '?'}",
        "free space, or set HF_HOME to a larger disk",
    )
    if host.disk_free < max(need, DISK_LEAST):
        return HostCheck(name="disk", verdict="fail", found=found, fix=mend)
    if not need and host.disk_free < DISK_GOOD:
        return HostCheck(
            name="disk", verdict="warn", found=found, fix=f"a native Kimi K2 checkpoint takes 595 GB: {mend}"
        )
    return HostCheck(name="disk", verdict="pass", found=found)


def _limits(limits: UserLimits) -> Iterator[HostCheck]:
    yield _limit(
        "open files", limits.files, FILES_LEAST, FILES_GOOD, "ulimit -n 65536 (containers: --ulimit nofile=65536)"
    )
    yield _limit("processes", limits.processes, 1024, PROCESSES_GOOD, "ulimit -u 65536 (containers: --pids-limit -1)")
    if limits.locked is not None:
        mend = "ulimit -l unlimited (containers: --ulimit memlock=-1) for mlock, RDMA and pinned buffers"
        yield HostCheck(name="locked memory", verdict="warn", found=format_gib(limits.locked), fix=mend)
    else:
        yield HostCheck(name="locked memory", verdict="pass", found="no limit")


def _limit(name: str, here: int | None, least: int, good: int, mend: str) -> HostCheck:
    if here is None:
        return HostCheck(name=name, verdict="pass", found="no limit")
    return _graded(name, f"{here:,}", here, least, good, mend)


HUGE_PAGES = "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled: experts in RAM stream faster from huge pages"
NUMA = "sysctl kernel.numa_balancing=0, and --numa distribute (or one node per process) for CPU+GPU engines"


def _good_or(name: str, found: str, mend: str) -> HostCheck:
    """A warning where there is something to mend."""
    return HostCheck(name=name, verdict="warn" if mend else "pass", found=found, fix=mend)


def _pages(box: Box, pages: PageSettings) -> Iterator[HostCheck]:
    """For engines that keep experts in RAM."""
    if pages.transparent:
        yield _huge_pages(pages)
    if box.cpu.numa_nodes > 1:
        balancing, mend = ("on", NUMA) if pages.numa_balancing else ("off", "")
        yield _good_or("numa", f"{box.cpu.numa_nodes} nodes, balancing {balancing}", mend)
    if pages.swappiness is not None and pages.swappiness > DEFAULT_SWAPPINESS:
        mend = "sysctl vm.swappiness=10: a mapped checkpoint makes the kernel swap out everything else"
        yield HostCheck(name="swap", verdict="warn", found=f"swappiness {pages.swappiness}", fix=mend)


def _huge_pages(pages: PageSettings) -> HostCheck:
    found = f"transparent: {pages.transparent}; {pages.huge_total} reserved"
    return _good_or("huge pages", found, HUGE_PAGES if pages.transparent == "never" else "")


def read_limits() -> UserLimits:
    """This process's limits."""
    import resource

    def soft(kind: int) -> int | None:
        value = resource.getrlimit(kind)[0]
        return None if value == resource.RLIM_INFINITY else value

    return UserLimits(
        files=soft(resource.RLIMIT_NOFILE), processes=soft(resource.RLIMIT_NPROC), locked=soft(resource.RLIMIT_MEMLOCK)
    )


def read_page_settings() -> PageSettings:
    """This machine's page settings; what cannot be read stays unknown."""
    chosen = re.search(r"\[(\w+)\]", _read("/sys/kernel/mm/transparent_hugepage/enabled"))
    huge = re.search(r"^HugePages_Total:\s*(\d+)", _read("/proc/meminfo"), re.MULTILINE)
    balancing = _setting("kernel/numa_balancing")
    return PageSettings(
        huge_total=int(huge[1]) if huge else 0,
        transparent=chosen[1] if chosen else "",
        numa_balancing=None if balancing is None else balancing != 0,
        swappiness=_setting("vm/swappiness"),
    )


def _setting(name: str) -> int | None:
    """A number that sysctl shows; None where it cannot be read."""
    text = _read(f"/proc/sys/{name}")
    return int(text) if text.isdigit() else None


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except OSError:
        return ""
