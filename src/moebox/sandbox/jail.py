"""The process that runs foreign code: reads one job, locks a child in, lets it run, writes one line of JSON about it.

Started by `start.py` as a fresh interpreter, so nothing of moebox's memory is here. Standard library only.

Two processes. The supervisor stays outside the lock and alone holds the descriptor of the result line, so the code that
was run cannot write that line: not its exit code, not the files it left, not whether the walls held. The child is
locked in; the values of its functions come through a pipe of its own and are not to be trusted.
"""

import base64
import contextlib
import json
import os
import resource
import select
import signal
import sys
import time
import traceback
from collections.abc import Mapping
from typing import Any, Literal, TypedDict

from moebox.sandbox import folder as folders
from moebox.sandbox import walls
from moebox.sandbox.seccomp import enter_seccomp

MAX_THREADS = 64  # the jail itself needs one; RLIMIT_NPROC counts all of the user's outside a namespace
MAX_OPEN_FILES = 64
MAX_RESULT_BYTES = 2**20  # of returned values
MAX_RETURNED_FILES = 2000
MAX_RETURNED_BYTES = 6 * 2**20  # of files
QUOTA_INTERVAL_S = 0.1  # between two quota checks, which then take a tenth of a core at most
TIMEOUT_EXIT_CODE = 124  # as of timeout(1)
# What a short function may import; at the level at which nothing can be opened, only these are available.
PRELOADED_MODULES = (
    "math cmath re string collections collections.abc itertools functools operator heapq bisect json random "
    "datetime calendar decimal fractions statistics typing dataclasses enum copy textwrap unicodedata time array "
    "struct abc types contextlib io sys os hashlib base64 binascii csv numbers queue graphlib secrets warnings"
)


class JailWork(TypedDict, total=False):
    kind: Literal["calls", "snippets", "script", "module"]
    source: str  # of calls: run first, then the function is called
    function: str
    calls: list[list[Any]]
    snippets: list[str]  # each is run beside the files
    name: str  # of a script, or of a module of the library, which is run as `python` would
    arguments: list[str]


class JailJob(TypedDict):
    """One job: the fields of start.SandboxLimits and these."""

    level: str
    folder: str
    files: dict[str, str]  # by path, as base64
    work: JailWork
    memory_bytes: int
    file_bytes: int
    folder_bytes: int
    entries: int
    time_s: float
    cpu_s: int


class ResultLine(TypedDict, total=False):
    """The supervisor's line on stdout: how the code ended, or why the walls could not be built (`setup`)."""

    setup: str
    exit: int
    values: list[tuple[int, Any]]
    error: str
    files: dict[str, str] | None


def main() -> None:
    walls.prctl(walls.PR_SET_PDEATHSIG, signal.SIGKILL)
    job: JailJob = json.load(sys.stdin)
    result_fd = os.dup(1)
    os.dup2(2, 1)  # the code prints to stderr; only the supervisor has the result's descriptor
    try:
        if job["level"] == "namespaces":
            walls.enter_namespaces(job["folder"], job["folder_bytes"], job["entries"])
            job["folder"] = walls.JAIL_TEMP
        for name, text in job["files"].items() if job["level"] != "seccomp" else ():
            path = os.path.join(job["folder"], name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "xb") as file:
                file.write(base64.b64decode(text))
    except OSError as problem:
        _write_line(result_fd, {"setup": str(problem)})
        return
    setup_in, setup_out = os.pipe()
    results_in, results_out = os.pipe()
    child = os.fork()
    if child == 0:
        for descriptor in (result_fd, setup_in, results_in):
            os.close(descriptor)
        _run_child(job, setup_out, results_out)
    os.close(setup_out)
    os.close(results_out)
    _supervise(child, job, result_fd, setup_in, results_in)


def _supervise(child: int, job: JailJob, result_fd: int, setup_in: int, results_in: int) -> None:
    """Wait for the child and write the result line."""
    setup = b""
    while piece := os.read(setup_in, 4096):  # closed by the child once it is locked in, before any foreign code
        setup += piece
    if setup:
        os.waitpid(child, 0)
        _write_line(result_fd, {"setup": setup.decode(errors="replace")})
        os._exit(1)
    output, code, excess = _wait_for_child(child, job, results_in)
    line: ResultLine = {"values": [], "error": excess} if excess else _parse_results(output)
    line["exit"] = code
    if job["work"]["kind"] in ("script", "module"):
        found, whole = folders.read_files(
            job["folder"], max_files=MAX_RETURNED_FILES, max_bytes=MAX_RETURNED_BYTES, skipped_folders=("__pycache__",)
        )
        line["files"] = {path: base64.b64encode(data).decode() for path, data in found.items()} if whole else None
    _write_line(result_fd, line)
    os._exit(code & 0xFF)


def _wait_for_child(child: int, job: JailJob, results_in: int) -> tuple[bytes, int, str]:
    """Return the child's output, its exit code, and which quota of its folder it exceeded, or "".

    Past its time or its quota it is killed, with everything in its pid namespace.
    """

    def find_excess() -> str:
        if job["level"] == "seccomp":  # it cannot write files
            return ""
        return folders.find_excess(job["folder"], max_bytes=job["folder_bytes"], max_entries=job["entries"])

    until, output = time.monotonic() + job["time_s"], bytearray()
    check_at, excess, is_open = time.monotonic() + QUOTA_INTERVAL_S, "", True
    while time.monotonic() < until and not excess:
        if time.monotonic() >= check_at:
            began = time.monotonic()
            excess = find_excess()
            check_at = time.monotonic() + max(QUOTA_INTERVAL_S, 9 * (time.monotonic() - began))
        elif is_open and select.select([results_in], [], [], 0.005)[0]:
            piece = os.read(results_in, 65536)
            output += piece[: MAX_RESULT_BYTES - len(output)]
            is_open = bool(piece) and len(output) < MAX_RESULT_BYTES
        else:
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                os.set_blocking(results_in, False)
                with contextlib.suppress(BlockingIOError):  # what was still in the pipe
                    output += os.read(results_in, 65536)
                return bytes(output), os.waitstatus_to_exitcode(status), find_excess()
            if not is_open:
                time.sleep(0.005)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return bytes(output), 1 if excess else TIMEOUT_EXIT_CODE, excess


def _parse_results(output: bytes) -> ResultLine:
    """Parse the child's lines as values and an error; a place that is named twice means a forged line."""
    values: dict[int, Any] = {}
    error = ""
    for raw in output.split(b"\n"):
        try:
            line = json.loads(raw)
        except (ValueError, RecursionError):
            continue
        if not isinstance(line, dict):
            continue
        place = line.get("place")
        if isinstance(place, int):
            if place in values:
                return {"values": [], "error": "the code wrote to the pipe of its results"}
            values[place] = line.get("value")
        error = str(line.get("error") or error)
    return {"values": sorted(values.items()), "error": error}


def _run_child(job: JailJob, setup_out: int, results_out: int) -> None:
    """Lock this process in, run the foreign code, and exit."""
    try:
        _lock_in(job)
    except Exception as problem:  # whatever it is, no foreign code has run yet
        os.write(setup_out, (str(problem) or type(problem).__name__).encode(errors="replace"))
        os._exit(1)
    os.close(setup_out)
    code = 1
    try:
        code = _do_work(job["work"], results_out)
    except SystemExit as leaving:
        code = _exit_code(leaving)
        _write_line(results_out, {"error": f"SystemExit: {leaving.code}"})
    except BaseException as problem:  # foreign code may raise anything; it is reported as its result
        with contextlib.suppress(BaseException):
            traceback.print_exc(limit=-6)
            error = "".join(traceback.format_exception_only(problem)).strip()[:2000]
            _write_line(results_out, {"error": error})
    with contextlib.suppress(BaseException):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def _lock_in(job: JailJob) -> None:
    """Set limits first, then walls, then the system call filter."""
    walls.prctl(walls.PR_SET_PDEATHSIG, signal.SIGKILL)
    walls.prctl(walls.PR_SET_NO_NEW_PRIVS, 1)
    walls.prctl(walls.PR_SET_DUMPABLE, 0)  # other processes of the user cannot read its memory or trace it
    for name in PRELOADED_MODULES.split():
        __import__(name)
    limits = {
        resource.RLIMIT_CPU: job["cpu_s"],
        resource.RLIMIT_FSIZE: job["file_bytes"],
        resource.RLIMIT_NOFILE: MAX_OPEN_FILES,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_AS: job["memory_bytes"],
    }
    if job["level"] == "landlock":
        walls.enter_landlock(job["folder"])
    if job["level"] == "namespaces":
        walls.drop_capabilities()
        limits[resource.RLIMIT_NPROC] = MAX_THREADS
    for limit, value in limits.items():
        hard = resource.getrlimit(limit)[1]  # a lower one of the user's stays
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(limit, (value, value))
    enter_seccomp(allow_files=job["level"] != "seccomp", pid=os.getpid())


def _do_work(work: JailWork, results_out: int) -> int:
    """Run the code and return its exit code."""
    sys.path.insert(0, os.getcwd())
    if work["kind"] == "script" or work["kind"] == "module":
        import runpy

        sys.argv = [work["name"], *work["arguments"]]
        try:
            if work["kind"] == "script":
                runpy.run_path(work["name"], run_name="__main__")
            else:
                runpy.run_module(work["name"], run_name="__main__", alter_sys=True)
        except SystemExit as leaving:
            if isinstance(leaving.code, str):
                print(leaving.code, file=sys.stderr)
            return _exit_code(leaving)
        return 0
    if work["kind"] == "snippets":
        for place, source in enumerate(work["snippets"]):
            _write_line(results_out, {"place": place, "value": _run_snippet(source)})
        return 0
    space: dict[str, Any] = {"__name__": "__jail__"}
    exec(compile(work["source"], "<answer>", "exec"), space)  # noqa: S102  (this is the jail)
    if not work["function"]:
        return 0
    function = space.get(work["function"])
    if not callable(function):
        raise NameError(f"the code defines no function {work['function']}")
    for place, arguments in enumerate(work["calls"]):
        try:
            value = function(*arguments)
            json.dumps(value)
        except (TypeError, ValueError) as problem:
            value = {"!": f"{type(problem).__name__}: {problem}"[:200]}
        _write_line(results_out, {"place": place, "value": value})
    return 0


def _run_snippet(source: str) -> Any:
    """Return what the snippet leaves in `result`, as JSON can hold it, or {"!": the reason}."""
    space: dict[str, object] = {"__name__": "__snippet__"}
    try:
        exec(compile(source, "<check>", "exec"), space)  # noqa: S102  (this is the jail)
        value = space["result"]
        json.dumps(value)
    except BaseException as problem:  # foreign code may raise anything; the next snippet still runs
        return {"!": "".join(traceback.format_exception_only(problem)).strip()[-300:]}
    return value


def _exit_code(leaving: SystemExit) -> int:
    code = leaving.code
    if code is None:
        return 0
    return code & 0xFF if isinstance(code, int) else 1


def _write_line(descriptor: int, line: Mapping[str, object]) -> None:
    data = json.dumps(line).encode() + b"\n"
    while data:
        data = data[os.write(descriptor, data) :]
