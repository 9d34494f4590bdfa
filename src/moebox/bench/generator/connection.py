"""One connection of the load generator: non-blocking, plain or TLS, and what is under way on it."""

import contextlib
import errno
import os
import select
import socket
import ssl
import time

from moebox.bench.generator.conversation import Conversation
from moebox.bench.generator.hot_path import BUFFER
from moebox.bench.generator.recorder import Recorder
from moebox.stream import sockets

# Edge-triggered: each arrival is told once, which spares the kernel a second look at every socket. So whoever reads
# must read until less came than there was room for, or ask to be told again.
READ = select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLET
WRITE = READ | select.EPOLLOUT
MOST_READS = 16  # of one connection before the others have their turn: a server that never pauses must not keep us

Got = tuple[bytes, int, int]  # what was read; the CLOCK_MONOTONIC ns at which it came; since when, if nobody had looked


class Stage:
    """What the connection is doing; plain numbers, as looking up a member of an enum takes 0.2 us."""

    CLOSED = 0
    CONNECTING = 1
    HANDSHAKE = 2
    IDLE = 3
    BUSY = 4


class Connection:
    """A connection and the request on it. `got` holds what was read and nobody has looked at yet, and when it came."""

    __slots__ = (
        "alive",
        "awaiting",
        "closes",
        "context",
        "conversation",
        "due",
        "fd",
        "fresh",
        "given",
        "got",
        "kernel",
        "looked",
        "mark",
        "number",
        "out",
        "poller",
        "quiet",
        "recorder",
        "recv",
        "seen",
        "sent",
        "serial",
        "size",
        "sock",
        "stage",
        "tls",
        "tls_in",
        "tls_out",
    )

    def __init__(self, number: int, poller: select.epoll, context: ssl.SSLContext | None) -> None:
        self.number = number
        self.poller = poller
        self.context = context
        self.sock: socket.socket | None = None
        self.fd = -1
        self.stage = Stage.CLOSED
        self.kernel = False  # the kernel stamps what comes
        self.fresh = True  # no request has been answered on this connection yet
        self.conversation: Conversation | None = None
        self.recorder = Recorder()
        self.out = b""
        self.due = self.given = self.sent = self.alive = 0
        self.mark = self.seen = 0
        self.looked = 0  # when a silent socket was last read without the kernel having told of anything
        self.serial = 0  # of the socket: a reply looked at late may be of one that is gone
        self.size = 0  # bytes of the request
        self.quiet = False  # in the middle of a stream of events: what is read may wait
        self.awaiting = False  # nothing of the reply has been read yet
        self.closes = False  # the connection ends with the reply
        self.got: list[Got] = []

    def connect(self, family: int, address: tuple[str, int]) -> str:
        """Begin to connect; the reason when that failed at once."""
        try:
            self.sock = socket.socket(family, socket.SOCK_STREAM)
            self.sock.setblocking(False)
            self.kernel = sockets.tune_socket(self.sock)
            code = self.sock.connect_ex(address)
        except OSError as problem:
            self.close()
            return reason_of(problem)
        if code not in (0, errno.EINPROGRESS):
            self.close()
            return reason_of(OSError(code, os.strerror(code)))
        self.fd, self.recv = self.sock.fileno(), self.sock.recvmsg
        self.stage, self.fresh = Stage.CONNECTING, True
        self.serial += 1
        self.poller.register(self.fd, WRITE)
        return ""

    def connected(self, name: str) -> str:
        """The connection attempt ended; begins TLS where asked. The reason when it failed."""
        assert self.sock is not None
        code = self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            self.close()
            return reason_of(OSError(code, os.strerror(code)))
        self.poller.modify(self.fd, READ)
        self.stage = Stage.IDLE
        if self.context is not None:
            self.tls_in, self.tls_out = ssl.MemoryBIO(), ssl.MemoryBIO()
            self.tls = self.context.wrap_bio(self.tls_in, self.tls_out, server_hostname=name)
            self.stage = Stage.HANDSHAKE
            return self.shake_hands()
        return ""

    def shake_hands(self) -> str:
        """Go on with the TLS handshake; the reason when it failed."""
        try:
            self.tls.do_handshake()
            self.stage = Stage.IDLE
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as problem:
            self.close()
            return f"TLS: {problem.reason or problem}"
        return self.send(b"")

    def begin(self, conversation: Conversation, request: bytes, due: int) -> str:
        """Send a request; the reason when the connection is gone."""
        self.conversation, self.due = conversation, due
        self.recorder = Recorder(keep=conversation.keep)
        self.mark = self.seen = 0
        self.awaiting = self.quiet = self.context is None
        self.closes = False
        self.stage = Stage.BUSY
        self.size = len(request)
        assert self.sock is not None
        sockets.acknowledge_rarely(self.sock)
        if self.context is not None:
            self.tls.write(request)
            request = b""
        self.sent = self.alive = self.recorder.since = time.monotonic_ns()
        return self.send(request)

    def send(self, data: bytes) -> str:
        """Send what can be sent now and the rest when the socket allows; the reason when it is gone."""
        assert self.sock is not None
        if self.context is not None:
            data = self.tls_out.read()
        pending = self.out + data if self.out else data
        if not pending:
            return ""
        try:
            done = self.sock.send(pending)
        except BlockingIOError:
            done = 0
        except OSError as problem:
            return reason_of(problem)
        waiting, self.out = bool(self.out), pending[done:]
        if bool(self.out) != waiting:
            self.poller.modify(self.fd, WRITE if self.out else READ)
        return ""

    def read(self, offset: int) -> bool:
        """Read all there is, up to a limit, decrypting; False when the peer is gone."""
        for _ in range(MOST_READS):
            try:
                data, side, _, _ = self.recv(BUFFER, sockets.SIDE_BYTES)
            except (BlockingIOError, InterruptedError):
                return True
            except OSError:
                return False
            if not data or not self._got(data, sockets.receive_time(side, offset, self.sent)):
                return False
            if len(data) < BUFFER:
                return True
        self.tell_again()
        return True

    def tell_again(self) -> None:
        """Have the kernel tell of what is left unread, as if it had come now."""
        self.poller.modify(self.fd, WRITE if self.out else READ)

    def _got(self, data: bytes, came: int) -> bool:
        """Keep what was read until someone looks at it; False when TLS broke."""
        if self.context is not None:
            self.tls_in.write(data)
            if self.stage == Stage.HANDSHAKE:
                return True
            plain = self._decrypt()
            if plain is None:
                return False
            data = plain
        if data:
            self.got.append((data, came, 0))
        return True

    def settle(self) -> None:
        """Look at all that was read, and see whether the next read may wait to be looked at."""
        self.look()
        self.awaiting = False
        self.quiet = self.recorder.quiet and self.context is None
        self.closes = self.recorder.body.headers.get(b"connection", b"").lower() == b"close"

    def look(self) -> None:
        """Look at all that was read."""
        feed(self.recorder, self.got)
        self.mark += len(self.got)
        self.got.clear()

    def close(self) -> None:
        """Hang up and forget what was read."""
        if self.sock is not None:
            with contextlib.suppress(OSError, ValueError):
                self.poller.unregister(self.fd)
            self.sock.close()
        self.sock, self.fd, self.stage, self.out = None, -1, Stage.CLOSED, b""
        self.got.clear()

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


def opens_stream(data: bytes) -> bool:
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


def feed(recorder: Recorder, got: list[Got]) -> None:
    """Hand over what was read."""
    for data, came, since in got:
        recorder.record(data, came, since)


def reason_of(problem: OSError) -> str:
    """An operating system error in plain words."""
    return (problem.strerror or str(problem)).lower()
