"""Recognize events that differ from the previous one only in their text, by comparing bytes.

A server writes the events of one stream from one template: same id, same model, same keys, another text. Once one of
them was decoded, an HTTP chunk that opens and closes in the same way, has a text and is one line is a token of the same
kind; its JSON need not be parsed. A template belongs to one reply and is dropped with it.
"""

import re
from collections.abc import Collection
from dataclasses import dataclass

from moebox.stream.events import CONTENT, REASONING

# The key and opening quote of a text that is not empty, and the text up to its closing quote.
_TEXT = {
    CONTENT: re.compile(rb'("(?:content|text)"\s*:\s*")(?:[^"\\]|\\.)+"'),
    REASONING: re.compile(rb'("(?:reasoning_content|reasoning)"\s*:\s*")(?:[^"\\]|\\.)+"'),
}
EVENT_END = b"\n\n\r\n"  # of an event that ends with its chunk
CHUNK_OVERHEAD = len("\r\n") + len("data: ") + len(EVENT_END)  # bytes of a chunk behind its size, without the data
EVENT_OVERHEAD = len("data: ") + len("\n\n")  # bytes of an event without its data
MAX_TEMPLATE_BYTES = 4096  # longer events are rare, so they need no template
MAX_CHUNK_BYTES = 2 * MAX_TEMPLATE_BYTES  # of an HTTP chunk, with size line and end, that a template may match

# The size line of a chunk and its length, by the chunk's length with size line and end; and sizes by the digits of a
# size line, which some servers write in capitals. Computed once; independent of any reply.
_lines = [b"\0"] * (MAX_CHUNK_BYTES + 1)  # lengths that no chunk has: no chunk starts with a NUL
for _size in range(1, MAX_CHUNK_BYTES + 1):
    _line = b"%x\r\n" % _size
    if len(_line) + _size + len("\r\n") <= MAX_CHUNK_BYTES:
        _lines[len(_line) + _size + len("\r\n")] = _line
SIZE_LINES = tuple((line, len(line)) for line in _lines)
CHUNK_SIZES = {digits % size: size for digits in (b"%x", b"%X") for size in range(MAX_CHUNK_BYTES + 1)}


@dataclass(slots=True)
class EventTemplate:
    """The bytes around the text of one reply's events: from "data: " on, and from the closing quote on."""

    opening: bytes
    tail: bytes
    kind: int

    def match_run(self, data: bytes, at: int = 0) -> tuple[list[int], int]:
        """Match whole chunks of one event each from `at` on; return the bytes of each event's data and the end."""
        opening, tail, length = self.opening, self.tail, len(data)
        before, behind = 2 + len(opening), len(tail)
        find, startswith, size_of = data.find, data.startswith, CHUNK_SIZES.get
        sizes: list[int] = []
        texts: list[bytes] = []
        start = at
        while at < length:
            line = find(b"\r\n", at, at + 10)
            size = size_of(data[at:line]) if line > at else None
            if size is None:
                break
            end = line + 4 + size
            text, close = line + before, end - behind
            if end > length or text >= close or not startswith(opening, line + 2) or not startswith(tail, close):
                break
            texts.append(data[text:close])
            sizes.append(size - EVENT_OVERHEAD)
            at = end
        return (sizes, at) if are_token_texts(texts) else ([], start)


def are_token_texts(texts: Collection[bytes | bytearray]) -> bool:
    """True if each text between the quotes is a token: not empty, on one line, and UTF-8."""
    together = b"\0" + b"\0".join(texts)  # a NUL ends a character that is cut off
    if b'\0"' in together or b"\n" in together or b"\r" in together:
        return False
    if together.isascii():
        return True
    try:
        together.decode()
    except UnicodeDecodeError:
        return False
    return True


def find_template(payload: bytes, kind: int) -> EventTemplate | None:
    """Return the template of an event with text of this kind, or None if its format is unusual."""
    pattern = _TEXT.get(kind)
    found = pattern.search(payload) if pattern and len(payload) <= MAX_TEMPLATE_BYTES else None
    if found is None:
        return None
    return EventTemplate(b"data: " + payload[: found.end(1)], payload[found.end() - 1 :] + EVENT_END, kind)


def parse_chunk(data: bytes, at: int) -> tuple[bytes, int] | None:
    """Return the data of the single event in the chunk at `at` and the chunk's end, or None for anything else."""
    line = data.find(b"\r\n", at, at + 10)
    size = CHUNK_SIZES.get(data[at:line]) if line > at else None
    if not size:
        return None
    end = line + 4 + size
    payload = data[line + 8 : end - 4]
    plain = data.startswith(b"data: ", line + 2) and data[end - 4 : end] == EVENT_END
    return (payload, end) if plain and b"\n" not in payload and b"\r" not in payload else None
