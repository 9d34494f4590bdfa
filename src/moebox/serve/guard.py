"""The process between moebox and an engine, so that neither outlives the other by accident.

    moebox ──stdin (lifeline)──▶ guard ──▶ engine ──▶ its workers
                                  └─▶ engine.log (bounded)   life.json

It reads one JSON line on stdin, starts the engine in a session of its own, copies what it prints to the log and
waits. When stdin ends (moebox was killed, however) or SIGTERM comes, it stops the engine and everything that
came from it; the line "detach" makes it go on alone. Should the guard itself be killed, the kernel kills the
engine (parent-death signal). One thread, no imports beyond what it needs: it lives as long as the engine does.
"""

import contextlib
import ctypes
import fcntl
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from moebox.serve import oom
from moebox.store.log import EngineLog

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h
MARK = "MOEBOX_INSTANCE"  # environment variable that every process of an engine carries
CHUNK = 1 << 20
CLEAN_S = 30.0  # at most, for processes that were killed to be gone
DRAIN_S = 2.0  # after the last process has gone, for what is still in the pipe

# What an engine is asked, in order, and how long it may take over it. vLLM needs some seconds to free eight GPUs.
LADDER: tuple[tuple[signal.Signals, float], ...] = (
    (signal.SIGINT, 15.0),
    (signal.SIGTERM, 10.0),
    (signal.SIGKILL, 5.0),
)


@dataclass
class Life:
    """What became of the engine, as others read it in life.json."""

    guard: int = 0
    engine: int = 0
    status: str = "starting"  # starting, running, stopping, exited
    asked: bool = False  # it was told to stop
    code: int | None = None  # exit code; negative: the signal
    oom: bool = False  # the kernel killed for want of memory while it lived, and it ended badly
    signals: list[str] = field(default_factory=list)  # steps of the ladder that were needed
    killed: int = 0  # processes that were left behind and had to be killed
    log_bytes: int = 0
    lost_bytes: int = 0  # log that a full disk refused
    lost_why: str = ""
    error: str = ""  # why it could not even be started
    ended: float = 0.0

    @property
    def known(self) -> bool:
        """A guard has written it."""
        return self.guard > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardOrder:
    """What a guard is told on its first line of stdin."""

    mark: str  # which engine it is, and of whose records
    argv: tuple[str, ...]
    env: dict[str, str]
    log: str
    life: str
    cwd: str = "/"
    hide: tuple[str, ...] = ()  # secrets that must not reach the log
    leases: tuple[int, ...] = ()
    oom: tuple[str, ...] = ()  # the kernel's counters of kills for want of memory
    ladder: tuple[tuple[str, float], ...] = ()  # signals by name, and seconds
    after: tuple[str, ...] = ()  # run at the end: killing `docker run` does not end the container
    log_limit: int = 32 * 2**20


class Guard:
    """One engine and its log."""

    def __init__(self, order: GuardOrder) -> None:
        self.order = order
        self.life = Life(guard=os.getpid())
        self.told = ""
        self.path = Path(order.life)
        self.log = EngineLog(Path(order.log), limit=order.log_limit)
        self.ladder = [(signal.Signals[name], wait) for name, wait in order.ladder] or LADDER
        self.step = -1
        self.until = 0.0
        self.detached = False
        self.output = -1
        self.secrets = [secret.encode() for secret in order.hide if secret]
        self.oom_files = list(order.oom) or oom.counters()
        self.oom_kills = oom.kills(self.oom_files)
        self.held = b""  # the end of the last piece, where it may be the beginning of a secret
        for lease in order.leases:  # held open as long as this process lives; not the engine's business
            os.set_inheritable(lease, False)

    def run(self) -> None:
        """Start the engine, and return when it and all that came from it are gone."""
        wake = _wake_on_signals()
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        try:
            self.life.engine, self.output = spawn(self.order)
        except OSError as problem:
            self.life.error, self.life.status = f"{problem.strerror}: {self.order.argv[0]}", "exited"
            self.note()
            return
        self.life.status = "running"
        self.note()
        self.watch(wake)
        self.clean()
        self.life.status, self.life.ended = "exited", time.time()
        self.note()

    def watch(self, wake: int) -> None:
        """Copy output and obey until the engine's first process has ended."""
        heed: dict[int, Callable[[int], bool]] = {sys.stdin.fileno(): self.obey, wake: self.woken}
        heed[self.output] = lambda _: self.copy()
        poll = select.poll()
        for source in heed:
            poll.register(source, select.POLLIN)
        told = time.monotonic()
        while self.life.code is None and not self.life.error:
            for source, _ in poll.poll(200 if self.step >= 0 else 1000):
                if not heed[source](source):
                    poll.unregister(source)
            self.reap()
            self.climb()
            if time.monotonic() - told > 1.0:
                told = time.monotonic()
                self.note()

    def woken(self, wake: int) -> bool:
        """Signals came, a byte each: SIGTERM means stop."""
        if signal.SIGTERM in os.read(wake, 512):
            self.stop()
        return True

    def obey(self, lifeline: int) -> bool:
        """Do what moebox says; its silence for good means stop, unless it let go before. False when it is gone."""
        words = os.read(lifeline, 4096)
        if b"detach" in words:
            self.detached = True
        if b"stop" in words or (not words and not self.detached):
            self.stop()
        return bool(words)

    def copy(self) -> bool:
        """One piece of output to the log; False when there will be no more."""
        try:
            data = os.read(self.output, CHUNK)
        except BlockingIOError:
            return True
        if not data:
            self.record(self.held)
            self.held = b""
            return False
        self.record(self.hide(data))
        return True

    def hide(self, data: bytes) -> bytes:
        """`data` without any secret in it, even one that is cut in two by the pipe."""
        if not self.secrets:
            return data
        data = self.held + data
        for secret in self.secrets:
            data = data.replace(secret, b"***")
        end = len(data) - max(begun(secret, data) for secret in self.secrets)
        self.held = data[end:]
        return data[:end]

    def record(self, data: bytes) -> None:
        """Write to the log what can be written."""
        if not data:
            return
        try:
            self.log.write(data)
            self.life.log_bytes += len(data)
        except OSError as problem:  # a full disk: the engine goes on, its words are counted and lost
            first, self.life.lost_bytes = not self.life.lost_bytes, self.life.lost_bytes + len(data)
            self.life.lost_why = problem.strerror or str(problem)
            if first:
                self.note()

    def stop(self) -> None:
        """Begin the ladder, once."""
        if self.step < 0:
            self.step, self.until = 0, 0.0
            self.life.asked, self.life.status = True, "stopping"
            self.note()

    def climb(self) -> None:
        """The next, harder signal when the last one had its time."""
        if self.step < 0 or self.life.code is not None or time.monotonic() < self.until:
            return
        if self.step == len(self.ladder):
            self.life.error = "it does not die: the kernel holds it (a stuck driver or disk)"
            return
        sign, wait = self.ladder[self.step]
        self.life.signals.append(sign.name)
        self.step, self.until = self.step + 1, time.monotonic() + wait
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.life.engine, sign)

    def reap(self) -> None:
        """Collect children that ended; the engine's own end is what `watch` waits for."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self.life.engine:
                self.ended(os.waitstatus_to_exitcode(status))

    def ended(self, code: int) -> None:
        """How the engine ended, and whether the kernel did it for want of memory."""
        ours = "SIGKILL" in self.life.signals
        self.life.code = code
        self.life.oom = code != 0 and not ours and oom.kills(self.oom_files) > self.oom_kills

    def clean(self) -> None:
        """Leave nothing of the engine: neither processes nor a container."""
        self.drain()
        if self.order.after:
            with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                subprocess.run(self.order.after, capture_output=True, timeout=60, check=False)
        self.log.close()

    def drain(self) -> None:
        """Kill what the engine left behind, and read what is still in the pipe."""
        until, limit = time.monotonic() + DRAIN_S, time.monotonic() + CLEAN_S
        patience = time.monotonic() + (0.0 if self.life.asked else 1.0)  # a crashed engine's workers may say why
        while time.monotonic() < limit and (time.monotonic() < until or descendants()):
            if select.select([self.output], [], [], 0.05)[0] and not self.copy() and not descendants():
                break
            if time.monotonic() >= patience:
                self.kill_rest()
            self.reap()

    def kill_rest(self) -> None:
        """SIGKILL for every process that came from the engine."""
        for pid in descendants():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
                self.life.killed += 1

    def note(self) -> None:
        """Tell the others, whole or not at all, when there is news."""
        text = json.dumps(vars(self.life))
        if text == self.told:
            return
        half = self.path.with_name(f".{self.path.name}.part")
        with contextlib.suppress(OSError):
            half.write_text(text, encoding="utf-8")
            half.replace(self.path)
            self.told = text


def begun(secret: bytes, data: bytes) -> int:
    """How many bytes at the end of `data` may be the beginning of the secret."""
    sizes = range(min(len(secret) - 1, len(data)), 0, -1)
    return next((size for size in sizes if data.endswith(secret[:size])), 0)


def spawn(order: GuardOrder) -> tuple[int, int]:
    """Fork and execute the engine; its pid and the pipe it prints to. OSError when it cannot be executed."""
    read, write = os.pipe()
    told, tell = os.pipe()  # closed by exec; carries errno and reason when that fails
    guard = os.getpid()
    pid = os.fork()
    if pid == 0:
        try:
            become(order, guard, write)
        except OSError as problem:
            os.write(tell, f"{problem.errno} {problem.strerror}".encode())
        except ValueError as problem:  # a NUL, a name with "=", a character that the locale does not have
            os.write(tell, f"0 an argument or variable cannot be passed on ({problem})".encode(errors="replace"))
        finally:  # a fork that went on would be a second guard
            os._exit(127)
    os.close(write)
    os.close(tell)
    trouble = os.read(told, select.PIPE_BUF).decode(errors="replace")
    os.close(told)
    if trouble:
        os.close(read)
        os.waitpid(pid, 0)
        number, _, reason = trouble.partition(" ")
        raise OSError(int(number), reason)
    os.set_blocking(read, False)
    with contextlib.suppress(OSError):
        fcntl.fcntl(read, fcntl.F_SETPIPE_SZ, CHUNK)  # a talkative engine should not wait for its log
    return pid, read


def become(order: GuardOrder, guard: int, output: int) -> NoReturn:
    """In the forked child: execute the engine, which dies with its guard and prints to `output`."""
    os.setsid()
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != guard:
        os._exit(1)
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (output, 1), (output, 2)):
        os.dup2(source, target)
    for sign in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD, signal.SIGPIPE):
        signal.signal(sign, signal.SIG_DFL)
    os.chdir(order.cwd or "/")
    os.execvpe(order.argv[0], order.argv, {**os.environ, **order.env, MARK: order.mark})  # noqa: S606


def descendants() -> list[int]:
    """Every process below this one. (As subreaper it inherits those whose parents ended.)"""
    parents: dict[int, list[int]] = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError, IndexError, ValueError):
            state, parent = Path(f"/proc/{name}/stat").read_text().rsplit(")", 1)[1].split()[:2]
            if state != "Z":
                parents.setdefault(int(parent), []).append(int(name))
    found: list[int] = []
    edge = [os.getpid()]
    while edge:
        edge = [child for parent in edge for child in parents.get(parent, [])]
        found += edge
    return found


def prctl(option: int, value: int) -> None:
    """prctl(2); without it (not Linux) the lifeline alone keeps order."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _wake_on_signals() -> int:
    """A descriptor that becomes readable at SIGTERM and SIGCHLD; SIGINT and SIGHUP are moebox's to hear."""
    read, write = os.pipe()
    os.set_blocking(write, False)
    os.set_blocking(read, False)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    for sign in (signal.SIGTERM, signal.SIGCHLD):
        signal.signal(sign, lambda *_: None)
    for sign in (signal.SIGINT, signal.SIGHUP):
        signal.signal(sign, signal.SIG_IGN)
    return read


def main() -> None:
    """Read the order from stdin and carry it out."""
    line = b""
    while not line.endswith(b"\n"):
        piece = os.read(sys.stdin.fileno(), 1)  # byte by byte: what follows the line is the lifeline's
        if not piece:
            return
        line += piece
    os.environ.pop(MARK, None)
    Guard(GuardOrder(**json.loads(line))).run()


if __name__ == "__main__":
    main()
