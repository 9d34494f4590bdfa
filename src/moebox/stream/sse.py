"""Server-sent events, from bytes as they arrive: the one parser of them.

Lines end in LF, CR or CRLF, a BOM may come first, comments and fields that nobody here needs are passed over. What an
event's data must be is for the caller to say. Every byte is looked at a bounded number of times, however they are cut.
"""

BOM = b"\xef\xbb\xbf"
MAX_EVENT_BYTES = 16 * 2**20  # bytes of one event


def is_done_mark(data: bytes) -> bool:
    """OpenAI's last event, which says that the reply is whole."""
    return data.strip() == b"[DONE]"


class EventParser:
    """Feed it bytes in any pieces; it gives back whole events as (name, data)."""

    __slots__ = ("_after_cr", "_begun", "_data", "_held", "_line", "_name")

    def __init__(self) -> None:
        self._line = bytearray()  # of the line that is not over yet
        self._name = b""
        self._data: list[bytes] = []  # lines of the event that is not over yet
        self._held = 0  # bytes of these
        self._begun = False  # the first line, which may have a BOM, is over
        self._after_cr = False  # a LF that follows belongs to the line end before it

    @property
    def at_boundary(self) -> bool:
        """Nothing is open: what comes next begins an event."""
        return not (self._line or self._data or self._name or self._after_cr)

    @property
    def problem(self) -> str:
        """Why it is no use to go on, or ""."""
        if len(self._line) + self._held <= MAX_EVENT_BYTES:
            return ""
        return f"an event of more than {MAX_EVENT_BYTES:,} bytes"

    def feed(self, piece: bytes) -> list[tuple[bytes, bytes]]:
        """The events that `piece` completes."""
        found = []
        for line in self._lines(piece):
            if line:
                self._field(line)
                continue
            data = b"\n".join(self._data)
            if data:  # an event without data is none, says the standard
                found.append((self._name, data))
            self._name, self._data, self._held = b"", [], 0
        return found

    def close(self) -> list[tuple[bytes, bytes]]:
        """The event that was still open at the end: servers often leave out the last empty line."""
        found = self.feed(b"\n\n")
        self._after_cr = False
        return found

    def _lines(self, piece: bytes) -> list[bytes]:
        """The lines that `piece` completes."""
        if self._after_cr and piece:
            piece, self._after_cr = piece.removeprefix(b"\n"), False
        if b"\r" in piece:
            self._after_cr = piece.endswith(b"\r")
            piece = piece.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        lines = piece.split(b"\n")
        if len(lines) == 1:  # a piece of a long line is looked at once
            self._line += piece
            return []
        rest = lines.pop()
        if self._line or rest:
            lines[0] = bytes(self._line) + lines[0]
            self._line = bytearray(rest)
        if not self._begun:
            lines[0], self._begun = lines[0].removeprefix(BOM), True
        return lines

    def _field(self, line: bytes) -> None:
        key, _, value = line.partition(b":")
        if key == b"data":
            self._data.append(value.removeprefix(b" "))
            self._held += len(line)
        elif key == b"event":
            self._name = value.removeprefix(b" ")


def parse_events(raw: str) -> list[tuple[str, str]]:
    """All events of a whole stream, as text."""
    parser = EventParser()
    found = parser.feed(raw.encode(errors="replace")) + parser.close()
    return [(name.decode(errors="replace"), data.decode(errors="replace")) for name, data in found]
