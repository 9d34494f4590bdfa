"""Events that differ from the one before only in their text, told by comparing bytes.

A server writes the events of one stream from one template: same id, same model, same keys, another text. Once one of
them has been decoded, an HTTP chunk that opens as that event did, closes as it did and has no quote between is a
token of the same kind; its JSON need not be read.
"""

import bisect
import itertools
import re
from collections.abc import Sequence
from itertools import repeat

from moebox.stream.events import CONTENT, REASONING

# The key and opening quote of a text that is not empty, and the text up to its closing quote.
_TEXT = {
    CONTENT: re.compile(rb'("(?:content|text)"\s*:\s*")(?:[^"\\]|\\.)+"'),
    REASONING: re.compile(rb'("(?:reasoning_content|reasoning)"\s*:\s*")(?:[^"\\]|\\.)+"'),
}
END = b"\n\n\r\n"  # of an event that ends with its chunk


class Shape:
    """The bytes around the text of one kind of event."""

    __slots__ = ("_tail", "_whole", "close", "kind", "opening")

    def __init__(self, opening: bytes, close: bytes, kind: int) -> None:
        self.opening = opening  # from "data: " up to the text
        self.close = close  # from the text's closing quote to the end of the event
        self.kind = kind
        self._whole = close + END
        self._tail = -len(self._whole)

    def size(self, segment: bytes) -> int:
        """Bytes of the event in a segment that is one whole chunk of this shape, 0 for any other."""
        length = len(segment) - 4
        line = _LINES.get(length) or _line(length)
        start = len(line)
        if (
            segment.endswith(self._whole)
            and segment.startswith(self.opening, start)
            and segment.startswith(line)
            and (text := segment[start + len(self.opening) : self._tail])
            and b'"' not in text
            and b"\n" not in text
        ):
            return length - start - 6
        return 0

    def sizes(self, parts: Sequence[bytes], *, end: bytes = b"") -> list[int] | None:
        """Bytes of the event in each part, followed by `end`, if every one is of this shape, else None.

        A part is a chunk up to, but without, the blank line of its event. All are looked at together, one property
        after the other, so that the interpreter takes no step for each: half the time of a loop.
        """
        close = self.close + end
        if not all(map(bytes.endswith, parts, repeat(close))):
            return None
        lengths = [len(part) - len(end) for part in parts] if end else list(map(len, parts))
        lines = [_LINES.get(length) or _line(length) for length in lengths]
        starts = list(map(len, lines))
        if not (
            all(map(bytes.startswith, parts, lines)) and all(map(bytes.startswith, parts, repeat(self.opening), starts))
        ):
            return None
        width, tail = len(self.opening), -len(close)
        texts = [part[start + width : tail] for part, start in zip(parts, starts, strict=True)]
        together = b"".join(texts)
        if b'"' in together or b"\n" in together or not all(texts):
            return None
        return [length - start - 6 for length, start in zip(lengths, starts, strict=True)]


# Length of a part -> the size line of the one chunk it would be; the same few lengths come again and again.
_LINES: dict[int, bytes] = {}


def _line(length: int) -> bytes:
    for digits in range(1, 9):
        line = b"%x\r\n" % max(length - digits, 0)  # the chunk holds the blank line besides
        if len(line) == digits + 2:
            _LINES[length] = line
            return line
    return b"\0"  # no chunk has this length, and no part opens so


def shape_of(payload: bytes, kind: int) -> Shape | None:
    """The shape of an event that carried text of this kind, if it has the usual one."""
    pattern = _TEXT.get(kind)
    found = pattern.search(payload) if pattern else None
    return Shape(b"data: " + payload[: found.end(1)], payload[found.end() - 1 :], kind) if found else None


def payload_of(part: bytes) -> bytes | None:
    """The data of the one event in a part that is a whole chunk holding one line of data; None for any other."""
    line = part.find(b"\r\n")
    start = line + 8
    if part[line + 2 : start] != b"data: ":
        return None
    payload = part[start:]
    try:
        whole = int(part[:line], 16) == len(payload) + 8
    except ValueError:
        return None
    return payload if whole and b"\n" not in payload else None


def parts_of(segments: Sequence[bytes], times: Sequence[int]) -> tuple[list[bytes], Sequence[int], bytes]:
    """Segments cut behind each event that ends with its chunk: the parts, when each ended, and what is left over."""
    *parts, rest = b"".join(segments).split(END)
    if all(map(bytes.endswith, segments, repeat(END))):
        if len(parts) == len(segments):
            return parts, times, rest
        counts = map(bytes.count, segments, repeat(END))
        return parts, [time for time, count in zip(times, counts, strict=True) for _ in range(count)], rest
    ends = list(itertools.accumulate(map(len, segments)))
    at = itertools.accumulate(len(part) + len(END) for part in parts)
    return parts, [times[bisect.bisect_left(ends, end)] for end in at], rest


def spread(times: Sequence[int]) -> tuple[list[int], int]:
    """Equal times, but for those of the first, at even steps from the time before; and how many were moved."""
    found: list[int] = []
    moved = 0
    for time, same in itertools.groupby(times):
        count = len(list(same))
        if count > 1 and found:
            before = found[-1]
            found += [before + (time - before) * i // count for i in range(1, count + 1)]
            moved += count - 1
        else:
            found += [time] * count
    return found, moved
