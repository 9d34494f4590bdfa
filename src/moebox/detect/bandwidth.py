"""Measure how fast this machine reads its memory.

Each thread scans its own buffer for a byte that is not there (libc's memchr: vectorised, read-only, and called without
the interpreter's lock). The buffers are far larger than the caches.
"""

import ctypes
import threading
import time

from moebox.detect.limits import allowed_cpus, count_cores, memory_share

MIB = 2**20
_BUFFER = 256 * MIB  # per thread; together they exceed the largest L3 on sale (1.1 GB per socket)
_SECONDS = 0.6  # per number of threads


def measure_bandwidth(*, seconds: float = _SECONDS) -> tuple[int, int]:
    """Return the bytes read per second at the best number of threads, and that number; 0 if there is no memory for it.

    More threads are not always faster (one or two per chiplet is often best), so several numbers are tried.
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
