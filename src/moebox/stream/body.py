"""HTTP/1.1 response framing around server-sent events, from bytes in pieces of any size.

Only what streaming servers send: a status line, headers, and a body that is chunked, of known length or ends with the
connection. Event streams return the data of each event; any other body is kept, up to a limit, in `rest`. Every byte is
looked at a bounded number of times.
"""

import contextlib
import time
from dataclasses import dataclass, field

from moebox.stream.sse import EventParser

MAX_HEAD_BYTES = 65536  # bytes of headers; more is not a web server
MAX_BODY_BYTES = 4 * 2**20  # bytes of a body that is not an event stream
MAX_INTERIM = 32  # "100 Continue" and the like before the real head
MAX_SIZE_LINE = 256  # bytes of a chunk's size with its extensions
HEX = frozenset(b"0123456789abcdefABCDEF")


class BodyState:
    """The part of the response that the next byte belongs to; integers, since a lookup in an enum takes 0.2 us."""

    # SIZE: a chunk's size line; AFTER: the line end behind a chunk; LENGTH and CLOSE: a body of known length, or one
    # that ends with the connection.
    HEAD, SIZE, CHUNK, AFTER, TRAILER, LENGTH, CLOSE, OVER = range(8)


@dataclass(slots=True, eq=False)
class ResponseBody:
    """One response, fed in pieces."""

    state: int = BodyState.HEAD
    status: int = 0
    headers: dict[bytes, bytes] = field(default_factory=dict)
    streamed: bool = False  # an event stream
    rest: bytearray = field(default_factory=bytearray)
    problem: str = ""
    extra: bool = False  # bytes came after the end of the response
    _raw: bytes = b""  # of an unfinished head or size line
    _events: EventParser = field(default_factory=EventParser)
    _left: int = 0
    _interim: int = 0  # heads of status 1xx so far

    @property
    def is_complete(self) -> bool:
        return self.state == BodyState.OVER

    @property
    def is_untouched(self) -> bool:
        """No byte of the response has come yet."""
        return self.state == BodyState.HEAD and not self._raw

    @property
    def at_boundary(self) -> bool:
        """Between two events of a chunked stream, where a segment of whole events can be parsed later."""
        return self.streamed and self.state == BodyState.SIZE and not self._raw and self._events.at_boundary

    @property
    def keep_alive(self) -> bool:
        """The connection may carry another request."""
        closes = self.headers.get(b"connection", b"").lower() == b"close"
        return self.is_complete and not self.problem and not self.extra and not closes

    def feed(self, data: bytes) -> list[bytes]:
        """Take bytes and return the data of every event that ended in them."""
        events: list[bytes] = []
        while data and self.state != BodyState.OVER:
            if self.state in (BodyState.CHUNK, BodyState.LENGTH):
                piece, data = data[: self._left], data[self._left :]
                self._left -= len(piece)
                self._take_content(piece, events)
                if not self._left and self.state != BodyState.OVER:
                    self.state = BodyState.AFTER if self.state == BodyState.CHUNK else BodyState.OVER
            elif self.state == BodyState.CLOSE:
                self._take_content(data, events)
                data = b""
            elif self.state == BodyState.HEAD:
                data = self._read_head(data)
            elif self.state == BodyState.SIZE:
                data = self._read_size(data)
            else:
                data = self._skip_line_end(data)
        self.extra = self.extra or bool(data)
        return events

    def close(self) -> list[bytes]:
        """The connection closed: return the data of an event that lacked only its blank line."""
        if self.state == BodyState.CLOSE:
            self.state = BodyState.OVER
        if self.state == BodyState.LENGTH:
            self.problem = self.problem or f"the body ended {self._left:,} bytes short of its content-length"
        return [data for _, data in self._events.close()]

    def _read_head(self, data: bytes) -> bytes:
        """Read the status line and the headers; return the bytes after them."""
        raw = self._raw + data
        end = raw.find(b"\r\n\r\n")
        if end < 0:
            self._raw = raw
            if len(raw) > MAX_HEAD_BYTES or not b"HTTP/1.".startswith(raw[:7]):
                return self._fail(not_http_reason(raw))
            return b""
        self._raw = b""
        parsed = _parse_head(raw[:end]) if end <= MAX_HEAD_BYTES else None
        if parsed is None:
            return self._fail(not_http_reason(raw))
        status, headers = parsed
        rest = raw[end + 4 :]
        if 100 <= status < 200:  # "100 Continue": the real head follows
            self._interim += 1
            if self._interim > MAX_INTERIM:
                return self._fail(f"more than {MAX_INTERIM} interim responses (HTTP {status})")
            return rest
        self.status, self.headers = status, headers
        self.streamed = status == 200 and headers.get(b"content-type", b"").lower().startswith(b"text/event-stream")
        coding = headers.get(b"content-encoding", b"identity").lower()
        if coding not in (b"identity", b"") and status == 200:
            return self._fail(f"the reply is compressed ({coding[:20].decode('latin-1')!r}), which was not requested")
        length, transfer = headers.get(b"content-length"), headers.get(b"transfer-encoding", b"").lower()
        if transfer == b"chunked":
            self.state = BodyState.SIZE
        elif transfer not in (b"", b"identity"):
            return self._fail(f"transfer-encoding is {transfer[:40]!r}, which was not requested")
        elif length is not None:
            if not length.isdigit() or len(length) > 18:
                return self._fail(f"content-length is {length[:20]!r}")
            self._left = int(length)
            self.state = BodyState.LENGTH if self._left else BodyState.OVER
        elif status in (204, 304):
            self.state = BodyState.OVER
        else:
            self.state = BodyState.CLOSE
            self.headers[b"connection"] = b"close"
        return rest

    def _read_size(self, data: bytes) -> bytes:
        """Read the size line of a chunk; return the bytes after it."""
        raw = self._raw + data[: MAX_SIZE_LINE + 1]
        end = raw.find(b"\n")
        if end < 0:
            self._raw = raw
            return self._fail("a chunk without a size") if len(raw) > MAX_SIZE_LINE else b""
        used = end + 1 - len(self._raw)
        self._raw = b""
        digits = raw[:end].partition(b";")[0].strip()
        if not digits or len(digits) > 16 or not HEX.issuperset(digits):
            return self._fail(f"a chunk of size {raw[:20]!r}")
        self._left = int(digits, 16)
        self.state = BodyState.CHUNK if self._left else BodyState.TRAILER
        return data[used:]

    def _skip_line_end(self, data: bytes) -> bytes:
        """Skip the line end after a chunk, or the trailer lines up to the empty one; return the bytes after it."""
        end = data.find(b"\n")
        if end < 0:
            self._raw += data
            return self._fail("a chunk that does not end") if len(self._raw) > MAX_HEAD_BYTES else b""
        blank = not (self._raw + data[:end]).strip()
        self._raw = b""
        if self.state == BodyState.AFTER:
            if not blank:
                return self._fail("a chunk longer than its size")
            self.state = BodyState.SIZE
        elif blank:
            self.state = BodyState.OVER
        return data[end + 1 :]

    def _take_content(self, piece: bytes, events: list[bytes]) -> None:
        if not self.streamed:
            self.rest += piece[: MAX_BODY_BYTES - len(self.rest)]
            return
        events += [data for _, data in self._events.feed(piece)]
        if problem := self._events.problem:
            self._fail(problem)

    def _fail(self, problem: str) -> bytes:
        """End the response with a problem; returns no bytes to go on with."""
        self.problem = self.problem or problem
        self.state = BodyState.OVER
        return b""


def retry_after_s(value: str) -> float | None:
    """Seconds to wait by a Retry-After header, a number or a date; None if it is not valid."""
    if value.isascii() and value.isdigit():
        return float(value[:9])
    with contextlib.suppress(ValueError, TypeError, OverflowError):
        from email.utils import parsedate_to_datetime  # imported here because few servers send a date

        return max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
    return None


def not_http_reason(raw: bytes) -> str:
    """Explain a reply that is not HTTP, and how to fix it if that is known."""
    if raw[:1] in (b"\x15", b"\x16") and raw[1:2] == b"\x03":
        return "the server speaks TLS: write https:// instead of http://"
    if raw.startswith(b"PRI *") or raw[3:9] == b"\x04\x00\x00\x00\x00\x00":
        return "the server speaks HTTP/2 only"
    return f"not an HTTP/1.1 response: {raw[:40]!r}"


def _parse_head(head: bytes) -> tuple[int, dict[bytes, bytes]] | None:
    """Parse status and headers, names in lower case; None if it is not a head of HTTP/1.x."""
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
