"""Events that differ from the one before only in their text, told by comparing bytes.

A server writes the events of one stream from one template: same id, same model, same keys, another text. Once one of
them has been decoded, an HTTP chunk that opens as that event did, closes as it did, has a text and is one line is a
token of the same kind; its JSON need not be read. A template belongs to one reply and is forgotten with it.
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
QUOTE = ord('"')
HEX = frozenset(b"0123456789abcdefABCDEF")
END = b"\n\n\r\n"  # of an event that ends with its chunk
LONGEST = 4096  # bytes of an event that a template is made from: longer ones are none of many
MOST_PLANS = 1024  # lengths; a stream has a few dozen

# The size line with the front, where the text begins and ends, and bytes of the event's data.
Plan = tuple[bytes, int, int, int]
NOWHERE: Plan = (b"\0", 0, 0, 0)  # no segment opens so


class Template:
    """The bytes around the text of one reply's events: `opening` before it, `tail` behind it."""

    __slots__ = ("_close", "kind", "opening", "plans", "tail")

    def __init__(self, opening: bytes, close: bytes, kind: int) -> None:
        self.opening = opening  # from "data: " up to the text
        self._close = close  # from the text's closing quote to the end of the event
        self.tail = close + END
        self.kind = kind
        self.plans: dict[int, Plan] = {}  # by length of a segment

    def plan(self, length: int) -> Plan:
        """Where things must stand in a segment of this length that is one whole chunk with one event of this kind."""
        line = size_line(length - len(END))
        head = line + self.opening
        text, close = len(head), length - len(self.tail)
        payload = length - len(END) - len(line) - len(b"data: ")
        plan = (head, text, close, payload) if text < close and length <= 2 * LONGEST else NOWHERE
        if len(self.plans) < MOST_PLANS:
            self.plans[length] = plan
        return plan

    def spans(self, data: bytes | bytearray, length: int) -> list[int]:
        """Bytes of each event's data if the first `length` bytes are whole chunks of this template, else []."""
        at, found = 0, []
        while at < length:
            line = data.find(b"\r\n", at, at + 10)
            digits = data[at:line]
            if line <= at or not HEX.issuperset(digits):
                return []
            whole = line + 4 + int(digits, 16) - at  # the chunk with its size line and its end
            head, text, close, payload = self.plans.get(whole) or self.plan(whole)
            if not (
                at + whole <= length
                and data.startswith(head, at)
                and data.startswith(self.tail, at + close)
                and is_text(data[at + text : at + close])
            ):
                return []
            found.append(payload)
            at += whole
        return found

    def sizes(self, parts: Sequence[bytes]) -> list[int] | None:
        """Bytes of the event in each part, if every one is of this template, else None.

        A part is a chunk up to, but without, the blank line of its event. All are looked at together, one property
        after the other, so that the interpreter takes no step for each: half the time of a loop.
        """
        if not all(map(bytes.endswith, parts, repeat(self._close))):
            return None
        lengths = [len(part) + len(END) for part in parts]
        plans = [self.plans.get(length) or self.plan(length) for length in lengths]
        heads, texts, closes, payloads = zip(*plans, strict=True)
        if all(map(bytes.startswith, parts, heads)) and all(
            is_text(part[text:close]) for part, text, close in zip(parts, texts, closes, strict=True)
        ):
            return list(payloads)
        return None


def is_text(text: bytes | bytearray) -> bool:
    """What stands between the quotes is a token: not empty, on one line, and UTF-8."""
    if not text or text[0] == QUOTE or b"\n" in text:
        return False
    if text.isascii():
        return True
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def size_line(length: int) -> bytes:
    """The size line of the one chunk that a part of this length (up to the blank line of its event) would be."""
    for digits in range(1, 9):
        line = b"%x\r\n" % max(length - digits, 0)  # the chunk holds the blank line besides
        if len(line) == digits + 2:
            return line
    return b"\0"  # no chunk has this length, and no part opens so


def template_of(payload: bytes, kind: int) -> Template | None:
    """The template of an event that carried text of this kind, if it has the usual form."""
    pattern = _TEXT.get(kind)
    found = pattern.search(payload) if pattern and len(payload) <= LONGEST else None
    if found is None:
        return None
    return Template(b"data: " + payload[: found.end(1)], payload[found.end() - 1 :], kind)


def payload_of(part: bytes) -> bytes | None:
    """The data of the one event in a part that is a whole chunk holding one line of data; None for any other."""
    line = part.find(b"\r\n")
    start = line + 8
    if part[line + 2 : start] != b"data: ":
        return None
    payload = part[start:]
    digits = part[:line]
    if not digits or len(digits) > 8 or not HEX.issuperset(digits):
        return None
    whole = int(digits, 16) == len(payload) + 8
    return payload if whole and b"\n" not in payload else None
