"""Headers of safetensors files: names, shapes, types and sizes, never the weights.

A header is `length (8 bytes, little endian) + JSON`; everything it claims is checked against the file's size.
"""

import struct
from collections import Counter
from collections.abc import Iterator
from math import prod
from pathlib import Path

import msgspec

from moebox.checkpoint.agreement import SampleShapes
from moebox.checkpoint.names import component_in_safetensors, layer_number
from moebox.core.model import Component
from moebox.errors import BadInput, refuse_if

MAX_HEADER_BYTES = 100 * 10**6  # the format's own limit (safetensors/src/tensor.rs, MAX_HEADER_SIZE)
_BITS = {
    "BOOL": 8,
    "U8": 8,
    "I8": 8,
    "F8_E4M3": 8,
    "F8_E5M2": 8,
    "F8_E8M0": 8,
    "I16": 16,
    "U16": 16,
    "F16": 16,
    "BF16": 16,
}
_BITS |= {"I32": 32, "U32": 32, "F32": 32, "I64": 64, "U64": 64, "F64": 64, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6}


class SafetensorsEntry(msgspec.Struct):
    """One entry of a header."""

    dtype: str = ""
    shape: list[int] = []
    data_offsets: tuple[int, int] = (0, 0)


_HEADER = msgspec.json.Decoder(dict[str, SafetensorsEntry])


class ShardSizes:
    """Bytes by component and by layer, added up shard by shard."""

    def __init__(self, layers: int) -> None:
        self.layers = layers
        self.by_component: Counter[Component] = Counter()
        self.by_layer = [0] * layers
        self.dtypes: Counter[str] = Counter()
        self.shapes = SampleShapes()
        self.tensors = 0

    def add(self, name: str, tensor: SafetensorsEntry) -> None:
        """Count one tensor."""
        size = tensor.data_offsets[1] - tensor.data_offsets[0]
        layer = layer_number(name)
        component = component_in_safetensors(name)
        if layer is not None and component != "vision":
            if layer >= self.layers:
                component = "mtp"
            else:
                self.by_layer[layer] += size
        self.by_component[component] += size
        if component != "vision":
            self.shapes.add(name, tensor.dtype, tensor.shape)
        self.dtypes[tensor.dtype] += size
        self.tensors += 1


def read_header(path: Path) -> Iterator[tuple[str, SafetensorsEntry]]:
    """The tensors of one file; BadInput when the header is not what the file can hold."""
    raw, room = _raw_header(path)
    try:
        header = _HEADER.decode(raw)
    except (msgspec.DecodeError, msgspec.ValidationError, RecursionError, UnicodeDecodeError) as problem:
        raise BadInput(f"{path}: header is not a table of tensors: {str(problem)[:120]}") from None
    for name, tensor in header.items():
        if name != "__metadata__":
            _check(path, name, tensor, room)
            yield name, tensor


def _raw_header(path: Path) -> tuple[bytes, int]:
    """The header's bytes, and how many bytes of data the file has after it."""
    try:
        with open(path, "rb") as file:
            total = path.stat().st_size
            head = file.read(8)
            refuse_if(len(head) < 8, f"{path}: {total} bytes is too short for a safetensors file")
            (length,) = struct.unpack("<Q", head)
            claimed = f"{path}: claims a header of {length:,} bytes; the file has {total:,}"
            refuse_if(length > min(MAX_HEADER_BYTES, total - 8), claimed)
            return file.read(length), total - 8 - length
    except OSError as problem:
        raise BadInput(f"{path}: cannot be read: {problem.strerror}") from None


def _check(path: Path, name: str, tensor: SafetensorsEntry, room: int) -> None:
    start, end = tensor.data_offsets
    if not 0 <= start <= end <= room:
        raise BadInput(f"{path}: {name[:80]} lies at {start}..{end}, outside the file's {room:,} bytes of data")
    bits = _BITS.get(tensor.dtype)
    if bits is None:
        raise BadInput(f"{path}: {name[:80]} has the unknown type {tensor.dtype[:20]!r}")
    if len(tensor.shape) > 16 or any(side < 0 for side in tensor.shape):
        raise BadInput(f"{path}: {name[:80]} has an impossible shape")
    if prod(tensor.shape) * bits != (end - start) * 8:
        raise BadInput(f"{path}: {name[:80]} has {end - start:,} bytes, but its shape and type need another number")


def shard_files(folder: Path) -> list[Path]:
    """The weight files of a checkpoint; those that its index names and that are missing are an error."""
    index = folder / "model.safetensors.index.json"
    if index.exists():
        names = sorted(set(_weight_map(index).values()))
        missing = [name for name in names if not is_nonempty_file(folder / name)]
        if missing:
            raise BadInput(
                f"{folder}: {len(missing)} of {len(names)} shards are missing or empty, the first is {missing[0]}",
                hint="the download is incomplete; run it again",
            )
        return [folder / name for name in names]
    return sorted(folder.glob("*.safetensors"))


def is_nonempty_file(path: Path) -> bool:
    """Whether there is such a file, with something in it."""
    return path.is_file() and path.stat().st_size > 0


def _weight_map(index: Path) -> dict[str, str]:
    class Index(msgspec.Struct):
        weight_map: dict[str, str]

    try:
        found = msgspec.json.decode(index.read_bytes(), type=Index).weight_map
    except (msgspec.DecodeError, RecursionError, OSError) as problem:
        raise BadInput(f"{index}: not a safetensors index: {problem}") from None
    for name in found.values():
        if "/" in name or name in ("", "..", "."):
            raise BadInput(f"{index}: shard name {name!r} points outside the folder")
    return found


def read_sizes(files: list[Path], layers: int) -> ShardSizes:
    """What the shards hold together."""
    sizes = ShardSizes(layers)
    for path in files:
        for name, tensor in read_header(path):
            sizes.add(name, tensor)
    return sizes
