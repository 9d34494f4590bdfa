"""The hot path: one more event like the previous one, on thousands of streams.

A hot stream is a tuple of the few things that reading it takes; nothing else of its connection is touched. Their number
matters most: with thousands of streams each is fetched from beyond the processor's cache, and that, not the
interpreter, was two thirds of the time (perf, 2026-11-15).
"""

import socket
import time
from array import array
from collections.abc import Sequence

from moebox.bench.generator.recorder import ReplyRecorder
from moebox.bench.generator.template import CHUNK_OVERHEAD, MAX_CHUNK_BYTES, SIZE_LINES, are_token_texts
from moebox.stream import sockets

READ_BYTES = 16384  # requested in one read
SIZE_CORRECTION = 2 - CHUNK_OVERHEAD  # from the length of a chunk behind its size line to that of the event's data

# The socket; the bytes before and behind the text of an event, and their lengths; times and sizes of events; the
# recorder that holds these, for everything else.
HotStream = tuple[socket.socket, bytes, bytes, int, int, "array[int]", "array[int]", ReplyRecorder]
UnusualRead = tuple[int, int, bytes | None, int]  # descriptor, poll mask, bytes read (None: not read yet), arrival


class HotPath:
    """The hot streams of a worker by descriptor, and the one loop that reads them."""

    __slots__ = ("_buffer", "late_ns", "offset", "polled_at", "read_at", "streams", "unusual")

    def __init__(self, *, late_ns: float) -> None:
        self.streams: list[HotStream | None] = []  # None if the stream is not hot
        self.read_at: list[int] = []  # CLOCK_MONOTONIC ns: each stream was read empty then or later
        self.polled_at = 0  # when all streams had been read empty
        self.late_ns = late_ns  # after a longer pause, events found together may have arrived apart
        self.offset = sockets.clock_offset()
        self.unusual: list[UnusualRead] = []  # what the last read found besides events like the previous one
        self._buffer = bytearray(READ_BYTES)

    def add_stream(self, fd: int, sock: socket.socket, recorder: ReplyRecorder) -> None:
        """Read further events like the previous one of this stream on the hot path."""
        template = recorder.template
        assert template is not None
        before, behind = len(template.opening), len(template.tail)
        stream = (sock, template.opening, template.tail, before, behind, recorder.times, recorder.sizes, recorder)
        self.streams[fd] = stream

    def unread_since(self, fd: int, came: int) -> int:
        """Return since when a stream was not read, if that is long enough for events to have joined; else 0."""
        since = max(self.polled_at, self.read_at[fd])
        return since if came - since > self.late_ns else 0

    def read_ready(self, ready: Sequence[tuple[int, int]], now: int) -> int:
        """Read every ready stream that is hot; anything but one more event like the previous one goes to `unusual`.

        Return when the oldest of the bytes arrived, or 0 if nothing was read.
        """
        recvmsg_into, side_bytes, unpack = socket.socket.recvmsg_into, sockets.SIDE_BYTES, sockets.TIMESPEC.unpack
        data, buffers, startswith = self._buffer, (self._buffer,), self._buffer.startswith
        streams, read_at, offset, lines = self.streams, self.read_at, self.offset, SIZE_LINES
        unusual = self.unusual = []
        texts: dict[int, bytearray] = {}  # of streams that had one event; checked together
        oldest = second = base = 0
        for fd, mask in ready:
            stream = streams[fd]
            if stream is None or mask != 1:  # EPOLLIN alone
                unusual.append((fd, mask, None, 0))
                continue
            sock, opening, tail, before, behind, times, sizes, recorder = stream
            try:
                length, side, _, _ = recvmsg_into(sock, buffers, side_bytes)
            except BlockingIOError:
                continue
            except OSError:
                unusual.append((fd, mask, b"", 0))
                continue
            if side:
                seconds, rest = unpack(side[0][2])
                if seconds != second:
                    second, base = seconds, seconds * 1_000_000_000 - offset
                came = base + rest
            else:
                came = time.monotonic_ns()
            if not oldest:
                oldest = came
            line, start = lines[length if length <= MAX_CHUNK_BYTES else 0]
            text, close = start + before, length - behind
            if text < close and startswith(line) and startswith(opening, start) and startswith(tail, close):
                texts[fd] = data[text:close]
                times.append(came)
                sizes.append(length - start + SIZE_CORRECTION)
                read_at[fd] = now
                continue
            segment = bytes(data[:length])
            if length < READ_BYTES and recorder.take_fast(segment, came, self.unread_since(fd, came)):
                read_at[fd] = now
            else:
                unusual.append((fd, mask, segment, came))
        if not are_token_texts(texts.values()):
            for fd, token_text in texts.items():  # hand back those that are not a token's text, as if just read
                stream = streams[fd]
                if stream is None or are_token_texts((token_text,)):
                    continue
                _, opening, tail, _, _, times, sizes, _ = stream
                sizes.pop()
                chunk = opening + token_text + tail
                unusual.append((fd, 1, b"%x\r\n" % (len(chunk) - len(b"\r\n")) + chunk, times.pop()))
        return oldest
