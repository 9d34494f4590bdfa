"""Notice when this process was not running: the machine was suspended, or the process was stopped.

While a machine is suspended CLOCK_MONOTONIC stands still and CLOCK_BOOTTIME goes on (clock_gettime(2)). A process that
is stopped (Ctrl-Z, SIGSTOP, a paused container) sees CLOCK_MONOTONIC jump between two looks instead, and uses no CPU in
between; a long computation that keeps the interpreter's lock also delays the looks, but it uses CPU. Both are found by
looking often. Measurements of that time are worthless, and no deadline may count it.
"""

import threading
import time
from collections.abc import Callable

CHECK_INTERVAL_S = 0.25
STOPPED_S = 1.0  # between two looks; load alone does not delay a thread that long
BUSY_SHARE = 0.25  # of the time between two looks: a process that used so much CPU was running
SUSPENDED_S = 0.5  # by which the clocks must drift apart, since both are not read at the same moment


def boot_seconds() -> float:
    """Seconds since boot, suspended ones included; CLOCK_MONOTONIC if there is no such clock."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if clock is None else time.clock_gettime(clock)


class AwakeClock:
    """Watches the clocks for the length of a `with` block; a test can pass other clocks."""

    def __init__(
        self,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        boot: Callable[[], float] = boot_seconds,
        cpu: Callable[[], float] = time.process_time,
    ) -> None:
        self._monotonic, self._boot, self._cpu = monotonic, boot, cpu
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._stopped_s = self._suspended_s = 0.0
        self._last, self._apart = self._read_clocks()
        self._last_cpu = self._cpu()

    def __enter__(self) -> "AwakeClock":
        def watch() -> None:
            while not self._over.wait(CHECK_INTERVAL_S):
                self.compare_clocks()

        threading.Thread(target=watch, name="awake", daemon=True).start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._over.set()

    @property
    def away_s(self) -> float:
        """Seconds lost so far, stopped or suspended."""
        self.compare_clocks()
        return self._stopped_s + self._suspended_s

    def active_now(self) -> float:
        """A clock that does not count the lost time."""
        self.compare_clocks()
        return self._last - self._stopped_s

    def compare_clocks(self) -> None:
        """Add the time lost since the last look."""
        with self._lock:
            last, before, last_cpu = self._last, self._apart, self._last_cpu
            self._last, self._apart = self._read_clocks()
            self._last_cpu = self._cpu()
            gap = self._last - last
            if gap > STOPPED_S and self._last_cpu - last_cpu < BUSY_SHARE * gap:
                self._stopped_s += gap
            if self._apart - before > SUSPENDED_S:
                self._suspended_s += self._apart - before

    def _read_clocks(self) -> tuple[float, float]:
        """CLOCK_MONOTONIC, and the lead of CLOCK_BOOTTIME: the best of three tries, since any may be interrupted."""
        tries = []
        for _ in range(3):
            before = self._monotonic()
            boot = self._boot()
            after = self._monotonic()
            tries.append((after - before, after, boot - (before + after) / 2))
        return tries[-1][1], min(tries)[2]
