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

from moebox.serve.node_link import Answer, ReachOrder, is_open, reach

MARK = "MOEBOX_RANK"  # every process of a rank carries it, and nothing else does
MASTER = "@MASTER@"  # stands in argv for the first node's address
PIECE = 1 << 16
# Told by a signal to end (a cancelled allocation, its time limit): Slurm sends SIGKILL 30 s later (KillWait), and what
# hangs below an agent that has ended by then is nobody's.
CANCELLED = (("SIGTERM", 3.0), ("SIGKILL", 2.0))


class RankPart(TypedDict):
    """conduct.RankOrder, as JSON has it."""

    argv: list[str]
    env: dict[str, str]
    other_names: list[str]
    waits_for: int


class Order(ReachOrder):
    """conduct.Conducted as JSON, with what a mode needs besides."""

    mark: str
    mode: str
    rank: int | None
    names: list[str]
    master: str
    ranks: list[RankPart]
    secrets: dict[str, str]
    cwd: str
    ladder: list[tuple[str, float]]
    lifeline_s: float
    version: list[str]  # from here on for probe
    weights: str
    first_only: bool


def say(text: str) -> None:
    """One whole line, so that nodes do not write into each other's."""
    os.write(1, text.encode(errors="replace") + b"\n")


def read_order() -> Order:
    """The first line of stdin, byte by byte: what follows is the lifeline's."""
    line = b""
    while not line.endswith(b"\n"):
        piece = os.read(0, 1)
        if not piece:
            sys.exit(3)
        line += piece
    order: Order = json.loads(line)
    return order


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


def marked(mark: str) -> list[int]:
    """Processes that carry this launch's mark, wherever they hang now."""
    wanted = f"{MARK}={mark}".encode()
    found: list[int] = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{name}/environ", "rb") as file:
            if wanted in file.read().split(b"\0"):
                found.append(int(name))
    return [pid for pid in found if pid != os.getpid()]


def kill(pids: list[int], number: int) -> None:
    """Send a signal to each; gone already is as good."""
    for pid in pids:
        with contextlib.suppress(OSError):
            os.kill(pid, number)


def kill_all() -> None:
    """Kill everything below this process, also what is forked meanwhile."""
    until = time.monotonic() + 5.0
    while time.monotonic() < until and (left := descendants()):
        kill(left, signal.SIGKILL)
        time.sleep(0.02)


class Rank:
    """One rank: its process, its output, and the lifeline."""

    child: subprocess.Popen[bytes]

    def __init__(self, order: Order, rank: int) -> None:
        self.order, self.rank = order, rank
        self.prefix = b"" if rank == 0 else f"[{rank} {order['names'][rank]}] ".encode()
        self.rest = b""
        self.heard = time.monotonic()
        self.stopping = False
        self.silent = False
        self.cancelled = 0  # the signal that told this agent to end
        for sign in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(sign, self.cancel)

    def cancel(self, number: int, _: object) -> None:
        """End the rank before this agent ends: as long as it is there, it inherits what the rank leaves."""
        self.cancelled = number

    def run(self) -> int:
        """Until the rank has ended; its exit code."""
        libc = ctypes.CDLL(None)
        libc.prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
        own = self.order["ranks"][self.rank]
        if own["waits_for"] and not self.others_listen(own["waits_for"]):
            return 0
        argv = [word.replace(MASTER, self.order["master"]) for word in own["argv"]]
        argv[0] = program_of(own) or argv[0]
        env = {**os.environ, **own["env"], **self.order["secrets"], MARK: self.order["mark"]}
        try:
            self.child = subprocess.Popen(
                argv,
                env=env,
                cwd=self.order["cwd"] or None,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=lambda: libc.prctl(1, signal.SIGKILL, 0, 0, 0),  # PR_SET_PDEATHSIG
            )
        except OSError as problem:
            say(f"moebox-agent: rank {self.rank} cannot be started: {problem.strerror}: {argv[0]}")
            return 127
        return self.followed()

    def followed(self) -> int:
        """Copy what the rank prints and heed the head until it has ended; its exit code."""
        assert self.child.stdout
        self.out = self.child.stdout
        os.set_blocking(self.out.fileno(), False)
        while self.child.poll() is None:
            self.look()
        self.finish()
        return self.child.returncode

    def others_listen(self, port: int) -> bool:
        """Wait until every other node has that port open; False where the head said stop or fell silent first."""
        left = [address for rank, address in enumerate(self.order["addresses"]) if rank != self.rank]
        while left:
            ready = select.select([sys.stdin], [], [], 0.2)[0]
            if self.ends(heard=bool(ready)):
                return False
            left = [address for address in left if not is_open(address, port)]
        return True

    def look(self) -> None:
        """Copy what it prints, heed the lifeline."""
        sources: list[IO[bytes] | IO[str]] = [self.out] if self.stopping else [self.out, sys.stdin]
        ready, _, _ = select.select(sources, [], [], 0.2)
        if self.out in ready:
            self.copy()
        if not self.stopping and self.ends(heard=sys.stdin in ready):
            self.stop()

    def ends(self, *, heard: bool) -> bool:
        """Whether the end was asked for, or the head is gone; `heard`: it said something just now."""
        if self.cancelled:
            say(f"moebox-agent: rank {self.rank} was told to end by {signal.Signals(self.cancelled).name}")
            return True
        if heard:
            data = os.read(0, PIECE)
            self.heard = time.monotonic()
            self.silent = not data  # an end without a word: the head is gone
            return not data or b"stop" in data
        if time.monotonic() - self.heard <= self.order["lifeline_s"]:
            return False
        self.silent = True
        say(f"moebox-agent: rank {self.rank} heard nothing from the head for {self.order['lifeline_s']:g} s")
        return True

    def copy(self) -> bool:
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
        for name, wait in CANCELLED if self.cancelled else self.order["ladder"]:
            kill([-self.child.pid], getattr(signal, name))
            until = time.monotonic() + wait
            while time.monotonic() < until and self.child.poll() is None:
                if select.select([self.out], [], [], 0.1)[0]:
                    self.copy()
            if self.child.poll() is not None:
                return

    def finish(self) -> None:
        """The last words, and nothing left of what it started."""
        until = time.monotonic() + 2.0
        while time.monotonic() < until and select.select([self.out], [], [], 0.05)[0]:
            if not self.copy():
                break
        kill_all()
        if self.silent and self.rank == 0:
            cancel_job()


def cancel_job() -> None:
    """Give back the allocation that nobody will: its head is gone."""
    job = os.environ.get("SLURM_JOB_ID")
    if job and shutil.which("scancel"):
        subprocess.run(["scancel", job], check=False)


def program_of(part: RankPart) -> str:
    """The rank's program under any of its names; "" where it has none here."""
    program = part["argv"][0]
    folder = os.path.dirname(program)
    for name in [program, *(os.path.join(folder, other) for other in part["other_names"])]:
        if path := shutil.which(name) or (name if os.path.exists(name) else ""):
            return path
    return ""


def gpus() -> list[str]:
    """Names of the GPUs as the driver tells them."""
    ask = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    return [line.strip() for line in printed(ask) if line.strip()]


def version(words: list[str]) -> str:
    """The engine's version, by the words that ask for it; "" where that is not known."""
    lines = printed(words) if words else []
    return lines[-1][:80] if lines else ""


def printed(words: list[str]) -> list[str]:
    """The lines that a program prints; none where it is missing, fails or hangs."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return done.stdout.strip().splitlines() if done.returncode == 0 else []


def rdma() -> int:
    """Bytes a second of all active RDMA ports, as they say: "400 Gb/sec (4X NDR)"."""
    total = 0.0
    for port in glob.glob("/sys/class/infiniband/*/ports/*"):
        problems = contextlib.suppress(OSError, ValueError, IndexError)
        with problems, open(f"{port}/state") as state, open(f"{port}/rate") as rate:
            total += float(rate.read().split()[0]) * 1e9 / 8 if "ACTIVE" in state.read() else 0.0
    return int(total)


def probe(order: Order, rank: int) -> Answer:
    """What this node is."""
    wanted = order["weights"] if rank == 0 or not order["first_only"] else ""
    return {
        "host": socket.gethostname(),
        "time": time.time(),
        "program": program_of(order["ranks"][rank]),
        "version": version(order["version"]),
        "gpus": gpus(),
        "weights": not wanted or os.path.exists(os.path.expanduser(wanted)),
        "rdma": rdma(),
    }


def main() -> int:
    """Do what the first line says."""
    order = read_order()
    rank = order["rank"] if order["rank"] is not None else int(os.environ.get("SLURM_NODEID", 0))
    mode = order["mode"]
    if mode == "sweep":
        kill(marked(order["mark"]), signal.SIGKILL)
        return 0
    if mode in ("probe", "reach"):
        told = probe(order, rank) if mode == "probe" else reach(order, rank)
        say("moebox-told: " + json.dumps({"rank": rank, **told}))
        return 0
    say(f"moebox-agent: rank {rank} on {order['names'][rank]} ({socket.gethostname()}), process {os.getpid()}")
    code = Rank(order, rank).run()
    say(f"moebox-agent: rank {rank} ended with {code}")
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())
