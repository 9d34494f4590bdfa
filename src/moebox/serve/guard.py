"""The guard: a process between moebox and an engine, so that neither outlives the other by accident.

    moebox ──stdin (lifeline)──▶ guard ──▶ engine ──▶ its workers
                                  └─▶ engine.log (bounded)   life.json

The guard reads one JSON line from stdin, starts the engine in its own session and copies its output to the log.
When stdin ends (moebox was killed) or SIGTERM arrives, it stops the engine and all its descendants; after the line
"detach" it runs on alone. Power caps that moebox had changed are restored at the end.
If the guard itself is killed, the kernel kills the engine (parent-death signal).
It has one thread and few imports, because it lives as long as the engine.
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

from moebox.serve.agent import list_descendants, read_first_line
from moebox.store.log import EngineLog

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h
MARK = "MOEBOX_INSTANCE"  # environment variable that every process of an engine carries
CAPS_FILE = "power.json"  # beside the log: power caps of GPUs to restore, if moebox was killed while it changed them
CHUNK = 1 << 20
CLEAN_S = 30.0  # at most, until killed processes are gone
DRAIN_S = 2.0  # to read the rest of the pipe after the last process has gone
GROUPS = "/sys/fs/cgroup"
OOM_KILLS = "oom_kill"  # counter in cgroup v2's memory.events, v1's memory.oom_control and vmstat alike

# Signals that stop an engine, and how long to wait after each. vLLM needs some seconds to free eight GPUs.
STOP_SIGNALS = ((signal.SIGINT, 15.0), (signal.SIGTERM, 10.0), (signal.SIGKILL, 5.0))


@dataclass
class GuardState:
    """The state of the engine, written to life.json for other processes."""

    guard: int = 0  # its process; 0 until it has written this
    engine: int = 0
    status: str = "starting"  # starting, running, stopping, exited
    asked: bool = False  # a stop was requested
    code: int | None = None  # exit code; negative: the signal
    oom: bool = False  # it failed, and the kernel killed a process because memory ran out
    signals: list[str] = field(default_factory=list)  # that were needed to stop it
    killed: int = 0  # descendants that outlived it and were killed
    log_bytes: int = 0
    lost_bytes: int = 0  # output that could not be written, because the disk is full
    lost_why: str = ""
    error: str = ""  # why it could not be started or stopped
    ended: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardConfig:
    """The first line on the guard's stdin, as JSON."""

    mark: str  # the engine's id and state folder
    argv: tuple[str, ...]
    env: dict[str, str]
    log: str
    state_path: str
    cwd: str = "/"
    secrets: tuple[str, ...] = ()  # secrets that must not reach the log
    leases: tuple[int, ...] = ()
    oom_files: tuple[str, ...] = ()  # the kernel's counters of out-of-memory kills
    stop_signals: tuple[tuple[str, float], ...] = ()  # signals by name, and seconds
    cleanup_argv: tuple[str, ...] = ()  # run at the end, because killing `docker run` does not end the container
    log_limit: int = 32 * 2**20


class Guard:
    """Supervises one engine and writes its log."""

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
        self.oom_files = list(config.oom_files) or oom_counter_files()
        self.oom_kills = count_oom_kills(self.oom_files)
        self.unflushed = b""  # the end of the last block, if it may be the start of a secret
        for lease in config.leases:  # held by this process, not by the engine
            os.set_inheritable(lease, False)

    def run(self) -> None:
        """Start the engine, and return when it and all its descendants are gone."""
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
        """Copy output and handle commands until the engine's first process has ended."""
        handlers: dict[int, Callable[[int], bool]] = {
            sys.stdin.fileno(): self.handle_commands,
            signal_pipe: self.handle_signals,
            self.output: lambda _: self.copy_output(),
        }
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
        """Handle signals, one byte each: SIGTERM means stop."""
        if signal.SIGTERM in os.read(signal_pipe, 512):
            self.begin_stop()
        return True

    def handle_commands(self, lifeline: int) -> bool:
        """Handle commands from moebox; end of file means stop, unless detached. Return False at the end."""
        commands = os.read(lifeline, 4096)
        if b"detach" in commands:
            self.detached = True
        if b"stop" in commands or (not commands and not self.detached):
            self.begin_stop()
        return bool(commands)

    def copy_output(self) -> bool:
        """Copy a block of output to the log. Return False at the end."""
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
        """Remove secrets from `data`, even if one is split between two blocks."""
        if not self.secrets:
            return data
        data = self.unflushed + data
        for secret in self.secrets:
            data = data.replace(secret, b"***")
        end = len(data) - max(partial_secret_length(secret, data) for secret in self.secrets)
        self.unflushed = data[end:]
        return data[:end]

    def write_log(self, data: bytes) -> None:
        if not data:
            return
        try:
            self.log.write(data)
            self.state.log_bytes += len(data)
        except OSError as problem:  # disk full: keep the engine running, count the lost bytes
            first, self.state.lost_bytes = not self.state.lost_bytes, self.state.lost_bytes + len(data)
            self.state.lost_why = problem.strerror or str(problem)
            if first:
                self.write_state()

    def begin_stop(self) -> None:
        if self.signals_sent < 0:
            self.signals_sent, self.next_signal_at = 0, 0.0
            self.state.asked, self.state.status = True, "stopping"
            self.write_state()

    def send_next_signal(self) -> None:
        """Send the next of the stop signals if the wait after the last one is over."""
        if self.signals_sent < 0 or self.state.code is not None or time.monotonic() < self.next_signal_at:
            return
        if self.signals_sent == len(self.stop_signals):
            self.state.error = "the process cannot be killed (uninterruptible sleep: stuck driver or disk)"
            return
        sign, wait = self.stop_signals[self.signals_sent]
        self.state.signals.append(sign.name)
        self.signals_sent, self.next_signal_at = self.signals_sent + 1, time.monotonic() + wait
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.state.engine, sign)

    def reap_children(self) -> None:
        """Collect children that ended, and note how the engine itself ended."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self.state.engine:
                self.state.code = os.waitstatus_to_exitcode(status)
                if self.state.code != 0 and "SIGKILL" not in self.state.signals:
                    self.state.oom = count_oom_kills(self.oom_files) > self.oom_kills

    def clean_up(self) -> None:
        """Kill the engine's descendants, read the rest of their output, and remove its container."""
        until, limit = time.monotonic() + DRAIN_S, time.monotonic() + CLEAN_S
        kill_at = time.monotonic() + (0.0 if self.state.asked else 1.0)  # workers of a crashed engine may print why
        while time.monotonic() < limit and (time.monotonic() < until or list_descendants()):
            if select.select([self.output], [], [], 0.05)[0] and not self.copy_output() and not list_descendants():
                break
            if time.monotonic() >= kill_at:
                for pid in list_descendants():
                    with contextlib.suppress(ProcessLookupError, PermissionError):
                        os.kill(pid, signal.SIGKILL)
                        self.state.killed += 1
            self.reap_children()
        caps = Path(self.config.log).with_name(CAPS_FILE)
        restore_argv = (sys.executable, "-m", "moebox.serve.power", str(caps)) if caps.exists() else ()
        for argv in filter(None, (self.config.cleanup_argv, restore_argv)):
            with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                subprocess.run(argv, capture_output=True, timeout=60, check=False)
        self.log.close()

    def write_state(self) -> None:
        """Write life.json atomically if the state has changed."""
        text = json.dumps(vars(self.state))
        if text == self.written:
            return
        half = self.path.with_name(f".{self.path.name}.part")
        with contextlib.suppress(OSError):
            half.write_text(text, encoding="utf-8")
            half.replace(self.path)
            self.written = text


def partial_secret_length(secret: bytes, data: bytes) -> int:
    """How many bytes at the end of `data` may be the start of the secret."""
    sizes = range(min(len(secret) - 1, len(data)), 0, -1)
    return next((size for size in sizes if data.endswith(secret[:size])), 0)


def spawn_engine(config: GuardConfig) -> tuple[int, int]:
    """Fork and execute the engine. Return its pid and output pipe. Raise OSError if it cannot be executed."""
    read, write = os.pipe()
    error_pipe, error_writer = os.pipe()  # closed by exec; carries errno and reason if that fails
    guard = os.getpid()
    pid = os.fork()
    if pid == 0:
        try:
            exec_engine(config, guard, write)
        except OSError as problem:
            os.write(error_writer, f"{problem.errno} {problem.strerror}".encode())
        except ValueError as problem:  # a NUL, a name with "=", a character outside the locale
            text = f"0 an argument or variable cannot be passed on ({problem})"
            os.write(error_writer, text.encode(errors="replace"))
        finally:  # otherwise the fork would run on as a second guard
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
        fcntl.fcntl(read, fcntl.F_SETPIPE_SZ, CHUNK)  # an engine that prints much should not wait for its log
    return pid, read


def exec_engine(config: GuardConfig, guard: int, output: int) -> NoReturn:
    """In the forked child: execute the engine so that it dies with its guard and prints to `output`."""
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


def prctl(option: int, value: int) -> None:
    """Call prctl(2), if there is one (Linux)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def oom_counter_files() -> list[str]:
    """The counters of out-of-memory kills in this process's control group, or the machine's if it has none.

    The machine's also rises when an unrelated process is killed.
    """
    places: list[Path] = []
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            inside = path.lstrip("/")
            if not controllers:
                places += [Path(GROUPS, inside, "memory.events"), Path(GROUPS, "memory.events")]
            elif "memory" in controllers.split(","):
                # a container often sees its own group as the root
                places += [Path(GROUPS, "memory", inside, "memory.oom_control")]
                places += [Path(GROUPS, "memory", "memory.oom_control")]
    return [str(path) for path in places if _read_counter(path) is not None] or ["/proc/vmstat"]


def count_oom_kills(files: list[str]) -> int:
    return sum(_read_counter(Path(name)) or 0 for name in files)


def _read_counter(path: Path) -> int | None:
    with contextlib.suppress(OSError, ValueError):
        for line in path.read_text().splitlines():
            name, _, value = line.partition(" ")
            if name == OOM_KILLS:
                return int(value)
    return None


def open_signal_pipe() -> int:
    """A descriptor that becomes readable at SIGTERM and SIGCHLD; SIGINT and SIGHUP are ignored."""
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
    if line := read_first_line():
        os.environ.pop(MARK, None)
        Guard(GuardConfig(**json.loads(line))).run()


if __name__ == "__main__":
    main()
