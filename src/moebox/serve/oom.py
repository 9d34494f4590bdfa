"""Whether the kernel ended a process for want of memory: counters that rise with every such kill.

Read by the guard, so nothing is imported that it does not need. A control group's own counter is preferred, because the
machine's also rises when somebody else's process is ended.
"""

import contextlib
from pathlib import Path

MACHINE = "/proc/vmstat"
GROUPS = "/sys/fs/cgroup"
NAME = "oom_kill"  # in cgroup v2's memory.events, v1's memory.oom_control and vmstat alike


def oom_counter_files() -> list[str]:
    """The files to watch: those of this process's control group, or the machine's where it has none."""
    found = [str(path) for path in _of_group() if _read(path) is not None]
    return found or [MACHINE]


def _of_group() -> list[Path]:
    places: list[Path] = []
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            inside = path.lstrip("/")
            if not controllers:
                places += [Path(GROUPS, inside, "memory.events"), Path(GROUPS, "memory.events")]
            elif "memory" in controllers.split(","):
                # a container often sees its own group as the root of the hierarchy
                places += [Path(GROUPS, "memory", inside, "memory.oom_control")]
                places += [Path(GROUPS, "memory", "memory.oom_control")]
    return places


def count_oom_kills(files: list[str]) -> int:
    """How often the kernel has killed, by all of these files together."""
    return sum(_read(Path(name)) or 0 for name in files)


def _read(path: Path) -> int | None:
    with contextlib.suppress(OSError, ValueError):
        for line in path.read_text().splitlines():
            name, _, value = line.partition(" ")
            if name == NAME:
                return int(value)
    return None
