"""How commands are interrupted, and what they say then.

SIGTERM and SIGHUP end the long commands in good order, as Ctrl-C does: with what was measured, and how to go on.
"""

import contextlib
import signal
import threading
from collections.abc import Iterator, Sequence

# Commands that keep what they have when they are interrupted. Servers and `up` have their own ways to end.
LONG_COMMANDS = ("run", "climb", "bench", "verify", "compare", "task")


@contextlib.contextmanager
def signals_as_interrupt(words: Sequence[str]) -> Iterator[None]:
    """While a long command runs, a service manager's SIGTERM and a closed terminal's SIGHUP are a Ctrl-C.

    A signal that is ignored (nohup) stays ignored.
    """
    chosen = _usual_signals() if words and words[0] in LONG_COMMANDS else []
    for number in chosen:
        signal.signal(number, signal.default_int_handler)
    try:
        yield
    finally:
        for number in chosen:
            signal.signal(number, signal.SIG_DFL)


def _usual_signals() -> list[signal.Signals]:
    """SIGTERM and SIGHUP, as far as nobody has changed what they do; only the main thread can."""
    if threading.current_thread() is not threading.main_thread():
        return []
    return [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) == signal.SIG_DFL]


def stop_event() -> threading.Event:
    """For what serves until it is stopped: set by Ctrl-C or a service manager's SIGTERM, which both interrupt.

    Python drops an interrupt that comes while it finalizes an object; an engine that nobody stops would run on.
    """
    asked = threading.Event()

    def interrupt(*_: object) -> None:
        asked.set()
        raise KeyboardInterrupt

    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) != signal.SIG_IGN:  # nohup and shells ignore it for what runs in the background
            signal.signal(number, interrupt)
    return asked


@contextlib.contextmanager
def interrupt_message(text: str) -> Iterator[None]:
    """An interrupt that says, in the command's last line, what there is by now or how to go on."""
    try:
        yield
    except KeyboardInterrupt as interrupt:
        raise KeyboardInterrupt(text) from interrupt
