"""How commands are interrupted, and the message they end with.

SIGTERM and SIGHUP end the long commands in order, as Ctrl-C does: results are kept, with a line on how to resume.
"""

import contextlib
import signal
import threading
from collections.abc import Iterator, Sequence

# Commands that keep their results when they are interrupted. Servers and `up` handle signals themselves.
LONG_COMMANDS = ("run", "climb", "bench", "verify", "compare", "task")


@contextlib.contextmanager
def signals_as_interrupt(words: Sequence[str]) -> Iterator[None]:
    """While a long command runs, treat a service manager's SIGTERM and a closed terminal's SIGHUP as Ctrl-C.

    A signal that is ignored (nohup) stays ignored. Only the main thread can set handlers.
    """
    chosen: list[signal.Signals] = []
    if words and words[0] in LONG_COMMANDS and threading.current_thread() is threading.main_thread():
        chosen = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) == signal.SIG_DFL]
    for number in chosen:
        signal.signal(number, signal.default_int_handler)
    try:
        yield
    finally:
        for number in chosen:
            signal.signal(number, signal.SIG_DFL)


def stop_event() -> threading.Event:
    """Return an event that Ctrl-C and SIGTERM set, besides raising KeyboardInterrupt.

    Python drops an exception raised while it finalizes an object; the event ensures that the engine is still stopped.
    """
    stop = threading.Event()

    def interrupt(*_: object) -> None:
        stop.set()
        raise KeyboardInterrupt

    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) != signal.SIG_IGN:  # nohup and shells ignore it for background processes
            signal.signal(number, interrupt)
    return stop


@contextlib.contextmanager
def interrupt_message(text: str) -> Iterator[None]:
    """End an interrupted command with a line about what was kept or how to resume."""
    try:
        yield
    except KeyboardInterrupt as interrupt:
        raise KeyboardInterrupt(text) from interrupt
