"""Parse server-sent events from bytes as they arrive.

Lines end in LF, CR or CRLF, a BOM may come first; comments and other fields are ignored. Every byte is looked at a
bounded number of times.
"""

BOM = b"\xef\xbb\xbf"
MAX_EVENT_BYTES = 16 * 2**20  # bytes of one event


def is_done_mark(data: bytes) -> bool:
    """True for OpenAI's last event, which marks a complete reply."""
    return data.strip() == b"[DONE]"


class EventParser:
    """Takes bytes in pieces and returns complete events as (name, data)."""

    __slots__ = ("_after_cr", "_begun", "_data", "_held", "_line", "_name")

    def __init__(self) -> None:
        self._line = bytearray()  # the current line
        self._name = b""
        self._data: list[bytes] = []  # data lines of the current event
        self._held = 0  # bytes of these lines
        self._begun = False  # the first line, which may begin with a BOM, has ended
        self._after_cr = False  # a following LF belongs to the same line end

    @property
    def at_boundary(self) -> bool:
        """The next byte begins an event."""
        return not (self._line or self._data or self._name or self._after_cr)

    @property
    def problem(self) -> str:
        """The reason to stop reading, or ""."""
        if len(self._line) + self._held <= MAX_EVENT_BYTES:
            return ""
        return f"an event of more than {MAX_EVENT_BYTES:,} bytes"

    def feed(self, piece: bytes) -> list[tuple[bytes, bytes]]:
        """Take a piece and return the events that it completes."""
        found = []
        for line in self._complete_lines(piece):
            if line:
                key, _, value = line.partition(b":")
                if key == b"data":
                    self._data.append(value.removeprefix(b" "))
                    self._held += len(line)
                elif key == b"event":
                    self._name = value.removeprefix(b" ")
                continue
            data = b"\n".join(self._data)
            if data:  # the standard ignores an event without data
                found.append((self._name, data))
            self._name, self._data, self._held = b"", [], 0
        return found

    def close(self) -> list[tuple[bytes, bytes]]:
        """Return the event that was not complete at the end: servers often leave out the last empty line."""
        found = self.feed(b"\n\n")
        self._after_cr = False
        return found

    def _complete_lines(self, piece: bytes) -> list[bytes]:
        if self._after_cr and piece:
            piece, self._after_cr = piece.removeprefix(b"\n"), False
        if b"\r" in piece:
            self._after_cr = piece.endswith(b"\r")
            piece = piece.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        lines = piece.split(b"\n")
        if len(lines) == 1:  # each piece of a long line is looked at once
            self._line += piece
            return []
        rest = lines.pop()
        if self._line or rest:
            lines[0] = bytes(self._line) + lines[0]
            self._line = bytearray(rest)
        if not self._begun:
            lines[0], self._begun = lines[0].removeprefix(BOM), True
        return lines


def parse_events(raw: str) -> list[tuple[str, str]]:
    """Parse all events of a whole stream, as text."""
    parser = EventParser()
    found = parser.feed(raw.encode(errors="replace")) + parser.close()
    return [(name.decode(errors="replace"), data.decode(errors="replace")) for name, data in found]
