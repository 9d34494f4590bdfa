"""Events that differ from the one before only in their text, told by comparing bytes.

A server writes the events of one stream from one template: same id, same model, same keys, another text. Once one of
them has been decoded, a segment that is one whole HTTP chunk, opens as that event did, closes as it did and has no
quote between is a token of the same kind; its JSON need not be read.
"""

import re
from collections.abc import Sequence

from moebox.stream.events import CONTENT, REASONING

# The key and opening quote of a text that is not empty, and the text up to its closing quote.
_TEXT = {
    CONTENT: re.compile(rb'("(?:content|text)"\s*:\s*")(?:[^"\\]|\\.)+"'),
    REASONING: re.compile(rb'("(?:reasoning_content|reasoning)"\s*:\s*")(?:[^"\\]|\\.)+"'),
}
END = b"\n\n\r\n"  # of an event that ends with its chunk


class Shape:
    """The bytes around the text of one kind of event."""

    __slots__ = ("_close", "_open", "_opens", "_tail", "kind")

    def __init__(self, opening: bytes, closing: bytes, kind: int) -> None:
        self.kind = kind
        self._open = b"data: " + opening
        self._close = closing + END
        self._tail = -len(self._close)
        self._opens: dict[int, tuple[bytes, int]] = {}  # segment length -> its whole opening, and where the text begins

    def run(self, segments: Sequence[bytes], at: int) -> int:
        """The first segment from `at` on that is not of this shape."""
        opens, close, tail = self._opens, self._close, self._tail
        for index in range(at, len(segments)):
            segment = segments[index]
            known = opens.get(len(segment)) or self._opening(len(segment))
            if not segment.startswith(known[0]) or not segment.endswith(close):
                return index
            text = segment[known[1] : tail]
            if not text or b'"' in text or b"\n" in text:
                return index
        return len(segments)

    def sizes(self, segments: Sequence[bytes]) -> list[int]:
        """Bytes of each segment's event."""
        inside = len(self._open) - len(b"data: ") - len(END)  # the opening is part of the event, what frames it is not
        return [len(segment) - self._opens[len(segment)][1] + inside for segment in segments]

    def _opening(self, length: int) -> tuple[bytes, int]:
        """What a segment of this length opens with: the size of its only chunk, then the event."""
        for digits in range(1, 9):
            size = length - digits - 4
            line = b"%x" % max(size, 0)
            if len(line) == digits:
                found = line + b"\r\n" + self._open
                self._opens[length] = (found, len(found))
                return self._opens[length]
        return b"\0", 1  # no chunk has this length, and no segment opens so


def shape_of(payload: bytes, kind: int) -> Shape | None:
    """The shape of an event that carried text of this kind, if it has the usual one."""
    pattern = _TEXT.get(kind)
    found = pattern.search(payload) if pattern else None
    return Shape(payload[: found.end(1)], payload[found.end() - 1 :], kind) if found else None


def pieces(segment: bytes) -> list[bytes]:
    """A segment cut behind each event that ends with its chunk, so that each piece can be told by its shape."""
    *whole, rest = segment.split(END)
    return [piece + END for piece in whole] + ([rest] if rest else [])
