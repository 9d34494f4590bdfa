"""The phantom's GGUF, read with the standard library, and written with latent attention.

Only the tensor types of the phantom's file are known (f32, f16, q8_0).
"""

from __future__ import annotations

import math
import struct
from array import array
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moebox.errors import MoeboxError
from moebox.gguf_file import F16, F32, HeaderCursor, WeightEntry, align_up, header_bytes

Q8_0 = 8
_Q8_BLOCK = 32
_BYTES = {F32: 4.0, F16: 2.0, Q8_0: 34 / _Q8_BLOCK}  # per value
_ATTENTION = "deepseek2.attention."
TEMPLATE_KEY = "tokenizer.chat_template"


@dataclass(frozen=True, kw_only=True, slots=True)
class GgufTensor:
    """Position of one tensor; `shape` is outermost first."""

    shape: tuple[int, ...]
    kind: int
    start: int

    @property
    def value_count(self) -> int:
        return math.prod(self.shape)

    @property
    def size_bytes(self) -> int:
        return round(self.value_count * _BYTES[self.kind])


class PhantomGguf:
    """One file, read whole (the phantom's are below 25 MB)."""

    def __init__(self, path: Path) -> None:
        self.raw = path.read_bytes()
        self._products: dict[bytes, tuple[bytes, bytes]] = {}
        cursor = HeaderCursor(self.raw, path, kept=len(self.raw))
        if cursor.read_scalar("4s") != b"GGUF":
            raise MoeboxError(f"{path} is not a GGUF file", hint="reinstall moebox: the phantom's weights are damaged")
        _, tensors, pairs = map(cursor.read_scalar, "IQQ")
        self.meta: dict[str, Any] = {
            cursor.read_text(): cursor.read_value(cursor.read_scalar("I")) for _ in range(pairs)
        }
        # Only the embedded engine sees both templates (see training.export); everything else gets Kimi's own.
        self.meta[TEMPLATE_KEY] = self.meta.pop(f"{TEMPLATE_KEY}.tool_use", self.meta[TEMPLATE_KEY])
        found = []
        for _ in range(tensors):
            name, sides = cursor.read_text(), cursor.read_scalar("I")
            shape = [cursor.read_scalar("Q") for _ in range(sides)]
            found.append((name, tuple(reversed(shape)), *map(cursor.read_scalar, "IQ")))
        align = self.meta.get("general.alignment", 32)
        base = -(-cursor.at // align) * align
        self.tensors = {
            name: GgufTensor(shape=shape, kind=kind, start=base + offset) for name, shape, kind, offset in found
        }

    def tensor_bytes(self, name: str) -> bytes:
        tensor = self.tensors[name]
        return self.raw[tensor.start : tensor.start + tensor.size_bytes]

    def read_bfloat16(self, name: str) -> array[int]:
        """A tensor's values as bfloat16, rounded to nearest even."""
        tensor = self.tensors[name]
        if tensor.kind != Q8_0:
            return _round_to_bfloat16(self.read_float32(name))
        # Blocks have far fewer scales than values, and a scale has 256 products: look them up
        low, high = bytearray(), bytearray()
        for scale, steps in struct.iter_unpack(f"<2s{_Q8_BLOCK}s", self.tensor_bytes(name)):
            if scale not in self._products:
                (factor,) = struct.unpack("<e", scale)
                products = array("f", [factor * step for step in (*range(128), *range(-128, 0))])
                numbers = _round_to_bfloat16(products).tobytes()
                self._products[scale] = numbers[::2], numbers[1::2]
            lows, highs = self._products[scale]
            low += steps.translate(lows)
            high += steps.translate(highs)
        both = bytearray(2 * len(low))
        both[::2], both[1::2] = low, high
        return array("H", bytes(both))

    def read_float32(self, name: str) -> array[float]:
        """A tensor's values as float32."""
        tensor = self.tensors[name]
        if tensor.kind == F32:
            return array("f", self.tensor_bytes(name))
        if tensor.kind == F16:
            return array("f", struct.unpack_from(f"<{tensor.value_count}e", self.raw, tensor.start))
        values = array("f")
        for scale, *steps in struct.iter_unpack("<e32b", self.tensor_bytes(name)):
            values.extend([scale * step for step in steps])
        return values


def _round_to_bfloat16(numbers: array[float]) -> array[int]:
    """float32 as bfloat16, to nearest even."""
    bits = array("I", numbers.tobytes())
    return array("H", [(x + 0x7FFF + ((x >> 16) & 1)) >> 16 & 0xFFFF for x in bits])


def write_latent_gguf(source: Path, path: Path) -> None:
    """Write the weights as Kimi's GGUFs have them today: latent attention, keys and values apart.

    The shipped file has them in one matrix, as GGUFs had before llama.cpp knew latent attention. llama.cpp then caches
    and reads whole heads, which on a CPU is two to four times as fast for so few of them; but with Kimi it does not, so
    rehearsals of real servers use this format.
    """
    model = PhantomGguf(source)
    key, value = (model.meta[f"{_ATTENTION}{name}_length"] for name in ("key", "value"))
    latent = model.meta[f"{_ATTENTION}kv_lora_rank"]
    keys = {"key_length_mla": key, "value_length_mla": value, "head_count_kv": 1, "value_length": latent}
    keys["key_length"] = latent + model.meta["deepseek2.rope.dimension_count"]
    entries, contents = [], []
    for name, tensor in model.tensors.items():
        parts = {name: (tensor.shape, tensor.kind, model.tensor_bytes(name))}
        if name.endswith("attn_kv_b.weight"):
            parts = _split_keys_and_values(model, name, value)
        for part, (shape, kind, content) in parts.items():
            entries.append(WeightEntry(name=part, shape=tuple(reversed(shape)), type=kind, bytes=len(content)))
            contents.append(content)
    with path.open("wb") as file:
        file.write(header_bytes(model.meta | {f"{_ATTENTION}{name}": size for name, size in keys.items()}, entries))
        for content in contents:
            file.write(content.ljust(align_up(len(content)), b"\0"))


def _split_keys_and_values(model: PhantomGguf, name: str, value: int) -> dict[str, tuple[tuple[int, ...], int, bytes]]:
    """Two tensors of one; llama.cpp wants the keys transposed, head by head."""
    rows, latent = model.tensors[name].shape
    heads = model.meta[f"{_ATTENTION}head_count"]
    nope = rows // heads - value
    numbers, keys, values = array("H", model.tensor_bytes(name)), array("H"), array("H")
    for head in range(heads):
        start = head * (nope + value) * latent
        block = numbers[start : start + nope * latent]
        for column in range(latent):
            keys += block[column::latent]
        values += numbers[start + nope * latent : start + (nope + value) * latent]
    return {
        name.replace("attn_kv_b", "attn_k_b"): ((heads, latent, nope), F16, keys.tobytes()),
        name.replace("attn_kv_b", "attn_v_b"): ((heads, value, latent), F16, values.tobytes()),
    }
