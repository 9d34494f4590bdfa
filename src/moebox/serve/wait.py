"""Waiting for something that nobody announces."""

import time
from collections.abc import Callable


def wait_for(condition: Callable[[], bool], patience_s: float, *, every_s: float) -> bool:
    """Look until it is so, or patience is over; whether it is."""
    until = time.monotonic() + patience_s
    while not condition():
        if time.monotonic() >= until:
            return False
        time.sleep(every_s)
    return True
