"""Starts the jail, feeds it one job, and reads what comes out, within bounds of time and size."""

import base64
import binascii
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast

from moebox.files import scratch_folder
from moebox.sandbox.job import JailJob, JailWork, ResultLine

SandboxLevel = Literal["namespaces", "landlock", "seccomp"]
LEVELS: tuple[SandboxLevel, ...] = ("namespaces", "landlock", "seccomp")
MAX_OUTPUT_BYTES = 2**20  # bytes kept of what the code printed; more ends it
MAX_LINE_BYTES = 12 * 2**20  # bytes of the result line: values, and the files that come back as base64
GRACE_S = 10.0  # on top of the job's own time, for a loaded machine to start an interpreter
MAX_FILE_BYTES = 16 * 2**20
MAX_ENTRIES = 4096  # twice the files that come back (jail.MOST_FILES)

_best_levels: dict[str, SandboxLevel] = {}  # interpreter -> the strongest level that worked here


class NoSandbox(OSError):
    """No wall that can be built here is good enough to run foreign code behind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxLimits:
    """How much a piece of code may use."""

    time_s: float = 10.0  # by the clock
    cpu_s: int = 1  # of computing; starting takes a tenth of it
    memory_bytes: int = 512 * 2**20
    file_bytes: int = MAX_FILE_BYTES  # of one file
    folder_bytes: int = MAX_FILE_BYTES  # of its whole folder, counted by the kernel or, without namespaces, every 0.1 s
    entries: int = MAX_ENTRIES  # files and folders in it


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxOutcome:
    """What came of running it: the values of the calls, the files it left, or why there are none."""

    level: SandboxLevel
    values: tuple[Any, ...] = ()
    error: str = ""  # "" when it ran to its end
    output: str = ""  # what it printed, and its complaints
    timed_out: bool = False
    seconds: float = 0.0
    exit_code: int = 0
    files: Mapping[str, bytes] | None = field(default=None, repr=False)  # of a program: what its folder holds now

    @property
    def ok(self) -> bool:
        """It ran to its end."""
        return not self.error


def run_code(
    source: str,
    function: str = "",
    calls: Sequence[Sequence[Any]] = (),
    *,
    limits: SandboxLimits = SandboxLimits(),  # noqa: B008  (frozen)
    level: SandboxLevel | None = None,
    interpreter: str = sys.executable,
) -> SandboxOutcome:
    """Run `source`; then call its `function` with each of `calls` and bring back what they returned.

    Without `level`, the strongest that works here. NoSandbox where none does, or where that one does not.
    """
    work: JailWork = {"kind": "calls", "source": source, "function": function, "calls": [list(call) for call in calls]}
    kind = level or strongest_level(interpreter)
    return _run_work(work, {}, kind, limits, interpreter)


def run_program(
    files: Mapping[str, bytes],
    name: str,
    arguments: Sequence[str] = (),
    *,
    module: bool = False,
    limits: SandboxLimits = SandboxLimits(),  # noqa: B008  (frozen)
    level: SandboxLevel | None = None,
) -> SandboxOutcome:
    """Lay `files` into the jail's folder and run the script `name` there, or the library's module; files come back."""
    work: JailWork = {"kind": "module" if module else "script", "name": name, "arguments": list(arguments)}
    return _run_work(work, files, level or strongest_file_level(), limits, sys.executable)


def run_snippets(
    files: Mapping[str, bytes],
    sources: Sequence[str],
    *,
    limits: SandboxLimits = SandboxLimits(),  # noqa: B008  (frozen)
    level: SandboxLevel | None = None,
) -> SandboxOutcome:
    """Lay `files` and run each source beside them; `values` holds what each left in `result`, or {"!": why}."""
    work: JailWork = {"kind": "snippets", "snippets": list(sources)}
    return _run_work(work, files, level or strongest_file_level(), limits, sys.executable)


def strongest_file_level() -> SandboxLevel:
    """The strongest level that works here and lets code open the files it was given; NoSandbox where there is none."""
    level = strongest_level()
    if level == "seccomp":
        raise NoSandbox("neither user namespaces nor Landlock work here, and jobs need files")
    return level


def strongest_level(interpreter: str = sys.executable) -> SandboxLevel:
    """The strongest level that works here, tried with an empty program, so that no foreign code has a say in it."""
    reasons = []
    for kind in LEVELS if interpreter not in _best_levels else ():
        try:
            run_code("", level=kind, interpreter=interpreter)
        except OSError as problem:
            reasons.append(str(problem))
            continue
        _best_levels[interpreter] = kind
        break
    if interpreter not in _best_levels:
        raise NoSandbox(f"no sandbox on this system ({'; '.join(reasons)})")
    return _best_levels[interpreter]


def _run_work(
    work: JailWork, files: Mapping[str, bytes], kind: SandboxLevel, limits: SandboxLimits, interpreter: str
) -> SandboxOutcome:
    began = time.monotonic()
    encoded = {_inside(name): base64.b64encode(data).decode() for name, data in files.items()}
    with scratch_folder("jail") as folder:
        job: JailJob = {
            "level": kind,
            "folder": str(folder),
            "memory_bytes": limits.memory_bytes,
            "file_bytes": limits.file_bytes,
            "folder_bytes": limits.folder_bytes,
            "entries": limits.entries,
            "time_s": limits.time_s,
            "cpu_s": limits.cpu_s,
            "files": encoded,
            "work": work,
        }
        process = _start_jail(job, interpreter)
        try:
            answer, output, late = _read_outputs(process, limits.time_s + GRACE_S)
        finally:
            _stop_jail(process)
    line = _parse(answer)
    if "setup" in line:
        raise NoSandbox(f"{kind}: {line['setup']}")
    code = int(line["exit"]) if "exit" in line else process.wait()
    late = late or code == 124
    values, error = _result(line, _expected_values(work), code)
    return SandboxOutcome(
        level=kind,
        values=values,
        error=_failure_reason(code, late, len(output), limits) if error is None else error,
        output=output.decode(errors="replace"),
        timed_out=late,
        seconds=time.monotonic() - began,
        exit_code=code,
        files=_decode_files(line.get("files")),
    )


def _result(line: ResultLine, wanted: int, code: int) -> tuple[tuple[Any, ...], str | None]:
    """The values that were asked for, and the error; None where there is one and the code did not say which."""
    values = tuple(value for place, value in line.get("values") or () if place < wanted)
    error = str(line.get("error") or "")
    silent = not error and (code != 0 or len(values) < wanted)
    return values, None if silent else error


def _inside(name: str) -> str:
    """`name`, which must stay within the folder it is laid into."""
    if name.startswith("/") or ".." in name.split("/") or "\0" in name or not name:
        raise ValueError(f"{name!r} leaves the folder")
    return name


def _expected_values(work: JailWork) -> int:
    """How many values a job that ran to its end has."""
    if work["kind"] == "snippets":
        return len(work["snippets"])
    return len(work["calls"]) if work["kind"] == "calls" and work["function"] else 0


def _decode_files(encoded: Any) -> dict[str, bytes] | None:
    if not isinstance(encoded, dict):
        return None
    try:
        return {str(name): base64.b64decode(text) for name, text in encoded.items()}
    except (binascii.Error, TypeError):
        return None


def _start_jail(job: JailJob, interpreter: str) -> "subprocess.Popen[bytes]":
    """A fresh interpreter in a session of its own, with an empty environment and no descriptor of ours."""
    package = str(Path(__file__).parents[2])
    boot = f"import sys; sys.path.append({package!r}); from moebox.sandbox.jail import main; main()"
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


def _read_outputs(process: "subprocess.Popen[bytes]", seconds: float) -> tuple[bytes, bytes, bool]:
    """Both outputs until they close, grow too large or time is up; and whether time was up."""
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
    """Nothing of it outlives the job."""
    try:
        process.wait(0.2)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # the jail inside dies with it by its parent-death signal
        process.wait()
    for stream in (process.stdout, process.stderr):
        if stream:
            stream.close()


def _parse(answer: bytes) -> ResultLine:
    try:
        line = json.loads(answer.split(b"\n", 1)[0] or b"{}")
    except (ValueError, RecursionError):
        return {}
    return cast(ResultLine, line) if isinstance(line, dict) else {}


def _failure_reason(code: int, late: bool, printed: int, limits: SandboxLimits) -> str:
    if late:
        return f"did not end within {limits.time_s:g} s"
    if printed >= MAX_OUTPUT_BYTES:
        return f"printed more than {MAX_OUTPUT_BYTES:,} bytes"
    if -code in (signal.SIGKILL, signal.SIGXCPU):
        return f"killed: more than {limits.cpu_s} s of computing, or the system ended it"
    return f"ended without an answer (exit code {code})"
