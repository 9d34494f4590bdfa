"""Connections to servers, and the kernel's timestamps of the bytes that arrive."""

import contextlib
import os
import socket
import ssl
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from moebox import http
from moebox.errors import BadInput, ExternalError, refuse_if

# asm-generic/socket.h: receive timestamps in nanoseconds, set by the network stack before the process runs.
SO_TIMESTAMPNS = 35
SIDE_BYTES = socket.CMSG_SPACE(16)  # size of a control message with a struct timespec
TIMESPEC = struct.Struct("=qq")
HANDSHAKE_S = 2.0  # time for a TLS server to send its first bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class SocketAddress:
    """A server's address; `prefix` comes before the path of every request."""

    host: str
    port: int
    tls: bool
    prefix: str
    insecure: bool = False  # accept any certificate
    ca_file: str = ""


def address_from_url(url: str, *, insecure: bool = False, ca_file: str = "") -> SocketAddress:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as problem:
        raise BadInput(f"{url!r} is not a URL: {problem}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise BadInput(f"{url!r} is not a URL", hint="write it like http://127.0.0.1:8000/v1")
    tls = parts.scheme == "https"
    return SocketAddress(
        host=parts.hostname,
        port=port or (443 if tls else 80),
        tls=tls,
        prefix=parts.path.rstrip("/"),
        insecure=insecure,
        ca_file=ca_file,
    )


def resolve_addresses(target: SocketAddress) -> list[tuple[socket.AddressFamily, tuple[str, int]]]:
    """Resolve the host name, best address first."""
    try:
        found = socket.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as problem:
        raise ExternalError(f"{target.host}: no such host ({problem})") from None
    return [(family, address[:2]) for family, _, _, _, address in found]  # type: ignore[misc]


def tls_context(target: SocketAddress) -> ssl.SSLContext | None:
    """Settings for checking the server's certificate; None for plain HTTP."""
    if not target.tls:
        return None
    try:
        context = ssl.create_default_context(cafile=target.ca_file or None)
    except OSError as problem:
        raise BadInput(f"{target.ca_file}: not a certificate file: {problem}") from None
    if target.insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["http/1.1"])
    return context


def connect(target: SocketAddress, timeout_s: float) -> socket.socket:
    """Open a blocking connection, with TLS if required. Raise ExternalError with the reason if that fails."""
    where = f"{target.host}:{target.port}"
    try:
        sock = socket.create_connection((target.host, target.port), timeout=timeout_s)
    except (OSError, UnicodeError) as problem:
        reason = getattr(problem, "strerror", None) or problem
        raise ExternalError(f"{where}: {reason}", hint="is the server up?") from None
    context = tls_context(target)
    if context is None:
        return sock
    secured = context.wrap_socket(sock, server_hostname=target.host, do_handshake_on_connect=False)
    try:
        _shake_hands(secured, target, timeout_s)
    except OSError as problem:
        secured.close()
        if http.speaks_plain(target.host, target.port, problem):
            raise ExternalError(f"{where} {http.PLAIN_HTTP}", hint=http.WRITE_HTTP) from None
        untrusted, reason = "CERT" in str(problem).upper(), getattr(problem, "reason", None) or problem
        raise ExternalError(f"{where}: TLS: {reason}", hint=http.TRUST_HINT if untrusted else None) from None
    return secured


def _shake_hands(secured: ssl.SSLSocket, target: SocketAddress, timeout_s: float) -> None:
    """A server without TLS may wait for the rest of a request: after a short silence, try plain HTTP."""
    secured.settimeout(min(HANDSHAKE_S, timeout_s))
    try:
        secured.do_handshake()
    except TimeoutError as problem:
        if timeout_s <= HANDSHAKE_S or http.speaks_plain(target.host, target.port, problem):
            raise
        secured.settimeout(timeout_s - HANDSHAKE_S)
        secured.do_handshake()
    secured.settimeout(timeout_s)


def tune_socket(sock: socket.socket) -> bool:
    """Send without delay, and ask the kernel for receive timestamps; False if it has none."""
    with contextlib.suppress(OSError):  # not every address family has it
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
    except OSError:
        return False
    return True


def acknowledge_rarely(sock: socket.socket) -> None:
    """Have the kernel acknowledge every second small segment instead of each as it is read (tcp(7), TCP_QUICKACK).

    An acknowledgement takes 1.6 us and a read 0.8 us (Linux 6.18, loopback). A late acknowledgement resets this, so it
    is set again now and then.
    """
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 0)


def clock_offset() -> int:
    """CLOCK_REALTIME minus CLOCK_MONOTONIC in ns: the kernel's timestamps use the first, moebox the second."""
    tries = []
    for _ in range(3):
        before = time.monotonic_ns()
        wall = time.time_ns()
        after = time.monotonic_ns()
        tries.append((after - before, wall - (before + after) // 2))
    return min(tries)[1]


def receive_time(ancillary: Sequence[tuple[int, int, bytes]], offset: int, since: int) -> int:
    """When the kernel received the bytes just read, in CLOCK_MONOTONIC ns; now if there is no timestamp.

    A timestamp before `since` or after now is wrong: the wall clock was set, or the machine was suspended, after
    `offset` was taken.
    """
    now = time.monotonic_ns()
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == SO_TIMESTAMPNS and len(data) == 16:
            seconds, nanoseconds = TIMESPEC.unpack(data)
            stamp = int(seconds * 1_000_000_000 + nanoseconds - offset)
            return stamp if since <= stamp <= now else now
    return now


def request_head(
    target: SocketAddress, path: str, *, length: int, headers: dict[str, str], accept: str = "*/*"
) -> bytes:
    """The head of a POST with a JSON body of `length` bytes."""
    host = f"[{target.host}]" if ":" in target.host else target.host
    lines = [
        f"POST {target.prefix}{path} HTTP/1.1",
        f"Host: {host}" if target.port == (443 if target.tls else 80) else f"Host: {host}:{target.port}",
        f"User-Agent: moebox (pid {os.getpid()})",
        f"Accept: {accept}",
        "Content-Type: application/json",
        f"Content-Length: {length}",
    ]
    for name, value in headers.items():
        text = f"header {name!r} contains characters that HTTP does not allow"
        refuse_if(any(c in name + value for c in "\r\n\0") or not (name + value).isascii(), text)
        lines.append(f"{name}: {value}")
    return "\r\n".join([*lines, "", ""]).encode("ascii")
