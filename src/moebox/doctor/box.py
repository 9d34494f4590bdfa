"""Check that the machine is fit to serve, before an engine is started, and compare it with an earlier capture of it.

A check takes facts and returns a verdict, so that a saved box can be checked anywhere; only `read_settings`
reads this machine. What could not be read is "unknown", never "pass".
"""

import math
import os
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
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
PROCESSES_LEAST, PROCESSES_GOOD = 1024, 16384
DISK_GOOD = 700 * 10**9  # a native Kimi K2 checkpoint is 595 GB and needs space beside it
DISK_LEAST = 20 * 10**9
DEFAULT_SWAPPINESS = 60  # the kernel's default of vm.swappiness

NARROW_SLOT = "reseat the GPU or riser, check the slot's bifurcation in the BIOS"
PEER_ACCESS = "IOMMU off or passthrough, ACS off, and the driver's ForceP2P on PCIe boxes; else NCCL_P2P_DISABLE=1"
HUGE_PAGES = "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled: experts in RAM stream faster from huge pages"
NUMA = "sysctl kernel.numa_balancing=0, and --numa distribute (or one node per process) for CPU+GPU engines"
MEMORY_NOISE = 0.02  # of RAM or GPU memory that firmware and drivers reserve differently
Change = tuple[str, str, str, str]  # name, before, now, what to do if it is worse


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelSettings:
    """Resource limits of this user, None is no limit, and settings of the kernel's memory management."""

    files: int | None = None
    processes: int | None = None
    locked: int | None = None  # bytes
    huge_total: int = 0  # pages reserved
    transparent: str = ""  # always, madvise or never
    numa_balancing: bool | None = None
    swappiness: int | None = None


@dataclass(frozen=True, slots=True)
class HostCheck:
    name: str
    verdict: HostVerdict
    found: str
    fix: str = ""
    expected: str = ""  # of a test: the value that this box should reach, with the reason


def check_box(box: Box, *, settings: KernelSettings | None = None, need: int = 0) -> list[HostCheck]:
    """Run every check that applies; `need` is the bytes of a download, if known."""
    checks = [*_check_gpus(box), *_check_links(box)]
    if box.host:
        checks += _check_host(box, box.host, need)
    else:
        checks.append(HostCheck("host", "unknown", "the box is declared, not detected"))
    for number, check in enumerate(checks):
        if box.source == "declared" and check.verdict == "pass":
            checks[number] = replace(check, verdict="unknown", found=f"{check.found}: declared, not read")
    return [*checks, *_check_settings(box, settings)] if settings else checks


def check_this_machine(box: Box, *, need: int = 0, folders: Sequence[Path] = ()) -> list[HostCheck]:
    """Run every check on this machine, for `doctor box` and `run`; `folders` should be closed to other users."""
    checks = check_box(box, settings=read_settings(), need=need)
    return [*checks, *(check for folder in folders for check in _check_private(folder))]


def _warn_if(name: str, found: str, fix: str) -> HostCheck:
    """A warning if there is something to fix."""
    return HostCheck(name, "warn" if fix else "pass", found, fix=fix)


def _compare(name: str, size: int | None, least: int, good: float, fix: str, *, found: str = "") -> HostCheck:
    """Pass from `good` on and without a limit, fail below `least`, warn between."""
    if size is None:
        return HostCheck(name, "pass", "no limit")
    verdict: HostVerdict = "pass" if size >= good else "fail" if size < least else "warn"
    return HostCheck(name, verdict, found or f"{size:,}", fix="" if size >= good else fix)


def _check_gpus(box: Box) -> Iterator[HostCheck]:
    if not box.gpus:
        fix = "`nvidia-smi` must list the GPUs; without one only the embedded and CPU engines run"
        yield HostCheck("gpus", "warn", "no GPU found", fix=fix)
        return
    mixed = " of different kinds; the smallest decides" if box.is_mixed else ""
    yield HostCheck("gpus", "warn" if mixed else "pass", f"{plural(len(box.gpus), 'GPU')}{mixed}")
    for number, gpu in enumerate(box.gpus):
        if gpu.mig:
            fix = f"nvidia-smi -i {number} -mig 0"
            yield HostCheck(f"gpu{number} mig", "fail", "the GPU is divided (MIG)", fix=fix)
        if gpu.memory_free is not None and gpu.memory_free < 0.9 * gpu.memory:
            found = f"{format_gib(gpu.memory - gpu.memory_free)} of {format_gib(gpu.memory)} in use"
            fix = "`nvidia-smi` lists the processes that use it"
            yield HostCheck(f"gpu{number} memory", "warn", found, fix=fix)
        if gpu.pcie:
            width, most = gpu.pcie.width, gpu.pcie.max_width
            narrow = width * 2 <= most
            verdict: HostVerdict = "pass" if not narrow else "fail" if width <= 4 else "warn"
            fix = f"{NARROW_SLOT}; all-reduce runs at the narrowest link" if narrow else ""
            yield HostCheck(f"gpu{number} pcie", verdict, f"x{width} of x{most}", fix=fix)


def _check_links(box: Box) -> Iterator[HostCheck]:
    if len(box.gpus) < 2:
        return
    known = [link for link in box.links if link.p2p is not None]
    if not known:
        yield HostCheck("p2p", "unknown", "not read from the driver")
        return
    without = [f"{link.a}-{link.b}" for link in known if not link.p2p]
    more = " …" if len(without) > 6 else ""
    found = f"no peer access between {', '.join(without[:6])}{more}" if without else "every pair of GPUs"
    yield _warn_if("p2p", found, PEER_ACCESS if without else "")
    far = sum(link.kind in ("node", "sys") for link in box.links)
    if far:
        found = f"{far} of {len(box.links)} pairs cross a CPU socket or root complex"
        yield _warn_if("topology", found, "keep a tensor-parallel group on one side if it fits")


def _check_host(box: Box, host: Host, need: int) -> Iterator[HostCheck]:
    several = len(box.gpus) > 1
    if box.gpus:
        yield _check_driver(box, host.driver)
        if host.iommu == "on":
            fix = "boot with iommu=pt or iommu=off (amd_iommu=off): translated P2P hangs NCCL or faults"
            yield HostCheck("iommu", "fail" if several else "warn", "translating", fix=fix)
        else:
            yield HostCheck("iommu", "pass" if host.iommu else "unknown", host.iommu or "cannot be read")
    if several and host.acs.startswith("on"):
        fix = "switch ACS off in the BIOS, or per port: setpci -s PORT ECAP_ACS+6.w=0"
        yield _warn_if("acs", f"{host.acs}: peer traffic detours through the root", fix)
    elif several:
        verdict: HostVerdict = "pass" if host.acs else "unknown"
        yield HostCheck("acs", verdict, host.acs or "not readable (run `lspci` as root)")
    fix = "mount -o remount,size=32G /dev/shm; in containers --ipc=host or --shm-size 32g"
    least, good = (SHM_LEAST, SHM_GOOD) if several else (0, SHM_LEAST)
    yield _compare("shared memory", host.shm, least, good, fix, found=format_gib(host.shm))
    if "docker" in host.runtimes and box.gpus and "nvidia-ctk" not in host.runtimes:
        found = "docker is installed, the toolkit that gives it GPUs is not"
        yield _warn_if("containers", found, "install the NVIDIA container toolkit")
    fix = "free space, or set HF_HOME to a larger disk"
    if not need and DISK_LEAST <= host.disk_free < DISK_GOOD:
        fix = f"a native Kimi K2 checkpoint takes 595 GB: {fix}"
    least, found = max(need, DISK_LEAST), f"{format_gb(host.disk_free)} free at {host.disk_path or '?'}"
    yield _compare("disk", host.disk_free, least, least if need else DISK_GOOD, fix, found=found)


def _check_driver(box: Box, version: str) -> HostCheck:
    first = version.partition(".")[0]
    major = int(first) if first.isdigit() else 0
    least = DRIVER_SM120 if any(gpu.sm.startswith("12.") for gpu in box.gpus) else 0
    if not major:
        return HostCheck("driver", "unknown", "its version cannot be read")
    if major < least:
        return HostCheck("driver", "fail", version, fix=f"SM120 GPUs need {least} or newer")
    old = f"{DRIVER_CUDA_13} or newer runs engines built with CUDA 13, as today's wheels are"
    return _warn_if("driver", version, old if major < DRIVER_CUDA_13 else "")


def _check_settings(box: Box, kernel: KernelSettings) -> Iterator[HostCheck]:
    fix = "ulimit -n 65536 (containers: --ulimit nofile=65536)"
    yield _compare("open files", kernel.files, FILES_LEAST, FILES_GOOD, fix)
    fix = "ulimit -u 65536 (containers: --pids-limit -1)"
    yield _compare("processes", kernel.processes, PROCESSES_LEAST, PROCESSES_GOOD, fix)
    fix = "ulimit -l unlimited (containers: --ulimit memlock=-1) for mlock, RDMA and pinned buffers"
    yield _compare("locked memory", kernel.locked, 0, math.inf, fix, found=format_gib(kernel.locked or 0))
    # For engines that keep experts in RAM.
    if kernel.transparent:
        found = f"transparent: {kernel.transparent}; {kernel.huge_total} reserved"
        yield _warn_if("huge pages", found, HUGE_PAGES if kernel.transparent == "never" else "")
    if box.cpu.numa_nodes > 1:
        balancing, fix = ("on", NUMA) if kernel.numa_balancing else ("off", "")
        yield _warn_if("numa", f"{box.cpu.numa_nodes} nodes, balancing {balancing}", fix)
    if kernel.swappiness is not None and kernel.swappiness > DEFAULT_SWAPPINESS:
        fix = "sysctl vm.swappiness=10: a mapped checkpoint makes the kernel swap out everything else"
        yield _warn_if("swap", f"swappiness {kernel.swappiness}", fix)


def _check_private(folder: Path) -> Iterator[HostCheck]:
    """Warn about entries of a folder that other users may read. Nothing if it does not exist."""
    try:
        entries = [entry for entry in os.scandir(folder) if not entry.is_symlink()]
        enclosing = (folder.stat().st_mode, folder.parent.stat().st_mode)
        shared = [entry.name for entry in entries if entry.stat().st_mode & 0o077]
    except OSError:
        return
    if all(mode & 0o077 for mode in enclosing) and shared:
        found = f"{folder}: other users may read {len(shared)} of the {len(entries)} in it"
        yield _warn_if("privacy", found, f"chmod -R go-rwx {shlex.quote(str(folder))}")
    else:
        yield HostCheck("privacy", "pass", f"{folder}: closed to other users")


def read_settings() -> KernelSettings:
    """Read this machine's settings; what cannot be read stays unknown."""
    import resource

    def soft_limit(kind: int) -> int | None:
        value = resource.getrlimit(kind)[0]
        return None if value == resource.RLIM_INFINITY else value

    def read(path: str) -> str:
        try:
            return Path(path).read_text(encoding="utf-8").strip()
        except OSError:
            return ""

    chosen = re.search(r"\[(\w+)\]", read("/sys/kernel/mm/transparent_hugepage/enabled"))
    huge = re.search(r"^HugePages_Total:\s*(\d+)", read("/proc/meminfo"), re.MULTILINE)
    balancing, swappiness = read("/proc/sys/kernel/numa_balancing"), read("/proc/sys/vm/swappiness")
    return KernelSettings(
        files=soft_limit(resource.RLIMIT_NOFILE),
        processes=soft_limit(resource.RLIMIT_NPROC),
        locked=soft_limit(resource.RLIMIT_MEMLOCK),
        huge_total=int(huge[1]) if huge else 0,
        transparent=chosen[1] if chosen else "",
        numa_balancing=balancing != "0" if balancing.isdigit() else None,
        swappiness=int(swappiness) if swappiness.isdigit() else None,
    )


def compare_boxes(box: Box, old: Box) -> list[HostCheck]:
    """Name every change between values that are known in both; warn of those that usually cost speed or stability."""
    changes = [*_host_changes(box.host or Host(), old.host or Host()), ("cpu", old.cpu.model, box.cpu.model, "")]
    if abs(box.ram - old.ram) > MEMORY_NOISE * old.ram:
        fix = "a module or channel is gone: dmidecode -t memory" * (box.ram < old.ram)
        changes.append(("ram", format_gib(old.ram), format_gib(box.ram), fix))
    lost = "`nvidia-smi` must list them all; look for Xid 79 (fallen off the bus) in dmesg"
    changes.append(("gpus", str(len(old.gpus)), str(len(box.gpus)), lost * (len(box.gpus) < len(old.gpus))))
    for number, (before, now) in enumerate(zip(old.gpus, box.gpus, strict=False)):
        changes += _gpu_changes(number, before, now)
    pairs = old.links_by_pair
    for link in box.links:
        if before_link := pairs.get((link.a, link.b)):
            fix = "peer access is gone: BIOS (ACS, IOMMU) or driver" if before_link.p2p and link.p2p is False else ""
            changes.append((f"gpu{link.a}-gpu{link.b}", _link_text(before_link), _link_text(link), fix))
    checks = [
        HostCheck(name, "warn" if fix else "pass", f"{before} before, {now} now", fix=fix)
        for name, before, now, fix in changes
        if before and now and before != now
    ]
    return checks or [HostCheck("changes", "pass", f"none since the capture of {old.name}")]


def _link_text(link: Link) -> str:
    return f"{link.kind}, {link.lanes or 'no'} NVLinks, peer access {link.p2p}"


def _host_changes(now: Host, before: Host) -> Iterator[Change]:
    yield "driver", before.driver, now.driver, "rehearse and verify again: kernels and P2P depend on it"
    yield "cuda", before.cuda, now.cuda, ""
    yield "kernel", before.system, now.system, "IOMMU and P2P defaults may differ: --test shows it"
    bios = "check ACS, IOMMU, Above 4G, bifurcation and memory speed: updates reset them"
    yield "bios", before.bios, now.bios, bios
    yield "iommu", before.iommu, now.iommu, "boot with iommu=pt or iommu=off" if now.iommu == "on" else ""
    yield "acs", before.acs, now.acs, "switch ACS off in the BIOS" if now.acs.startswith("on") else ""
    for name in sorted(before.engines.keys() | now.engines.keys()):
        yield name, before.engines.get(name, "not installed"), now.engines.get(name, "not installed"), ""


def _gpu_changes(number: int, before: Gpu, now: Gpu) -> Iterator[Change]:
    name = f"gpu{number}"
    yield name, before.title, now.title, "another GPU, or another order of them"
    if now.title != before.title:
        return
    if now.pcie and before.pcie:
        lanes = [f"x{slot.width}, at most {slot.max_generation}.0" for slot in (before.pcie, now.pcie)]
        worse = (now.pcie.width, now.pcie.max_generation) < (before.pcie.width, before.pcie.max_generation)
        yield f"{name} lanes", lanes[0], lanes[1], NARROW_SLOT if worse else ""
    if before.max_clock and now.max_clock:
        fix = "nvidia-smi -rgc, and look for clocks that were locked" * (now.max_clock < before.max_clock)
        yield f"{name} clocks", f"{before.max_clock} MHz", f"{now.max_clock} MHz", fix
    if before.power_limit and now.power_limit:
        fix = f"nvidia-smi -i {number} -pl {before.power_limit}" * (now.power_limit < before.power_limit)
        yield f"{name} power", f"{before.power_limit} W", f"{now.power_limit} W", fix
    if abs(now.memory - before.memory) > MEMORY_NOISE * before.memory:
        yield f"{name} memory", format_gib(before.memory), format_gib(now.memory), "ECC or MIG mode"
