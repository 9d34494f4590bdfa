"""The connections of a worker: non-blocking, plain or TLS, with the request that each of them carries."""

import contextlib
import errno
import os
import select
import socket
import ssl
import time

from moebox.bench.generator.hot_path import READ_BYTES, HotPath
from moebox.bench.generator.job import Conversation
from moebox.bench.generator.recorder import ReplyRecorder
from moebox.bench.generator.template import EVENT_END
from moebox.stream import sockets

# Edge-triggered: each arrival is reported once, which saves the kernel a second look at every socket. So a reader must
# read until it got less than it requested, or re-arm the poll.
READ_EVENTS = select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLET
WRITE_EVENTS = READ_EVENTS | select.EPOLLOUT
MAX_READS = 16  # of one connection in a row: a server that never pauses must not starve the others

ReadSegment = tuple[bytes, int, int]  # bytes; CLOCK_MONOTONIC ns of arrival; since when the stream was not read, or 0


class ConnectionStage:
    """What a connection is doing; plain numbers, as looking up an enum member takes 0.2 us."""

    CLOSED = 0
    CONNECTING = 1
    HANDSHAKE = 2
    IDLE = 3
    BUSY = 4


class Connection:
    """A connection and its request. `segments` holds bytes that were read and not parsed yet."""

    __slots__ = (
        "active_at", "assigned_at", "awaits_head", "can_defer", "checked_at", "closes_after_reply", "context",
        "conversation", "due", "fd", "has_kernel_times", "is_unused", "number", "parsed_count", "poller",
        "progress_mark", "recorder", "recv", "request_bytes", "segments", "sent", "sock", "socket_serial", "stage",
        "tls", "tls_in", "tls_out", "unsent",
    )  # fmt: skip

    def __init__(self, number: int, poller: select.epoll, context: ssl.SSLContext | None) -> None:
        self.number = number
        self.poller = poller
        self.context = context
        self.sock: socket.socket | None = None
        self.fd = -1
        self.stage = ConnectionStage.CLOSED
        self.has_kernel_times = False  # the kernel timestamps what arrives
        self.is_unused = True  # no request was answered on this connection yet
        self.conversation: Conversation | None = None
        self.recorder = ReplyRecorder()
        self.unsent = b""
        self.due = self.assigned_at = self.sent = self.active_at = 0
        self.parsed_count = self.progress_mark = 0
        self.checked_at = 0  # when a silent socket was last read without an event from the kernel
        self.socket_serial = 0  # a deferred reply is dropped if its socket is no longer the current one
        self.request_bytes = 0
        self.can_defer = False  # in the middle of a stream of events: parsing may wait
        self.awaits_head = False  # nothing of the reply was read yet
        self.closes_after_reply = False
        self.segments: list[ReadSegment] = []

    def connect(self, family: int, address: tuple[str, int]) -> str:
        """Begin to connect; return the reason if that fails at once."""
        try:
            self.sock = socket.socket(family, socket.SOCK_STREAM)
            self.sock.setblocking(False)
            self.has_kernel_times = sockets.tune_socket(self.sock)
            code = self.sock.connect_ex(address)
        except OSError as problem:
            self.close()
            return error_text(problem)
        if code not in (0, errno.EINPROGRESS):
            self.close()
            return error_text(OSError(code, os.strerror(code)))
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

    def send_request(self, conversation: Conversation, request: bytes, due: int) -> str:
        """Send a request; return the reason if the connection is gone."""
        self.conversation, self.due = conversation, due
        self.recorder = ReplyRecorder(keep_text=conversation.keep_text)
        self.parsed_count = self.progress_mark = 0
        self.awaits_head = self.can_defer = self.context is None
        self.closes_after_reply = False
        self.stage = ConnectionStage.BUSY
        self.request_bytes = len(request)
        assert self.sock is not None
        sockets.acknowledge_rarely(self.sock)
        if self.context is not None:
            self.tls.write(request)
            request = b""
        self.sent = self.active_at = self.recorder.sent_at = time.monotonic_ns()
        return self.send_pending(request)

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
        """Read and decrypt what is there, up to a limit. Return False if the server closed or TLS failed."""
        for _ in range(MAX_READS):
            try:
                data, side, _, _ = self.recv(READ_BYTES, sockets.SIDE_BYTES)
            except (BlockingIOError, InterruptedError):
                return True
            except OSError:
                return False
            if not data:
                return False
            came, plain = sockets.receive_time(side, offset, self.sent), data
            if self.context is not None:
                self.tls_in.write(data)
                if self.stage == ConnectionStage.HANDSHAKE:
                    plain = b""
                elif (decrypted := self._decrypt()) is not None:
                    plain = decrypted
                else:
                    return False
            if plain:
                self.segments.append((plain, came, 0))
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

    def parse_segments(self) -> None:
        for data, came, since in self.segments:
            self.recorder.record_segment(data, came, since)
        self.parsed_count += len(self.segments)
        self.segments.clear()

    def parse_and_update(self) -> None:
        """Parse all that was read, and decide whether parsing the next read may wait."""
        self.parse_segments()
        self.awaits_head = False
        self.can_defer = self.recorder.body.at_boundary and self.context is None
        self.closes_after_reply = self.recorder.body.headers.get(b"connection", b"").lower() == b"close"

    def close(self) -> None:
        """Close the socket and drop unparsed bytes."""
        if self.sock is not None:
            with contextlib.suppress(OSError, ValueError):
                self.poller.unregister(self.fd)
            self.sock.close()
        self.sock, self.fd, self.stage, self.unsent = None, -1, ConnectionStage.CLOSED, b""
        self.segments.clear()


class ConnectionPool:
    """The connections of one worker. Lists by descriptor are longer than the highest descriptor so far."""

    def __init__(self, poller: select.epoll, context: ssl.SSLContext | None, hot: HotPath) -> None:
        self.all: list[Connection] = []
        self.placeholder = Connection(-1, poller, None)
        self.by_fd: list[Connection] = []  # `placeholder` if the descriptor is not in use
        self._hot, self._poller, self._context = hot, poller, context

    def add_connection(self) -> Connection:
        connection = Connection(len(self.all), self._poller, self._context)
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
        recorder = connection.recorder
        if recorder.template is None or connection.sock is None or connection.context is not None:
            return
        if connection.can_defer and not connection.segments:
            self._hot.add_stream(connection.fd, connection.sock, recorder)


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
