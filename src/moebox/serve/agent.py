"""What runs on each node of a launch over several: starts that node's rank, stops it when the head falls silent.

    conductor ──stdin: one JSON line, then a line every few seconds──▶ agent ──▶ engine ──▶ its workers

It is sent as text to a Python on the node, with node_link.py, so both use the standard library alone and nothing else
of moebox.
A head that was killed, a network that was cut and an end that was asked for look the same from here: no more lines.
Modes: run a rank; `probe` tells what the node is; `reach` tries the way to the first node; `sweep` kills what is left.
"""

from __future__ import annotations  # a node's own Python may be 3.9

import contextlib
import ctypes
import glob
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from typing import IO, TypedDict

from moebox.serve.node_link import AgentReply, ReachConfig, port_is_open, try_links

MARK = "MOEBOX_RANK"  # every process of a rank carries it, and nothing else does
MASTER = "@MASTER@"  # stands in argv for the first node's address
PIECE = 1 << 16
# Told by a signal to end (a cancelled allocation, its time limit): Slurm sends SIGKILL 30 s later (KillWait), and what
# hangs below an agent that has ended by then is nobody's.
CANCEL_SIGNALS = (("SIGTERM", 3.0), ("SIGKILL", 2.0))


class RankCommandJson(TypedDict):
    """conduct.RankOrder, as JSON has it."""

    argv: list[str]
    env: dict[str, str]
    other_names: list[str]
    waits_for: int


class AgentConfig(ReachConfig):
    """conduct.Conducted as JSON, with what a mode needs besides."""

    mark: str
    mode: str
    rank: int | None
    names: list[str]
    master: str
    ranks: list[RankCommandJson]
    secrets: dict[str, str]
    cwd: str
    stop_signals: list[tuple[str, float]]
    lifeline_s: float
    version: list[str]  # from here on for probe
    weights: str
    first_only: bool


def print_line(text: str) -> None:
    """One whole line, so that nodes do not write into each other's."""
    os.write(1, text.encode(errors="replace") + b"\n")


def read_config() -> AgentConfig:
    """The first line of stdin, byte by byte: what follows is the lifeline's."""
    line = b""
    while not line.endswith(b"\n"):
        piece = os.read(0, 1)
        if not piece:
            sys.exit(3)
        line += piece
    config: AgentConfig = json.loads(line)
    return config


def descendants() -> list[int]:
    """Every process below this one; as subreaper it inherits those whose parents ended."""
    parents: dict[int, list[int]] = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError, IndexError, ValueError), open(f"/proc/{name}/stat") as file:
            state, parent = file.read().rsplit(")", 1)[1].split()[:2]
            if state != "Z":
                parents.setdefault(int(parent), []).append(int(name))
    found: list[int] = []
    edge = [os.getpid()]
    while edge:
        edge = [child for parent in edge for child in parents.get(parent, [])]
        found += edge
    return found


def processes_with_mark(mark: str) -> list[int]:
    """Processes that carry this launch's mark, wherever they hang now."""
    wanted = f"{MARK}={mark}".encode()
    found: list[int] = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{name}/environ", "rb") as file:
            if wanted in file.read().split(b"\0"):
                found.append(int(name))
    return [pid for pid in found if pid != os.getpid()]


def send_signal(pids: list[int], number: int) -> None:
    """Send a signal to each; gone already is as good."""
    for pid in pids:
        with contextlib.suppress(OSError):
            os.kill(pid, number)


def kill_descendants() -> None:
    """Kill everything below this process, also what is forked meanwhile."""
    until = time.monotonic() + 5.0
    while time.monotonic() < until and (left := descendants()):
        send_signal(left, signal.SIGKILL)
        time.sleep(0.02)


class RankProcess:
    """One rank: its process, its output, and the lifeline."""

    child: subprocess.Popen[bytes]

    def __init__(self, config: AgentConfig, rank: int) -> None:
        self.config, self.rank = config, rank
        self.prefix = b"" if rank == 0 else f"[{rank} {config['names'][rank]}] ".encode()
        self.rest = b""
        self.last_input = time.monotonic()
        self.stopping = False
        self.head_gone = False
        self.cancel_signal = 0  # the signal that told this agent to end
        for sign in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(sign, self.cancel)

    def cancel(self, number: int, _: object) -> None:
        """End the rank before this agent ends: as long as it is there, it inherits what the rank leaves."""
        self.cancel_signal = number

    def run(self) -> int:
        """Until the rank has ended; its exit code."""
        libc = ctypes.CDLL(None)
        libc.prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
        own = self.config["ranks"][self.rank]
        if own["waits_for"] and not self.wait_for_others(own["waits_for"]):
            return 0
        argv = [word.replace(MASTER, self.config["master"]) for word in own["argv"]]
        argv[0] = find_program(own) or argv[0]
        env = {**os.environ, **own["env"], **self.config["secrets"], MARK: self.config["mark"]}
        try:
            self.child = subprocess.Popen(
                argv,
                env=env,
                cwd=self.config["cwd"] or None,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=lambda: libc.prctl(1, signal.SIGKILL, 0, 0, 0),  # PR_SET_PDEATHSIG
            )
        except OSError as problem:
            print_line(f"moebox-agent: rank {self.rank} cannot be started: {problem.strerror}: {argv[0]}")
            return 127
        return self.follow_output()

    def follow_output(self) -> int:
        """Copy what the rank prints and heed the head until it has ended; its exit code."""
        assert self.child.stdout
        self.out = self.child.stdout
        os.set_blocking(self.out.fileno(), False)
        while self.child.poll() is None:
            self.poll_once()
        self.clean_up()
        return self.child.returncode

    def wait_for_others(self, port: int) -> bool:
        """Wait until every other node has that port open; False where the head said stop or fell silent first."""
        left = [address for rank, address in enumerate(self.config["addresses"]) if rank != self.rank]
        while left:
            ready = select.select([sys.stdin], [], [], 0.2)[0]
            if self.should_stop(has_input=bool(ready)):
                return False
            left = [address for address in left if not port_is_open(address, port)]
        return True

    def poll_once(self) -> None:
        """Copy what it prints, heed the lifeline."""
        sources: list[IO[bytes] | IO[str]] = [self.out] if self.stopping else [self.out, sys.stdin]
        ready, _, _ = select.select(sources, [], [], 0.2)
        if self.out in ready:
            self.copy_output()
        if not self.stopping and self.should_stop(has_input=sys.stdin in ready):
            self.stop()

    def should_stop(self, *, has_input: bool) -> bool:
        """Whether the end was asked for, or the head is gone; `heard`: it said something just now."""
        if self.cancel_signal:
            print_line(f"moebox-agent: rank {self.rank} was told to end by {signal.Signals(self.cancel_signal).name}")
            return True
        if has_input:
            data = os.read(0, PIECE)
            self.last_input = time.monotonic()
            self.head_gone = not data  # an end without a word: the head is gone
            return not data or b"stop" in data
        if time.monotonic() - self.last_input <= self.config["lifeline_s"]:
            return False
        self.head_gone = True
        print_line(f"moebox-agent: rank {self.rank} heard nothing from the head for {self.config['lifeline_s']:g} s")
        return True

    def copy_output(self) -> bool:
        """What has been printed, in whole lines; False at its end."""
        try:
            data = os.read(self.out.fileno(), PIECE)
        except BlockingIOError:
            return True
        *lines, self.rest = (self.rest + data).split(b"\n")
        if len(self.rest) > PIECE:
            lines, self.rest = [*lines, self.rest], b""
        with contextlib.suppress(OSError):
            os.write(1, b"".join(self.prefix + line + b"\n" for line in lines))
        return bool(data)

    def stop(self) -> None:
        """Ask, ask harder, kill; waits no longer than the ladder says."""
        self.stopping = True
        for name, wait in CANCEL_SIGNALS if self.cancel_signal else self.config["stop_signals"]:
            send_signal([-self.child.pid], getattr(signal, name))
            until = time.monotonic() + wait
            while time.monotonic() < until and self.child.poll() is None:
                if select.select([self.out], [], [], 0.1)[0]:
                    self.copy_output()
            if self.child.poll() is not None:
                return

    def clean_up(self) -> None:
        """The last words, and nothing left of what it started."""
        until = time.monotonic() + 2.0
        while time.monotonic() < until and select.select([self.out], [], [], 0.05)[0]:
            if not self.copy_output():
                break
        kill_descendants()
        if self.head_gone and self.rank == 0:
            cancel_job()


def cancel_job() -> None:
    """Give back the allocation that nobody will: its head is gone."""
    job = os.environ.get("SLURM_JOB_ID")
    if job and shutil.which("scancel"):
        subprocess.run(["scancel", job], check=False)


def find_program(part: RankCommandJson) -> str:
    """The rank's program under any of its names; "" where it has none here."""
    program = part["argv"][0]
    folder = os.path.dirname(program)
    for name in [program, *(os.path.join(folder, other) for other in part["other_names"])]:
        if path := shutil.which(name) or (name if os.path.exists(name) else ""):
            return path
    return ""


def gpu_names() -> list[str]:
    """Names of the GPUs as the driver tells them."""
    ask = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    return [line.strip() for line in output_lines(ask) if line.strip()]


def engine_version(words: list[str]) -> str:
    """The engine's version, by the words that ask for it; "" where that is not known."""
    lines = output_lines(words) if words else []
    return lines[-1][:80] if lines else ""


def output_lines(words: list[str]) -> list[str]:
    """The lines that a program prints; none where it is missing, fails or hangs."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return done.stdout.strip().splitlines() if done.returncode == 0 else []


def rdma_bytes_per_s() -> int:
    """Bytes a second of all active RDMA ports, as they say: "400 Gb/sec (4X NDR)"."""
    total = 0.0
    for port in glob.glob("/sys/class/infiniband/*/ports/*"):
        problems = contextlib.suppress(OSError, ValueError, IndexError)
        with problems, open(f"{port}/state") as state, open(f"{port}/rate") as rate:
            total += float(rate.read().split()[0]) * 1e9 / 8 if "ACTIVE" in state.read() else 0.0
    return int(total)


def probe_node(config: AgentConfig, rank: int) -> AgentReply:
    """What this node is."""
    wanted = config["weights"] if rank == 0 or not config["first_only"] else ""
    return {
        "host": socket.gethostname(),
        "time": time.time(),
        "program": find_program(config["ranks"][rank]),
        "version": engine_version(config["version"]),
        "gpus": gpu_names(),
        "weights": not wanted or os.path.exists(os.path.expanduser(wanted)),
        "rdma": rdma_bytes_per_s(),
    }


def main() -> int:
    """Do what the first line says."""
    config = read_config()
    rank = config["rank"] if config["rank"] is not None else int(os.environ.get("SLURM_NODEID", 0))
    mode = config["mode"]
    if mode == "sweep":
        send_signal(processes_with_mark(config["mark"]), signal.SIGKILL)
        return 0
    if mode in ("probe", "reach"):
        reply = probe_node(config, rank) if mode == "probe" else try_links(config, rank)
        print_line("moebox-reply: " + json.dumps({"rank": rank, **reply}))
        return 0
    print_line(f"moebox-agent: rank {rank} on {config['names'][rank]} ({socket.gethostname()}), process {os.getpid()}")
    code = RankProcess(config, rank).run()
    print_line(f"moebox-agent: rank {rank} ended with {code}")
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())
