"""GGUF headers (docs/gguf.md in ggml): read without trust in the file, and written for generated and derived files."""

import mmap
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moebox.errors import BadInput, refuse_if

MetadataValue = bool | int | float | str | list[str] | list[int]
ALIGNMENT = 32
F32, F16 = 0, 1  # ggml.h, enum ggml_type
MAX_ITEMS = 10_000_000  # of one array; Kimi's token list has 163,840
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_FORMATS = {code: struct.Struct("<" + code) for code in ("4s", *_SCALARS.values())}
_STRING, _ARRAY = 8, 9


class HeaderCutShort(BadInput):
    """The header runs past the end of the file."""


class HeaderCursor:
    """Reads the bytes of a header, and raises BadInput instead of reading past their end.

    Of an array with more than `kept` items only the length is kept, as a range.
    """

    def __init__(self, data: mmap.mmap | bytes, path: Path, *, kept: int = 64) -> None:
        self.data, self.path, self.kept, self.at, self.end = data, path, kept, 0, len(data)

    def skip_bytes(self, size: int) -> int:
        """Move on by `size` bytes and return the position before."""
        if size < 0 or size > self.end - self.at:
            raise HeaderCutShort(f"{self.path}: the header runs past the end of the file (truncated download?)")
        self.at += size
        return self.at - size

    def read_scalar(self, code: str) -> Any:
        packed = _FORMATS[code]
        return packed.unpack_from(self.data, self.skip_bytes(packed.size))[0]

    def read_text(self) -> str:
        start = self.skip_bytes(self.read_scalar("Q"))
        return self.data[start : self.at].decode("utf-8", errors="replace")

    def read_value(self, kind: int, depth: int = 0) -> Any:
        if kind in _SCALARS:
            return self.read_scalar(_SCALARS[kind])
        if kind == _STRING:
            return self.read_text()
        refuse_if(kind != _ARRAY or depth > 4, f"{self.path}: metadata of the unknown kind {kind}")
        inner, items = self.read_scalar("I"), self.read_scalar("Q")
        refuse_if(items > MAX_ITEMS, f"{self.path}: an array of {items:,} items is not plausible")
        if items <= self.kept:
            return [self.read_value(inner, depth + 1) for _ in range(items)]
        if inner in _SCALARS:
            self.skip_bytes(items * _FORMATS[_SCALARS[inner]].size)
        elif inner == _STRING:
            self._skip_texts(items)
        else:
            for _ in range(items):
                self.read_value(inner, depth + 1)
        return range(items)

    def _skip_texts(self, items: int) -> None:
        """Move on by `items` texts: a model's tokens, of which there may be 163,840."""
        at, last, read_length = self.at, self.end - 8, _FORMATS["Q"].unpack_from
        for _ in range(items):
            if at > last:  # so that skip_bytes refuses it
                at = self.end + 1
                break
            at += 8 + read_length(self.data, at)[0]
        self.skip_bytes(at - self.at)


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightEntry:
    """A weight in the header; dimensions innermost first, as in ggml."""

    name: str
    shape: tuple[int, ...]
    type: int
    bytes: int


def header_bytes(pairs: Mapping[str, MetadataValue], weights: Iterable[WeightEntry]) -> bytes:
    """Return everything before the weights. They follow in the same order, each at a multiple of `ALIGNMENT`."""
    entries = list(weights)
    head = bytearray(b"GGUF" + struct.pack("<IQQ", 3, len(entries), len(pairs)))
    for key, value in pairs.items():
        head += _string(key) + _typed_value(value)
    offset = 0
    for entry in entries:
        head += _string(entry.name) + struct.pack(f"<I{len(entry.shape)}Q", len(entry.shape), *entry.shape)
        head += struct.pack("<IQ", entry.type, offset)
        offset += align_up(entry.bytes)
    return bytes(head).ljust(align_up(len(head)), b"\0")


def _typed_value(value: MetadataValue) -> bytes:
    """Encode a metadata value with its type: u32 4, i32 5, f32 6, bool 7, string 8, array 9."""
    if isinstance(value, str):
        return struct.pack("<I", _STRING) + _string(value)
    if not isinstance(value, list):
        kind = {bool: 7, int: 4, float: 6}[type(value)]
        return struct.pack(f"<I{_SCALARS[kind]}", kind, value)
    if isinstance(value[0], str):
        return struct.pack("<IIQ", _ARRAY, _STRING, len(value)) + b"".join(_string(str(item)) for item in value)
    return struct.pack(f"<IIQ{len(value)}i", _ARRAY, 5, len(value), *value)


def _string(value: str) -> bytes:
    raw = value.encode()
    return len(raw).to_bytes(8, "little") + raw


def align_up(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
