"""CPU, memory, disks, IOMMU, container runtimes and engines of this machine, from /proc, /sys and PATH.

Nothing here needs root; what cannot be read stays empty.
"""

import platform
import re
import shutil
import subprocess
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

import psutil

from moebox.core import registry
from moebox.core.box import CPU_FEATURES, EMBEDDED, Cpu, Host
from moebox.detect.limits import allowed_cpus, count_cores, cpu_quota
from moebox.environment import chosen_environment
from moebox.hub.client import hub_cache

BIOS_PARTS = ("vendor", "version", "date")
_RUNTIMES = ("docker", "podman", "nvidia-ctk")
_VERSION = re.compile(r"\d+(?:\.\d+)+|\bb?\d{4,}\b")
_BUSY_INTERVAL_S = 0.4
_PROGRAM_S = 10.0  # time for a program to print its version


def detect_cpu() -> Cpu:
    info = read_kernel_file("/proc/cpuinfo")
    names = set(re.findall(r"^model name\s*:\s*(.+?)\s*$", info, re.MULTILINE))
    sockets = len(set(re.findall(r"^physical id\s*:\s*(\d+)$", info, re.MULTILINE)))
    cpus = allowed_cpus()
    quota = cpu_quota() or len(cpus)
    name, listed_sockets = (next(iter(names)), 1) if names else parse_lscpu(run_program(["lscpu"])[0])
    return Cpu(
        model=name or platform.processor() or platform.machine(),
        sockets=sockets or listed_sockets,
        cores=min(count_cores(cpus), quota),
        threads=min(len(cpus), quota),
        numa_nodes=len(list(Path("/sys/devices/system/node").glob("node[0-9]*"))) or 1,
        features=tuple(name for name in CPU_FEATURES if re.search(rf"^flags\s*:.*\b{name}\b", info, re.MULTILINE)),
    )


def parse_lscpu(output: str) -> tuple[str, int]:
    """Return name and sockets on Arm, where /proc/cpuinfo has numbers only; several kinds of cores are joined."""
    names = dict.fromkeys(re.findall(r"^Model name:\s*(\S.*?)\s*$", output, re.MULTILINE))
    sockets = [*map(int, re.findall(r"^Socket\(s\):\s*(\d+)$", output, re.MULTILINE))]
    return " + ".join(names), max(sockets, default=1)


def cpu_busy_share() -> float:
    """The share of our cores in use now; a load average would include the last minute."""
    shares = psutil.cpu_percent(interval=_BUSY_INTERVAL_S, percpu=True)
    ours = [shares[cpu] for cpu in allowed_cpus() if cpu < len(shares)] or shares
    return sum(ours) / len(ours) / 100


def detect_host(*, driver: str = "", cuda: str = "") -> Host:
    """Detect software and settings that decide whether a launch works."""
    models = hub_cache()
    # Whether PCIe bridges redirect peer traffic; nothing without lspci or permission to read it
    acs = re.findall(r"ACSCtl:.*?SrcValid([+-])", run_program(["lspci", "-vvv"])[0])
    try:
        shm = shutil.disk_usage("/dev/shm").total  # noqa: S108  (only its size is read)
    except OSError:
        shm = 0
    return Host(
        system=f"{platform.system()} {platform.release()}",
        bios=" ".join(read_kernel_file(f"/sys/class/dmi/id/bios_{part}").strip() for part in BIOS_PARTS).strip(),
        driver=driver,
        cuda=cuda,
        iommu=iommu_state(),
        acs="on" if "+" in acs else "off" if acs else "",
        shm=shm,
        disk_free=shutil.disk_usage(nearest_existing(models)).free,
        disk_path=str(models),
        runtimes={name: program_version([name, "--version"]) for name in _RUNTIMES if shutil.which(name)},
        engines=installed_engines(),
        python=platform.python_version(),
    )


def nearest_existing(path: Path) -> Path:
    """Return `path`, or the nearest folder above it that exists."""
    while not path.exists() and path != path.parent:
        path = path.parent
    return path


def iommu_state() -> str:
    """Return "off", "passthrough", "on", or "" if it cannot be read."""
    try:
        active = any(Path("/sys/kernel/iommu_groups").iterdir())
    except OSError:
        return ""
    if not active:
        return "off"
    return "passthrough" if "iommu=pt" in read_kernel_file("/proc/cmdline") else "on"


def installed_engines() -> dict[str, str]:
    """Versions of the engines installed here, as Python distributions or as programs on PATH."""
    found: dict[str, str] = {}
    for traits in registry.all_traits():
        for package in filter(None, (traits.package, *traits.packages)):
            try:
                version = metadata.version(package)
            except metadata.PackageNotFoundError:
                continue
            found[f"{traits.name}{EMBEDDED}" if traits.embedded else traits.name] = version
            break
    for traits in registry.all_traits():  # slower: vLLM's program imports for seconds
        if traits.name not in found and traits.program and shutil.which(traits.program[0]):
            found[traits.name] = program_version([*traits.program, "--version"])
    return found


def program_version(command: list[str]) -> str:
    """The version that a program prints, "found" if it prints none."""
    match = _VERSION.search("".join(run_program(command)))
    return match.group(0) if match else "found"


def run_program(command: Sequence[str], *, seconds: float = _PROGRAM_S) -> tuple[str, str]:
    """Run a program in English and return its stdout and stderr; both empty if it cannot be run."""
    environment = chosen_environment({"LC_ALL": "C"})
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False, env=environment)
    except (OSError, subprocess.TimeoutExpired):
        return "", ""
    return done.stdout, done.stderr


def read_kernel_file(path: str) -> str:
    """Read a file below /proc or /sys; "" if it cannot be read."""
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""
