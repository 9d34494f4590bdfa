"""The connections of a worker: non-blocking, plain or TLS, with the request that each of them carries."""

import contextlib
import errno
import os
import select
import socket
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from moebox.bench.generator.hot_path import READ_BYTES, HotPath
from moebox.bench.generator.running import RunningRequest
from moebox.bench.generator.template import EVENT_END
from moebox.stream import sockets

# Edge-triggered: each arrival is reported once, which saves the kernel a second look at every socket. So a reader must
# read until it got less than it requested, or re-arm the poll.
READ_EVENTS = select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLET
WRITE_EVENTS = READ_EVENTS | select.EPOLLOUT
MAX_READS = 16  # of one connection in a row: a server that never pauses must not starve the others


class ConnectionStage:
    """What a connection is doing; plain numbers, as looking up an enum member takes 0.2 us."""

    CLOSED, CONNECTING, HANDSHAKE, IDLE, BUSY = range(5)


@dataclass(slots=True, eq=False)
class Connection:
    poller: select.epoll
    context: ssl.SSLContext | None
    sock: socket.socket | None = None
    fd: int = -1
    stage: int = ConnectionStage.CLOSED
    has_kernel_times: bool = False  # the kernel timestamps what arrives
    is_unused: bool = True  # no request was answered on this connection yet
    request: RunningRequest | None = None
    unsent: bytes = b""
    checked_at: int = 0  # when a silent socket was last read without an event from the kernel
    socket_serial: int = 0  # a deferred reply is dropped if its socket is no longer the current one
    can_defer: bool = False  # in the middle of a stream of events: parsing may wait
    awaits_head: bool = False  # nothing of the reply was read yet
    closes_after_reply: bool = False
    recv: Callable[[int, int], tuple[bytes, list[tuple[int, int, bytes]], int, object]] = field(init=False)
    tls: ssl.SSLObject = field(init=False)
    tls_in: ssl.MemoryBIO = field(init=False)
    tls_out: ssl.MemoryBIO = field(init=False)

    def connect(self, family: int, address: tuple[str, int]) -> str:
        """Begin to connect; return the reason if that fails at once."""
        try:
            self.sock = socket.socket(family, socket.SOCK_STREAM)
            self.sock.setblocking(False)
            self.has_kernel_times = sockets.tune_socket(self.sock)
            code = self.sock.connect_ex(address)
            if code not in (0, errno.EINPROGRESS):
                raise OSError(code, os.strerror(code))
        except OSError as problem:
            self.close()
            return error_text(problem)
        self.fd, self.recv = self.sock.fileno(), self.sock.recvmsg
        self.stage, self.is_unused = ConnectionStage.CONNECTING, True
        self.socket_serial += 1
        self.poller.register(self.fd, WRITE_EVENTS)
        return ""

    def finish_connect(self, name: str) -> str:
        """Check the connection attempt and begin TLS if it is used; return the reason of a failure."""
        assert self.sock is not None
        code = self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            self.close()
            return error_text(OSError(code, os.strerror(code)))
        self.poller.modify(self.fd, READ_EVENTS)
        self.stage = ConnectionStage.IDLE
        if self.context is not None:
            self.tls_in, self.tls_out = ssl.MemoryBIO(), ssl.MemoryBIO()
            self.tls = self.context.wrap_bio(self.tls_in, self.tls_out, server_hostname=name)
            self.stage = ConnectionStage.HANDSHAKE
            return self.continue_handshake()
        return ""

    def continue_handshake(self) -> str:
        """Go on with the TLS handshake; return the reason of a failure."""
        try:
            self.tls.do_handshake()
            self.stage = ConnectionStage.IDLE
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as problem:
            self.close()
            return f"TLS: {problem.reason or problem}"
        return self.send_pending(b"")

    def send_request(self, request: RunningRequest, data: bytes) -> str:
        """Send a request; return the reason if the connection is gone."""
        self.awaits_head = self.can_defer = self.context is None
        self.closes_after_reply = False
        self.stage = ConnectionStage.BUSY
        request.request_bytes = len(data)
        assert self.sock is not None
        sockets.acknowledge_rarely(self.sock)
        if self.context is not None:
            self.tls.write(data)
            data = b""
        request.sent = request.active_at = request.recorder.sent_at = time.monotonic_ns()
        return self.send_pending(data)

    def send_pending(self, data: bytes) -> str:
        """Send what the socket takes now and the rest later; return the reason if the connection is gone."""
        assert self.sock is not None
        if self.context is not None:
            data = self.tls_out.read()
        pending = self.unsent + data if self.unsent else data
        if not pending:
            return ""
        try:
            done = self.sock.send(pending)
        except BlockingIOError:
            done = 0
        except OSError as problem:
            return error_text(problem)
        waiting, self.unsent = bool(self.unsent), pending[done:]
        if bool(self.unsent) != waiting:
            self.rearm_poll()
        return ""

    def read_available(self, offset: int) -> bool:
        """Read and decrypt what is there, up to a limit.

        Return False if the server closed, if TLS failed, or if bytes came that no request asked for.
        """
        sent = self.request.sent if self.request else 0
        for _ in range(MAX_READS):
            try:
                data, side, _, _ = self.recv(READ_BYTES, sockets.SIDE_BYTES)
            except (BlockingIOError, InterruptedError):
                return True
            except OSError:
                return False
            if not data:
                return False
            came, plain = sockets.receive_time(side, offset, sent), data
            if self.context is not None:
                self.tls_in.write(data)
                if self.stage == ConnectionStage.HANDSHAKE:
                    plain = b""
                elif (decrypted := self._decrypt()) is not None:
                    plain = decrypted
                else:
                    return False
            if plain:
                if self.request is None:
                    return False
                self.request.segments.append((plain, came, 0))
            if len(data) < READ_BYTES:
                return True
        self.rearm_poll()
        return True

    def _decrypt(self) -> bytes | None:
        """Return the bytes that are whole by now, or None if the server ended the TLS session badly."""
        parts = []
        try:
            while part := self.tls.read(65536):
                parts.append(part)
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError:
            return b"".join(parts) or None
        return b"".join(parts)

    def rearm_poll(self) -> None:
        """Have the kernel report unread bytes as if they had just arrived."""
        self.poller.modify(self.fd, WRITE_EVENTS if self.unsent else READ_EVENTS)

    def parse_and_update(self, request: RunningRequest) -> None:
        """Parse all that was read, and decide whether parsing the next read may wait."""
        request.parse_segments()
        body = request.recorder.body
        self.awaits_head = False
        self.can_defer = body.at_boundary and self.context is None
        self.closes_after_reply = body.headers.get(b"connection", b"").lower() == b"close"

    def close(self) -> None:
        """Close the socket and drop unparsed bytes."""
        if self.sock is not None:
            with contextlib.suppress(OSError, ValueError):
                self.poller.unregister(self.fd)
            self.sock.close()
        self.sock, self.fd, self.stage, self.unsent = None, -1, ConnectionStage.CLOSED, b""
        if self.request is not None:
            self.request.segments.clear()


class ConnectionPool:
    """The connections of one worker. Lists by descriptor are longer than the highest descriptor so far."""

    def __init__(self, poller: select.epoll, context: ssl.SSLContext | None, hot: HotPath) -> None:
        self.all: list[Connection] = []
        self.placeholder = Connection(poller, None)
        self.by_fd: list[Connection] = []  # `placeholder` if the descriptor is not in use
        self._hot, self._poller, self._context = hot, poller, context

    def add_connection(self) -> Connection:
        connection = Connection(self._poller, self._context)
        self.all.append(connection)
        return connection

    def register_descriptor(self, connection: Connection) -> bool:
        """List a connection by its descriptor. Return False if the kernel does not timestamp what it receives."""
        fd = connection.fd
        if fd < 0:
            return True
        missing = fd + 64 - len(self.by_fd) if fd >= len(self.by_fd) else 0
        self.by_fd += [self.placeholder] * missing
        self._hot.streams += [None] * missing
        self._hot.read_at += [0] * missing
        self.by_fd[fd] = connection
        return connection.has_kernel_times

    def drop_connection(self, connection: Connection) -> None:
        if connection.fd >= 0:
            self.by_fd[connection.fd], self._hot.streams[connection.fd] = self.placeholder, None
        connection.close()
        connection.can_defer = connection.awaits_head = False

    def mark_hot(self, connection: Connection) -> None:
        """Read further events like the previous one on the hot path, if this stream allows it."""
        request = connection.request
        if request is None or connection.sock is None or connection.context is not None:
            return
        if request.recorder.template is not None and connection.can_defer and not request.segments:
            self._hot.add_stream(connection.fd, connection.sock, request.recorder)


def is_stream_head(data: bytes) -> bool:
    """True for the head of a chunked event stream on a kept connection, alone or with whole events behind it.

    Only the plain case; anything else is parsed at once. It defers parsing thousands of heads at the very moment when
    first tokens arrive.
    """
    if not data.startswith(b"HTTP/1.1 200 ") or not data.endswith((EVENT_END, b"\r\n\r\n")):
        return False
    head, _, rest = data.partition(b"\r\n\r\n")
    head = head.lower()
    return (
        b"\r\ntransfer-encoding: chunked" in head
        and b"\r\ncontent-type: text/event-stream" in head
        and (b"\r\nconnection:" not in head or b"\r\nconnection: keep-alive\r\n" in head + b"\r\n")
        and (not rest or rest.endswith(EVENT_END))
    )


def error_text(problem: OSError) -> str:
    return (problem.strerror or str(problem)).lower()
