"""Starts the jail, feeds it one job, and reads its output, within bounds of time and size."""

import base64
import binascii
import contextlib
import functools
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from moebox.files import scratch_folder

if TYPE_CHECKING:
    from moebox.sandbox.jail import JailWork

SandboxLevel = Literal["namespaces", "landlock", "seccomp"]
LEVELS: tuple[SandboxLevel, ...] = ("namespaces", "landlock", "seccomp")
MAX_OUTPUT_BYTES = 2**20  # printed; more ends the code
MAX_LINE_BYTES = 12 * 2**20  # of the result line: values, and the files that come back as base64
GRACE_S = 10.0  # on top of the job's own time, for a loaded machine to start an interpreter
MAX_FILE_BYTES = 16 * 2**20
MAX_ENTRIES = 4096  # twice the files that come back (jail.MAX_RETURNED_FILES)
TIMEOUT_EXIT_CODE = 124  # of the jail


class NoSandbox(OSError):
    """No level of isolation that works here is good enough to run foreign code."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxLimits:
    """How much a piece of code may use."""

    time_s: float = 10.0  # wall time
    cpu_s: int = 1  # starting takes a tenth of it
    memory_bytes: int = 512 * 2**20
    file_bytes: int = MAX_FILE_BYTES  # of one file
    folder_bytes: int = MAX_FILE_BYTES  # of its folder, enforced by the kernel or, without namespaces, every 0.1 s
    entries: int = MAX_ENTRIES  # files and folders in it


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxOutcome:
    """The values of the calls and the files that the code left, or the error."""

    level: SandboxLevel
    values: tuple[Any, ...] = ()
    error: str = ""  # "" if it ran to its end
    output: str = ""  # stdout and stderr
    timed_out: bool = False
    exit_code: int = 0
    files: Mapping[str, bytes] | None = field(default=None, repr=False)  # of a program: its folder's files at the end

    @property
    def ok(self) -> bool:
        return not self.error


def run_code(
    source: str,
    function: str = "",
    calls: Sequence[Sequence[Any]] = (),
    *,
    limits: SandboxLimits = SandboxLimits(),
    level: SandboxLevel | None = None,
) -> SandboxOutcome:
    """Run `source`, then call its `function` with each of `calls` and return their values.

    Without `level`, use the strongest that works here. Raise NoSandbox if none does, or if `level` does not.
    """
    work: JailWork = {"kind": "calls", "source": source, "function": function, "calls": [*map(list, calls)]}
    return _run_work(work, {}, level or strongest_level(), limits, len(calls) if function else 0)


def run_program(
    files: Mapping[str, bytes],
    name: str,
    arguments: Sequence[str] = (),
    *,
    module: bool = False,
    limits: SandboxLimits = SandboxLimits(),
    level: SandboxLevel | None = None,
) -> SandboxOutcome:
    """Write `files` into the jail's folder, run the script `name` or a library module there, and return its files."""
    work: JailWork = {"kind": "module" if module else "script", "name": name, "arguments": list(arguments)}
    return _run_work(work, files, level or strongest_file_level(), limits)


def run_snippets(
    files: Mapping[str, bytes],
    sources: Sequence[str],
    *,
    limits: SandboxLimits = SandboxLimits(),
    level: SandboxLevel | None = None,
) -> SandboxOutcome:
    """Write `files` and run each source beside them; `values` holds what each left in `result`, or {"!": reason}."""
    work: JailWork = {"kind": "snippets", "snippets": list(sources)}
    return _run_work(work, files, level or strongest_file_level(), limits, len(sources))


def strongest_file_level() -> SandboxLevel:
    """Return the strongest level that works here and lets code open its files. Raise NoSandbox if none does."""
    level = strongest_level()
    if level == "seccomp":
        raise NoSandbox("neither user namespaces nor Landlock work here, and jobs need files")
    return level


@functools.cache
def strongest_level() -> SandboxLevel:
    """Return the strongest level that works here, tried with an empty program so that foreign code has no influence."""
    reasons = []
    for level in LEVELS:
        try:
            return run_code("", level=level).level
        except OSError as problem:
            reasons.append(str(problem))
    raise NoSandbox(f"no sandbox on this system ({'; '.join(reasons)})")


def _run_work(
    work: "JailWork", files: Mapping[str, bytes], level: SandboxLevel, limits: SandboxLimits, expected_values: int = 0
) -> SandboxOutcome:
    for name in files:
        if name.startswith("/") or ".." in name.split("/") or "\0" in name or not name:
            raise ValueError(f"{name!r} leaves the folder")
    encoded = {name: base64.b64encode(data).decode() for name, data in files.items()}
    with scratch_folder("jail") as folder:
        job = {"level": level, "folder": str(folder), "files": encoded, "work": work, **asdict(limits)}
        process = _start_jail(job)
        try:
            answer, output, late = _read_outputs(process, limits.time_s + GRACE_S)
        finally:
            _stop_jail(process)
    line: Any = {}
    with contextlib.suppress(ValueError, RecursionError):
        line = json.loads(answer.split(b"\n", 1)[0] or b"{}")
    line = line if isinstance(line, dict) else {}
    if "setup" in line:
        raise NoSandbox(f"{level}: {line['setup']}")
    if "exit" not in line and not late and len(output) < MAX_OUTPUT_BYTES:
        last = output.decode(errors="replace").strip().splitlines()[-1:]
        raise NoSandbox(f"{level}: the jail did not start: {''.join(last) or f'exit code {process.wait()}'}")
    code = int(line["exit"]) if "exit" in line else process.wait()
    late = late or code == TIMEOUT_EXIT_CODE
    values = tuple(value for place, value in line.get("values") or () if place < expected_values)
    error = str(line.get("error") or "")
    if not error and (code != 0 or len(values) < expected_values):
        error = _failure_reason(code, late, len(output), limits)
    returned = line.get("files")
    try:
        kept = {str(name): base64.b64decode(text) for name, text in returned.items()} if returned is not None else None
    except (binascii.Error, TypeError, AttributeError):
        kept = None
    return SandboxOutcome(
        level=level,
        values=values,
        error=error,
        output=output.decode(errors="replace"),
        timed_out=late,
        exit_code=code,
        files=kept,
    )


def _start_jail(job: Mapping[str, object]) -> "subprocess.Popen[bytes]":
    """Start a fresh interpreter in its own session, with an empty environment and none of our descriptors."""
    package = str(Path(__file__).parents[2])
    boot = f"import sys; sys.path.append({package!r}); from moebox.sandbox.jail import main; main()"
    argv = [sys.executable, "-I", "-S", "-B", "-c", boot]
    pipe = subprocess.PIPE
    process = subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=pipe, env={}, cwd="/", start_new_session=True)
    assert process.stdin
    with contextlib.suppress(BrokenPipeError):  # it died before it read; the reason is in stderr
        process.stdin.write(json.dumps(job).encode())
        process.stdin.close()
    return process


def _read_outputs(process: "subprocess.Popen[bytes]", seconds: float) -> tuple[bytes, bytes, bool]:
    """Read both outputs until they close, grow too large or time is up; return them, and whether time was up."""
    assert process.stdout
    assert process.stderr
    line, printed = process.stdout.fileno(), process.stderr.fileno()
    kept = {line: bytearray(), printed: bytearray()}
    most = {line: MAX_LINE_BYTES, printed: MAX_OUTPUT_BYTES}
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
            if any(len(data) > most[number] for number, data in kept.items()):
                break
    late = time.monotonic() >= until
    return bytes(kept[line][:MAX_LINE_BYTES]), bytes(kept[printed][:MAX_OUTPUT_BYTES]), late


def _stop_jail(process: "subprocess.Popen[bytes]") -> None:
    """Make sure that no process outlives the job."""
    try:
        process.wait(0.2)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # the child dies with it by its parent-death signal
        process.wait()
    for stream in (process.stdout, process.stderr):
        if stream:
            stream.close()


def _failure_reason(code: int, late: bool, printed: int, limits: SandboxLimits) -> str:
    if late:
        return f"did not end within {limits.time_s:g} s"
    if printed >= MAX_OUTPUT_BYTES:
        return f"printed more than {MAX_OUTPUT_BYTES:,} bytes"
    if -code in (signal.SIGKILL, signal.SIGXCPU):
        return f"killed: more than {limits.cpu_s} s of computing, or the system ended it"
    return f"ended without an answer (exit code {code})"
