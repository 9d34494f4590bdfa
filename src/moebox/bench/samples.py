"""A record of every request, in columns: 11 bytes for each event that carried tokens, about 60 for each request.

The file is one line of JSON (magic, zero of the clock, reasons, columns) followed by the columns, little-endian and
deflated, in that order. Only `Samples.to_bytes` and `samples_from_bytes` know this format.
"""

import itertools
import json
import zlib
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from moebox.errors import BadInput
from moebox.store import plain

MAGIC = "moebox-samples-1"
MAX_SAMPLES_BYTES = 256 << 20  # of a file
MAX_UNPACKED_BYTES = 512 << 20  # of all columns: about 45 million events
MAX_REASONS = 1000  # a server that names each request in its error would fill the table
COMPLETED, FAILED, TRUNCATED, EMPTY, CANCELLED = range(5)
OUTCOMES = ("completed", "failed", "truncated", "empty", "cancelled")

# Columns of requests and of chunks (events that carried tokens): name -> array type code. Times are CLOCK_MONOTONIC ns.
REQUEST_COLUMNS = {
    "index": "I",
    "due": "q",  # when it should have been sent
    "sent": "q",  # when it was
    "ended": "q",  # when its last byte arrived
    "outcome": "B",
    "reason": "H",  # index into `reasons`
    "status": "H",
    "prompt": "i",  # tokens; -1 if the server did not count them
    "output": "i",
    "cached": "i",
    "asked": "I",  # output tokens asked for
    "turn": "H",
    "chunks": "I",  # its rows in the chunk columns follow those of the previous request
}
CHUNK_COLUMNS = {"time": "q", "tokens": "H", "kind": "B"}
BYTES_PER_CHUNK = sum(array(code).itemsize for code in CHUNK_COLUMNS.values())


class SampledRequest(NamedTuple):
    """What the figures need of one request; times are CLOCK_MONOTONIC ns, as in the columns."""

    sent: int
    ended: int
    outcome: int
    prompt: int
    output: int
    cached: int
    asked: int
    first: int  # its chunks are rows first … last of the chunk columns
    last: int


class Samples:
    """Columns of requests and of their chunks."""

    def __init__(self, *, zero: int = 0, wall: float = 0.0) -> None:
        self.zero = zero  # CLOCK_MONOTONIC ns at which the run began
        self.wall = wall  # the same moment in seconds since the epoch
        self.reasons: list[str] = [""]
        self.texts: dict[int, list[str]] = {}  # by row: replies still to be counted, by event; not in the file
        self.columns = {name: array(code) for name, code in REQUEST_COLUMNS.items()}
        self.time, self.tokens, self.kind = (array(code) for code in CHUNK_COLUMNS.values())

    def __len__(self) -> int:
        return len(self.columns["index"])

    def add_request(
        self, times: "array[int]", tokens: "array[int]", kinds: "array[int]", *, reason: str = "", **values: int
    ) -> None:
        self.time.extend(times)
        self.tokens.extend(tokens)
        self.kind.extend(kinds)
        values["reason"], values["chunks"] = self._reason_index(reason), len(times)
        for name, column in self.columns.items():
            column.append(values[name])

    def extend(self, other: "Samples") -> None:
        """Add the samples of another worker of the same run."""
        reasons = list(map(self._reason_index, other.reasons))
        self.texts |= {len(self) + row: text for row, text in other.texts.items()}
        for name, column in self.columns.items():
            column.extend(other.columns[name] if name != "reason" else [reasons[i] for i in other.columns[name]])
        self.time.extend(other.time)
        self.tokens.extend(other.tokens)
        self.kind.extend(other.kind)

    def requests(self) -> Iterator[SampledRequest]:
        """Yield every request, in the order of their ends."""
        ends = list(itertools.accumulate(self.columns["chunks"]))
        columns = [self.columns[name] for name in SampledRequest._fields[:-2]]
        return map(SampledRequest, *columns, [0, *ends], ends)

    def to_bytes(self) -> bytes:
        columns = {**self.columns, "time": self.time, "tokens": self.tokens, "kind": self.kind}
        packed = [zlib.compress(column.tobytes(), 1) for column in columns.values()]
        head = {
            "magic": MAGIC,
            "zero": self.zero,
            "wall": self.wall,
            "reasons": self.reasons,
            "columns": [[name, columns[name].typecode, len(data)] for name, data in zip(columns, packed, strict=True)],
        }
        return json.dumps(head).encode() + b"\n" + b"".join(packed)

    def _reason_index(self, text: str) -> int:
        if text not in self.reasons and len(self.reasons) >= MAX_REASONS:
            text = "other errors"
        if text not in self.reasons:
            self.reasons.append(text)
        return self.reasons.index(text)


def samples_from_bytes(data: bytes, where: str = "samples") -> Samples:
    """Parse the bytes of a file. Raise BadInput if they are not valid or unpack to more than any measurement has."""
    line, _, rest = data.partition(b"\n")
    try:
        head = json.loads(line)
        if head["magic"] != MAGIC:
            raise ValueError(head["magic"])
        samples = Samples(zero=head["zero"], wall=head["wall"])
        samples.reasons = list(map(str, head["reasons"]))
        bytes_left = MAX_UNPACKED_BYTES
        for name, code, size in head["columns"]:
            packed, rest = rest[:size], rest[size:]
            if len(packed) != size:
                raise ValueError(f"column {name} is cut short")
            known = REQUEST_COLUMNS.get(name) or CHUNK_COLUMNS.get(name)
            if known is None:
                continue
            if code != known:
                raise ValueError(f"column {name} is of type {code}")
            stream = zlib.decompressobj()
            unpacked = stream.decompress(packed, bytes_left + 1)
            bytes_left -= len(unpacked)
            if bytes_left < 0:
                raise ValueError("it unpacks to more than any measurement has")
            if not stream.eof:
                raise ValueError("it is cut short")
            column = array(known)
            column.frombytes(unpacked)
            if name in REQUEST_COLUMNS:
                samples.columns[name] = column
            else:
                setattr(samples, name, column)
        _check_columns(samples)
    except (ValueError, KeyError, TypeError, RecursionError, zlib.error) as problem:
        raise BadInput(f"{where}: not a file of samples ({problem!r})") from None
    return samples


def _check_columns(samples: Samples) -> None:
    """Raise ValueError unless columns of one table are of one length and refer to each other correctly."""
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


def read_samples(path: Path) -> Samples:
    try:
        return samples_from_bytes(plain.read_bytes(path, max_bytes=MAX_SAMPLES_BYTES), str(path))
    except OSError as problem:
        raise BadInput(f"{path}: cannot be read: {problem.strerror}") from None
