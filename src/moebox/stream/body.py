"""HTTP/1.1 response framing and server-sent event splitting, on bytes, in whatever pieces they come.

Only what a client of streaming servers meets: a status line, headers, a body that is chunked, of known length or ends
with the connection. Event streams give back the data of each event; any other body is kept, up to a limit, in `rest`.
"""

MOST_HEAD = 65536  # bytes of headers; more is not a web server
MOST_REST = 4 * 2**20  # bytes of a body that is not an event stream
MOST_EVENT = 16 * 2**20  # bytes of one event


class State:
    """Where in the response the next byte belongs; plain numbers, as looking up a member of an enum takes 0.2 us."""

    HEAD = 0
    SIZE = 1  # a chunk's size line
    CHUNK = 2  # inside a chunk
    AFTER = 3  # the line end behind a chunk
    TRAILER = 4
    LENGTH = 5  # a body of known length
    CLOSE = 6  # a body that ends with the connection
    OVER = 7


class Body:
    """One response, fed byte by byte or all at once."""

    __slots__ = ("_data", "_left", "_line", "_raw", "headers", "problem", "rest", "state", "status", "streamed")

    def __init__(self) -> None:
        self.state = State.HEAD
        self.status = 0
        self.headers: dict[bytes, bytes] = {}
        self.streamed = False  # an event stream
        self.rest = bytearray()
        self.problem = ""
        self._raw = b""  # bytes of an unfinished head or size line
        self._line = b""  # bytes of an unfinished line of the event stream
        self._data: list[bytes] = []  # data lines of the unfinished event
        self._left = 0

    @property
    def complete(self) -> bool:
        """Nothing more belongs to this response."""
        return self.state == State.OVER

    @property
    def fresh(self) -> bool:
        """Nothing of the response has come yet."""
        return self.state == State.HEAD and not self._raw

    @property
    def between(self) -> bool:
        """At a chunk boundary that is also an event boundary."""
        return self.state == State.SIZE and not self._raw and not self._line and not self._data

    @property
    def keep_alive(self) -> bool:
        """The connection may carry another request."""
        return self.complete and not self.problem and self.headers.get(b"connection", b"").lower() != b"close"

    def feed(self, data: bytes) -> list[bytes]:
        """The data of every event that ended in these bytes."""
        events: list[bytes] = []
        while data and self.state != State.OVER:
            if self.state == State.HEAD:
                data = self._head(data)
            elif self.state == State.SIZE:
                data = self._size(data)
            elif self.state in (State.CHUNK, State.LENGTH):
                piece, data = data[: self._left], data[self._left :]
                self._left -= len(piece)
                self._content(piece, events)
                if not self._left:
                    self.state = State.AFTER if self.state == State.CHUNK else State.OVER
            elif self.state == State.CLOSE:
                self._content(data, events)
                data = b""
            else:
                data = self._line_end(data)
        return events

    def end(self) -> list[bytes]:
        """The connection closed: the data of an event that lacked only its blank line."""
        if self.state == State.CLOSE:
            self.state = State.OVER
        if self.state == State.LENGTH:
            self.problem = self.problem or f"the body ended {self._left:,} bytes short of its content-length"
        line, self._line = self._line, b""
        data = [*self._data, *_data_of(line)]
        self._data = []
        return [b"\n".join(data)] if data else []

    def _head(self, data: bytes) -> bytes:
        raw = self._raw + data
        end = raw.find(b"\r\n\r\n")
        if end < 0:
            self._raw = raw
            if len(raw) > MOST_HEAD or not b"HTTP/1.".startswith(raw[:7]):
                return self._refuse(f"not an HTTP/1.1 response: {raw[:40]!r}")
            return b""
        self._raw = b""
        parsed = _parse_head(raw[:end])
        if parsed is None:
            return self._refuse(f"not an HTTP/1.1 response: {raw[:40]!r}")
        status, headers = parsed
        if 100 <= status < 200:  # "100 Continue": the real head follows
            return raw[end + 4 :]
        self.status = status
        self.headers = headers
        self.streamed = status == 200 and self.headers.get(b"content-type", b"").lower().startswith(
            b"text/event-stream"
        )
        return self._frame(raw[end + 4 :])

    def _frame(self, data: bytes) -> bytes:
        length = self.headers.get(b"content-length")
        if b"chunked" in self.headers.get(b"transfer-encoding", b"").lower():
            self.state = State.SIZE
        elif length is not None:
            if not length.isdigit():
                return self._refuse(f"content-length is {length[:20]!r}")
            self._left = int(length)
            self.state = State.LENGTH if self._left else State.OVER
        elif self.status in (204, 304):
            self.state = State.OVER
        else:
            self.state = State.CLOSE
            self.headers[b"connection"] = b"close"
        return data

    def _size(self, data: bytes) -> bytes:
        raw = self._raw + data
        end = raw.find(b"\n")
        if end < 0:
            self._raw = raw
            return self._refuse("a chunk without a size") if len(raw) > 256 else b""
        self._raw = b""
        try:
            self._left = int(raw[:end].partition(b";")[0].strip(), 16)
        except ValueError:
            return self._refuse(f"a chunk of size {raw[:20]!r}")
        self.state = State.CHUNK if self._left > 0 else State.TRAILER
        return raw[end + 1 :]

    def _line_end(self, data: bytes) -> bytes:
        """Past the line end after a chunk, or past the trailer lines up to the empty one."""
        raw = self._raw + data
        end = raw.find(b"\n")
        if end < 0:
            self._raw = raw
            return self._refuse("a chunk that does not end") if len(raw) > MOST_HEAD else b""
        self._raw = b""
        blank = not raw[:end].strip()
        if self.state == State.AFTER:
            if not blank:
                return self._refuse("a chunk longer than its size")
            self.state = State.SIZE
        elif blank:
            self.state = State.OVER
        return raw[end + 1 :]

    def _content(self, piece: bytes, events: list[bytes]) -> None:
        if not self.streamed:
            if len(self.rest) < MOST_REST:
                self.rest += piece
            return
        *lines, self._line = (self._line + piece).split(b"\n")
        for line in lines:
            if line and line != b"\r":
                self._data += _data_of(line)
            elif self._data:
                events.append(b"\n".join(self._data))
                self._data = []
        if len(self._line) > MOST_EVENT:
            self._refuse(f"an event of more than {MOST_EVENT:,} bytes")

    def _refuse(self, problem: str) -> bytes:
        self.problem = self.problem or problem
        self.state = State.OVER
        return b""


def _parse_head(head: bytes) -> tuple[int, dict[bytes, bytes]] | None:
    """Status and headers, names in lower case; None where it is not a head of HTTP/1.x."""
    lines = head.split(b"\r\n")
    version, _, rest = lines[0].partition(b" ")
    if not version.startswith(b"HTTP/1.") or not rest[:3].isdigit():
        return None
    headers = {}
    for line in lines[1:]:
        name, _, value = line.partition(b":")
        headers[name.strip().lower()] = value.strip()
    if version == b"HTTP/1.0":
        headers.setdefault(b"connection", b"close")
    return int(rest[:3]), headers


def _data_of(line: bytes) -> list[bytes]:
    """The value of a data line; comments, pings and other fields have none."""
    if not line.startswith(b"data:"):
        return []
    value = line[5:].removesuffix(b"\r")
    return [value.removeprefix(b" ")]
