"""Ctrl-C at a bad moment."""

import subprocess
import sys
from pathlib import Path

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


IN_EXEC = """
import sys
from moebox.cli import _run_command, app

def interrupt(words):
    exec("raise KeyboardInterrupt")

app.call_command = interrupt
sys.exit(_run_command(["plan"]))
"""


def test_an_interrupt_while_code_is_generated_keeps_its_exit_code(tmp_path: Path):
    """A Ctrl-C inside exec(), as dataclasses use it, would end `python -m` by SIGINT instead of with exit code 130."""
    (tmp_path / "interrupted_command.py").write_text(IN_EXEC)
    run = subprocess.run([sys.executable, "-m", "interrupted_command"], cwd=tmp_path, timeout=20)
    assert run.returncode == 130
