"""A guard against hangs, for tests of hostile input."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_longer_than(seconds: int) -> Iterator[None]:
    """A hang is an error of this test, not of the suite."""

    def ring(number: int, frame: object) -> None:
        raise AssertionError(f"hung for {seconds} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
