"""What runs on each node of a launch over several: starts that node's rank, stops it when the head falls silent.

    conductor ──stdin: one JSON line, then a line every few seconds──▶ agent ──▶ engine ──▶ its workers

It is sent as text to a Python on the node, so it uses the standard library alone and imports nothing of moebox.
A head that was killed, a network that was cut and an end that was asked for look the same from here: no more lines.
Modes: run a rank; `probe` tells what the node is; `reach` tries the way to the first node; `sweep` kills what is left.
"""

import contextlib
import ctypes
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from typing import Any

MARK = "MOEBOX_RANK"  # every process of a rank carries it, and nothing else does
MASTER = "@MASTER@"  # stands in argv for the first node's address
PIECE = 1 << 16


def say(text: str) -> None:
    """One whole line, so that nodes do not write into each other's."""
    os.write(1, text.encode(errors="replace") + b"\n")


def read_order() -> dict[str, Any]:
    """The first line of stdin, byte by byte: what follows is the lifeline's."""
    line = b""
    while not line.endswith(b"\n"):
        piece = os.read(0, 1)
        if not piece:
            sys.exit(3)
        line += piece
    order: dict[str, Any] = json.loads(line)
    return order


def descendants() -> list[int]:
    """Every process below this one; as subreaper it inherits those whose parents ended."""
    parents: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
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
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            with contextlib.suppress(OSError), open(f"/proc/{name}/environ", "rb") as file:
                if wanted in file.read().split(b"\0"):
                    found.append(int(name))
    return found


def kill(pids: list[int], number: int) -> None:
    """Send a signal to each; gone already is as good."""
    for pid in pids:
        with contextlib.suppress(OSError):
            os.kill(pid, number)


class Rank:
    """One rank: its process, its output, and the lifeline."""

    child: "subprocess.Popen[bytes]"

    def __init__(self, order: dict[str, Any], rank: int) -> None:
        self.order, self.rank = order, rank
        self.prefix = b"" if rank == 0 else f"[{rank} {order['names'][rank]}] ".encode()
        self.rest = b""
        self.heard = time.monotonic()
        self.stopping = False
        self.silent = False

    def run(self) -> int:
        """Until the rank has ended; its exit code."""
        libc = ctypes.CDLL(None)
        libc.prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
        own = self.order["ranks"][self.rank]
        argv = [word.replace(MASTER, self.order["master"]) for word in own["argv"]]
        env = {**os.environ, **own["env"], **self.order["secrets"], MARK: self.order["mark"]}
        try:
            self.child = subprocess.Popen(
                argv,
                env=env,
                cwd=self.order.get("cwd") or None,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=lambda: libc.prctl(1, signal.SIGKILL, 0, 0, 0),  # PR_SET_PDEATHSIG
            )
        except OSError as problem:
            say(f"moebox-agent: rank {self.rank} cannot be started: {problem.strerror}: {argv[0]}")
            return 127
        assert self.child.stdout
        self.out = self.child.stdout
        os.set_blocking(self.out.fileno(), False)
        while self.child.poll() is None:
            self.look()
        self.finish()
        return self.child.returncode

    def look(self) -> None:
        """Copy what it prints, heed the lifeline."""
        sources: list[Any] = [self.out] + ([] if self.stopping else [sys.stdin])
        ready, _, _ = select.select(sources, [], [], 0.2)
        if self.out in ready:
            self.copy()
        if sys.stdin in ready:
            data = os.read(0, PIECE)
            self.heard = time.monotonic()
            self.silent = not data  # an end without a word: the head is gone
            if not data or b"stop" in data:
                self.stop()
        if not self.stopping and time.monotonic() - self.heard > self.order["lifeline_s"]:
            self.silent = True
            say(f"moebox-agent: rank {self.rank} heard nothing from the head for {self.order['lifeline_s']:g} s")
            self.stop()

    def copy(self) -> None:
        """What has been printed, in whole lines."""
        try:
            data = os.read(self.out.fileno(), PIECE)
        except BlockingIOError:
            return
        *lines, self.rest = (self.rest + data).split(b"\n")
        if len(self.rest) > PIECE:
            lines, self.rest = [*lines, self.rest], b""
        with contextlib.suppress(OSError):
            os.write(1, b"".join(self.prefix + line + b"\n" for line in lines))

    def stop(self) -> None:
        """Ask, ask harder, kill; waits no longer than the ladder says."""
        self.stopping = True
        for name, wait in self.order["ladder"]:
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
            before = self.rest
            self.copy()
            if self.rest == before and not select.select([self.out], [], [], 0.05)[0]:
                break
        kill(descendants(), signal.SIGKILL)
        if self.silent and self.rank == 0 and os.environ.get("SLURM_JOB_ID") and shutil.which("scancel"):
            subprocess.run(["scancel", os.environ["SLURM_JOB_ID"]], check=False)


def gpus() -> list[str]:
    """Names of the GPUs as the driver tells them."""
    try:
        ask = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
        done = subprocess.run(ask, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [line.strip() for line in done.stdout.splitlines() if line.strip()]


def version(words: list[str]) -> str:
    """The engine's version, by the words that ask for it; "" where that is not known."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    lines = done.stdout.strip().splitlines()
    return lines[-1][:80] if lines and done.returncode == 0 else ""


def probe(order: dict[str, Any], rank: int) -> dict[str, Any]:
    """What this node is."""
    program = order["ranks"][rank]["argv"][0]
    return {
        "host": socket.gethostname(),
        "time": time.time(),
        "program": shutil.which(program) or (program if os.path.exists(program) else ""),
        "version": version(order["version"]) if order["version"] else "",
        "gpus": gpus(),
        "weights": not order["weights"] or os.path.exists(os.path.expanduser(order["weights"])),
    }


def reach(order: dict[str, Any], rank: int) -> dict[str, Any]:
    """The first node listens on the rendezvous port; the others connect to it and send, which times the way."""
    port, size = order["rendezvous"], order["reach_bytes"]
    if rank == 0:
        with socket.socket(socket.AF_INET6 if ":" in order["master"] else socket.AF_INET) as listening:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listening.bind((order["master"], port))
            except OSError as problem:
                return {"problem": f"port {port} on {order['master']}: {problem.strerror}"}
            listening.listen(64)
            listening.settimeout(order["reach_s"])
            return {"reached": serve(listening, len(order["names"]) - 1)}
    return dial(order["master"], port, size, order["reach_s"])


def serve(listening: socket.socket, wanted: int) -> int:
    """Take in what the other nodes send; how many came."""
    came = 0
    with contextlib.suppress(OSError):
        while came < wanted:
            connection, _ = listening.accept()
            with connection:
                connection.settimeout(30)
                while connection.recv(1 << 20):
                    pass
                connection.sendall(b"k")
            came += 1
    return came


def dial(master: str, port: int, size: int, patience: float) -> dict[str, Any]:
    """Connect until it works or time is up, send, and say how fast it went."""
    until = time.monotonic() + patience
    problem: OSError | None = None
    while time.monotonic() < until:
        try:
            with socket.create_connection((master, port), timeout=3) as connection:
                began = time.monotonic()
                left, piece = size, bytes(1 << 20)
                while left > 0:
                    connection.sendall(piece)
                    left -= len(piece)
                connection.shutdown(socket.SHUT_WR)
                connection.settimeout(30)
                connection.recv(1)
                return {"rate": size / max(time.monotonic() - began, 1e-9)}
        except OSError as failed:
            problem = failed
            time.sleep(0.2)
    return {"problem": f"cannot reach {master} port {port}: {(problem and problem.strerror) or problem}"}


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
