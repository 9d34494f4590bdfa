"""Errors that GPUs and the kernel have counted since boot, and how fast the disk of the models reads."""

import contextlib
import mmap
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from moebox.detect.host import nearest_existing, run_program
from moebox.detect.nvml import query

BLOCK = 8 * 2**20  # bytes of one read, as the engines' loaders use
DISK_BYTES = 512 * 2**20  # read in all; a quarter of a second at 2 GB/s
READ_S = 5.0  # or as much as a slow disk reads in this time
XID_MARK = "NVRM: Xid"


def read_kernel_log() -> list[str] | None:
    """Lines of the kernel log since boot that report an Xid, or None if this user may not read it."""
    for command in (["journalctl", "-k", "-b", "--no-pager", "-o", "cat"], ["dmesg"]):
        text, problem = run_program(command)
        if text and "No entries" not in text and "not seeing messages" not in problem:
            return [line for line in text.splitlines() if XID_MARK in line]
    return None


def memory_errors(nvml: Any) -> Iterator[tuple[int, int, str]]:
    """Yield the number of each GPU, its uncorrected errors since boot, and the state of rows that were replaced."""
    for index in range(nvml.nvmlDeviceGetCount()):
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        kinds = (nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC)
        # GeForce boards have no ECC, others may have it switched off.
        count = query(nvml, -1, "nvmlDeviceGetTotalEccErrors", handle, *kinds)
        _, _, pending, failure = query(nvml, (0, 0, 0, 0), "nvmlDeviceGetRemappedRows", handle)
        yield index, int(count), "row replacement failed" if failure else "row replacement pending" if pending else ""


def measure_disk(folder: Path) -> tuple[float, str]:
    """Bytes per second read past the page cache from the disk of a folder, and the file or the reason for none.

    A large file in the folder is read if there is one, else a temporary one is written and read.
    """
    place = nearest_existing(folder)
    with contextlib.suppress(OSError):
        for base, _, names in os.walk(place):
            for name in names:
                path = Path(base, name)
                if path.is_file() and path.stat().st_size >= DISK_BYTES:
                    return measure_read_rate(path), str(path)
    try:
        with tempfile.NamedTemporaryFile(dir=place, prefix="moebox-disk-") as file:
            block = os.urandom(BLOCK)
            for _ in range(DISK_BYTES // BLOCK):
                file.write(block)
            file.flush()
            os.fsync(file.fileno())
            return measure_read_rate(Path(file.name)), "a temporary file"
    except OSError as problem:
        return 0.0, f"{place}: {problem.strerror}"


def measure_read_rate(path: Path) -> float:
    """Bytes per second of a file, read with O_DIRECT if the file system has it, else not from the page cache."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_DIRECT)
    except OSError:
        file = os.open(path, os.O_RDONLY)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    try:
        with mmap.mmap(-1, BLOCK) as buffer:  # aligned to pages, as O_DIRECT wants it
            done, began = 0, time.perf_counter()
            while done < DISK_BYTES and (count := os.readv(file, [buffer])):
                done += count
                if time.perf_counter() - began > READ_S:
                    break
            return done / max(time.perf_counter() - began, 1e-9)
    finally:
        os.close(file)
