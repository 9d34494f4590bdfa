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
STOP_SIGNALS: tuple[tuple[signal.Signals, float], ...] = (
    (signal.SIGINT, 15.0),
    (signal.SIGTERM, 10.0),
    (signal.SIGKILL, 5.0),
)


@dataclass
class GuardState:
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
    def is_written(self) -> bool:
        """A guard has written it."""
        return self.guard > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardConfig:
    """What a guard is told on its first line of stdin."""

    mark: str  # which engine it is, and of whose records
    argv: tuple[str, ...]
    env: dict[str, str]
    log: str
    state_path: str
    cwd: str = "/"
    secrets: tuple[str, ...] = ()  # secrets that must not reach the log
    leases: tuple[int, ...] = ()
    oom_files: tuple[str, ...] = ()  # the kernel's counters of kills for want of memory
    stop_signals: tuple[tuple[str, float], ...] = ()  # signals by name, and seconds
    cleanup_argv: tuple[str, ...] = ()  # run at the end: killing `docker run` does not end the container
    log_limit: int = 32 * 2**20


class Guard:
    """One engine and its log."""

    def __init__(self, config: GuardConfig) -> None:
        self.config = config
        self.state = GuardState(guard=os.getpid())
        self.written = ""
        self.path = Path(config.state_path)
        self.log = EngineLog(Path(config.log), limit=config.log_limit)
        self.stop_signals = [(signal.Signals[name], wait) for name, wait in config.stop_signals] or STOP_SIGNALS
        self.signals_sent = -1
        self.next_signal_at = 0.0
        self.detached = False
        self.output = -1
        self.secrets = [secret.encode() for secret in config.secrets if secret]
        self.oom_files = list(config.oom_files) or oom.oom_counter_files()
        self.oom_kills = oom.count_oom_kills(self.oom_files)
        self.unflushed = b""  # the end of the last piece, where it may be the beginning of a secret
        for lease in config.leases:  # held open as long as this process lives; not the engine's business
            os.set_inheritable(lease, False)

    def run(self) -> None:
        """Start the engine, and return when it and all that came from it are gone."""
        signal_pipe = open_signal_pipe()
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        try:
            self.state.engine, self.output = spawn_engine(self.config)
        except OSError as problem:
            self.state.error, self.state.status = f"{problem.strerror}: {self.config.argv[0]}", "exited"
            self.write_state()
            return
        self.state.status = "running"
        self.write_state()
        self.supervise(signal_pipe)
        self.clean_up()
        self.state.status, self.state.ended = "exited", time.time()
        self.write_state()

    def supervise(self, signal_pipe: int) -> None:
        """Copy output and obey until the engine's first process has ended."""
        handlers: dict[int, Callable[[int], bool]] = {
            sys.stdin.fileno(): self.handle_commands,
            signal_pipe: self.handle_signals,
        }
        handlers[self.output] = lambda _: self.copy_output()
        poll = select.poll()
        for source in handlers:
            poll.register(source, select.POLLIN)
        written_at = time.monotonic()
        while self.state.code is None and not self.state.error:
            for source, _ in poll.poll(200 if self.signals_sent >= 0 else 1000):
                if not handlers[source](source):
                    poll.unregister(source)
            self.reap_children()
            self.send_next_signal()
            if time.monotonic() - written_at > 1.0:
                written_at = time.monotonic()
                self.write_state()

    def handle_signals(self, signal_pipe: int) -> bool:
        """Signals came, a byte each: SIGTERM means stop."""
        if signal.SIGTERM in os.read(signal_pipe, 512):
            self.begin_stop()
        return True

    def handle_commands(self, lifeline: int) -> bool:
        """Do what moebox says; its silence for good means stop, unless it let go before. False when it is gone."""
        words = os.read(lifeline, 4096)
        if b"detach" in words:
            self.detached = True
        if b"stop" in words or (not words and not self.detached):
            self.begin_stop()
        return bool(words)

    def copy_output(self) -> bool:
        """One piece of output to the log; False when there will be no more."""
        try:
            data = os.read(self.output, CHUNK)
        except BlockingIOError:
            return True
        if not data:
            self.write_log(self.unflushed)
            self.unflushed = b""
            return False
        self.write_log(self.redact_secrets(data))
        return True

    def redact_secrets(self, data: bytes) -> bytes:
        """`data` without any secret in it, even one that is cut in two by the pipe."""
        if not self.secrets:
            return data
        data = self.unflushed + data
        for secret in self.secrets:
            data = data.replace(secret, b"***")
        end = len(data) - max(partial_secret_length(secret, data) for secret in self.secrets)
        self.unflushed = data[end:]
        return data[:end]

    def write_log(self, data: bytes) -> None:
        """Write to the log what can be written."""
        if not data:
            return
        try:
            self.log.write(data)
            self.state.log_bytes += len(data)
        except OSError as problem:  # a full disk: the engine goes on, its words are counted and lost
            first, self.state.lost_bytes = not self.state.lost_bytes, self.state.lost_bytes + len(data)
            self.state.lost_why = problem.strerror or str(problem)
            if first:
                self.write_state()

    def begin_stop(self) -> None:
        """Begin the ladder, once."""
        if self.signals_sent < 0:
            self.signals_sent, self.next_signal_at = 0, 0.0
            self.state.asked, self.state.status = True, "stopping"
            self.write_state()

    def send_next_signal(self) -> None:
        """The next, harder signal when the last one had its time."""
        if self.signals_sent < 0 or self.state.code is not None or time.monotonic() < self.next_signal_at:
            return
        if self.signals_sent == len(self.stop_signals):
            self.state.error = "it does not die: the kernel holds it (a stuck driver or disk)"
            return
        sign, wait = self.stop_signals[self.signals_sent]
        self.state.signals.append(sign.name)
        self.signals_sent, self.next_signal_at = self.signals_sent + 1, time.monotonic() + wait
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.state.engine, sign)

    def reap_children(self) -> None:
        """Collect children that ended; the engine's own end is what `watch` waits for."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self.state.engine:
                self.note_exit(os.waitstatus_to_exitcode(status))

    def note_exit(self, code: int) -> None:
        """How the engine ended, and whether the kernel did it for want of memory."""
        ours = "SIGKILL" in self.state.signals
        self.state.code = code
        self.state.oom = code != 0 and not ours and oom.count_oom_kills(self.oom_files) > self.oom_kills

    def clean_up(self) -> None:
        """Leave nothing of the engine: neither processes nor a container."""
        self.drain_output()
        if self.config.cleanup_argv:
            with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                subprocess.run(self.config.cleanup_argv, capture_output=True, timeout=60, check=False)
        self.log.close()

    def drain_output(self) -> None:
        """Kill what the engine left behind, and read what is still in the pipe."""
        until, limit = time.monotonic() + DRAIN_S, time.monotonic() + CLEAN_S
        patience = time.monotonic() + (0.0 if self.state.asked else 1.0)  # a crashed engine's workers may say why
        while time.monotonic() < limit and (time.monotonic() < until or list_descendants()):
            if select.select([self.output], [], [], 0.05)[0] and not self.copy_output() and not list_descendants():
                break
            if time.monotonic() >= patience:
                self.kill_descendants()
            self.reap_children()

    def kill_descendants(self) -> None:
        """SIGKILL for every process that came from the engine."""
        for pid in list_descendants():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
                self.state.killed += 1

    def write_state(self) -> None:
        """Tell the others, whole or not at all, when there is news."""
        text = json.dumps(vars(self.state))
        if text == self.written:
            return
        half = self.path.with_name(f".{self.path.name}.part")
        with contextlib.suppress(OSError):
            half.write_text(text, encoding="utf-8")
            half.replace(self.path)
            self.written = text


def partial_secret_length(secret: bytes, data: bytes) -> int:
    """How many bytes at the end of `data` may be the beginning of the secret."""
    sizes = range(min(len(secret) - 1, len(data)), 0, -1)
    return next((size for size in sizes if data.endswith(secret[:size])), 0)


def spawn_engine(config: GuardConfig) -> tuple[int, int]:
    """Fork and execute the engine; its pid and the pipe it prints to. OSError when it cannot be executed."""
    read, write = os.pipe()
    error_pipe, error_writer = os.pipe()  # closed by exec; carries errno and reason when that fails
    guard = os.getpid()
    pid = os.fork()
    if pid == 0:
        try:
            exec_engine(config, guard, write)
        except OSError as problem:
            os.write(error_writer, f"{problem.errno} {problem.strerror}".encode())
        except ValueError as problem:  # a NUL, a name with "=", a character that the locale does not have
            os.write(
                error_writer, f"0 an argument or variable cannot be passed on ({problem})".encode(errors="replace")
            )
        finally:  # a fork that went on would be a second guard
            os._exit(127)
    os.close(write)
    os.close(error_writer)
    problem_text = os.read(error_pipe, select.PIPE_BUF).decode(errors="replace")
    os.close(error_pipe)
    if problem_text:
        os.close(read)
        os.waitpid(pid, 0)
        number, _, reason = problem_text.partition(" ")
        raise OSError(int(number), reason)
    os.set_blocking(read, False)
    with contextlib.suppress(OSError):
        fcntl.fcntl(read, fcntl.F_SETPIPE_SZ, CHUNK)  # a talkative engine should not wait for its log
    return pid, read


def exec_engine(config: GuardConfig, guard: int, output: int) -> NoReturn:
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
    os.chdir(config.cwd or "/")
    os.execvpe(config.argv[0], config.argv, {**os.environ, **config.env, MARK: config.mark})  # noqa: S606


def list_descendants() -> list[int]:
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


def open_signal_pipe() -> int:
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
    Guard(GuardConfig(**json.loads(line))).run()


if __name__ == "__main__":
    main()
