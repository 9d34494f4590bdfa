"""Append to events.jsonl one line at a time, and read it back even if it is damaged."""

import contextlib
import json
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from moebox import codec, loose
from moebox.core import engine_event as engine_event  # its events are among EVENT_KINDS
from moebox.core.event import Event, UnknownEvent
from moebox.errors import BadInput
from moebox.loose import Json
from moebox.redact import hide_known_keys
from moebox.store import plain

MAX_JOURNAL_BYTES = 512 * 2**20
MAX_LINE_BYTES = 8 * 2**20  # moebox writes no event this long
RENAMED_KINDS = {"story.": "pipeline.", "climb.step": "climb.kept"}  # how kinds began before they were renamed


def _tagged_events(base: type[Event]) -> Iterator[tuple[str, type[Event]]]:
    for kind in base.__subclasses__():
        tag = str(kind.__struct_config__.tag)
        if "." in tag:  # base classes have their class name as tag
            yield tag, kind
        yield from _tagged_events(kind)


EVENT_KINDS: Mapping[str, type[Event]] = dict(_tagged_events(Event))


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalEntry:
    """An event and its time (seconds since the epoch; 0 if the line has none)."""

    time: float
    event: Event

    @property
    def kind(self) -> str:
        return self.event.kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Journal:
    """The events of a journal, and a sentence for each line that is not one: not of moebox, or cut short by a crash."""

    entries: tuple[JournalEntry, ...] = ()
    notes: tuple[str, ...] = ()


def journal_line(time: float, event: Event) -> bytes:
    """Encode one event as it is written to the file, newline included."""
    document = {"time": time, "kind": event.kind, "data": replace_nonfinite(codec.to_plain(event.data))}
    text = hide_known_keys(json.dumps(document, ensure_ascii=False))
    return text.encode("utf-8", "backslashreplace") + b"\n"


def append_line(path: Path, line: bytes, *, sync: bool = False) -> None:
    """Append `line` in one write. If the line before it is incomplete, end that one first."""
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        size = os.fstat(descriptor).st_size
        if size and os.pread(descriptor, 1, size - 1) != b"\n":
            line = b"\n" + line
        written = os.write(descriptor, line)
        if written < len(line):  # a nearly full disk takes a part; writing the rest raises the reason
            os.write(descriptor, line[written:])
        if sync:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_journal(path: Path) -> Journal:
    """Read all events of the file in order, and note the lines that are not events."""
    try:
        raw = plain.read_bytes(path, max_bytes=MAX_JOURNAL_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        return Journal()
    except BadInput:  # a link, a pipe, or a file that is too large
        return Journal(notes=("events.jsonl: line 0 (0 bytes) is not an event and was skipped",))
    entries, notes, lines = list[JournalEntry](), list[str](), raw.split(b"\n")
    for number, line in enumerate(lines, 1):
        if entry := parse_line(line):
            entries.append(entry)
        elif line.strip():
            last = number == len(lines)  # the usual case: the writer was killed in the middle of a line
            what = "was cut short by a crash and dropped" if last else "is not an event and was skipped"
            notes.append(f"events.jsonl: line {number} ({len(line)} bytes) {what}")
    return Journal(entries=tuple(entries), notes=tuple(notes))


def parse_line(line: bytes) -> JournalEntry | None:
    if not line.startswith(b"{") or len(line) > MAX_LINE_BYTES:
        return None
    try:
        value = replace_nonfinite(json.loads(line.decode("utf-8", "replace")))
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict) or not isinstance(value.get("kind"), str):
        return None
    event = parse_event(value["kind"], loose.get_object(value, "data"))
    return JournalEntry(time=loose.get_number(value, "time") or 0.0, event=event)


def parse_event(kind: str, data: Json) -> Event:
    """Return the event of this kind, an UnknownEvent if there is no such kind; a field of a wrong type is left out."""
    before = next(filter(kind.startswith, RENAMED_KINDS), "")
    known = EVENT_KINDS.get(RENAMED_KINDS[before] + kind.removeprefix(before) if before else kind)
    if known is None:
        return UnknownEvent(name=kind, fields=data)
    with contextlib.suppress(msgspec.ValidationError):
        return msgspec.convert({**data, "kind": known.__struct_config__.tag}, known)
    fields: dict[str, object] = {}
    for field in msgspec.structs.fields(known):
        if field.encode_name in data:
            with contextlib.suppress(msgspec.ValidationError):
                fields[field.name] = msgspec.convert(data[field.encode_name], field.type)
    return known(**fields)


def replace_nonfinite(value: Any) -> Any:
    """Replace NaN and infinities by None, since JSON does not have them."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: replace_nonfinite(inner) for key, inner in value.items()}
    return [*map(replace_nonfinite, value)] if isinstance(value, list) else value
