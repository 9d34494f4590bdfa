"""Events that differ from the one before only in their text, told by comparing bytes.

A server writes the events of one stream from one template: same id, same model, same keys, another text. Once one of
them has been decoded, a segment that is one whole HTTP chunk, opens as that event did, closes as it did and has no
quote between is a token of the same kind; its JSON need not be read.
"""

import re
from collections.abc import Iterable, Sequence
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

    __slots__ = ("close", "kind", "opening")

    def __init__(self, opening: bytes, close: bytes, kind: int) -> None:
        self.opening = opening  # from "data: " up to the text
        self.close = close  # from the text's closing quote to the end of the chunk
        self.kind = kind

    def run(self, segments: Sequence[bytes], at: int) -> int:
        """The first segment from `at` on that is not of this shape.

        All are looked at together, one property after the other, so that the interpreter takes no step for each: that
        halves the time of a loop.
        """
        if not segments[at].endswith(self.close):
            return at
        part = segments[at:] if at else segments
        part = part[: _first_not(map(bytes.endswith, part, repeat(self.close)), len(part))]
        lines = [_LINES.get(length) or _line(length) for length in map(len, part)]
        part = part[: _first_not(map(bytes.startswith, part, lines), len(part))]
        starts = [len(line) for line in lines]
        part = part[: _first_not(map(bytes.startswith, part, repeat(self.opening), starts), len(part))]
        width, tail = len(self.opening), -len(self.close)
        texts = [segment[start + width : tail] for segment, start in zip(part, starts, strict=False)]
        together = b"".join(texts)
        if b'"' in together or b"\n" in together or not all(texts):
            return at + next(i for i, text in enumerate(texts) if not text or b'"' in text or b"\n" in text)
        return at + len(part)


def _first_not(found: Iterable[bool], otherwise: int) -> int:
    """Where the first False is."""
    try:
        return list(found).index(False)
    except ValueError:
        return otherwise


# Segment length -> the size line of the one chunk it would hold; the same few lengths come again and again.
_LINES: dict[int, bytes] = {}
_SIZES: dict[int, int] = {}  # segment length -> bytes of its event


def _line(length: int) -> bytes:
    for digits in range(1, 9):
        line = b"%x\r\n" % max(length - digits - 4, 0)
        if len(line) == digits + 2:
            _LINES[length] = line
            _SIZES[length] = length - len(line) - len(b"data: ") - len(END)
            return line
    return b"\0"  # no chunk has this length, and no segment opens so


def sizes(segments: Sequence[bytes]) -> "map[int]":
    """Bytes of the event in each of these segments, which are of some shape."""
    return map(_SIZES.__getitem__, map(len, segments))


def payload_of(segment: bytes) -> bytes | None:
    """The data of the one event in a segment that is one whole chunk holding one line of data; None for any other."""
    line = _LINES.get(len(segment)) or _line(len(segment))
    start = len(line) + 6
    if not segment.endswith(END) or not segment.startswith(line) or segment[len(line) : start] != b"data: ":
        return None
    payload = segment[start:-4]
    return None if b"\n" in payload else payload


def shape_of(payload: bytes, kind: int) -> Shape | None:
    """The shape of an event that carried text of this kind, if it has the usual one."""
    pattern = _TEXT.get(kind)
    found = pattern.search(payload) if pattern else None
    return Shape(b"data: " + payload[: found.end(1)], payload[found.end() - 1 :] + END, kind) if found else None


def pieces(segments: Sequence[bytes], times: Sequence[int]) -> tuple[list[bytes], list[int]]:
    """Segments cut behind each event that ends with its chunk, so that each piece can be told by its shape."""
    cut: list[bytes] = []
    when: list[int] = []
    for segment, time in zip(segments, times, strict=True):
        *whole, rest = segment.split(END)
        cut += [piece + END for piece in whole]
        if rest:
            cut.append(rest)
        when += [time] * (len(whole) + bool(rest))
    return cut, when
