"""What every request did, in columns: 11 bytes for each event that carried tokens, about 60 for each request.

The file is one line of JSON (magic, zero of the clock, reasons, columns) and after it the columns, little-endian and
deflated, in that order. `read` and `write` are the only code that knows this; everything else sees a `Samples`.
"""

import json
import sys
import zlib
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from moebox.errors import BadInput
from moebox.store import plain

MAGIC = "moebox-samples-1"
MAX_SAMPLES_BYTES = 256 << 20  # bytes of a file
MAX_UNPACKED_BYTES = 512 << 20  # bytes of all columns: some 45 million events
COMPLETED, FAILED, TRUNCATED, EMPTY, CANCELLED = range(5)
OUTCOMES = ("completed", "failed", "truncated", "empty", "cancelled")

# Columns of requests and of chunks (events that carried tokens): name -> array type code. Times are CLOCK_MONOTONIC ns.
REQUEST_COLUMNS = {
    "index": "I",
    "due": "q",  # when it should have been sent
    "sent": "q",  # when it was
    "ended": "q",  # when its last byte came
    "outcome": "B",
    "reason": "H",  # index into `reasons`
    "status": "H",
    "prompt": "i",  # tokens; -1 where the server did not say
    "output": "i",
    "cached": "i",
    "asked": "I",  # output tokens asked for
    "turn": "H",
    "chunks": "I",  # its rows in the chunk columns follow those of the request before
}
CHUNK_COLUMNS = {"time": "q", "tokens": "H", "kind": "B"}
BYTES_PER_CHUNK = sum(array(code).itemsize for code in CHUNK_COLUMNS.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledRequest:
    """One request; times are CLOCK_MONOTONIC ns, as in the columns."""

    index: int
    due: int
    sent: int
    ended: int
    outcome: int
    reason: str
    status: int
    prompt: int
    output: int
    cached: int
    asked: int
    turn: int
    first: int  # its chunks are rows first … last of the chunk columns
    last: int


class Samples:
    """Columns of requests and of their chunks."""

    def __init__(self, *, zero: int = 0, wall: float = 0.0) -> None:
        self.zero = zero  # CLOCK_MONOTONIC ns at which the run began
        self.wall = wall  # the same moment in seconds since the epoch
        self.reasons: list[str] = [""]
        self.texts: dict[
            int, list[str]
        ] = {}  # by row: replies that nobody counted yet, event by event; not in the file
        self.columns = {name: array(code) for name, code in REQUEST_COLUMNS.items()}
        self.time, self.tokens, self.kind = (array(code) for code in CHUNK_COLUMNS.values())

    def __len__(self) -> int:
        return len(self.columns["index"])

    def add_request(
        self,
        times: "array[int]",
        tokens: "array[int]",
        kinds: "array[int]",
        *,
        reason: str = "",
        **values: int,
    ) -> None:
        """One request and its chunks."""
        self.time.extend(times)
        self.tokens.extend(tokens)
        self.kind.extend(kinds)
        values["reason"], values["chunks"] = self._reason_index(reason), len(times)
        for name, column in self.columns.items():
            column.append(values[name])

    def extend(self, other: "Samples") -> None:
        """Take in the samples of another worker of the same run."""
        at = [self._reason_index(text) for text in other.reasons]
        self.texts |= {len(self) + row: text for row, text in other.texts.items()}
        for name, column in self.columns.items():
            column.extend(other.columns[name] if name != "reason" else [at[i] for i in other.columns[name]])
        self.time.extend(other.time)
        self.tokens.extend(other.tokens)
        self.kind.extend(other.kind)

    def requests(self) -> Iterator[SampledRequest]:
        """Every request, in the order it ended."""
        columns = self.columns
        names = [name for name in REQUEST_COLUMNS if name not in ("chunks", "reason")]
        first = 0
        for row in range(len(self)):
            last = first + columns["chunks"][row]
            reason = self.reasons[columns["reason"][row]]
            yield SampledRequest(**{name: columns[name][row] for name in names}, reason=reason, first=first, last=last)
            first = last

    def to_bytes(self) -> bytes:
        """The bytes of the file."""
        columns = {**self.columns, **dict(zip(CHUNK_COLUMNS, (self.time, self.tokens, self.kind), strict=True))}
        packed = [zlib.compress(_little_endian(column).tobytes(), 1) for column in columns.values()]
        head = {
            "magic": MAGIC,
            "zero": self.zero,
            "wall": self.wall,
            "reasons": self.reasons,
            "columns": [[name, columns[name].typecode, len(data)] for name, data in zip(columns, packed, strict=True)],
        }
        return json.dumps(head).encode() + b"\n" + b"".join(packed)

    def _reason_index(self, text: str) -> int:
        if not text:
            return 0
        if text in self.reasons:
            return self.reasons.index(text)
        if len(self.reasons) >= 1000:  # a server that names each request in its error would fill the table
            text = "other errors"
            if text in self.reasons:
                return self.reasons.index(text)
        self.reasons.append(text)
        return len(self.reasons) - 1


def samples_from_bytes(data: bytes, where: str = "samples") -> Samples:
    """The Samples in the bytes of a file; BadInput where they are not. A small file may claim to unpack to much."""
    line, _, rest = data.partition(b"\n")
    try:
        head = json.loads(line)
        if head["magic"] != MAGIC:
            raise ValueError(head["magic"])
        samples = Samples(zero=head["zero"], wall=head["wall"])
        samples.reasons = [str(reason) for reason in head["reasons"]]
        bytes_left = MAX_UNPACKED_BYTES
        for name, code, size in head["columns"]:
            packed, rest = rest[:size], rest[size:]
            if len(packed) != size:
                raise ValueError(f"column {name} is cut short")
            bytes_left -= _unpack_column(samples, name, code, packed, bytes_left)
        _check_columns(samples)
    except (ValueError, KeyError, TypeError, RecursionError, zlib.error) as problem:
        raise BadInput(f"{where}: not a file of samples ({problem!r})") from None
    return samples


def _unpack_column(samples: Samples, name: str, code: str, packed: bytes, room: int) -> int:
    """Put one column where it belongs, if there is such a column; the bytes it takes."""
    known = REQUEST_COLUMNS.get(name) or CHUNK_COLUMNS.get(name)
    if known is None:
        return 0
    if code != known:
        raise ValueError(f"column {name} is of type {code}")
    column = array(known)
    column.frombytes(_inflated(packed, room))
    if name in REQUEST_COLUMNS:
        samples.columns[name] = _little_endian(column)
    else:
        setattr(samples, name, _little_endian(column))
    return len(column) * column.itemsize


def _inflated(data: bytes, room: int) -> bytes:
    """`data` unpacked, if it is whole and no larger than `room`."""
    stream = zlib.decompressobj()
    unpacked = stream.decompress(data, room + 1)
    if len(unpacked) > room:
        raise ValueError("it unpacks to more than any measurement has")
    if not stream.eof:
        raise ValueError("it is cut short")
    return unpacked


def _check_columns(samples: Samples) -> None:
    """Columns of one table are of one length, and point into each other."""
    chunks, reasons = samples.columns["chunks"], samples.columns["reason"]
    faults = {
        "columns of requests differ in length": len(set(map(len, samples.columns.values()))) != 1,
        "columns of chunks differ in length": len({len(samples.time), len(samples.tokens), len(samples.kind)}) != 1,
        "requests and their chunks do not match": sum(chunks) != len(samples.time) or min(chunks, default=0) < 0,
        "a reason is missing": bool(reasons) and not 0 <= min(reasons) <= max(reasons) < len(samples.reasons),
    }
    for fault, found in faults.items():
        if found:
            raise ValueError(fault)


def write_samples(path: Path, samples: Samples) -> None:
    """Keep samples in a file."""
    path.write_bytes(samples.to_bytes())


def read_samples(path: Path) -> Samples:
    """The samples of a file."""
    try:
        return samples_from_bytes(plain.read_bytes(path, max_bytes=MAX_SAMPLES_BYTES), str(path))
    except OSError as problem:
        raise BadInput(f"{path}: cannot be read: {problem.strerror}") from None


def _little_endian(column: "array[int]") -> "array[int]":
    if sys.byteorder == "little" or column.itemsize == 1:
        return column
    swapped = column[:]
    swapped.byteswap()
    return swapped
