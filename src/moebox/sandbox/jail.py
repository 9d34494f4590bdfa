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
from moebox.sandbox.job import Job, Line, Program, Told, Work

THREADS = 64  # the jail itself needs one; RLIMIT_NPROC counts all of the user's where it is not alone in a namespace
OPEN_FILES = 64
MOST_VALUES = 2**20  # bytes of what the code returns
MOST_FILES = 2000
MOST_KEPT = 6 * 2**20  # bytes of files that come back
LOOK_S = 0.1  # between two looks at the quota, which then take a tenth of a core at most
TIMED_OUT = 124  # as timeout(1) says it
# What a short function may want to import; where nothing can be opened any more, only these are there.
READY_MADE = tuple(
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
    job: Job = json.load(sys.stdin)
    answer = os.dup(1)
    os.dup2(2, 1)  # what the code prints goes to stderr; the answer's descriptor is ours
    try:
        if job["level"] == "namespaces":
            namespaces.enter(job["folder"], job["folder_bytes"], job["entries"])
            job["folder"] = namespaces.TEMP
        if job["level"] != "seccomp":
            _lay(job["folder"], job["files"])
    except OSError as problem:
        _say(answer, {"setup": str(problem)})
        return
    status, locked = os.pipe()
    heard, speak = os.pipe()
    child = os.fork()
    if child == 0:
        for descriptor in (answer, status, heard):
            os.close(descriptor)
        _inside(job, locked, speak)
    os.close(locked)
    os.close(speak)
    _supervise(child, job, answer, status, heard)


def _supervise(child: int, job: Job, answer: int, status: int, heard: int) -> None:
    """See the child to its end and tell of it."""
    setup = b""
    while piece := os.read(status, 4096):  # closed by the child once it is locked in, before any foreign code
        setup += piece
    if setup:
        os.waitpid(child, 0)
        _say(answer, {"setup": setup.decode(errors="replace")})
        os._exit(1)
    told, code, excess = _wait(child, job, heard)
    line: Line = {"values": [], "error": excess} if excess else _heard(told)
    line["exit"] = code
    if job["work"]["kind"] in ("script", "module"):
        found, whole = folders.read_files(
            job["folder"], most_files=MOST_FILES, most_bytes=MOST_KEPT, passed_over=("__pycache__",)
        )
        line["files"] = {path: base64.b64encode(data).decode() for path, data in found.items()} if whole else None
    _say(answer, line)
    os._exit(code & 0xFF)


def _wait(child: int, job: Job, heard: int) -> tuple[bytes, int, str]:
    """What the child said, its exit code, and the quota of its folder that it exceeded, or "".

    Past its time or its quota it is killed, with everything in its pid namespace.
    """
    until, told = time.monotonic() + job["time_s"], bytearray()
    look_at, excess, open_ = time.monotonic() + LOOK_S, "", True
    while time.monotonic() < until and not excess:
        if time.monotonic() >= look_at:
            began = time.monotonic()
            excess = _excess(job)
            look_at = time.monotonic() + max(LOOK_S, 9 * (time.monotonic() - began))
        elif open_ and select.select([heard], [], [], 0.005)[0]:
            piece = os.read(heard, 65536)
            told += piece[: MOST_VALUES - len(told)]
            open_ = bool(piece) and len(told) < MOST_VALUES
        else:
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                return bytes(told) + _rest(heard), os.waitstatus_to_exitcode(status), _excess(job)
            if not open_:
                time.sleep(0.005)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return bytes(told), 1 if excess else TIMED_OUT, excess


def _excess(job: Job) -> str:
    """Which quota the folder exceeds now; at the level without files there is nothing to count."""
    if job["level"] == "seccomp":
        return ""
    return folders.find_excess(job["folder"], most_bytes=job["folder_bytes"], most_entries=job["entries"])


def _rest(heard: int) -> bytes:
    """What was still in the pipe when the child ended."""
    os.set_blocking(heard, False)
    try:
        return os.read(heard, 65536)
    except BlockingIOError:
        return b""


def _heard(told: bytes) -> Line:
    """The child's lines as values and an error; a place that is named twice is the code meddling with the pipe."""
    values: dict[int, Any] = {}
    error = ""
    for line in filter(None, map(_parsed, told.split(b"\n"))):
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


def _inside(job: Job, locked: int, speak: int) -> None:
    """The child's whole life."""
    try:
        _lock(job)
    except OSError as problem:
        os.write(locked, str(problem).encode() or b"no reason given")
        os._exit(1)
    os.close(locked)
    code = 1
    try:
        code = _work(job["work"], speak)
    except SystemExit as leaving:
        code = _exit_code(leaving)
        _tell(speak, {"error": f"SystemExit: {leaving.code}"})
    except BaseException as problem:  # whatever foreign code raises is its result
        with contextlib.suppress(BaseException):
            traceback.print_exc(limit=-6)
            _tell(speak, {"error": "".join(traceback.format_exception_only(problem)).strip()[:2000]})
    with contextlib.suppress(BaseException):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def _lock(job: Job) -> None:
    """Limits first, then walls, then the lock."""
    syscalls.prctl(syscalls.PR_SET_PDEATHSIG, signal.SIGKILL)
    syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
    syscalls.prctl(syscalls.PR_SET_DUMPABLE, 0)
    level = job["level"]
    for name in READY_MADE:
        __import__(name)
    if level == "landlock":
        landlock.enter(job["folder"])
    if level == "namespaces":
        syscalls.drop_capabilities()
        _limit(resource.RLIMIT_NPROC, THREADS)
    _limit(resource.RLIMIT_CPU, job["cpu_s"])
    _limit(resource.RLIMIT_FSIZE, job["file_bytes"])
    _limit(resource.RLIMIT_NOFILE, OPEN_FILES)
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_AS, job["memory_bytes"])
    seccomp.enter(files=level != "seccomp", pid=os.getpid())


def _limit(what: int, value: int) -> None:
    resource.setrlimit(what, (value, value))


def _work(work: Work, speak: int) -> int:
    """Do what the job says; the exit code."""
    if work["kind"] == "script" or work["kind"] == "module":
        return _program(work)
    sys.path.insert(0, os.getcwd())
    if work["kind"] == "snippets":
        for place, source in enumerate(work["snippets"]):
            _tell(speak, {"place": place, "value": _snippet(source)})
        return 0
    space: dict[str, object] = {"__name__": "__jail__"}
    exec(compile(work["source"], "<answer>", "exec"), space)  # noqa: S102  (this is the jail)
    if not work["function"]:
        return 0
    function = space.get(work["function"])
    if not callable(function):
        raise NameError(f"the code defines no function {work['function']}")
    for place, arguments in enumerate(work["calls"]):
        _tell(speak, {"place": place, "value": _call(function, arguments)})
    return 0


def _program(work: Program) -> int:
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


def _snippet(source: str) -> Any:
    """What the snippet leaves in `result`, as JSON can hold it; {"!": why} where it leaves nothing."""
    space: dict[str, object] = {"__name__": "__snippet__"}
    try:
        exec(compile(source, "<check>", "exec"), space)  # noqa: S102  (this is the jail)
        value = space["result"]
        json.dumps(value)
    except BaseException as problem:  # foreign code may raise anything; the next snippet still runs
        return {"!": "".join(traceback.format_exception_only(problem)).strip()[-300:]}
    return value


def _call(function: Any, arguments: list[Any]) -> Any:
    try:
        value = function(*arguments)
        json.dumps(value)
    except (TypeError, ValueError) as problem:
        return {"!": f"{type(problem).__name__}: {problem}"[:200]}
    return value


def _lay(folder: str, files: dict[str, str]) -> None:
    """Put the job's files where the code will find them."""
    for name, text in files.items():
        path = os.path.join(folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "xb") as file:
            file.write(base64.b64decode(text))


def _tell(speak: int, line: Told) -> None:
    """One line from the child to the supervisor."""
    _write(speak, json.dumps(line).encode() + b"\n")


def _say(answer: int, line: Line) -> None:
    """One line to the outside."""
    _write(answer, json.dumps(line).encode() + b"\n")


def _write(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]
