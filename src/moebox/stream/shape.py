"""Events that differ from the one before only in their text, told by comparing bytes.

A server writes the events of one stream from one template: same model, same keys, another text, and an id that is as
long as the one before. Once one of them has been decoded, an HTTP chunk that opens as that event did, closes as it did,
has a text and is one line is a token of the same kind; its JSON need not be read.
"""

import re
from collections.abc import Sequence
from itertools import repeat

from moebox.stream.events import CONTENT, REASONING

# The key and opening quote of a text that is not empty, and the text up to its closing quote.
_TEXT = {
    CONTENT: re.compile(rb'("(?:content|text)"\s*:\s*")(?:[^"\\]|\\.)+"'),
    REASONING: re.compile(rb'("(?:reasoning_content|reasoning)"\s*:\s*")(?:[^"\\]|\\.)+"'),
}
_ID = re.compile(rb'(data: \{"id":\s*")([^"\\]*)')
QUOTE = ord('"')
HEX = frozenset(b"0123456789abcdefABCDEF")
END = b"\n\n\r\n"  # of an event that ends with its chunk


class Shape:
    """The bytes around the text of one kind of event: `front`, an id of `hole` bytes, `mid`, the text, `close`.

    The id differs from stream to stream and says nothing, so that streams of one server share a shape, and with it
    the processor's cache.
    """

    __slots__ = ("_close", "_front", "_hole", "kind", "mid", "opening", "plans", "tail")

    def __init__(self, front: bytes, hole: int, mid: bytes, close: bytes, kind: int) -> None:
        self._front = front  # from "data: " up to the id
        self._hole = hole
        self.mid = mid  # from the id to the text
        self.opening = mid or front  # what every such event holds
        self._close = close  # from the text's closing quote to the end of the event
        self.tail = close + END
        self.kind = kind
        self.plans: dict[int, Plan] = {}  # by length of a segment

    def plan(self, length: int) -> "Plan":
        """Where things must stand in a segment of this length that is one whole chunk with one event of this shape."""
        line = size_line(length - len(END))
        head = line + self._front
        name = len(head)
        mid = name + self._hole
        text, close = mid + len(self.mid), length - len(self.tail)
        payload = length - len(END) - len(line) - len(b"data: ")
        plan = (head, name, mid, text, close, payload) if text < close else NOWHERE
        if len(self.plans) < MOST_PLANS:
            self.plans[length] = plan
        return plan

    def size(self, segment: bytes) -> int:
        """Bytes of the event's data in a segment that is one whole chunk of this shape, 0 for any other."""
        length = len(segment)
        head, name, mid, text, close, payload = self.plans.get(length) or self.plan(length)
        if (
            segment.startswith(head)
            and segment.startswith(self.mid, mid)
            and segment.startswith(self.tail, close)
            and segment[text] != QUOTE  # an empty text is no token
            and segment.find(b"\n", name) == length - 4
        ):
            return payload
        return 0

    def spans(self, data: bytes | bytearray, length: int) -> list[int]:
        """Bytes of each event's data if the first `length` bytes are whole chunks of this shape, else []."""
        at, found = 0, []
        while at < length:
            line = data.find(b"\r\n", at, at + 10)
            digits = data[at:line]
            if line <= at or not HEX.issuperset(digits):
                return []
            whole = line + 4 + int(digits, 16) - at  # the chunk with its size line and its end
            head, name, mid, text, close, payload = self.plans.get(whole) or self.plan(whole)
            if not (
                at + whole <= length
                and data.startswith(head, at)
                and data.startswith(self.mid, at + mid)
                and data.startswith(self.tail, at + close)
                and data[at + text] != QUOTE
                and data.find(b"\n", at + name) == at + whole - 4
            ):
                return []
            found.append(payload)
            at += whole
        return found

    def sizes(self, parts: Sequence[bytes], *, end: bytes = b"") -> list[int] | None:
        """Bytes of the event in each part, followed by `end`, if every one is of this shape, else None.

        A part is a chunk up to, but without, the blank line of its event. All are looked at together, one property
        after the other, so that the interpreter takes no step for each: half the time of a loop.
        """
        if not all(map(bytes.endswith, parts, repeat(self._close + end))):
            return None
        missing = len(END) - len(end)
        lengths = [len(part) + missing for part in parts]
        plans = [self.plans.get(length) or self.plan(length) for length in lengths]
        heads, names, mids, texts, _, payloads = zip(*plans, strict=True)
        if (
            all(map(bytes.startswith, parts, heads))
            and all(map(bytes.startswith, parts, repeat(self.mid), mids))
            and QUOTE not in map(bytes.__getitem__, parts, texts)
            and all(
                at in (-1, length - 4)
                for at, length in zip(map(bytes.find, parts, repeat(b"\n"), names), lengths, strict=True)
            )
        ):
            return list(payloads)
        return None


# The size line with the front, where the id begins and ends, where the text does, and bytes of the event's data.
Plan = tuple[bytes, int, int, int, int, int]
NOWHERE: Plan = (b"\0", 0, 0, 0, 0, 0)  # no segment opens so
MOST_PLANS = 4096  # lengths; a stream has a few dozen
_SHAPES: dict[tuple[bytes, int, bytes, bytes, int], Shape] = {}
_MOST_SHAPES = 512  # some servers name the second of the request in each event


def size_line(length: int) -> bytes:
    """The size line of the one chunk that a part of this length (up to the blank line of its event) would be."""
    for digits in range(1, 9):
        line = b"%x\r\n" % max(length - digits, 0)  # the chunk holds the blank line besides
        if len(line) == digits + 2:
            return line
    return b"\0"  # no chunk has this length, and no part opens so


def shape_of(payload: bytes, kind: int) -> Shape | None:
    """The shape of an event that carried text of this kind, if it has the usual one."""
    pattern = _TEXT.get(kind)
    found = pattern.search(payload) if pattern else None
    if found is None:
        return None
    front, hole, mid = b"data: " + payload[: found.end(1)], 0, b""
    if name := _ID.match(front):
        hole = name.end(2) - name.start(2)
        front, mid = name[1], front[name.end(2) :]
    key = (front, hole, mid, payload[found.end() - 1 :], kind)
    shape = _SHAPES.pop(key, None) or Shape(*key)
    if len(_SHAPES) >= _MOST_SHAPES:
        _SHAPES.clear()
    _SHAPES[key] = shape  # last, as the latest
    return shape


def latest() -> Shape | None:
    """The shape that was found last: the first event of another stream is likely to have it."""
    return next(reversed(_SHAPES.values()), None)


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
