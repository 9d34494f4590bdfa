"""CPU, memory, disks, IOMMU, container runtimes and engines of this machine, from /proc, /sys and PATH.

Nothing here needs root; what cannot be read is left empty.
"""

import os
import platform
import re
import shutil
import subprocess
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

import psutil

from moebox import files
from moebox.core import registry
from moebox.core.box import Cpu, Host
from moebox.core.traits import Traits

_RUNTIMES = {name: [name, "--version"] for name in ("docker", "podman", "nvidia-ctk")}
_VERSION = re.compile(r"\d+(?:\.\d+)+|\bb?\d{4,}\b")
_LOOK_S = 0.4
_SECONDS = 10.0  # for a program to say its version; vLLM imports for seconds, so its binary is asked last


def detect_cpu() -> Cpu:
    """The processors."""
    model, sockets = _package(read_kernel_file("/proc/cpuinfo"))
    return Cpu(
        model=model or platform.processor() or platform.machine(),
        sockets=sockets,
        cores=psutil.cpu_count(logical=False) or 0,
        threads=psutil.cpu_count() or 0,
        numa_nodes=len(list(Path("/sys/devices/system/node").glob("node[0-9]*"))) or 1,
    )


def _package(cpuinfo: str) -> tuple[str, int]:
    """Name and sockets."""
    named = set(re.findall(r"^model name\s*:\s*(.+?)\s*$", cpuinfo, re.MULTILINE))
    sockets = len(set(re.findall(r"^physical id\s*:\s*(\d+)$", cpuinfo, re.MULTILINE)))
    model, counted = (next(iter(named)), 1) if named else parse_lscpu(program_output(["lscpu"]))
    return model, sockets or counted


def parse_lscpu(output: str) -> tuple[str, int]:
    """Name and sockets where the kernel gives numbers alone, on Arm; kinds of cores in one package are joined."""
    names = dict.fromkeys(re.findall(r"^Model name:\s*(\S.*?)\s*$", output, re.MULTILINE))
    sockets = [int(count) for count in re.findall(r"^Socket\(s\):\s*(\d+)$", output, re.MULTILINE)]
    return " + ".join(names), max(sockets, default=1)


def cpu_busy_share() -> float:
    """What share of the cores is in use just now; a load average would remember the last minute."""
    return psutil.cpu_percent(interval=_LOOK_S) / 100


def detect_host(*, driver: str = "", cuda: str = "") -> Host:
    """What else decides whether a launch works."""
    models = models_dir()
    return Host(
        system=f"{platform.system()} {platform.release()}",
        driver=driver,
        cuda=cuda,
        iommu=iommu_state(),
        acs=acs_state(),
        shm=_size(Path("/dev/shm")),  # noqa: S108  (asked for its size only)
        disk_free=shutil.disk_usage(nearest_existing(models)).free,
        disk_path=str(models),
        runtimes={name: program_version(command) for name, command in _RUNTIMES.items() if shutil.which(command[0])},
        engines=installed_engines(),
        python=platform.python_version(),
    )


def models_dir() -> Path:
    """Where downloads of weights go: the Hub's cache, as huggingface_hub finds it."""
    home = os.environ.get("HF_HOME") or files.cache_home() / "huggingface"
    return Path(os.environ.get("HF_HUB_CACHE") or os.path.join(home, "hub")).expanduser()


def nearest_existing(path: Path) -> Path:
    """`path`, or the nearest folder above it that exists."""
    while not path.exists() and path != path.parent:
        path = path.parent
    return path


def iommu_state() -> str:
    """ "off", "passthrough" or "on", as the kernel runs it; "" when it cannot be told."""
    command = read_kernel_file("/proc/cmdline")
    try:
        active = any(Path("/sys/kernel/iommu_groups").iterdir())
    except OSError:
        return ""
    if not active:
        return "off"
    return "passthrough" if "iommu=pt" in command else "on"


def acs_state() -> str:
    """Whether a PCIe bridge redirects peer traffic: "on", "off", or "" without lspci or the right to see it."""
    control = re.findall(r"ACSCtl:.*?SrcValid([+-])", run_program(["lspci", "-vvv"])[0])
    if not control:
        return ""
    return "on" if "+" in control else "off"


def installed_engines() -> dict[str, str]:
    """Engines that are installed here, with their versions."""
    found: dict[str, str] = {}
    for traits in registry.all_traits():
        found |= _packaged(traits)
    for traits in registry.all_traits():
        if traits.name not in found:
            found |= _on_path(traits)
    return found


def _packaged(traits: Traits) -> dict[str, str]:
    """The engine's version as a Python distribution, where it is installed as one."""
    name = f"{traits.name} (embedded)" if traits.embedded else traits.name
    number = next(filter(None, map(_distribution, (traits.package, *traits.packages))), "")
    return {name: number} if number else {}


def _on_path(traits: Traits) -> dict[str, str]:
    """The engine's version as its program tells it, where that is on PATH."""
    if not traits.program or not shutil.which(traits.program[0]):
        return {}
    return {traits.name: program_version([*traits.program, "--version"])}


def _distribution(package: str) -> str:
    """The version of an installed Python distribution, or ""."""
    try:
        return metadata.version(package) if package else ""
    except metadata.PackageNotFoundError:
        return ""


def program_version(command: list[str]) -> str:
    """The version a program prints about itself; "found" when it says none."""
    match = _VERSION.search(program_output(command))
    return match.group(0) if match else "found"


def program_output(command: list[str]) -> str:
    """All that a program prints."""
    return "".join(run_program(command))


def run_program(command: Sequence[str], *, seconds: float = _SECONDS) -> tuple[str, str]:
    """What a program prints and what it complains of, in English; nothing where it cannot be asked."""
    plain = {**os.environ, "LC_ALL": "C"}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False, env=plain)
    except (OSError, subprocess.TimeoutExpired):
        return "", ""
    return done.stdout, done.stderr


def read_kernel_file(path: str) -> str:
    """A file of the kernel's; nothing where it cannot be read."""
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""


def _size(path: Path) -> int:
    try:
        stats = os.statvfs(path)
    except OSError:
        return 0
    return stats.f_frsize * stats.f_blocks
