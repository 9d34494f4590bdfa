"""Save facts about this machine to a folder that can be attached to a bug report.

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
from moebox.core.box import Box
from moebox.detect import host as hosts
from moebox.units import format_gib

_SECRET_LINE = re.compile(
    r"^\s*(serial|gpu uuid|board id|vbios|minor number|product part|host).*$", re.IGNORECASE | re.M
)
_UUID = re.compile(r"\b(?:GPU-|MIG-)?[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}\b", re.IGNORECASE)
_MAC = re.compile(r"\b(?:[0-9a-f]{2}:){5}[0-9a-f]{2}\b", re.IGNORECASE)


def save_bundle(box: Box, folder: Path) -> list[Path]:
    def printed_by(*command: str) -> str:
        return hosts.run_program(command, seconds=30)[0]

    packages = {f"{dist.metadata['Name']}=={dist.version}" for dist in metadata.distributions()}
    texts = {
        "gpu-info.txt": gpu_text(box),
        "gpu-topology.txt": printed_by("nvidia-smi", "topo", "-m") or link_text(box),
        "nvidia-smi-full.txt": printed_by("nvidia-smi", "-q"),
        "cpu-info.txt": printed_by("lscpu") or f"{box.cpu.model}\n{box.cpu.sockets} sockets, {box.cpu.cores} cores\n",
        "memory-info.txt": hosts.read_kernel_file("/proc/meminfo"),
        "python-packages.txt": "\n".join(sorted(packages, key=str.lower)) + "\n",
        "box.toml": codec.to_toml(box),
    }
    written = {folder / name: anonymize(text) for name, text in texts.items() if text}
    with files.report_write_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for path, text in written.items():
            path.write_text(text, encoding="utf-8")
    return list(written)


def anonymize(text: str) -> str:
    """Remove host and user names, home folders, serial numbers, UUIDs and hardware addresses."""
    text = _SECRET_LINE.sub("", text)
    text = _MAC.sub("(address)", _UUID.sub("(uuid)", text))
    labels = {socket.gethostname(): "(host)", socket.getfqdn(): "(host)", platform.node(): "(host)"}
    labels[os.path.expanduser("~")] = "~"
    with contextlib.suppress(KeyError, OSError):  # no such user in the password database
        labels[getpass.getuser()] = "(user)"
    for name in sorted(labels, key=len, reverse=True):
        if len(name) > 2 and name not in ("root", "localhost"):  # shorter names occur in ordinary words
            text = re.sub(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", labels[name], text)
    return text


def gpu_text(box: Box) -> str:
    host = box.host
    lines = [f"driver {host.driver or 'none'}, CUDA {host.cuda or 'none'}" if host else "declared box"]
    for index, gpu in enumerate(box.gpus):
        slot = "no PCIe"
        if gpu.pcie:
            slot = f"PCIe {gpu.pcie.generation}.0 x{gpu.pcie.width} (at most x{gpu.pcie.max_width})"
        lines.append(f"gpu{index}: {gpu.title}, {format_gib(gpu.memory)}, sm {gpu.sm}, {slot}, NUMA {gpu.numa}")
    return "\n".join([*lines, "" if box.gpus else "no GPUs\n"])


def link_text(box: Box) -> str:
    return "\n".join(f"gpu{x.a} gpu{x.b} {x.kind} p2p={x.p2p} lanes={x.lanes}" for x in box.links) or "no links\n"
