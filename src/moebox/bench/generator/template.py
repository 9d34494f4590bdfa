"""Events that differ from the one before only in their text, told by comparing bytes.

A server writes the events of one stream from one template: same id, same model, same keys, another text. Once one of
them has been decoded, an HTTP chunk that opens as that event did, closes as it did, has a text and is one line is a
token of the same kind; its JSON need not be read. A template belongs to one reply and is forgotten with it.
"""

import re
from collections.abc import Collection

from moebox.stream.events import CONTENT, REASONING

# The key and opening quote of a text that is not empty, and the text up to its closing quote.
_TEXT = {
    CONTENT: re.compile(rb'("(?:content|text)"\s*:\s*")(?:[^"\\]|\\.)+"'),
    REASONING: re.compile(rb'("(?:reasoning_content|reasoning)"\s*:\s*")(?:[^"\\]|\\.)+"'),
}
CHUNK_EVENT_END = b"\n\n\r\n"  # of an event that ends with its chunk
CHUNK_OVERHEAD = (
    len("\r\n") + len("data: ") + len(CHUNK_EVENT_END)
)  # of a chunk, from the end of its size, that is not the event's data
EVENT_OVERHEAD = len("data: ") + len("\n\n")  # bytes of an event beside its data
MAX_TEMPLATE_BYTES = 4096  # bytes of an event that a template is made from: longer ones are none of many
MAX_CHUNK_BYTES = (
    2 * MAX_TEMPLATE_BYTES
)  # bytes of an HTTP chunk, with its size line and end, that may be told by a template


def _size_lines(longest: int) -> tuple[tuple[bytes, int], ...]:
    """By length of a chunk, with its size line and the line end behind it: that line, and how long it is."""
    lines = [b"\0"] * (longest + 1)  # no chunk that holds anything has this length, and none opens so
    for size in range(1, longest + 1):
        line = b"%x\r\n" % size
        if (length := len(line) + size + len("\r\n")) <= longest:
            lines[length] = line
    return tuple((line, len(line)) for line in lines)


# Size lines and how long they are, by length of a chunk; and sizes by the digits of such a line, which some servers
# write in capitals. Arithmetic, written down once: nothing of any reply is in it.
SIZE_LINES = _size_lines(MAX_CHUNK_BYTES)
CHUNK_SIZES = {form % size: size for form in (b"%x", b"%X") for size in range(MAX_CHUNK_BYTES + 1)}


class EventTemplate:
    """The bytes around the text of one reply's events: `opening` before it, `tail` behind it."""

    __slots__ = ("kind", "opening", "tail")

    def __init__(self, opening: bytes, close: bytes, kind: int) -> None:
        self.opening = opening  # from "data: " up to the text
        self.tail = close + CHUNK_EVENT_END  # from the text's closing quote on
        self.kind = kind

    def match_run(self, data: bytes, at: int = 0) -> tuple[list[int], int]:
        """Bytes of the data of each event of this template from `at` on, and where they end.

        They are whole chunks of one event each. Their texts are looked at together.
        """
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
    """What stands between the quotes of each is a token: not empty, on one line, and UTF-8."""
    together = b"\0" + b"\0".join(texts)  # a character that is cut off does not go on behind a NUL
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
    """The template of an event that carried text of this kind, if it has the usual form."""
    pattern = _TEXT.get(kind)
    found = pattern.search(payload) if pattern and len(payload) <= MAX_TEMPLATE_BYTES else None
    if found is None:
        return None
    return EventTemplate(b"data: " + payload[: found.end(1)], payload[found.end() - 1 :], kind)


def parse_chunk(data: bytes, at: int) -> tuple[bytes, int] | None:
    """The data of the one event in the chunk at `at`, and where the chunk ends; None where it is anything else."""
    line = data.find(b"\r\n", at, at + 10)
    size = CHUNK_SIZES.get(data[at:line]) if line > at else None
    if not size:
        return None
    end = line + 4 + size
    payload = data[line + 8 : end - 4]
    plain = data.startswith(b"data: ", line + 2) and data[end - 4 : end] == CHUNK_EVENT_END
    return (payload, end) if plain and b"\n" not in payload and b"\r" not in payload else None
