"""Where a URL leads, a socket to it, and when the kernel received what is read from it."""

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
from moebox.errors import BadInput, ExternalError

# asm-generic/socket.h: receive timestamps of nanosecond resolution, set by the network stack before the process is
# woken.
SO_TIMESTAMPNS = 35
SIDE_BYTES = socket.CMSG_SPACE(16)  # room for the one control message that carries a struct timespec
TIMESPEC = struct.Struct("=qq")
HANDSHAKE_S = 2.0  # that a TLS server may take to say anything


@dataclass(frozen=True, slots=True, kw_only=True)
class SocketAddress:
    """A server's address. `prefix` is what stands before the path of every request."""

    host: str
    port: int
    tls: bool
    prefix: str
    insecure: bool = False  # accept any certificate
    ca_file: str = ""

    @property
    def authority(self) -> str:
        """The Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.tls else 80) else f"{host}:{self.port}"


def address_from_url(url: str, *, insecure: bool = False, ca_file: str = "") -> SocketAddress:
    """The Target of an http(s) URL."""
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
    """Where the name leads, best first; Outside when nowhere."""
    try:
        found = socket.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as problem:
        raise ExternalError(f"{target.host}: no such host ({problem})") from None
    return [(family, address[:2]) for family, _, _, _, address in found]  # type: ignore[misc]


def tls_context(target: SocketAddress) -> ssl.SSLContext:
    """How certificates are checked for this target."""
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
    """A blocking connection, with TLS where asked; Outside says in one line why there is none."""
    where = f"{target.host}:{target.port}"
    try:
        sock = socket.create_connection((target.host, target.port), timeout=timeout_s)
    except (OSError, UnicodeError) as problem:
        reason = getattr(problem, "strerror", None) or problem
        raise ExternalError(f"{where}: {reason}", hint="is the server up?") from None
    return _secured(sock, target, timeout_s) if target.tls else sock


def _secured(sock: socket.socket, target: SocketAddress, timeout_s: float) -> ssl.SSLSocket:
    where = f"{target.host}:{target.port}"
    secured = tls_context(target).wrap_socket(sock, server_hostname=target.host, do_handshake_on_connect=False)
    try:
        _shake_hands(secured, target, timeout_s)
    except OSError as problem:
        secured.close()
        if http.speaks_plain(target.host, target.port, problem):
            raise ExternalError(f"{where} {http.PLAIN_HTTP}", hint=http.WRITE_HTTP) from None
        hint = "--ca-file trusts its certificate, --insecure any" if "CERT" in str(problem).upper() else None
        raise ExternalError(f"{where}: TLS: {getattr(problem, 'reason', None) or problem}", hint=hint) from None
    return secured


def _shake_hands(secured: ssl.SSLSocket, target: SocketAddress, timeout_s: float) -> None:
    """A plain server may wait for more of what it takes for a request: after a moment of silence, ask it plainly."""
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
    """Send at once, and have the kernel note when bytes come; False where it cannot."""
    with contextlib.suppress(OSError):  # not every family knows it
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
    except OSError:
        return False
    return True


def acknowledge_rarely(sock: socket.socket) -> None:
    """Have the kernel acknowledge every second small segment instead of each as it is read (tcp(7), TCP_QUICKACK).

    An acknowledgement takes 1.6 us where a read takes 0.8 (Linux 6.18, loopback). One that is late ends it, so it is
    asked for again now and then.
    """
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 0)


def clock_offset() -> int:
    """CLOCK_REALTIME minus CLOCK_MONOTONIC in ns: kernel stamps are in the first, everything of ours in the second."""
    tries = []
    for _ in range(3):
        before = time.monotonic_ns()
        wall = time.time_ns()
        after = time.monotonic_ns()
        tries.append((after - before, wall - (before + after) // 2))
    return min(tries)[1]


def receive_time(ancillary: Sequence[tuple[int, int, bytes]], offset: int, since: int) -> int:
    """When the kernel received what was just read, in CLOCK_MONOTONIC ns; now where it did not say.

    Nothing comes before `since` or after now: where a stamp says so, the wall clock was set or the machine slept after
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
    target: SocketAddress,
    path: str,
    *,
    length: int | None = None,
    headers: dict[str, str] | None = None,
    accept: str = "",
) -> bytes:
    """The request head for `path`; a POST when there is a body of `length` bytes."""
    lines = [
        f"{'GET' if length is None else 'POST'} {target.prefix}{path} HTTP/1.1",
        f"Host: {target.authority}",
        f"User-Agent: moebox (pid {os.getpid()})",
        f"Accept: {accept or '*/*'}",
    ]
    if length is not None:
        lines += ["Content-Type: application/json", f"Content-Length: {length}"]
    lines += [_field(name, value) for name, value in (headers or {}).items()]
    return "\r\n".join([*lines, "", ""]).encode("ascii")


def _field(name: str, value: str) -> str:
    """A line of a head; BadInput for what would end it."""
    if any(c in name + value for c in "\r\n\0") or not (name + value).isascii():
        raise BadInput(f"header {name!r} holds characters that HTTP does not allow")
    return f"{name}: {value}"
