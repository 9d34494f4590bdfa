"""What runs inside: reads one job, locks a child in, lets it run, writes one line of JSON about it.

Started by `start.py` as a fresh interpreter, so nothing of moebox's memory is here. Standard library only.

Two processes. The supervisor stands outside the lock and alone holds the descriptor of the result line, so the code
that was run cannot write that line: not its exit code, not the files it left, not whether the walls stood. The child
is locked in; what its functions return comes through a pipe of its own and is the code's own word, nothing more.
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
from typing import Any

from moebox.sandbox import folder as folders
from moebox.sandbox import landlock, namespaces, seccomp, syscalls
from moebox.sandbox.job import ChildLine, JailJob, JailWork, ProgramWork, ResultLine

MAX_THREADS = (
    64  # the jail itself needs one; RLIMIT_NPROC counts all of the user's where it is not alone in a namespace
)
MAX_OPEN_FILES = 64
MAX_RESULT_BYTES = 2**20  # bytes of what the code returns
MAX_RETURNED_FILES = 2000
MAX_RETURNED_BYTES = 6 * 2**20  # bytes of files that come back
QUOTA_INTERVAL_S = 0.1  # between two looks at the quota, which then take a tenth of a core at most
TIMEOUT_EXIT_CODE = 124  # as timeout(1) says it
# What a short function may want to import; where nothing can be opened any more, only these are there.
PRELOADED_MODULES = tuple(
    word
    for line in (
        "math cmath re string collections collections.abc itertools functools operator heapq bisect json random",
        "datetime calendar decimal fractions statistics typing dataclasses enum copy textwrap unicodedata time array",
        "struct abc types contextlib io sys os hashlib base64 binascii csv numbers queue graphlib secrets warnings",
    )
    for word in line.split()
)


def main() -> None:
    """Read the job from stdin, run it behind walls, answer on stdout."""
    syscalls.prctl(syscalls.PR_SET_PDEATHSIG, signal.SIGKILL)
    job: JailJob = json.load(sys.stdin)
    result_fd = os.dup(1)
    os.dup2(2, 1)  # what the code prints goes to stderr; the answer's descriptor is ours
    try:
        if job["level"] == "namespaces":
            namespaces.enter_namespaces(job["folder"], job["folder_bytes"], job["entries"])
            job["folder"] = namespaces.JAIL_TEMP
        if job["level"] != "seccomp":
            _write_files(job["folder"], job["files"])
    except OSError as problem:
        _say(result_fd, {"setup": str(problem)})
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
    """See the child to its end and tell of it."""
    setup = b""
    while piece := os.read(setup_in, 4096):  # closed by the child once it is locked in, before any foreign code
        setup += piece
    if setup:
        os.waitpid(child, 0)
        _say(result_fd, {"setup": setup.decode(errors="replace")})
        os._exit(1)
    output, code, excess = _wait_for_child(child, job, results_in)
    line: ResultLine = {"values": [], "error": excess} if excess else _parse_results(output)
    line["exit"] = code
    if job["work"]["kind"] in ("script", "module"):
        found, whole = folders.read_files(
            job["folder"], max_files=MAX_RETURNED_FILES, max_bytes=MAX_RETURNED_BYTES, skipped_folders=("__pycache__",)
        )
        line["files"] = {path: base64.b64encode(data).decode() for path, data in found.items()} if whole else None
    _say(result_fd, line)
    os._exit(code & 0xFF)


def _wait_for_child(child: int, job: JailJob, results_in: int) -> tuple[bytes, int, str]:
    """What the child said, its exit code, and the quota of its folder that it exceeded, or "".

    Past its time or its quota it is killed, with everything in its pid namespace.
    """
    until, output = time.monotonic() + job["time_s"], bytearray()
    look_at, excess, open_ = time.monotonic() + QUOTA_INTERVAL_S, "", True
    while time.monotonic() < until and not excess:
        if time.monotonic() >= look_at:
            began = time.monotonic()
            excess = _excess(job)
            look_at = time.monotonic() + max(QUOTA_INTERVAL_S, 9 * (time.monotonic() - began))
        elif open_ and select.select([results_in], [], [], 0.005)[0]:
            piece = os.read(results_in, 65536)
            output += piece[: MAX_RESULT_BYTES - len(output)]
            open_ = bool(piece) and len(output) < MAX_RESULT_BYTES
        else:
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                return bytes(output) + _rest(results_in), os.waitstatus_to_exitcode(status), _excess(job)
            if not open_:
                time.sleep(0.005)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return bytes(output), 1 if excess else TIMEOUT_EXIT_CODE, excess


def _excess(job: JailJob) -> str:
    """Which quota the folder exceeds now; at the level without files there is nothing to count."""
    if job["level"] == "seccomp":
        return ""
    return folders.find_excess(job["folder"], max_bytes=job["folder_bytes"], max_entries=job["entries"])


def _rest(heard: int) -> bytes:
    """What was still in the pipe when the child ended."""
    os.set_blocking(heard, False)
    try:
        return os.read(heard, 65536)
    except BlockingIOError:
        return b""


def _parse_results(output: bytes) -> ResultLine:
    """The child's lines as values and an error; a place that is named twice is the code meddling with the pipe."""
    values: dict[int, Any] = {}
    error = ""
    for line in filter(None, map(_parsed, output.split(b"\n"))):
        place = line.get("place")
        if isinstance(place, int):
            if place in values:
                return {"values": [], "error": "the code wrote to the pipe of its results"}
            values[place] = line.get("value")
        error = str(line.get("error") or error)
    return {"values": sorted(values.items()), "error": error}


def _parsed(raw: bytes) -> dict[str, object]:
    """One line as an object; empty where it is none."""
    try:
        line = json.loads(raw)
    except (ValueError, RecursionError):
        return {}
    return line if isinstance(line, dict) else {}


def _run_child(job: JailJob, setup_out: int, results_out: int) -> None:
    """The child's whole life."""
    try:
        _lock_in(job)
    except OSError as problem:
        os.write(setup_out, str(problem).encode() or b"no reason given")
        os._exit(1)
    os.close(setup_out)
    code = 1
    try:
        code = _do_work(job["work"], results_out)
    except SystemExit as leaving:
        code = _exit_code(leaving)
        _tell(results_out, {"error": f"SystemExit: {leaving.code}"})
    except BaseException as problem:  # whatever foreign code raises is its result
        with contextlib.suppress(BaseException):
            traceback.print_exc(limit=-6)
            _tell(results_out, {"error": "".join(traceback.format_exception_only(problem)).strip()[:2000]})
    with contextlib.suppress(BaseException):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def _lock_in(job: JailJob) -> None:
    """Limits first, then walls, then the lock."""
    syscalls.prctl(syscalls.PR_SET_PDEATHSIG, signal.SIGKILL)
    syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
    syscalls.prctl(syscalls.PR_SET_DUMPABLE, 0)
    level = job["level"]
    for name in PRELOADED_MODULES:
        __import__(name)
    if level == "landlock":
        landlock.enter_landlock(job["folder"])
    if level == "namespaces":
        syscalls.drop_capabilities()
        _limit(resource.RLIMIT_NPROC, MAX_THREADS)
    _limit(resource.RLIMIT_CPU, job["cpu_s"])
    _limit(resource.RLIMIT_FSIZE, job["file_bytes"])
    _limit(resource.RLIMIT_NOFILE, MAX_OPEN_FILES)
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_AS, job["memory_bytes"])
    seccomp.enter_seccomp(allow_files=level != "seccomp", pid=os.getpid())


def _limit(what: int, value: int) -> None:
    resource.setrlimit(what, (value, value))


def _do_work(work: JailWork, results_out: int) -> int:
    """Do what the job says; the exit code."""
    if work["kind"] == "script" or work["kind"] == "module":
        return _run_program(work)
    sys.path.insert(0, os.getcwd())
    if work["kind"] == "snippets":
        for place, source in enumerate(work["snippets"]):
            _tell(results_out, {"place": place, "value": _run_snippet(source)})
        return 0
    space: dict[str, object] = {"__name__": "__jail__"}
    exec(compile(work["source"], "<answer>", "exec"), space)  # noqa: S102  (this is the jail)
    if not work["function"]:
        return 0
    function = space.get(work["function"])
    if not callable(function):
        raise NameError(f"the code defines no function {work['function']}")
    for place, arguments in enumerate(work["calls"]):
        _tell(results_out, {"place": place, "value": _call_function(function, arguments)})
    return 0


def _run_program(work: ProgramWork) -> int:
    """A script, or a module of the library such as unittest, as `python` would run it."""
    import runpy

    sys.path.insert(0, os.getcwd())
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


def _exit_code(leaving: SystemExit) -> int:
    code = leaving.code
    if code is None:
        return 0
    return code & 0xFF if isinstance(code, int) else 1


def _run_snippet(source: str) -> Any:
    """What the snippet leaves in `result`, as JSON can hold it; {"!": why} where it leaves nothing."""
    space: dict[str, object] = {"__name__": "__snippet__"}
    try:
        exec(compile(source, "<check>", "exec"), space)  # noqa: S102  (this is the jail)
        value = space["result"]
        json.dumps(value)
    except BaseException as problem:  # foreign code may raise anything; the next snippet still runs
        return {"!": "".join(traceback.format_exception_only(problem)).strip()[-300:]}
    return value


def _call_function(function: Any, arguments: list[Any]) -> Any:
    try:
        value = function(*arguments)
        json.dumps(value)
    except (TypeError, ValueError) as problem:
        return {"!": f"{type(problem).__name__}: {problem}"[:200]}
    return value


def _write_files(folder: str, files: dict[str, str]) -> None:
    """Put the job's files where the code will find them."""
    for name, text in files.items():
        path = os.path.join(folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "xb") as file:
            file.write(base64.b64decode(text))


def _tell(speak: int, line: ChildLine) -> None:
    """One line from the child to the supervisor."""
    _write(speak, json.dumps(line).encode() + b"\n")


def _say(answer: int, line: ResultLine) -> None:
    """One line to the outside."""
    _write(answer, json.dumps(line).encode() + b"\n")


def _write(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]
