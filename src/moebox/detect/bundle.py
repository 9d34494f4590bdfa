"""The capture bundle: what this machine is, as a folder to attach to a bug report.

    gpu-info.txt  gpu-topology.txt  nvidia-smi-full.txt  cpu-info.txt  memory-info.txt  python-packages.txt  box.toml

User names, host names, serial numbers and UUIDs are left out.
"""

import contextlib
import getpass
import os
import platform
import re
import socket
from importlib import metadata
from pathlib import Path

from moebox import codec, files
from moebox.core.box import Box, Host, Pcie
from moebox.detect import host as hosts
from moebox.units import format_gib

_SECRET_LINE = re.compile(
    r"^\s*(serial|gpu uuid|board id|vbios|minor number|product part|host).*$", re.IGNORECASE | re.M
)
_UUID = re.compile(r"\b(?:GPU-|MIG-)?[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}\b", re.IGNORECASE)
_MAC = re.compile(r"\b(?:[0-9a-f]{2}:){5}[0-9a-f]{2}\b", re.IGNORECASE)


def save_bundle(box: Box, folder: Path) -> list[Path]:
    """Write the bundle and return its files."""
    texts = {
        "gpu-info.txt": gpu_text(box),
        "gpu-topology.txt": _run("nvidia-smi", "topo", "-m") or link_text(box),
        "nvidia-smi-full.txt": _run("nvidia-smi", "-q"),
        "cpu-info.txt": _run("lscpu") or f"{box.cpu.model}\n{box.cpu.sockets} sockets, {box.cpu.cores} cores\n",
        "memory-info.txt": hosts.read_kernel_file("/proc/meminfo"),
        "python-packages.txt": _packages(),
        "box.toml": codec.to_toml(box),
    }
    written = {folder / name: anonymize(text) for name, text in texts.items() if text}
    with files.report_write_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for path, text in written.items():
            path.write_text(text, encoding="utf-8")
    return list(written)


def anonymize(text: str) -> str:
    """`text` without host and user names, home folders, serial numbers, UUIDs and hardware addresses."""
    text = _SECRET_LINE.sub("", text)
    text = _MAC.sub("(address)", _UUID.sub("(uuid)", text))
    for name, label in _names():
        text = re.sub(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", label, text)
    return text


def _names() -> list[tuple[str, str]]:
    """What would tell whose machine this is, longest first; names of one or two letters are left alone."""
    found = {socket.gethostname(): "(host)", socket.getfqdn(): "(host)", platform.node(): "(host)"}
    found[os.path.expanduser("~")] = "~"
    with contextlib.suppress(KeyError, OSError):  # no such user in the password database
        found[getpass.getuser()] = "(user)"
    common = {"root", "localhost", "/", "~"}
    return sorted(
        ((name, label) for name, label in found.items() if len(name) > 2 and name not in common),
        key=lambda pair: -len(pair[0]),
    )


def gpu_text(box: Box) -> str:
    """The GPUs in words."""
    gpus = [
        f"gpu{index}: {gpu.title}, {format_gib(gpu.memory)}, sm {gpu.sm}, {_slot(gpu.pcie)}, NUMA {gpu.numa}"
        for index, gpu in enumerate(box.gpus)
    ]
    return "\n".join([_driver(box.host), *gpus, "" if gpus else "no GPUs\n"])


def _driver(host: Host | None) -> str:
    return f"driver {host.driver or 'none'}, CUDA {host.cuda or 'none'}" if host else "declared box"


def _slot(pcie: Pcie | None) -> str:
    return f"PCIe {pcie.generation}.0 x{pcie.width} (at most x{pcie.max_width})" if pcie else "no PCIe"


def link_text(box: Box) -> str:
    """How they are joined, a line a pair."""
    return "\n".join(f"gpu{x.a} gpu{x.b} {x.kind} p2p={x.p2p} lanes={x.lanes}" for x in box.links) or "no links\n"


def _packages() -> str:
    found = {f"{dist.metadata['Name']}=={dist.version}" for dist in metadata.distributions()}
    return "\n".join(sorted(found, key=str.lower)) + "\n"


def _run(*command: str) -> str:
    return hosts.run_program(command, seconds=30)[0]
