"""How much of the time nobody was here: the lid was closed, or the processes were stopped.

While a machine is suspended CLOCK_MONOTONIC stands still and CLOCK_BOOTTIME goes on (clock_gettime(2)). A process that
is stopped (Ctrl-Z, SIGSTOP, a paused container) sees CLOCK_MONOTONIC jump between two looks instead. Both are found by
looking often; what was measured meanwhile is worth nothing, and no deadline may count it.
"""

import threading
import time
from collections.abc import Callable
from types import TracebackType

CHECK_INTERVAL_S = 0.25
STOPPED_S = 1.0  # between two looks: a thread that only wakes up is not kept waiting that long by mere load
SUSPENDED_S = 0.5  # by which the clocks must drift apart; reading both is not one moment


def boot_seconds() -> float:
    """Seconds since boot, suspended ones included; CLOCK_MONOTONIC where there is no such clock."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if clock is None else time.clock_gettime(clock)


class AwakeClock:
    """Looks at the clocks for the length of a `with` block; the clocks can be others in a test."""

    def __init__(
        self, *, monotonic: Callable[[], float] = time.monotonic, boot: Callable[[], float] = boot_seconds
    ) -> None:
        self._monotonic, self._boot = monotonic, boot
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._stopped_s = self._suspended_s = 0.0
        self._last, self._apart = self._read()

    def __enter__(self) -> "AwakeClock":
        threading.Thread(target=self._watch, name="awake", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()

    @property
    def away_s(self) -> float:
        """Seconds lost so far, stopped and suspended."""
        self.compare_clocks()
        return self._stopped_s + self._suspended_s

    def active_now(self) -> float:
        """A clock that stood still while nobody was here."""
        self.compare_clocks()
        return self._last - self._stopped_s

    def compare_clocks(self) -> None:
        """Compare the clocks with the last look."""
        with self._lock:
            last, before = self._last, self._apart
            self._last, self._apart = self._read()
            if self._last - last > STOPPED_S:
                self._stopped_s += self._last - last
            if self._apart - before > SUSPENDED_S:
                self._suspended_s += self._apart - before

    def _read(self) -> tuple[float, float]:
        """CLOCK_MONOTONIC, and by how much CLOCK_BOOTTIME leads; the best of a few tries, as any may be cut in two."""
        tries = []
        for _ in range(3):
            before = self._monotonic()
            boot = self._boot()
            after = self._monotonic()
            tries.append((after - before, after, boot - (before + after) / 2))
        return tries[-1][1], min(tries)[2]

    def _watch(self) -> None:
        while not self._over.wait(CHECK_INTERVAL_S):
            self.compare_clocks()
