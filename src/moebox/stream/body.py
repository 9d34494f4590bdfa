"""HTTP/1.1 response framing around server-sent events, on bytes, in whatever pieces they come.

Only what a client of streaming servers meets: a status line, headers, a body that is chunked, of known length or ends
with the connection. Event streams give back the data of each event; any other body is kept, up to a limit, in `rest`.
Every byte is looked at a bounded number of times, however they are cut.
"""

import contextlib
import time

from moebox.stream.sse import EventParser

MAX_HEAD_BYTES = 65536  # bytes of headers; more is not a web server
MAX_BODY_BYTES = 4 * 2**20  # bytes of a body that is not an event stream
MAX_INTERIM = 32  # "100 Continue" and the like before the real head
MAX_SIZE_LINE = 256  # bytes of a chunk's size with its extensions
HEX = frozenset(b"0123456789abcdefABCDEF")


class BodyState:
    """Where in the response the next byte belongs; plain numbers, as looking up a member of an enum takes 0.2 us."""

    HEAD = 0
    SIZE = 1  # a chunk's size line
    CHUNK = 2  # inside a chunk
    AFTER = 3  # the line end behind a chunk
    TRAILER = 4
    LENGTH = 5  # a body of known length
    CLOSE = 6  # a body that ends with the connection
    OVER = 7


class ResponseBody:
    """One response, fed byte by byte or all at once."""

    __slots__ = (
        "_events",
        "_interim",
        "_left",
        "_raw",
        "extra",
        "headers",
        "problem",
        "rest",
        "state",
        "status",
        "streamed",
    )

    def __init__(self) -> None:
        self.state = BodyState.HEAD
        self.status = 0
        self.headers: dict[bytes, bytes] = {}
        self.streamed = False  # an event stream
        self.rest = bytearray()
        self.problem = ""
        self.extra = False  # bytes came that belong to no response of ours
        self._raw = b""  # bytes of an unfinished head or size line
        self._events = EventParser()
        self._left = 0
        self._interim = 0  # heads of status 1xx so far

    @property
    def is_complete(self) -> bool:
        """Nothing more belongs to this response."""
        return self.state == BodyState.OVER

    @property
    def is_untouched(self) -> bool:
        """Nothing of the response has come yet."""
        return self.state == BodyState.HEAD and not self._raw

    @property
    def at_boundary(self) -> bool:
        """At a chunk boundary that is also an event boundary."""
        return self.state == BodyState.SIZE and not self._raw and self._events.at_boundary

    @property
    def missing_bytes(self) -> int:
        """Bytes that a body of known length still lacks."""
        return self._left if self.state == BodyState.LENGTH else 0

    @property
    def keep_alive(self) -> bool:
        """The connection may carry another request."""
        closes = self.headers.get(b"connection", b"").lower() == b"close"
        return self.is_complete and not self.problem and not self.extra and not closes

    def feed(self, data: bytes) -> list[bytes]:
        """The data of every event that ended in these bytes."""
        events: list[bytes] = []
        while data and self.state != BodyState.OVER:
            if self.state in (BodyState.CHUNK, BodyState.LENGTH):
                data = self._counted(data, events)
            elif self.state == BodyState.CLOSE:
                self._content(data, events)
                data = b""
            elif self.state == BodyState.HEAD:
                data = self._head(data)
            elif self.state == BodyState.SIZE:
                data = self._size(data)
            else:
                data = self._line_end(data)
        self.extra = self.extra or bool(data)
        return events

    def _counted(self, data: bytes, events: list[bytes]) -> bytes:
        """A part of a chunk, or of a body of known length; what follows it."""
        piece, rest = data[: self._left], data[self._left :]
        self._left -= len(piece)
        self._content(piece, events)
        if not self._left and self.state != BodyState.OVER:
            self.state = BodyState.AFTER if self.state == BodyState.CHUNK else BodyState.OVER
        return rest

    def mark_complete(self) -> None:
        """The empty chunk that ends the response came, and nothing in its trailer; only where `between`."""
        self.state = BodyState.OVER

    def close(self) -> list[bytes]:
        """The connection closed: the data of an event that lacked only its blank line."""
        if self.state == BodyState.CLOSE:
            self.state = BodyState.OVER
        if self.missing_bytes:
            self.problem = self.problem or f"the body ended {self.missing_bytes:,} bytes short of its content-length"
        return [data for _, data in self._events.close()]

    def _head(self, data: bytes) -> bytes:
        raw = self._raw + data
        end = raw.find(b"\r\n\r\n")
        if end < 0:
            self._raw = raw
            if len(raw) > MAX_HEAD_BYTES or not b"HTTP/1.".startswith(raw[:7]):
                return self._refuse(not_http_reason(raw))
            return b""
        self._raw = b""
        parsed = _parse_head(raw[:end]) if end <= MAX_HEAD_BYTES else None
        if parsed is None:
            return self._refuse(not_http_reason(raw))
        status, headers = parsed
        rest = raw[end + 4 :]
        return self._continue(status, rest) if 100 <= status < 200 else self._begin(status, headers, rest)

    def _continue(self, status: int, rest: bytes) -> bytes:
        """ "100 Continue": the real head follows."""
        self._interim += 1
        if self._interim > MAX_INTERIM:
            return self._refuse(f"more than {MAX_INTERIM} interim responses (HTTP {status})")
        return rest

    def _begin(self, status: int, headers: dict[bytes, bytes], rest: bytes) -> bytes:
        self.status = status
        self.headers = headers
        self.streamed = status == 200 and headers.get(b"content-type", b"").lower().startswith(b"text/event-stream")
        coding = headers.get(b"content-encoding", b"identity").lower()
        if coding not in (b"identity", b"") and status == 200:
            return self._refuse(f"the reply is compressed ({coding[:20].decode('latin-1')!r}), which was not requested")
        return self._frame(rest)

    def _frame(self, data: bytes) -> bytes:
        length = self.headers.get(b"content-length")
        coding = self.headers.get(b"transfer-encoding", b"").lower()
        if coding == b"chunked":
            self.state = BodyState.SIZE
        elif coding not in (b"", b"identity"):
            return self._refuse(f"transfer-encoding is {coding[:40]!r}, which was not requested")
        elif length is not None:
            if not length.isdigit() or len(length) > 18:
                return self._refuse(f"content-length is {length[:20]!r}")
            self._left = int(length)
            self.state = BodyState.LENGTH if self._left else BodyState.OVER
        elif self.status in (204, 304):
            self.state = BodyState.OVER
        else:
            self.state = BodyState.CLOSE
            self.headers[b"connection"] = b"close"
        return data

    def _size(self, data: bytes) -> bytes:
        raw = self._raw + data[: MAX_SIZE_LINE + 1]
        end = raw.find(b"\n")
        if end < 0:
            self._raw = raw
            return self._refuse("a chunk without a size") if len(raw) > MAX_SIZE_LINE else b""
        used = end + 1 - len(self._raw)
        self._raw = b""
        digits = raw[:end].partition(b";")[0].strip()
        if not digits or len(digits) > 16 or not HEX.issuperset(digits):
            return self._refuse(f"a chunk of size {raw[:20]!r}")
        self._left = int(digits, 16)
        self.state = BodyState.CHUNK if self._left else BodyState.TRAILER
        return data[used:]

    def _line_end(self, data: bytes) -> bytes:
        """Past the line end after a chunk, or past the trailer lines up to the empty one."""
        end = data.find(b"\n")
        if end < 0:
            self._raw += data
            return self._refuse("a chunk that does not end") if len(self._raw) > MAX_HEAD_BYTES else b""
        blank = not (self._raw + data[:end]).strip()
        self._raw = b""
        if self.state == BodyState.AFTER:
            if not blank:
                return self._refuse("a chunk longer than its size")
            self.state = BodyState.SIZE
        elif blank:
            self.state = BodyState.OVER
        return data[end + 1 :]

    def _content(self, piece: bytes, events: list[bytes]) -> None:
        if not self.streamed:
            self.rest += piece[: MAX_BODY_BYTES - len(self.rest)]
            return
        events += [data for _, data in self._events.feed(piece)]
        if problem := self._events.problem:
            self._refuse(problem)

    def _refuse(self, problem: str) -> bytes:
        self.problem = self.problem or problem
        self.state = BodyState.OVER
        return b""


def retry_after_s(headers: dict[bytes, bytes]) -> float | None:
    """Seconds to wait by a Retry-After header, as a number or a date; None where there is none that can be read."""
    value = headers.get(b"retry-after", b"").decode("latin-1").strip()
    if value.isascii() and value.isdigit():
        return float(value[:9])
    with contextlib.suppress(ValueError, TypeError, OverflowError):
        from email.utils import parsedate_to_datetime  # here: few servers send a date, and every client would load it

        return max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
    return None


def not_http_reason(raw: bytes) -> str:
    """What is wrong with an answer that is not HTTP, and where the mistake is plain, what to do."""
    if raw[:1] in (b"\x15", b"\x16") and raw[1:2] == b"\x03":
        return "the server speaks TLS: write https:// instead of http://"
    if raw.startswith(b"PRI *") or raw[3:9] == b"\x04\x00\x00\x00\x00\x00":
        return "the server speaks HTTP/2 only"
    return f"not an HTTP/1.1 response: {raw[:40]!r}"


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
