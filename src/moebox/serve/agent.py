"""The agent on each node of a launch: it starts the node's rank, and stops it when the conductor goes silent.

    conductor ──stdin: one JSON line, then a line every few seconds──▶ agent ──▶ engine ──▶ its workers

Its source is sent to a Python on the node, so it uses only the standard library.
A killed conductor, a broken network and a requested stop look the same from here: no more lines.
Modes: `run` a rank, `probe` the node, `reach` the other nodes, `sweep` kills processes that are left. For `reach`, a
node that connects sends a token first, so that other programs on the network are not taken for a node.
"""

from __future__ import annotations  # a node's own Python may be 3.9

import contextlib
import ctypes
import glob
import hmac
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import IO, TypedDict

MARK = "MOEBOX_RANK"  # in the environment of every process of a rank
MASTER = "@MASTER@"  # placeholder in argv for the first node's address
PIECE = 1 << 16
# After a signal (a cancelled allocation, its time limit) Slurm sends SIGKILL 30 s later (KillWait), and processes below
# an agent that has ended by then are orphans.
CANCEL_SIGNALS = (("SIGTERM", 3.0), ("SIGKILL", 2.0))
TOKEN_S = 3.0  # for a client to send its token; others wait meanwhile
PINGS = 50  # their median is the round trip
AgentReply = dict[str, object]  # for JSON


class RankCommand(TypedDict):
    argv: Sequence[str]
    env: dict[str, str]
    other_names: Sequence[str]  # of the program
    waits_for: int  # port of every other node that must be open before it starts


class AgentConfig(TypedDict, total=False):
    """What the conductor is given as a file without secrets; and the fields that it adds for its agents."""

    mark: str
    names: Sequence[str]  # nodes by rank
    master: str  # address of the first
    addresses: Sequence[str]  # of all nodes
    ranks: Sequence[RankCommand]
    agent_argvs: Sequence[Sequence[str]]  # one per node (ssh), or a single one for all (srun)
    secret_names: Sequence[str]
    cwd: str
    stop_signals: Sequence[tuple[str, float]]
    lifeline_s: float  # without a line from the conductor, before a node stops its rank
    mode: str  # from here on the conductor's
    rank: int | None
    secrets: dict[str, str]
    version: list[str]  # from here on for `probe`
    weights: str
    first_only: bool
    port: int  # from here on for `reach`
    reach_s: float
    reach_bytes: int
    reach_token: str
    workers_listen: bool


def print_line(text: str) -> None:
    """Write one line at once, so that the lines of nodes do not mix."""
    os.write(1, text.encode(errors="replace") + b"\n")


def read_first_line() -> bytes:
    """Read the first line of stdin, byte by byte, because commands follow it; b"" if it ends before that."""
    line = b""
    while not line.endswith(b"\n"):
        piece = os.read(0, 1)
        if not piece:
            return b""
        line += piece
    return line


def list_descendants() -> list[int]:
    """Every descendant of this process, which as subreaper inherits orphans."""
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
    wanted = f"{MARK}={mark}".encode()
    found: list[int] = []
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/environ", "rb") as file:
            found += [pid] * (pid != os.getpid() and wanted in file.read().split(b"\0"))
    return found


def send_signal(pids: list[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(OSError):
            os.kill(pid, number)


class RankProcess:
    """One rank: its process, its output, and the commands of the conductor."""

    def __init__(self, config: AgentConfig, rank: int) -> None:
        self.config, self.rank = config, rank
        self.prefix = b"" if rank == 0 else f"[{rank} {config['names'][rank]}] ".encode()
        self.rest = b""
        self.last_input = time.monotonic()
        self.stopping = self.head_gone = False
        self.cancel_signal = 0  # the signal that this agent received
        for sign in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(sign, self.cancel)

    def cancel(self, number: int, _: object) -> None:
        """Note a signal; the rank is stopped first, because this agent inherits its orphans."""
        self.cancel_signal = number

    def run(self) -> int:
        """Run until the rank has ended. Return its exit code."""
        libc, own = ctypes.CDLL(None), self.config["ranks"][self.rank]
        libc.prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
        if own["waits_for"] and not self.wait_for_others(own["waits_for"]):
            return 0
        argv = [word.replace(MASTER, self.config["master"]) for word in own["argv"]]
        argv[0] = find_program(own) or argv[0]
        try:
            self.child = subprocess.Popen(
                argv,
                env={**os.environ, **own["env"], **self.config["secrets"], MARK: self.config["mark"]},
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
        assert self.child.stdout
        self.out = self.child.stdout
        os.set_blocking(self.out.fileno(), False)
        while self.child.poll() is None:
            sources: list[IO[bytes] | IO[str]] = [self.out] if self.stopping else [self.out, sys.stdin]
            ready, _, _ = select.select(sources, [], [], 0.2)
            if self.out in ready:
                self.copy_output()
            if not self.stopping and self.should_stop(has_input=sys.stdin in ready):
                self.stop()
        self.clean_up()
        return self.child.returncode

    def wait_for_others(self, port: int) -> bool:
        """Wait until every other node has that port open. Return False if the rank should stop first."""
        left = [address for rank, address in enumerate(self.config["addresses"]) if rank != self.rank]
        while left:
            ready = select.select([sys.stdin], [], [], 0.2)[0]
            if self.should_stop(has_input=bool(ready)):
                return False
            left = [address for address in left if not port_is_open(address, port)]
        return True

    def should_stop(self, *, has_input: bool) -> bool:
        """Whether a stop was requested or the conductor is gone. `has_input`: stdin is readable."""
        if self.cancel_signal:
            print_line(f"moebox-agent: rank {self.rank} was stopped by {signal.Signals(self.cancel_signal).name}")
            return True
        if has_input:
            data = os.read(0, PIECE)
            self.last_input = time.monotonic()
            self.head_gone = not data  # end of file: the conductor is gone
            return not data or b"stop" in data
        lifeline_s = self.config["lifeline_s"]
        self.head_gone = time.monotonic() - self.last_input > lifeline_s
        if self.head_gone:
            print_line(f"moebox-agent: rank {self.rank} received nothing from the conductor for {lifeline_s:g} s")
        return self.head_gone

    def copy_output(self) -> bool:
        """Print whole lines of the rank's output. Return False at the end."""
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
        """Send the stop signals one after the other until the rank has ended."""
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
        """Read the rest of the output, and kill every descendant, also those forked meanwhile."""
        until = time.monotonic() + 2.0
        while time.monotonic() < until and select.select([self.out], [], [], 0.05)[0]:
            if not self.copy_output():
                break
        until = time.monotonic() + 5.0
        while time.monotonic() < until and (left := list_descendants()):
            send_signal(left, signal.SIGKILL)
            time.sleep(0.02)
        job = os.environ.get("SLURM_JOB_ID")
        if self.head_gone and self.rank == 0 and job and shutil.which("scancel"):
            subprocess.run(["scancel", job], check=False)  # the conductor cannot release the allocation any more


def find_program(part: RankCommand) -> str:
    """The path of the rank's program under any of its names, or ""."""
    program = part["argv"][0]
    for name in [program, *(os.path.join(os.path.dirname(program), other) for other in part["other_names"])]:
        if path := shutil.which(name) or (name if os.path.exists(name) else ""):
            return path
    return ""


def output_lines(argv: list[str]) -> list[str]:
    """The lines that a program prints, or [] if it is missing, fails or hangs."""
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return done.stdout.strip().splitlines() if done.returncode == 0 else []


def probe_node(config: AgentConfig, rank: int) -> AgentReply:
    wanted = config["weights"] if rank == 0 or not config["first_only"] else ""
    version = output_lines(config["version"]) if config["version"] else []
    gpus = output_lines(["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"])
    rdma = 0.0  # bytes per second of all active RDMA ports; a port reports "400 Gb/sec (4X NDR)"
    for port in glob.glob("/sys/class/infiniband/*/ports/*"):
        problems = contextlib.suppress(OSError, ValueError, IndexError)
        with problems, open(f"{port}/state") as state, open(f"{port}/rate") as rate:
            rdma += float(rate.read().split()[0]) * 1e9 / 8 if "ACTIVE" in state.read() else 0.0
    return {
        "host": socket.gethostname(),
        "time": time.time(),
        "program": find_program(config["ranks"][rank]),
        "version": version[-1][:80] if version else "",
        "gpus": [line.strip() for line in gpus if line.strip()],
        "weights": not wanted or os.path.exists(os.path.expanduser(wanted)),
        "rdma": int(rdma),
    }


def port_is_open(address: str, port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection((address, port), timeout=1):
        return True
    return False


def try_links(config: AgentConfig, rank: int) -> AgentReply:
    """Measure the links that the engine will use: from other nodes to the first, or from the first to its workers."""
    first, *others = config["addresses"]
    if config["workers_listen"]:
        return accept_links(config, others[rank - 1], 1) if rank else dial_nodes(config, others)
    return dial_nodes(config, [first]) if rank else accept_links(config, first, len(others))


def accept_links(config: AgentConfig, address: str, callers: int) -> AgentReply:
    """Listen for links from other nodes."""
    port = config["port"]
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((address, port))
        except OSError as problem:
            return {"problem": f"port {port} on {address}: {problem.strerror}"}
        listening.listen(64)
        return {"reached": echo_links(listening, callers, config["reach_token"].encode(), config["reach_s"])}


def echo_links(listening: socket.socket, wanted: int, token: bytes, patience: float) -> int:
    """Serve clients that send the token. Return how many came within `patience` seconds of each other."""
    came, until = 0, time.monotonic() + patience
    while came < wanted and time.monotonic() < until:
        with contextlib.suppress(OSError):
            listening.settimeout(max(until - time.monotonic(), 0.01))
            connection, _ = listening.accept()
            with connection:
                connection.settimeout(TOKEN_S)
                if not hmac.compare_digest(receive(connection, len(token)), token):
                    continue
                connection.settimeout(30)
                for _ in range(PINGS):
                    connection.sendall(connection.recv(1))
                while connection.recv(1 << 20):
                    pass
                connection.sendall(b"k")
            came += 1
            until = time.monotonic() + patience
    return came


def receive(connection: socket.socket, size: int) -> bytes:
    """Receive `size` bytes, or fewer if the connection ends."""
    data = b""
    while len(data) < size and (piece := connection.recv(size - len(data))):
        data += piece
    return data


def dial_nodes(config: AgentConfig, addresses: Sequence[str]) -> AgentReply:
    """The link to each of these nodes, or the first problem."""
    links: list[AgentReply] = []
    for address in addresses:
        links.append(dial_node(address, config))
        if "problem" in links[-1]:
            return links[-1]
    return {"ways": links}


def dial_node(address: str, config: AgentConfig) -> AgentReply:
    """Connect to a node, with retries until time is up, and measure the link."""
    port, patience = config["port"], config["reach_s"]
    until = time.monotonic() + patience
    problem: OSError | None = None
    while time.monotonic() < until:
        try:
            with socket.create_connection((address, port), timeout=3) as connection:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                connection.settimeout(patience)  # another program may listen there and not reply
                connection.sendall(config["reach_token"].encode())
                times = []
                for _ in range(PINGS):
                    began = time.perf_counter()
                    connection.sendall(b"p")
                    if not connection.recv(1):
                        raise OSError("it closed the connection")
                    times.append(time.perf_counter() - began)
                connection.settimeout(30)
                began, left, piece = time.monotonic(), config["reach_bytes"], bytes(1 << 20)
                while left > 0:
                    connection.sendall(piece)
                    left -= len(piece)
                connection.shutdown(socket.SHUT_WR)
                connection.recv(1)  # the other side has them all
                rate = config["reach_bytes"] / max(time.monotonic() - began, 1e-9)
                return {"round_trip_us": sorted(times)[PINGS // 2] * 1e6, "rate": rate}
        except OSError as failed:
            problem = failed
            time.sleep(0.2)
    return {"problem": f"cannot reach {address} port {port}: {(problem and problem.strerror) or problem}"}


def main() -> int:
    line = read_first_line()
    if not line:
        return 3
    config: AgentConfig = json.loads(line)
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
