"""Measure the network between nodes on the engine's own port; the source is sent to nodes together with agent.py.

A node that connects sends a token first, so that other programs on the network are not taken for a node.
"""

from __future__ import annotations  # a node's own Python may be 3.9

import contextlib
import hmac
import socket
import time
from typing import TypedDict

TOKEN_S = 3.0  # for a client to send its token; others wait meanwhile
PINGS = 50  # their median is the round trip
AgentReply = dict[str, object]  # for JSON


class ReachConfig(TypedDict):
    """The part of an agent's config that this module needs."""

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
    """Measure the links that the engine will use: from other nodes to the first, or from the first to its workers."""
    first, *others = config["addresses"]
    if config["workers_listen"]:
        return accept_links(config, others[rank - 1], 1) if rank else dial_nodes(config, others)
    return dial_nodes(config, [first]) if rank else accept_links(config, first, len(others))


def accept_links(config: ReachConfig, address: str, callers: int) -> AgentReply:
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


def dial_nodes(config: ReachConfig, addresses: list[str]) -> AgentReply:
    """The link to each of these nodes, or the first problem."""
    links: list[AgentReply] = []
    for address in addresses:
        link = dial_node(address, config)
        if "problem" in link:
            return link
        links.append(link)
    return {"ways": links}


def dial_node(address: str, config: ReachConfig) -> AgentReply:
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
                trip = measure_round_trip(connection)
                connection.settimeout(30)
                return {"round_trip_us": trip * 1e6, "rate": measure_rate(connection, config["reach_bytes"])}
        except OSError as failed:
            problem = failed
            time.sleep(0.2)
    return {"problem": f"cannot reach {address} port {port}: {(problem and problem.strerror) or problem}"}


def measure_round_trip(connection: socket.socket) -> float:
    """The median of PINGS round trips of one byte, in seconds."""
    times = []
    for _ in range(PINGS):
        began = time.perf_counter()
        connection.sendall(b"p")
        if not connection.recv(1):
            raise OSError("it closed the connection")
        times.append(time.perf_counter() - began)
    return sorted(times)[PINGS // 2]


def measure_rate(connection: socket.socket, size: int) -> float:
    """Bytes per second, until the other side has them all."""
    began = time.monotonic()
    left, piece = size, bytes(1 << 20)
    while left > 0:
        connection.sendall(piece)
        left -= len(piece)
    connection.shutdown(socket.SHUT_WR)
    connection.recv(1)
    return size / max(time.monotonic() - began, 1e-9)
