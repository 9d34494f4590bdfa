"""The hot path: one more event like the one before, on thousands of streams.

A stream in plain flow is a tuple of the few things that reading it takes; nothing else of its lane is touched. What
they are matters less than how many: with thousands of streams each is fetched from beyond the processor's cache, and
that, not the interpreter, was two thirds of the time (perf, 2026-11-15).
"""

import socket
import time
from array import array
from collections.abc import Sequence

from moebox.stream import Tape, dial
from moebox.stream.shape import QUOTE, Shape

BUFFER = 16384  # bytes asked of one read

# Whose bytes, how they look, times and sizes of events; the tape that holds these, for events that come together.
Flow = tuple[socket.socket, Shape, "array[int]", "array[int]", Tape]
Odd = tuple[int, int, bytes | None, int]  # descriptor, poll mask, what was read (None: nothing yet), when it came

_room = bytearray(BUFFER)


def take(
    ready: Sequence[tuple[int, int]],
    flows: Sequence[Flow | None],
    offset: int,
    odd: list[Odd],
    read: list[int],
    now: int,
    polled: int,
    late: float,
) -> int:
    """Read every ready stream that is in flow; all that is not one more event like the one before goes to `odd`.

    `read` holds, by descriptor, when each stream was last read empty at the earliest, `polled` when all of them were; a
    stream that nobody looked at for `late` ns may hold events that came apart. Returns when the first of what was read
    came, 0 where nothing was.
    """
    recvmsg_into, side_bytes, unpack = socket.socket.recvmsg_into, dial.SIDE_BYTES, dial.TIMESPEC.unpack
    data, rooms, startswith, find = _room, (_room,), _room.startswith, _room.find
    oldest = second = base = 0
    for fd, mask in ready:
        flow = flows[fd]
        if flow is None or mask != 1:  # EPOLLIN alone
            odd.append((fd, mask, None, 0))
            continue
        sock, shape, times, sizes, tape = flow
        try:
            length, side, _, _ = recvmsg_into(sock, rooms, side_bytes)
        except BlockingIOError:
            continue
        except OSError:
            odd.append((fd, mask, b"", 0))
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
        head, name, mid, text, close, payload = shape.plans.get(length) or shape.plan(length)
        if (
            startswith(head)
            and startswith(shape.mid, mid)
            and startswith(shape.tail, close)
            and data[text] != QUOTE
            and find(b"\n", name) == length - 4
        ):  # as in Shape.size, without the call
            times.append(came)
            sizes.append(payload)
            read[fd] = now
        elif together := shape.spans(data, length):
            since = max(polled, read[fd])
            tape.note(together, came, since if came - since > late else 0)
            read[fd] = now
        else:
            odd.append((fd, mask, bytes(data[:length]), came))
    return oldest
