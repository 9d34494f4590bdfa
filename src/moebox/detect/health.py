"""Errors that GPUs and the kernel have counted since boot, and how fast memory and the disk of the models read."""

import contextlib
import ctypes
import mmap
import os
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from moebox.detect.host import nearest_existing, run_program
from moebox.detect.limits import allowed_cpus, count_cores, memory_share
from moebox.detect.nvml import query

BLOCK = 8 * 2**20  # bytes of one read, as the engines' loaders use
DISK_BYTES = 512 * 2**20  # read in all; a quarter of a second at 2 GB/s
READ_S = 5.0  # or as much as a slow disk reads in this time
XID_MARK = "NVRM: Xid"
_BUFFER = 256 * 2**20  # bytes per thread; together they exceed the largest L3 on sale (1.1 GB per socket)
_SECONDS = 0.6  # per number of threads


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


def measure_bandwidth(*, seconds: float = _SECONDS) -> tuple[int, int]:
    """Measure how many bytes per second this machine reads from memory, and with how many threads; 0 without memory.

    Each thread scans its own buffer for a byte that is not there (libc's memchr: vectorised, read-only, and called
    without the interpreter's lock). The buffers are far larger than the caches. More threads are not always faster (one
    or two per chiplet is often best), so several numbers are tried.
    """
    cores = count_cores(allowed_cpus())
    most = max(memory_share().available // 2 // _BUFFER, 1)
    counts = sorted({min(count, int(most)) for count in (1, cores // 4, cores // 2, cores) if count >= 1})
    return max((_read_rate(count, seconds), count) for count in counts)


def _read_rate(threads: int, seconds: float) -> int:
    """Bytes per second that `threads` threads read together; 0 if memory or threads are limited (ulimit)."""
    scan = ctypes.CDLL(None).memchr
    scan.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
    scan.restype = ctypes.c_void_p
    start = threading.Barrier(threads + 1)
    totals = [0] * threads
    stop = threading.Event()

    def scan_buffer(index: int) -> None:
        try:
            buffer = ctypes.create_string_buffer(_BUFFER)
        except MemoryError:
            start.abort()
            return
        ctypes.memset(buffer, 1, _BUFFER)  # touched here, so that it lies on this thread's NUMA node
        address = ctypes.addressof(buffer)
        try:
            start.wait()
        except threading.BrokenBarrierError:
            return
        while not stop.is_set():
            scan(address, 0, _BUFFER - 1)
            totals[index] += _BUFFER

    workers = [threading.Thread(target=scan_buffer, args=(index,), daemon=True) for index in range(threads)]
    try:
        for worker in workers:
            worker.start()
        start.wait()
    except (threading.BrokenBarrierError, RuntimeError):  # RuntimeError: no thread can be started
        start.abort()
        return 0
    began = time.perf_counter()
    time.sleep(seconds)
    stop.set()
    for worker in workers:
        worker.join()
    return round(sum(totals) / (time.perf_counter() - began))
