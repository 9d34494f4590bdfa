"""The way between two nodes, tried and timed where an engine will use it; sent to nodes as text with agent.py.

A node that dials sends a token first, so that no other program on the network is taken for a node.
"""

from __future__ import annotations  # a node's own Python may be 3.9

import contextlib
import hmac
import socket
import time
from typing import TypedDict

TOKEN_S = 3.0  # for a caller to send its token; others wait meanwhile
PINGS = 50  # there and back, before anything is sent: the middle one is the round trip
AgentReply = dict[str, object]  # what a node tells, for JSON


class ReachConfig(TypedDict):
    """Of an agent's order, what this needs."""

    addresses: list[str]
    port: int
    reach_s: float
    reach_bytes: int
    reach_token: str
    workers_listen: bool


def port_is_open(address: str, port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection((address, port), timeout=1):
        return True
    return False


def try_links(config: ReachConfig, rank: int) -> AgentReply:
    """Connect where the engine will, send, and time it: the others to the first node, or that to its workers."""
    first, *others = config["addresses"]
    if config["workers_listen"]:
        return accept_links(config, others[rank - 1], 1) if rank else dial_nodes(config, others)
    return dial_nodes(config, [first]) if rank else accept_links(config, first, len(others))


def accept_links(config: ReachConfig, address: str, callers: int) -> AgentReply:
    """Take in what other nodes send."""
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
    """Answer pings of callers that have the token, take in what follows; how many came before `patience` was over."""
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
    """The next bytes of a connection, fewer if it ends before."""
    data = b""
    while len(data) < size and (piece := connection.recv(size - len(data))):
        data += piece
    return data


def dial_nodes(config: ReachConfig, addresses: list[str]) -> AgentReply:
    """The way to each of these nodes, or the first that is closed."""
    ways: list[AgentReply] = []
    for address in addresses:
        way = dial_node(address, config)
        if "problem" in way:
            return way
        ways.append(way)
    return {"ways": ways}


def dial_node(address: str, order: ReachConfig) -> AgentReply:
    """Connect until it works or time is up, and time the way."""
    port, patience = order["port"], order["reach_s"]
    until = time.monotonic() + patience
    problem: OSError | None = None
    while time.monotonic() < until:
        try:
            with socket.create_connection((address, port), timeout=3) as connection:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                connection.settimeout(patience)  # another program may listen there, and say nothing
                connection.sendall(order["reach_token"].encode())
                trip = measure_round_trip(connection)
                connection.settimeout(30)
                return {"round_trip_us": trip * 1e6, "rate": measure_rate(connection, order["reach_bytes"])}
        except OSError as failed:
            problem = failed
            time.sleep(0.2)
    return {"problem": f"cannot reach {address} port {port}: {(problem and problem.strerror) or problem}"}


def measure_round_trip(connection: socket.socket) -> float:
    """Seconds of one byte there and back: the median."""
    times = []
    for _ in range(PINGS):
        began = time.perf_counter()
        connection.sendall(b"p")
        if not connection.recv(1):
            raise OSError("it closed the connection")
        times.append(time.perf_counter() - began)
    return sorted(times)[PINGS // 2]


def measure_rate(connection: socket.socket, size: int) -> float:
    """Bytes a second, until the other side has them all."""
    began = time.monotonic()
    left, piece = size, bytes(1 << 20)
    while left > 0:
        connection.sendall(piece)
        left -= len(piece)
    connection.shutdown(socket.SHUT_WR)
    connection.recv(1)
    return size / max(time.monotonic() - began, 1e-9)
