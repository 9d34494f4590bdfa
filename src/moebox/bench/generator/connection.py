"""One connection of the load generator: non-blocking, plain or TLS, and what is under way on it."""

import contextlib
import errno
import os
import select
import socket
import ssl
import time

from moebox.bench.generator.conversation import Conversation
from moebox.bench.generator.hot_path import READ_BYTES
from moebox.bench.generator.recorder import ReplyRecorder
from moebox.stream import sockets

# Edge-triggered: each arrival is told once, which spares the kernel a second look at every socket. So whoever reads
# must read until less came than there was room for, or ask to be told again.
READ_EVENTS = select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLET
WRITE_EVENTS = READ_EVENTS | select.EPOLLOUT
MAX_READS = 16  # of one connection before the others have their turn: a server that never pauses must not keep us

ReadSegment = tuple[
    bytes, int, int
]  # what was read; the CLOCK_MONOTONIC ns at which it came; since when, if nobody had looked


class ConnectionStage:
    """What the connection is doing; plain numbers, as looking up a member of an enum takes 0.2 us."""

    CLOSED = 0
    CONNECTING = 1
    HANDSHAKE = 2
    IDLE = 3
    BUSY = 4


class Connection:
    """A connection and the request on it. `got` holds what was read and nobody has looked at yet, and when it came."""

    __slots__ = (
        "active_at",
        "assigned_at",
        "awaits_head",
        "can_defer",
        "checked_at",
        "closes_after_reply",
        "context",
        "conversation",
        "due",
        "fd",
        "has_kernel_times",
        "is_unused",
        "number",
        "parsed_count",
        "poller",
        "progress_mark",
        "recorder",
        "recv",
        "request_bytes",
        "segments",
        "sent",
        "sock",
        "socket_serial",
        "stage",
        "tls",
        "tls_in",
        "tls_out",
        "unsent",
    )

    def __init__(self, number: int, poller: select.epoll, context: ssl.SSLContext | None) -> None:
        self.number = number
        self.poller = poller
        self.context = context
        self.sock: socket.socket | None = None
        self.fd = -1
        self.stage = ConnectionStage.CLOSED
        self.has_kernel_times = False  # the kernel stamps what comes
        self.is_unused = True  # no request has been answered on this connection yet
        self.conversation: Conversation | None = None
        self.recorder = ReplyRecorder()
        self.unsent = b""
        self.due = self.assigned_at = self.sent = self.active_at = 0
        self.parsed_count = self.progress_mark = 0
        self.checked_at = 0  # when a silent socket was last read without the kernel having told of anything
        self.socket_serial = 0  # of the socket: a reply looked at late may be of one that is gone
        self.request_bytes = 0  # bytes of the request
        self.can_defer = False  # in the middle of a stream of events: what is read may wait
        self.awaits_head = False  # nothing of the reply has been read yet
        self.closes_after_reply = False  # the connection ends with the reply
        self.segments: list[ReadSegment] = []

    def connect(self, family: int, address: tuple[str, int]) -> str:
        """Begin to connect; the reason when that failed at once."""
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
        """The connection attempt ended; begins TLS where asked. The reason when it failed."""
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
        """Go on with the TLS handshake; the reason when it failed."""
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
        """Send a request; the reason when the connection is gone."""
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
        """Send what can be sent now and the rest when the socket allows; the reason when it is gone."""
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
            self.poller.modify(self.fd, WRITE_EVENTS if self.unsent else READ_EVENTS)
        return ""

    def read_available(self, offset: int) -> bool:
        """Read all there is, up to a limit, decrypting; False when the peer is gone."""
        for _ in range(MAX_READS):
            try:
                data, side, _, _ = self.recv(READ_BYTES, sockets.SIDE_BYTES)
            except (BlockingIOError, InterruptedError):
                return True
            except OSError:
                return False
            if not data or not self._add_segment(data, sockets.receive_time(side, offset, self.sent)):
                return False
            if len(data) < READ_BYTES:
                return True
        self.rearm_poll()
        return True

    def rearm_poll(self) -> None:
        """Have the kernel tell of what is left unread, as if it had come now."""
        self.poller.modify(self.fd, WRITE_EVENTS if self.unsent else READ_EVENTS)

    def _add_segment(self, data: bytes, came: int) -> bool:
        """Keep what was read until someone looks at it; False when TLS broke."""
        if self.context is not None:
            self.tls_in.write(data)
            if self.stage == ConnectionStage.HANDSHAKE:
                return True
            plain = self._decrypt()
            if plain is None:
                return False
            data = plain
        if data:
            self.segments.append((data, came, 0))
        return True

    def parse_and_update(self) -> None:
        """Look at all that was read, and see whether the next read may wait to be looked at."""
        self.parse_segments()
        self.awaits_head = False
        self.can_defer = self.recorder.is_between_events and self.context is None
        self.closes_after_reply = self.recorder.body.headers.get(b"connection", b"").lower() == b"close"

    def parse_segments(self) -> None:
        """Look at all that was read."""
        record_segments(self.recorder, self.segments)
        self.parsed_count += len(self.segments)
        self.segments.clear()

    def close(self) -> None:
        """Hang up and forget what was read."""
        if self.sock is not None:
            with contextlib.suppress(OSError, ValueError):
                self.poller.unregister(self.fd)
            self.sock.close()
        self.sock, self.fd, self.stage, self.unsent = None, -1, ConnectionStage.CLOSED, b""
        self.segments.clear()

    def _decrypt(self) -> bytes | None:
        """Whatever is whole by now; None when the peer ended the TLS session badly."""
        parts = []
        try:
            while part := self.tls.read(65536):
                parts.append(part)
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError:
            return b"".join(parts) or None
        return b"".join(parts)


def is_stream_head(data: bytes) -> bool:
    """The head of a chunked event stream on a connection that stays, with whole events behind it or nothing yet.

    Only what is plainly so; anything else is parsed at once. It saves looking at thousands of heads in the very moment
    in which first tokens come.
    """
    if not data.startswith(b"HTTP/1.1 200 ") or not data.endswith((b"\n\n\r\n", b"\r\n\r\n")):
        return False
    head, _, rest = data.partition(b"\r\n\r\n")
    head = head.lower()
    return (
        b"\r\ntransfer-encoding: chunked" in head
        and b"\r\ncontent-type: text/event-stream" in head
        and (b"\r\nconnection:" not in head or b"\r\nconnection: keep-alive\r\n" in head + b"\r\n")
        and (not rest or rest.endswith(b"\n\n\r\n"))
    )


def record_segments(recorder: ReplyRecorder, segments: list[ReadSegment]) -> None:
    """Hand over what was read."""
    for data, came, since in segments:
        recorder.record_segment(data, came, since)


def error_text(problem: OSError) -> str:
    """An operating system error in plain words."""
    return (problem.strerror or str(problem)).lower()
