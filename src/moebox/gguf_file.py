"""GGUF as bytes: the words of its header, for the writers of generated and derived files (docs/gguf.md in ggml)."""

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MetadataValue = bool | int | float | str | list[str] | list[int]  # of a GGUF's metadata
ALIGNMENT = 32
F32, F16 = 0, 1  # ggml.h, enum ggml_type


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightEntry:
    """A weight as the header names it; dimensions innermost first, as ggml counts them."""

    name: str
    shape: tuple[int, ...]
    type: int
    bytes: int


def header_bytes(pairs: Mapping[str, MetadataValue], weights: Iterable[WeightEntry]) -> bytes:
    """Everything before the weights, which follow in the same order, each from a multiple of `ALIGN`."""
    weights = list(weights)
    head = bytearray(b"GGUF" + struct.pack("<IQQ", 3, len(weights), len(pairs)))
    for key, value in pairs.items():
        head += string_bytes(key) + typed_value(value)
    offset = 0
    for place in weights:
        head += string_bytes(place.name) + struct.pack(f"<I{len(place.shape)}Q", len(place.shape), *place.shape)
        head += struct.pack("<IQ", place.type, offset)
        offset += align_up(place.bytes)
    return bytes(head).ljust(align_up(len(head)), b"\0")


def typed_value(value: MetadataValue) -> bytes:
    """A metadata value with its type: u32 4, i32 5, f32 6, bool 7, string 8, array 9."""
    if isinstance(value, bool):
        return struct.pack("<IB", 7, value)
    if isinstance(value, int):
        return struct.pack("<II", 4, value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    if isinstance(value, str):
        return struct.pack("<I", 8) + string_bytes(value)
    return array_value(value)


def array_value(values: Sequence[Any]) -> bytes:
    """A list of strings or of i32."""
    if isinstance(values[0], str):
        return struct.pack("<IIQ", 9, 8, len(values)) + b"".join(map(string_bytes, values))
    return struct.pack(f"<IIQ{len(values)}i", 9, 5, len(values), *values)


def string_bytes(value: str) -> bytes:
    """A string with its length before it."""
    raw = value.encode()
    return struct.pack("<Q", len(raw)) + raw


def align_up(size: int) -> int:
    """`size` rounded up to the file's alignment."""
    return -(-size // ALIGNMENT) * ALIGNMENT
