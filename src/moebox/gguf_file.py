"""Write GGUF headers, for generated and derived files (docs/gguf.md in ggml)."""

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

MetadataValue = bool | int | float | str | list[str] | list[int]
ALIGNMENT = 32
F32, F16 = 0, 1  # ggml.h, enum ggml_type


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
    if isinstance(value, bool):
        return struct.pack("<IB", 7, value)
    if isinstance(value, int):
        return struct.pack("<II", 4, value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    if isinstance(value, str):
        return struct.pack("<I", 8) + _string(value)
    if isinstance(value[0], str):
        return struct.pack("<IIQ", 9, 8, len(value)) + b"".join(_string(str(item)) for item in value)
    return struct.pack(f"<IIQ{len(value)}i", 9, 5, len(value), *value)


def _string(value: str) -> bytes:
    raw = value.encode()
    return struct.pack("<Q", len(raw)) + raw


def align_up(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
