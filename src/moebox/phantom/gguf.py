"""Read the phantom's GGUF with the standard library: metadata, and tensors as arrays of bfloat16.

Only the tensor kinds that the phantom's file holds are known (f32, f16, q8_0).
"""

from __future__ import annotations

import functools
import math
import struct
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moebox.errors import MoeboxError
from moebox.gguf_file import F16, F32

# Value kinds of the GGUF format, docs/gguf.md in ggml: kind -> struct code.
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
Q8_0 = 8
_Q8_BLOCK = 32
_BYTES = {F32: 4.0, F16: 2.0, Q8_0: 34 / _Q8_BLOCK}  # of a number


@dataclass(frozen=True, kw_only=True, slots=True)
class GgufTensor:
    """Where one tensor lies; `shape` is outermost first."""

    shape: tuple[int, ...]
    kind: int
    start: int

    @property
    def value_count(self) -> int:
        """How many numbers it holds."""
        return math.prod(self.shape)

    @property
    def size_bytes(self) -> int:
        """Its size."""
        return round(self.value_count * _BYTES[self.kind])


class PhantomGguf:
    """One file, read whole (the phantom's are below 25 MB)."""

    def __init__(self, path: Path) -> None:
        self.raw = path.read_bytes()
        self._at = 0
        self._products: dict[bytes, tuple[bytes, bytes]] = {}
        if self.raw[:4] != b"GGUF":
            raise MoeboxError(f"{path} is not a GGUF file", hint="reinstall moebox: the phantom's weights are damaged")
        _, tensors, pairs = self._take("4xIQQ")
        self.meta: dict[str, Any] = {self._text(): self._value(self._take("I")[0]) for _ in range(pairs)}
        found = [self._tensor() for _ in range(tensors)]
        align = self.meta.get("general.alignment", 32)
        base = -(-self._at // align) * align
        self.tensors = {
            name: GgufTensor(shape=shape, kind=kind, start=base + offset) for name, shape, kind, offset in found
        }

    def _take(self, form: str) -> tuple[Any, ...]:
        values = struct.unpack_from("<" + form, self.raw, self._at)
        self._at += struct.calcsize("<" + form)
        return values

    def _text(self) -> str:
        (size,) = self._take("Q")
        self._at += size
        return self.raw[self._at - size : self._at].decode()

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._text()
        if kind == _ARRAY:
            inner, size = self._take("IQ")
            return [self._value(inner) for _ in range(size)]
        return self._take(_SCALARS[kind])[0]

    def _tensor(self) -> tuple[str, tuple[int, ...], int, int]:
        name = self._text()
        (dims,) = self._take("I")
        shape = self._take(f"{dims}Q")
        kind, offset = self._take("IQ")
        return name, tuple(reversed(shape)), kind, offset

    def tensor_bytes(self, name: str) -> bytes:
        """A tensor as it lies in the file."""
        tensor = self.tensors[name]
        return self.raw[tensor.start : tensor.start + tensor.size_bytes]

    def read_bfloat16(self, name: str) -> array[int]:
        """A tensor's numbers as bfloat16, rounded to nearest even."""
        tensor = self.tensors[name]
        if tensor.kind == Q8_0:
            return self._unpacked_bfloat16(self.tensor_bytes(name))
        if tensor.kind == F16:
            return array("H", map(_halves().__getitem__, array("H", self.tensor_bytes(name))))
        return _rounded(self.read_float32(name))

    def _unpacked_bfloat16(self, blocks: bytes) -> array[int]:
        """Blocks have far fewer scales than numbers, and a scale has 256 products: looked up, not computed."""
        low, high = bytearray(), bytearray()
        for scale, steps in struct.iter_unpack(f"<2s{_Q8_BLOCK}s", blocks):
            if scale not in self._products:
                self._products[scale] = _products(scale)
            lows, highs = self._products[scale]
            low += steps.translate(lows)
            high += steps.translate(highs)
        both = bytearray(2 * len(low))
        both[::2], both[1::2] = low, high
        return array("H", bytes(both))

    def read_float32(self, name: str) -> array[float]:
        """A tensor's numbers as float32."""
        tensor = self.tensors[name]
        if tensor.kind == F32:
            return array("f", self.tensor_bytes(name))
        if tensor.kind == F16:
            return array("f", struct.unpack_from(f"<{tensor.value_count}e", self.raw, tensor.start))
        return array("f", _unpacked(self.tensor_bytes(name)))


def _rounded(numbers: array[float]) -> array[int]:
    """float32 as bfloat16, to nearest even."""
    bits = array("I", numbers.tobytes())
    return array("H", [(x + 0x7FFF + ((x >> 16) & 1)) >> 16 & 0xFFFF for x in bits])


@functools.cache
def _halves() -> array[int]:
    """Every float16 as bfloat16."""
    return _rounded(array("f", struct.unpack("<65536e", array("H", range(65536)).tobytes())))


def _products(scale: bytes) -> tuple[bytes, bytes]:
    """A scale times every step, by the step's byte, as the low and the high bytes of bfloat16."""
    (factor,) = struct.unpack("<e", scale)
    numbers = _rounded(array("f", [factor * step for step in (*range(128), *range(-128, 0))])).tobytes()
    return numbers[::2], numbers[1::2]


def _unpacked(blocks: bytes) -> Iterator[float]:
    for scale, *steps in struct.iter_unpack("<e32b", blocks):
        yield from [scale * step for step in steps]
