"""Server-sent events, from bytes as they arrive."""

from dataclasses import dataclass, field


@dataclass(slots=True)
class Events:
    """Feed it bytes in any pieces; it gives back whole events as (name, data)."""

    _rest: bytes = b""
    _name: str = ""
    _data: list[str] = field(default_factory=list)

    def feed(self, piece: bytes) -> list[tuple[str, str]]:
        """The events that `piece` completes."""
        lines = (self._rest + piece).split(b"\n")
        self._rest = lines.pop()
        found = []
        for line in lines:
            event = self._line(line.removesuffix(b"\r").decode(errors="replace"))
            if event:
                found.append(event)
        return found

    def close(self) -> list[tuple[str, str]]:
        """The event that was still open at the end: servers often leave out the last empty line."""
        return self.feed(b"\n\n") if self._rest or self._data else []

    def _line(self, line: str) -> tuple[str, str] | None:
        if line:
            key, _, value = line.partition(":")
            if key == "data":
                self._data.append(value.removeprefix(" "))
            elif key == "event":
                self._name = value.strip()
            return None
        if not self._data:
            return None
        event = (self._name, "\n".join(self._data))
        self._name, self._data = "", []
        return event


def events(raw: str) -> list[tuple[str, str]]:
    """All events of a whole stream."""
    parser = Events()
    return parser.feed(raw.encode()) + parser.close()
