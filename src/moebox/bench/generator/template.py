"""Events that differ from the one before only in their text, told by comparing bytes.

A server writes the events of one stream from one template: same id, same model, same keys, another text. Once one of
them has been decoded, an HTTP chunk that opens as that event did, closes as it did, has a text and is one line is a
token of the same kind; its JSON need not be read. A template belongs to one reply and is forgotten with it.
"""

import re
from collections.abc import Sequence

from moebox.stream.events import CONTENT, REASONING

# The key and opening quote of a text that is not empty, and the text up to its closing quote.
_TEXT = {
    CONTENT: re.compile(rb'("(?:content|text)"\s*:\s*")(?:[^"\\]|\\.)+"'),
    REASONING: re.compile(rb'("(?:reasoning_content|reasoning)"\s*:\s*")(?:[^"\\]|\\.)+"'),
}
QUOTE = ord('"')
HEX = frozenset(b"0123456789abcdefABCDEF")
END = b"\n\n\r\n"  # of an event that ends with its chunk
BESIDES = len("\r\n") + len("data: ") + len(END)  # of a chunk, from the end of its size, that is not the event's data
LONGEST = 4096  # bytes of an event that a template is made from: longer ones are none of many
LONGEST_CHUNK = 2 * LONGEST  # bytes of an HTTP chunk, with its size line and end, that may be told by a template


def _size_line(length: int) -> bytes:
    """The size line of a chunk that is `length` bytes long with it and the line end behind it."""
    for digits in range(1, 9):
        line = b"%x\r\n" % max(length - digits - 4, 0)
        if len(line) == digits + 2 and length > digits + 4:
            return line
    return b"\0"  # no chunk that holds anything has this length, and none opens so


# Size lines and how long they are, by length of a chunk: arithmetic, written down once. Nothing of any reply is in it.
SIZE_LINES = tuple((line, len(line)) for line in map(_size_line, range(LONGEST_CHUNK + 1)))


class Template:
    """The bytes around the text of one reply's events: `opening` before it, `tail` behind it."""

    __slots__ = ("_close", "kind", "opening", "tail")

    def __init__(self, opening: bytes, close: bytes, kind: int) -> None:
        self.opening = opening  # from "data: " up to the text
        self._close = close  # from the text's closing quote to the end of the event
        self.tail = close + END
        self.kind = kind

    def spans(self, data: bytes | bytearray, length: int) -> list[int]:
        """Bytes of each event's data if the first `length` bytes are whole chunks of this template, else []."""
        at, found = 0, []
        while at < length:
            line = data.find(b"\r\n", at, at + 10)
            digits = data[at:line]
            if line <= at or not HEX.issuperset(digits):
                return []
            end = line + 4 + int(digits, 16)
            text, close = line + 2 + len(self.opening), end - len(self.tail)
            if not (
                end <= length
                and data.startswith(self.opening, line + 2)
                and data.startswith(self.tail, close)
                and is_text(data[text:close])
            ):
                return []
            found.append(end - line - BESIDES)
            at = end
        return found

    def sizes(self, parts: Sequence[bytes]) -> list[int] | None:
        """Bytes of the event in each part, if every one is of this template, else None.

        A part is a chunk up to, but without, the blank line of its event.
        """
        sizes = []
        for part in parts:
            length = len(part) + len(END)
            if length > LONGEST_CHUNK:
                return None
            line, start = SIZE_LINES[length]
            if not (
                part.startswith(line)
                and part.startswith(self.opening, start)
                and part.endswith(self._close)
                and is_text(part[start + len(self.opening) : len(part) - len(self._close)])
            ):
                return None
            sizes.append(length - start + 2 - BESIDES)
        return sizes


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
    whole = part[:line].lower() == b"%x" % (len(payload) + len(b"data: \n\n"))
    return payload if whole and b"\n" not in payload else None
