"""What this process may use of the machine: CPUs by affinity and quota, memory by control group.

A container or a Slurm job sees the whole machine in /proc, but the kernel gives it less. moebox plans and judges with
what it really gets.
"""

import contextlib
import math
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import psutil

GROUPS = Path("/sys/fs/cgroup")
OWN_GROUPS = Path("/proc/self/cgroup")


@dataclass(frozen=True, slots=True)
class MemoryShare:
    """RAM in bytes that this process can have, and what is free of it."""

    total: int
    available: int


def allowed_cpus(pids: Iterable[int] = ()) -> frozenset[int]:
    """The CPUs on which this process or one of `pids` may run."""
    allowed = set(os.sched_getaffinity(0))
    for pid in pids:
        with contextlib.suppress(OSError):  # it ended, or belongs to another user
            allowed |= os.sched_getaffinity(pid)
    return frozenset(allowed)


def count_cores(cpus: frozenset[int], topology: Path = Path("/sys/devices/system/cpu")) -> int:
    """The number of physical cores behind these CPUs; hyperthreads of one core count once."""
    cores = set()
    for cpu in cpus:
        try:
            cores.add((topology / f"cpu{cpu}" / "topology" / "thread_siblings_list").read_text())
        except OSError:  # no such file on this system
            return min(psutil.cpu_count(logical=False) or len(cpus), len(cpus))
    return len(cores)


def cpu_quota(groups: Path = GROUPS, own: Path = OWN_GROUPS) -> int | None:
    """The number of CPUs' worth of time that the control group gets, rounded up; None without a limit."""
    shares = []
    for folder in _group_folders(groups, own):
        with contextlib.suppress(OSError, ValueError, ZeroDivisionError):
            if (folder / "cpu.max").exists():
                quota, period = (folder / "cpu.max").read_text().split()
            else:
                quota = (folder / "cpu.cfs_quota_us").read_text()
                period = (folder / "cpu.cfs_period_us").read_text()
            if int(quota) > 0:
                shares.append(math.ceil(int(quota) / int(period)))
    return min(shares, default=None)


def memory_share(groups: Path = GROUPS, own: Path = OWN_GROUPS) -> MemoryShare:
    """The machine's memory, or less if a control group limits it; pages of files count as free, as in /proc/meminfo."""
    machine = psutil.virtual_memory()
    total, available = machine.total, machine.available
    for folder in _group_folders(groups, own):
        with contextlib.suppress(OSError, ValueError):
            version_2 = (folder / "memory.max").exists()
            limit = int((folder / ("memory.max" if version_2 else "memory.limit_in_bytes")).read_text())
            used = int((folder / ("memory.current" if version_2 else "memory.usage_in_bytes")).read_text())
            name = "inactive_file" if version_2 else "total_inactive_file"
            stat = dict(map(str.split, (folder / "memory.stat").read_text().splitlines()))
            used -= int(stat.get(name, 0))
            total, available = min(total, limit), min(available, max(limit - used, 0))
    return MemoryShare(total, available)


def _group_folders(groups: Path, own: Path) -> list[Path]:
    """The folders of this process's control groups and of their parents, in version 2 and 1."""
    folders = []
    with contextlib.suppress(OSError, ValueError):
        for line in own.read_text().splitlines():
            _, controllers, inside = line.split(":", 2)
            for name in controllers.split(",") if controllers else ["."]:
                if name in (".", "memory", "cpu"):
                    root = groups / name
                    path = root / inside.strip("/")
                    folders += [folder for folder in (path, *path.parents) if folder.is_relative_to(root)]
    return list(dict.fromkeys(folders))
