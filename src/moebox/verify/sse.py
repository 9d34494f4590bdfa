"""Server-sent events, from bytes as they arrive: lines may end in LF, CR or CRLF, and a BOM may come first."""

from dataclasses import dataclass, field

BOM = b"\xef\xbb\xbf"


@dataclass(slots=True)
class Events:
    """Feed it bytes in any pieces; it gives back whole events as (name, data)."""

    _pieces: list[bytes] = field(default_factory=list)  # of the line that is not over yet
    _begun: bool = False
    _after_cr: bool = False  # a LF that follows belongs to the line end before it
    _name: str = ""
    _data: list[str] = field(default_factory=list)

    def feed(self, piece: bytes) -> list[tuple[str, str]]:
        """The events that `piece` completes."""
        found = []
        for line in self._lines(piece):
            event = self._line(line.decode(errors="replace"))
            if event:
                found.append(event)
        return found

    def close(self) -> list[tuple[str, str]]:
        """The event that was still open at the end: servers often leave out the last empty line."""
        return self.feed(b"\n\n") if any(self._pieces) or self._data else []

    def _lines(self, piece: bytes) -> list[bytes]:
        if self._after_cr and piece:
            piece, self._after_cr = piece.removeprefix(b"\n"), False
        self._pieces.append(piece)
        if self._begun and b"\n" not in piece and b"\r" not in piece:
            return []  # a line of megabytes is put together once, not again with every piece of it
        whole = b"".join(self._pieces)
        if not self._begun and len(whole) >= len(BOM):
            whole, self._begun = whole.removeprefix(BOM), True
        if whole.endswith(b"\r"):
            self._after_cr = True
        lines = whole.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        self._pieces = [lines.pop()]
        self._begun = self._begun or bool(lines)
        return lines

    def _line(self, line: str) -> tuple[str, str] | None:
        if line:
            key, _, value = line.partition(":")
            if key == "data":
                self._data.append(value.removeprefix(" "))
            elif key == "event":
                self._name = value.removeprefix(" ")
            return None
        name, data = self._name, "\n".join(self._data)
        self._name, self._data = "", []
        return (name, data) if data else None  # an event without data is none, says the standard


def events(raw: str) -> list[tuple[str, str]]:
    """All events of a whole stream."""
    parser = Events()
    return parser.feed(raw.encode(errors="replace")) + parser.close()
