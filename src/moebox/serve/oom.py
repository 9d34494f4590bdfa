"""Count the kernel's out-of-memory kills.

The guard uses this module, so it imports little. The counter of a control group is preferred, because the machine's
also rises when an unrelated process is killed.
"""

import contextlib
from pathlib import Path

MACHINE = "/proc/vmstat"
GROUPS = "/sys/fs/cgroup"
NAME = "oom_kill"  # in cgroup v2's memory.events, v1's memory.oom_control and vmstat alike


def oom_counter_files() -> list[str]:
    """The counters of this process's control group, or the machine's if it has none."""
    places: list[Path] = []
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            inside = path.lstrip("/")
            if not controllers:
                places += [Path(GROUPS, inside, "memory.events"), Path(GROUPS, "memory.events")]
            elif "memory" in controllers.split(","):
                # a container often sees its own group as the root
                places += [Path(GROUPS, "memory", inside, "memory.oom_control")]
                places += [Path(GROUPS, "memory", "memory.oom_control")]
    return [str(path) for path in places if _read_counter(path) is not None] or [MACHINE]


def count_oom_kills(files: list[str]) -> int:
    return sum(_read_counter(Path(name)) or 0 for name in files)


def _read_counter(path: Path) -> int | None:
    with contextlib.suppress(OSError, ValueError):
        for line in path.read_text().splitlines():
            name, _, value = line.partition(" ")
            if name == NAME:
                return int(value)
    return None
