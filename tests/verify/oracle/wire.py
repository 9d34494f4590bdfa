"""HTTP/1.1 as the oracle needs it: connections kept alive, replies whole or in chunks, lines that go dead.

Standard library only: the tests of the checks send some ten thousand requests, and a framework would spend more time
on each than the oracle does. The classes have the names and the words of Starlette's.
"""

import asyncio
import contextlib
import json
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any
from urllib.parse import unquote

BODILESS = (204, 304)


@dataclass(frozen=True)
class Request:
    """What came, with the names of its headers in small letters."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    client: tuple[str, int]  # the other end of its connection

    @property
    def url(self) -> str:
        """As the client wrote it."""
        return f"http://{self.headers['host']}{self.path}"

    def json(self) -> Any:
        """The body; ValueError where it is no JSON."""
        return json.loads(self.body)


class Response:
    """A reply; its type is the one of `headers`, else `media_type`."""

    def __init__(
        self,
        content: str | bytes | AsyncIterator[bytes] = b"",
        status: int = 200,
        headers: dict[str, str] | None = None,
        media_type: str = "",
    ) -> None:
        self.content = content.encode() if isinstance(content, str) else content
        self.status = status
        self.headers = {"content-type": media_type} if media_type else {}
        self.headers |= headers or {}

    def head(self) -> bytes:
        """All before the body."""
        framed = {"content-length": str(len(self.content))} if isinstance(self.content, bytes) else CHUNKED
        sent = self.headers if self.status in BODILESS else self.headers | framed
        lines = [f"HTTP/1.1 {self.status} {HTTPStatus(self.status).phrase}"]
        lines += [f"{name}: {value}" for name, value in sent.items()]
        return "\r\n".join([*lines, "", ""]).encode("latin-1")


CHUNKED = {"transfer-encoding": "chunked"}


class JSONResponse(Response):
    """A document, in Starlette's spelling."""

    def __init__(self, content: Any, status: int = 200, headers: dict[str, str] | None = None) -> None:
        text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        super().__init__(text, status, headers, "application/json")


class StreamingResponse(Response):
    """Pieces, each sent when it is there."""


Answer = Callable[[Request], Awaitable[Response]]


class Connection(asyncio.Protocol):
    """Requests one after another."""

    transport: asyncio.Transport
    client: tuple[str, int]

    def __init__(self, answer: Answer, others: "set[Connection]") -> None:
        self.answer = answer
        self.others = others  # that are open too
        self.came = bytearray()
        self.work: asyncio.Task[None] | None = None
        self.streaming = False
        self.may_write = asyncio.Event()
        self.may_write.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.client = transport.get_extra_info("peername")
        self.others.add(self)

    def connection_lost(self, problem: Exception | None) -> None:
        """A stream ends if it is not read; an answer that is worked on does not notice, as in any engine."""
        self.others.discard(self)
        self.may_write.set()
        if self.work and self.streaming:
            self.work.cancel()

    def pause_writing(self) -> None:
        self.may_write.clear()

    def resume_writing(self) -> None:
        self.may_write.set()

    def data_received(self, data: bytes) -> None:
        self.came += data
        self.next()

    def next(self) -> None:
        """Begin with the next request, if it is whole."""
        end = self.came.find(b"\r\n\r\n")
        if self.work or end < 0:
            return
        first, *lines = self.came[:end].decode("latin-1").split("\r\n")
        method, target, _ = first.split(" ")
        pairs = (line.split(":", 1) for line in lines)
        headers = {name.lower(): value.strip() for name, value in pairs}
        body = end + 4
        whole = body + int(headers.get("content-length", 0))
        if len(self.came) < whole:
            return
        path = unquote(target.partition("?")[0])
        request = Request(method, path, headers, bytes(self.came[body:whole]), self.client)
        del self.came[:whole]
        self.work = asyncio.get_running_loop().create_task(self.serve(request))

    async def serve(self, request: Request) -> None:
        """One request, and whether the connection stays; an error in a stream is a line that goes dead."""
        try:
            reply = await self.answer(request)
        except Exception:  # invalid requests are answered, as every server's framework does
            reply = Response("Internal Server Error", 500, {"connection": "close"}, "text/plain; charset=utf-8")
        stays = "close" not in (reply.headers.get("connection"), request.headers.get("connection"))
        try:
            await self.send(reply)
        except Exception:  # the fault that was asked for
            stays = False
        self.work = None
        if stays:
            self.next()
        else:
            self.transport.close()

    async def send(self, reply: Response) -> None:
        """A whole reply in one write, a stream in one for each piece."""
        if isinstance(reply.content, bytes):
            self.transport.write(reply.head() + (b"" if reply.status in BODILESS else reply.content))
            return
        self.transport.write(reply.head())
        self.streaming = not self.transport.is_closing()
        if not self.streaming:
            return  # the client left before the first piece
        async for piece in reply.content:
            if piece:
                self.transport.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            if not self.may_write.is_set():
                await self.may_write.wait()
        self.transport.write(b"0\r\n\r\n")
        self.streaming = False


@contextlib.contextmanager
def live(answer: Answer) -> Iterator[str]:
    """A server on a free port of loopback, in a thread; gives its address."""
    loop, connections = asyncio.new_event_loop(), set[Connection]()
    made = loop.create_server(lambda: Connection(answer, connections), "127.0.0.1", 0, backlog=2048)
    server = loop.run_until_complete(made)
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        server.close()
        loop.run_until_complete(_ended(connections))
        loop.close()


async def _ended(connections: set[Connection]) -> None:
    """What is still answered is given up."""
    for connection in connections:
        connection.transport.abort()
    await asyncio.sleep(0)  # in which they are closed
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
