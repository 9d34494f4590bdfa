"""How commands are interrupted, and the message they end with.

SIGTERM and SIGHUP end the long commands in order, as Ctrl-C does: results are kept, with a line on how to resume.
"""

import contextlib
import shlex
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from typing import Any

from moebox.errors import MoeboxError, is_interrupt

# Commands that stop what they started and keep their results when they are interrupted.
MEASURING = ("run", "climb", "tune", "bench", "verify", "compare", "task", "rehearse", "fleet", "upgrade")
LONG_COMMANDS = (*MEASURING, "up", "engines", "fetch")
WORDS: ContextVar[Sequence[str]] = ContextVar("WORDS", default=())  # of the command that runs
REPEAT_S = 0.05  # until an interrupt that Python dropped is raised again; a callback is over by then


@contextlib.contextmanager
def signals_as_interrupt(words: Sequence[str]) -> Iterator[None]:
    """While a command runs, repeat a Ctrl-C that Python dropped; SIGTERM and SIGHUP interrupt long commands too.

    Python drops an exception that a signal handler raises in a finalizer or weakref callback. The timer then raises it
    again, outside of the callback. A signal that is ignored (nohup) stays ignored. Only the main thread has handlers.
    """
    WORDS.set(words)
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = [signal.SIGTERM, signal.SIGHUP] if words and words[0] in LONG_COMMANDS else []
    chosen = [number for number in (*numbers, signal.SIGALRM) if signal.getsignal(number) == signal.SIG_DFL]
    show_dropped = sys.unraisablehook

    def repeat_interrupt(dropped: "sys.UnraisableHookArgs") -> None:
        if issubclass(dropped.exc_type, KeyboardInterrupt) and signal.SIGALRM in chosen:
            signal.setitimer(signal.ITIMER_REAL, REPEAT_S)  # a thread would need locks that this one may hold
        else:
            show_dropped(dropped)

    for number in chosen:
        signal.signal(number, signal.default_int_handler)
    sys.unraisablehook = repeat_interrupt
    try:
        yield
    finally:
        sys.unraisablehook = show_dropped
        if signal.SIGALRM in chosen:
            signal.setitimer(signal.ITIMER_REAL, 0)
        for number in chosen:
            signal.signal(number, signal.SIG_DFL)


@contextlib.contextmanager
def interrupt_message(text: str, runs: Sequence[Any] = ()) -> Iterator[None]:
    """End an interrupted command with a line about what was kept or how to resume; its `runs` record early ends."""
    try:
        yield
    except MoeboxError as problem:
        record_end(runs, message=problem.message, hint=problem.hint or "")
        raise
    except (KeyboardInterrupt, RuntimeError) as problem:
        if not is_interrupt(problem):
            raise
        record_end(runs)
        raise KeyboardInterrupt(text) from problem


def record_end(runs: Sequence[Any], **reason: str) -> None:
    from moebox.core.event import CommandEnded

    command = shlex.join(WORDS.get())
    for run in runs:
        run.add_event(CommandEnded(step=command.partition(" ")[0], command=command, **reason), sync=True)
