"""The hot path: one more event like the one before, on thousands of streams.

A hot stream is a tuple of the few things that reading it takes; nothing else of its connection is touched. What they
are matters less than how many: with thousands of streams each is fetched from beyond the processor's cache, and that,
not the interpreter, was two thirds of the time (perf, 2026-11-15).
"""

import socket
import time
from array import array
from collections.abc import Mapping, Sequence

from moebox.bench.generator.recorder import ReplyRecorder
from moebox.bench.generator.template import CHUNK_OVERHEAD, MAX_CHUNK_BYTES, SIZE_LINES, are_token_texts
from moebox.stream import sockets

READ_BYTES = 16384  # bytes asked of one read
SIZE_CORRECTION = 2 - CHUNK_OVERHEAD  # from the length of a chunk behind its size line to that of the event's data

# Whose bytes; what stands before and behind the text of an event, and how long that is; times and sizes of events; the
# recorder that holds these, for what comes otherwise.
HotStream = tuple[socket.socket, bytes, bytes, int, int, "array[int]", "array[int]", ReplyRecorder]
UnusualRead = tuple[
    int, int, bytes | None, int
]  # descriptor, poll mask, what was read (None: nothing yet), when it came


class HotPath:
    """The hot streams of a worker by descriptor, and the one loop that reads them."""

    __slots__ = ("_buffer", "late_ns", "offset", "polled_at", "read_at", "streams", "unusual")

    def __init__(self, *, late_ns: float) -> None:
        self.streams: list[HotStream | None] = []  # None where reading needs a closer look
        self.read_at: list[int] = []  # CLOCK_MONOTONIC ns at which each stream was last read empty, at least
        self.polled_at = 0  # when all of them were
        self.late_ns = late_ns  # ns without a look, from which on events that came apart may be found together
        self.offset = sockets.clock_offset()
        self.unusual: list[UnusualRead] = []  # what the last read found that is not one more event like the one before
        self._buffer = bytearray(READ_BYTES)

    def add_descriptors(self, missing: int) -> None:
        """Room for so many more descriptors."""
        self.streams += [None] * missing
        self.read_at += [0] * missing

    def add_stream(self, fd: int, sock: socket.socket, recorder: ReplyRecorder) -> None:
        """Events like the one before on this stream may be taken here from now on."""
        template = recorder.template
        assert template is not None
        before, behind = len(template.opening), len(template.tail)
        stream = (sock, template.opening, template.tail, before, behind, recorder.times, recorder.sizes, recorder)
        self.streams[fd] = stream

    def unread_since(self, fd: int, came: int) -> int:
        """Since when nobody had looked at a stream, where that is so long that events may have joined; else 0."""
        since = max(self.polled_at, self.read_at[fd])
        return since if came - since > self.late_ns else 0

    def read_ready(self, ready: Sequence[tuple[int, int]], now: int) -> int:
        """Read every ready stream that is hot; all that is not one more event like the one before goes to `odd`.

        Returns when the first of what was read came, 0 where nothing was.
        """
        recvmsg_into, side_bytes, unpack = socket.socket.recvmsg_into, sockets.SIDE_BYTES, sockets.TIMESPEC.unpack
        data, buffers, startswith = self._buffer, (self._buffer,), self._buffer.startswith
        streams, read_at, offset, lines = self.streams, self.read_at, self.offset, SIZE_LINES
        unusual = self.unusual = []
        texts: dict[int, bytearray] = {}  # of streams that gave one event, to be looked at together
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
            self._take_back(texts)
        return oldest

    def _take_back(self, texts: Mapping[int, bytearray]) -> None:
        """Not all of these are texts of a token: have those that are none looked at as if they had just been read."""
        for fd, text in texts.items():
            stream = self.streams[fd]
            if stream is None or are_token_texts((text,)):
                continue
            _, opening, tail, _, _, times, sizes, _ = stream
            sizes.pop()
            rest = opening + text + tail
            self.unusual.append((fd, 1, b"%x\r\n" % (len(rest) - len(b"\r\n")) + rest, times.pop()))
