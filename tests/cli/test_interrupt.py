"""Ctrl-C at a bad moment."""

import subprocess
import sys

DROPPED = """
import signal, time, weakref
from moebox.cli.signals import signals_as_interrupt

class Thing: ...

with signals_as_interrupt(["run"]):
    thing = Thing()
    watch = weakref.ref(thing, lambda _: signal.raise_signal(signal.SIGINT))
    try:
        del thing  # Python drops what the handler raises in this callback
        print("dropped", flush=True)
        time.sleep(30)
    except KeyboardInterrupt:
        print("interrupted")
"""


def test_an_interrupt_in_a_callback_still_interrupts():
    """A Ctrl-C that lands in a weakref callback, where Python drops it, ends the command a moment later."""
    run = subprocess.run([sys.executable, "-c", DROPPED], capture_output=True, text=True, timeout=20)
    assert run.stdout.split() == ["dropped", "interrupted"], run.stderr
    assert "Exception ignored" not in run.stderr
