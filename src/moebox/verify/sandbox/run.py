"""Starts the jail, feeds it one job, and reads what comes out, within bounds of time and size."""

import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

Level = Literal["namespaces", "landlock", "seccomp"]
LEVELS: tuple[Level, ...] = ("namespaces", "landlock", "seccomp")
MOST_OUTPUT = 2**20  # bytes kept of each of the jail's two outputs; more ends it
GRACE_S = 10.0  # on top of the job's own time, for a loaded machine to start an interpreter

_known: dict[str, Level] = {}  # interpreter -> the strongest level that worked here


class NoSandbox(OSError):
    """No wall that can be built here is good enough to run foreign code behind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much a piece of code may use."""

    time_s: float = 10.0  # by the clock
    cpu_s: int = 1  # of computing; starting takes a tenth of it
    memory_bytes: int = 512 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of running it: the values of the calls, or why there are none."""

    level: Level
    values: tuple[Any, ...] = ()
    error: str = ""  # "" when it ran to its end
    output: str = ""  # what it printed, and its complaints
    timed_out: bool = False
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """It ran to its end."""
        return not self.error


def run(
    source: str,
    function: str = "",
    calls: Sequence[Sequence[Any]] = (),
    *,
    limits: Limits = Limits(),  # noqa: B008  (frozen)
    level: Level | None = None,
    interpreter: str = sys.executable,
) -> Outcome:
    """Run `source`; then call its `function` with each of `calls` and bring back what they returned.

    Without `level`, the strongest that works here. NoSandbox where none does, or where that one does not.
    """
    kind = level or strongest(interpreter)
    job: dict[str, Any] = {"level": kind, "source": source, "function": function}
    job |= {"calls": [list(call) for call in calls], "memory_bytes": limits.memory_bytes}
    job |= {"time_s": limits.time_s, "cpu_s": limits.cpu_s}
    line, outcome = _attempt(job, kind, limits, interpreter)
    if "setup" in line:
        raise NoSandbox(f"{kind}: {line['setup']}")
    return outcome


def strongest(interpreter: str = sys.executable) -> Level:
    """The strongest level that works here, tried with an empty program, so that no foreign code has a say in it."""
    reasons = []
    for kind in LEVELS if interpreter not in _known else ():
        try:
            run("", level=kind, interpreter=interpreter)
        except OSError as problem:
            reasons.append(str(problem))
            continue
        _known[interpreter] = kind
        break
    if interpreter not in _known:
        raise NoSandbox(f"no sandbox on this system ({'; '.join(reasons)})")
    return _known[interpreter]


def _attempt(job: dict[str, Any], kind: Level, limits: Limits, interpreter: str) -> tuple[dict[str, Any], Outcome]:
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="moebox-jail-") as folder:
        process = _start({**job, "folder": folder}, interpreter)
        try:
            answer, output, late = _read(process, limits.time_s + GRACE_S)
        finally:
            _end(process)
    line = _parse(answer)
    late = late or process.returncode == 124
    error = "" if "values" in line else str(line.get("error") or _why(process.returncode, late, len(output), limits))
    values = tuple(line.get("values") or ())
    seconds = time.monotonic() - began
    text = output.decode(errors="replace")
    return line, Outcome(level=kind, values=values, error=error, output=text, timed_out=late, seconds=seconds)


def _start(job: dict[str, Any], interpreter: str) -> "subprocess.Popen[bytes]":
    """A fresh interpreter in a session of its own, with an empty environment and no descriptor of ours."""
    package = str(Path(__file__).parents[3])
    boot = f"import sys; sys.path.append({package!r}); from moebox.verify.sandbox.jail import main; main()"
    argv = [interpreter, "-I", "-S", "-B", "-c", boot]
    pipe = subprocess.PIPE
    process = subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=pipe, env={}, cwd="/", start_new_session=True)
    assert process.stdin
    try:
        process.stdin.write(json.dumps(job).encode())
        process.stdin.close()
    except BrokenPipeError:
        pass  # it died before it read; its complaint is in stderr
    return process


def _read(process: "subprocess.Popen[bytes]", seconds: float) -> tuple[bytes, bytes, bool]:
    """Both outputs until they close, grow too large or time is up; and whether time was up."""
    assert process.stdout
    assert process.stderr
    kept = {process.stdout.fileno(): bytearray(), process.stderr.fileno(): bytearray()}
    until = time.monotonic() + seconds
    with selectors.DefaultSelector() as selector:
        for number in kept:
            selector.register(number, selectors.EVENT_READ)
        while selector.get_map():
            left = until - time.monotonic()
            if left <= 0:
                break
            for key, _ in selector.select(left):
                data = os.read(key.fd, 65536)
                kept[key.fd] += data
                if not data:
                    selector.unregister(key.fd)
            if max(len(data) for data in kept.values()) > MOST_OUTPUT:
                break
    answer, output = (bytes(data[:MOST_OUTPUT]) for data in kept.values())
    return answer, output, time.monotonic() >= until


def _end(process: "subprocess.Popen[bytes]") -> None:
    """Nothing of it outlives the job."""
    try:
        process.wait(0.2)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # the jail inside dies with it by its parent-death signal
        process.wait()
    for stream in (process.stdout, process.stderr):
        if stream:
            stream.close()


def _parse(answer: bytes) -> dict[str, Any]:
    try:
        line = json.loads(answer.split(b"\n", 1)[0] or b"{}")
    except (ValueError, RecursionError):
        return {}
    return line if isinstance(line, dict) else {}


def _why(code: int, late: bool, printed: int, limits: Limits) -> str:
    if late:
        return f"did not end within {limits.time_s:g} s"
    if printed >= MOST_OUTPUT:
        return f"printed more than {MOST_OUTPUT:,} bytes"
    if code in (256 - signal.SIGKILL, 256 - signal.SIGXCPU):
        return f"killed: more than {limits.cpu_s} s of computing, or the system ended it"
    return f"ended without an answer (exit code {code})"
