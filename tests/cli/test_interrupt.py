"""Ctrl-C at a bad moment."""

import subprocess
import sys
from pathlib import Path

import pytest

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


IN_EXEC = """exec("raise KeyboardInterrupt")"""
IN_CLASS = """
    class Interrupting:
        def __set_name__(self, owner, name): raise KeyboardInterrupt

    class Loaded:
        field = Interrupting()
"""
INTERRUPTED = """
import sys
from moebox.cli import _run_command, app
from moebox.cli.signals import interrupt_message

def interrupt(words):
    with interrupt_message("resume with: it"):
        load()

def load():
    {}

app.call_command = interrupt
sys.exit(_run_command(["plan"]))
"""


@pytest.mark.parametrize("place", [IN_EXEC, IN_CLASS], ids=["exec", "class"])
def test_an_interrupt_while_code_is_loaded_keeps_its_exit_code(tmp_path: Path, place: str):
    """Ctrl-C inside exec() would end `python -m` by SIGINT, and in the definition of a class become a RuntimeError."""
    (tmp_path / "interrupted_command.py").write_text(INTERRUPTED.replace("{}", place.strip()))
    command = [sys.executable, "-m", "interrupted_command"]
    run = subprocess.run(command, cwd=tmp_path, timeout=20, capture_output=True, text=True)
    assert (run.returncode, run.stderr) == (130, "interrupted; resume with: it\n")


LOADING = """
import sys
from moebox.cli import main

class Interrupting:
    def find_spec(self, name, *others):
        if name == "moebox.cli.app":
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupting())
sys.exit(main(["verify", "x"]))
"""


def test_an_interrupt_while_the_command_is_loaded_is_one_line():
    """It was a traceback in the first tenths of a second."""
    run = subprocess.run([sys.executable, "-c", LOADING], capture_output=True, text=True, timeout=20)
    assert (run.returncode, run.stderr) == (130, "interrupted\n")
