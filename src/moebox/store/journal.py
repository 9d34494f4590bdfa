"""events.jsonl: appended a line at a time, read back whatever happened to it."""

import json
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moebox import codec, loose
from moebox.core.event import Event, parse_event
from moebox.errors import BadInput
from moebox.redact import hide_known_keys
from moebox.store import plain

MAX_JOURNAL_BYTES = 512 * 2**20  # bytes of the whole
MAX_LINE_BYTES = 8 * 2**20  # bytes; a line longer than this is not an event of ours


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalEntry:
    """An event and its moment (seconds since the epoch; 0 where the line does not say)."""

    time: float
    event: Event

    @property
    def kind(self) -> str:
        """The event's."""
        return self.event.kind


@dataclass(frozen=True, slots=True, kw_only=True)
class IncompleteLine:
    """A line that is no event: cut short by a crash, or never one of ours."""

    line: int  # counted from 1
    bytes: int
    last: bool  # the usual case: the writer was killed in mid-line


@dataclass(frozen=True, slots=True, kw_only=True)
class Journal:
    """What a journal holds, and what of it could not be read."""

    entries: tuple[JournalEntry, ...] = ()
    incomplete: tuple[IncompleteLine, ...] = ()

    @property
    def notes(self) -> list[str]:
        """One sentence for each loss."""
        return [
            f"events.jsonl: line {torn.line} ({torn.bytes} bytes) "
            + ("was torn by a crash and dropped" if torn.last else "is not an event and was passed over")
            for torn in self.incomplete
        ]


def journal_line(time: float, event: Event) -> bytes:
    """One event as it stands in the file, newline included."""
    document = {"time": time, "kind": event.kind, "data": replace_nonfinite(codec.to_plain(event.data))}
    text = hide_known_keys(json.dumps(document, ensure_ascii=False))
    return text.encode("utf-8", "backslashreplace") + b"\n"


def append_line(path: Path, line: bytes, *, sync: bool = False) -> None:
    """Add `line` in one write; a torn line before it is closed off first, so that it takes no other with it."""
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        size = os.fstat(descriptor).st_size
        if size and os.pread(descriptor, 1, size - 1) != b"\n":
            line = b"\n" + line
        written = os.write(descriptor, line)
        if written < len(line):  # a nearly full disk takes what it can; the rest raises the reason
            os.write(descriptor, line[written:])
        if sync:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_journal(path: Path) -> Journal:
    """Every event of the file in order; what is not one is in `torn`."""
    try:
        raw = plain.read_bytes(path, max_bytes=MAX_JOURNAL_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        return Journal()
    except BadInput:  # a link, a pipe, or a file that no run wrote
        return Journal(incomplete=(IncompleteLine(line=0, bytes=0, last=False),))
    entries: list[JournalEntry] = []
    torn: list[IncompleteLine] = []
    lines = raw.split(b"\n")
    for number, line in enumerate(lines, 1):
        entry = parse_line(line)
        if entry is not None:
            entries.append(entry)
        elif line.strip():
            torn.append(IncompleteLine(line=number, bytes=len(line), last=number == len(lines)))
    return Journal(entries=tuple(entries), incomplete=tuple(torn))


def parse_line(line: bytes) -> JournalEntry | None:
    """The event on one line, or None where there is none."""
    if not line.startswith(b"{") or len(line) > MAX_LINE_BYTES:
        return None
    try:
        value = json.loads(line.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict) or not isinstance(value.get("kind"), str):
        return None
    return JournalEntry(
        time=loose.get_number(value, "time") or 0.0, event=parse_event(value["kind"], loose.get_object(value, "data"))
    )


def replace_nonfinite(value: Any) -> Any:
    """`value` with NaN and the infinities as null, which is all that JSON can say of them."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: replace_nonfinite(inner) for key, inner in value.items()}
    return [replace_nonfinite(inner) for inner in value] if isinstance(value, list) else value
