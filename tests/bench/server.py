"""A loopback server that misbehaves to order: what it does with each request is said in the request's model name."""

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
Behaviour = Callable[["Peer", dict[str, object]], bool]


def event(delta: dict[str, object] | None = None, **more: object) -> bytes:
    """One event as servers write them."""
    choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": more.pop("finish", None)}]
    return b"data: " + json.dumps({"id": "1", "choices": choices, **more}, separators=(",", ":")).encode() + b"\n\n"


def chunk(data: bytes) -> bytes:
    """One HTTP chunk."""
    return b"%x\r\n%s\r\n" % (len(data), data)


def tail(tokens: int, *, usage: bool = True) -> bytes:
    """The end of a good stream."""
    counts = {"prompt_tokens": 9, "completion_tokens": tokens, "total_tokens": tokens + 9}
    end = chunk(event({}, finish="length"))
    return end + (chunk(event(None, usage=counts)) if usage else b"") + chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"


class Peer:
    """One accepted connection."""

    def __init__(self, sock: socket.socket, state: "Server") -> None:
        self.sock, self.state, self._file = sock, state, sock.makefile("rb")

    def request(self) -> tuple[str, dict[str, object]] | None:
        """The next request's path and JSON body."""
        line = self._file.readline()
        if not line:
            return None
        length = 0
        while (header := self._file.readline().strip()) != b"":
            name, _, value = header.partition(b":")
            self.state.headers.append((name.decode().lower(), value.decode().strip()))
            if name.lower() == b"content-length":
                length = int(value)
        body = self._file.read(length)
        return line.split()[1].decode(), json.loads(body) if body else {}

    def send(self, *pieces: bytes) -> None:
        """Send each piece in a write of its own."""
        for piece in pieces:
            self.sock.sendall(piece)

    def wait_until_read(self) -> None:
        """Wait until the client has read everything that was sent to it, by the kernel's table of sockets."""
        ours, theirs = (f":{address[1]:04X}" for address in (self.sock.getsockname(), self.sock.getpeername()))
        until = time.monotonic() + 20
        while time.monotonic() < until:
            rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
            ports = {(row[1][-5:], row[2][-5:]): row[4] for row in rows}  # queues as "sent:received" in hexadecimal
            sent, received = ports.get((ours, theirs), ":0"), ports.get((theirs, ours), "0:")
            if not int(sent.partition(":")[0] or "0", 16) and not int(received.partition(":")[2] or "0", 16):
                return
            time.sleep(0.005)

    def json(self, status: int, body: object, *extra: bytes) -> None:
        """A whole JSON answer."""
        data = json.dumps(body).encode()
        self.send(b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n" % (status, len(data)), *extra, b"\r\n" + data)


class Server:
    """Accepts until closed; keeps what it was asked."""

    def __init__(
        self,
        behaviour: Behaviour,
        *,
        wrap: Callable[[socket.socket], socket.socket] = lambda s: s,
        counts: bool = True,
        tokenizes: bool = False,
        look: Behaviour | None = None,
        metrics: Callable[[], str] | None = None,
        aside: Behaviour | None = None,
        models: Sequence[str] = (),
    ) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.asked: list[dict[str, object]] = []
        self.headers: list[tuple[str, str]] = []
        self.connections = 0
        self._behaviour, self._wrap = behaviour, wrap
        self._models = models  # what /v1/models lists
        self._metrics, self._aside = metrics, aside  # what /metrics says; what all but completions does
        self._counts, self._tokenizes, self._look = counts, tokenizes, look or self._looked
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.listener.getsockname()[1]}"

    def close(self) -> None:
        """Stop listening, and wake the thread: after a signal it would accept for the next owner of the descriptor."""
        with contextlib.suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                sock, _ = self.listener.accept()
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self.connections += 1
                threading.Thread(target=self._serve, args=(sock,), daemon=True).start()

    def _serve(self, raw: socket.socket) -> None:
        with contextlib.suppress(OSError, ValueError), self._wrap(raw) as sock:
            peer = Peer(sock, self)
            while (asked := peer.request()) is not None:
                path, body = asked
                if self._tokenizes and path == "/tokenize":  # a word is a token
                    peer.json(200, {"tokens": list(range(len(str(body.get("prompt", "")).split())))})
                elif self._metrics and path == "/metrics":
                    text = self._metrics().encode()
                    peer.send(b"HTTP/1.1 200 X\r\ncontent-length: %d\r\n\r\n" % len(text) + text)
                elif self._models and path == "/v1/models":
                    peer.json(200, {"data": [{"id": name} for name in self._models]})
                elif self._aside and "completions" not in path:
                    if not self._aside(peer, body):
                        return
                elif "completions" not in path:
                    peer.json(404, {})
                elif body.get("max_tokens") == 4 and "one two" in json.dumps(body):  # the look before a measurement
                    self._look(peer, body)
                else:
                    self.asked.append(body)
                    if not self._behaviour(peer, body):
                        return

    def _looked(self, peer: Peer, body: dict[str, object]) -> bool:
        peer.send(HEAD, chunk(event({"content": "a"})), tail(4, usage=self._counts))
        return True


@contextlib.contextmanager
def serving(behaviour: Behaviour, **more: Any) -> Iterator[Server]:
    """A server for the length of a test."""
    server = Server(behaviour, **more)
    try:
        yield server
    finally:
        server.close()


def good(peer: Peer, body: dict[str, object]) -> bool:
    """A role chunk at once, then as many tokens as asked for."""
    tokens = int(str(body["max_tokens"]))
    peer.send(HEAD, chunk(event({"role": "assistant", "content": ""})))
    for _ in range(tokens):
        peer.send(chunk(event({"content": " a"})))
        time.sleep(0.0005)
    peer.send(tail(tokens))
    return True
