"""What runs inside: reads one job, locks itself in, runs it, writes one line of JSON.

Started by `run.py` as a fresh interpreter, so nothing of moebox's memory is here. Standard library only.

Job: level, folder, source, function, calls, memory_bytes, time_s, cpu_s.
Line: {"values": […]} with what each call returned, {"error": …}, or {"setup": why} when the walls could not be built.
"""

import contextlib
import json
import os
import resource
import signal
import sys
import time
import traceback
from typing import Any

from moebox.verify.sandbox import kernel, landlock, namespaces, seccomp

THREADS = 64  # the jail itself needs one; RLIMIT_NPROC counts all of the user's where it is not alone in a namespace
FILE_BYTES = 16 * 2**20
OPEN_FILES = 64
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
    kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
    job = json.load(sys.stdin)
    answer = os.dup(1)
    os.dup2(2, 1)  # what the code prints goes to stderr; the answer's descriptor is ours
    try:
        if job["level"] == "namespaces":
            namespaces.enter(job["folder"], FILE_BYTES)
    except OSError as problem:
        _say(answer, {"setup": str(problem)})
        return
    child = os.fork()
    if child == 0:
        _inside(job, answer)
    _wait(child, job["time_s"])


def _wait(child: int, time_s: float) -> None:
    """See the child end; past its time, kill it, and with it everything in its pid namespace."""
    until = time.monotonic() + time_s
    while time.monotonic() < until:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            os._exit(os.waitstatus_to_exitcode(status) & 0xFF)
        time.sleep(0.005)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os._exit(124)  # as timeout(1) says it


def _inside(job: dict[str, Any], answer: int) -> None:
    """The child's whole life."""
    code = 1
    try:
        _lock(job)
    except OSError as problem:
        _say(answer, {"setup": str(problem)})
        os._exit(1)
    try:
        _say(answer, {"values": _work(job)})
        code = 0
    except BaseException as problem:  # whatever foreign code raises, SystemExit too, is its result
        with contextlib.suppress(BaseException):
            _say(answer, {"error": "".join(traceback.format_exception_only(problem)).strip()[:2000]})
    with contextlib.suppress(BaseException):
        sys.stdout.flush()
    os._exit(code)


def _lock(job: dict[str, Any]) -> None:
    """Limits first, then walls, then the lock."""
    kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    kernel.prctl(kernel.PR_SET_DUMPABLE, 0)
    level = job["level"]
    for name in READY_MADE:
        __import__(name)
    if level == "landlock":
        landlock.enter(job["folder"])
    if level == "namespaces":
        kernel.drop_capabilities()
        _limit(resource.RLIMIT_NPROC, THREADS)
    _limit(resource.RLIMIT_CPU, job["cpu_s"])
    _limit(resource.RLIMIT_FSIZE, FILE_BYTES)
    _limit(resource.RLIMIT_NOFILE, OPEN_FILES)
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_AS, job["memory_bytes"])
    seccomp.enter(files=level != "seccomp", pid=os.getpid())


def _limit(what: int, value: int) -> None:
    resource.setrlimit(what, (value, value))


def _work(job: dict[str, Any]) -> list[Any]:
    """Run the source, then call its function with each set of arguments."""
    space: dict[str, Any] = {"__name__": "__jail__"}
    exec(compile(job["source"], "<answer>", "exec"), space)  # noqa: S102  (this is the jail)
    if not job["function"]:
        return []
    function = space.get(job["function"])
    if not callable(function):
        raise NameError(f"the code defines no function {job['function']}")
    return [_call(function, arguments) for arguments in job["calls"]]


def _call(function: Any, arguments: list[Any]) -> Any:
    try:
        value = function(*arguments)
        json.dumps(value)
    except (TypeError, ValueError) as problem:
        return {"!": f"{type(problem).__name__}: {problem}"[:200]}
    return value


def _say(answer: int, line: dict[str, Any]) -> None:
    """One line to the outside."""
    data = json.dumps(line).encode() + b"\n"
    while data:
        data = data[os.write(answer, data) :]
