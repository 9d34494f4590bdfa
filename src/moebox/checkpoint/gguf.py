"""GGUF headers: metadata and the table of tensors, never the weights.

Read here and not through the `gguf` package, because that one refuses ik_llama.cpp's types and needs numpy.
Every count is checked against the bytes there are, so a hostile file costs no more than its own size.
"""

import functools
import mmap
import re
import struct
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

from moebox.core import catalogue
from moebox.errors import BadInput, refuse_if

MAGIC = b"GGUF"
MAX_TENSORS = 1_000_000
MAX_KEYS = 100_000
MAX_ITEMS = 10_000_000  # of one array; Kimi's token list has 163,840
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_KEPT = 64  # arrays longer than this are known by their length only
_PART = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf")


@dataclass(frozen=True, slots=True)
class HeaderTensor:
    """One entry of the table."""

    name: str
    elements: int
    bytes: int
    type: str


@dataclass(slots=True)
class GgufHeader:
    """What one file says about itself."""

    metadata: dict[str, Any] = field(default_factory=dict)
    tensors: list[HeaderTensor] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class SkippedArray:
    """An array that was walked over and not kept."""

    items: int


@functools.cache
def ggml_types() -> dict[int, tuple[str, int, int, str]]:
    """ggml types by id: name, weights in a block, bytes of a block, engine."""
    rows = catalogue.load_table("ggml")["types"]
    return {row["id"]: (name, row["weights"], row["bytes"], row["engine"]) for name, row in rows.items()}


class HeaderCursor:
    """Walks the bytes of a header and refuses to run past their end."""

    def __init__(self, data: mmap.mmap, path: Path) -> None:
        self.data, self.path, self.at, self.end = data, path, 0, len(data)

    def read_scalar(self, form: str) -> Any:
        """The next scalar."""
        size = struct.calcsize("<" + form)
        self.require_bytes(size)
        (value,) = struct.unpack_from("<" + form, self.data, self.at)
        self.at += size
        return value

    def require_bytes(self, size: int) -> None:
        """Raise when fewer than `size` bytes are left."""
        if size < 0 or size > self.end - self.at:
            raise BadInput(f"{self.path}: the header runs past the end of the file (truncated download?)")

    def read_text(self) -> str:
        """The next string."""
        length = self.read_scalar("Q")
        self.require_bytes(length)
        raw = self.data[self.at : self.at + length]
        self.at += length
        return raw.decode("utf-8", errors="replace")

    def skip_text(self) -> None:
        """Pass over the next string."""
        length = self.read_scalar("Q")
        self.require_bytes(length)
        self.at += length


def read_header(path: Path) -> GgufHeader:
    """Metadata and tensors of one GGUF file."""
    try:
        with open(path, "rb") as file:
            refuse_if(path.stat().st_size < 24, f"{path}: too short for a GGUF file")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _parse(HeaderCursor(data, path))
    except OSError as problem:
        raise BadInput(f"{path}: cannot be read: {problem.strerror}") from None


def _parse(cursor: HeaderCursor) -> GgufHeader:
    path = cursor.path
    refuse_if(cursor.data[:4] != MAGIC, f"{path}: not a GGUF file")
    cursor.at = 4
    version, tensors, keys = cursor.read_scalar("I"), cursor.read_scalar("Q"), cursor.read_scalar("Q")
    refuse_if(version not in (2, 3), f"{path}: GGUF version {version} is not supported")
    # A tensor entry takes at least 24 bytes and a key 13, so larger counts cannot be true.
    possible = tensors <= min(MAX_TENSORS, cursor.end // 24) and keys <= min(MAX_KEYS, cursor.end // 13)
    refuse_if(not possible, f"{path}: claims {tensors:,} tensors and {keys:,} keys, which the file cannot hold")
    header = GgufHeader()
    header.metadata = dict(_entry(cursor) for _ in range(keys))
    header.tensors = [_tensor(cursor) for _ in range(tensors)]
    return header


def _entry(cursor: HeaderCursor) -> tuple[str, Any]:
    """A key of the metadata with its value."""
    name = cursor.read_text()
    return name, _value(cursor, cursor.read_scalar("I"), depth=0)


def _value(cursor: HeaderCursor, kind: int, depth: int) -> Any:
    if kind in _SCALARS:
        return cursor.read_scalar(_SCALARS[kind])
    if kind == _STRING:
        return cursor.read_text()
    if kind != _ARRAY or depth > 4:
        raise BadInput(f"{cursor.path}: metadata of the unknown kind {kind}")
    inner, items = cursor.read_scalar("I"), cursor.read_scalar("Q")
    if items > MAX_ITEMS:
        raise BadInput(f"{cursor.path}: an array of {items:,} items cannot be meant")
    if items <= _KEPT:
        return [_value(cursor, inner, depth + 1) for _ in range(items)]
    _pass_over(cursor, inner, items, depth)
    return SkippedArray(items)


def _pass_over(cursor: HeaderCursor, kind: int, items: int, depth: int) -> None:
    """Go on behind an array that is too long to keep."""
    if kind in _SCALARS:
        size = items * struct.calcsize("<" + _SCALARS[kind])
        cursor.require_bytes(size)
        cursor.at += size
        return
    for _ in range(items):
        if kind == _STRING:
            cursor.skip_text()
        else:
            _value(cursor, kind, depth + 1)


def _tensor(cursor: HeaderCursor) -> HeaderTensor:
    name, dimensions = cursor.read_text(), cursor.read_scalar("I")
    if dimensions > 8:
        raise BadInput(f"{cursor.path}: tensor {name[:80]!r} has {dimensions} dimensions")
    elements = prod(cursor.read_scalar("Q") for _ in range(dimensions))
    number = cursor.read_scalar("I")
    cursor.read_scalar("Q")  # where its data starts
    known = ggml_types().get(number)
    if known is None:
        raise BadInput(f"{cursor.path}: tensor {name[:80]!r} has the unknown type {number}")
    if elements >= 2**50:
        raise BadInput(f"{cursor.path}: tensor {name[:80]!r} has {elements:,} elements, which cannot be meant")
    title, weights, size, _ = known
    return HeaderTensor(name, elements, -(-elements // weights) * size, title)


def split_files(path: Path) -> list[Path]:
    """All files of a split model that `path` belongs to; just `path` when it is whole."""
    match = _PART.fullmatch(path.name)
    if not match:
        return [path]
    stem, count = match.group(1), int(match.group(3))
    refuse_if(not 1 <= count <= 10_000, f"{path}: {count} parts cannot be meant")
    files = [path.with_name(f"{stem}-{number:05d}-of-{count:05d}.gguf") for number in range(1, count + 1)]
    _refuse_missing(path, files)
    return files


def _refuse_missing(path: Path, files: list[Path]) -> None:
    missing = [file for file in files if not file.is_file()]
    if missing:
        raise BadInput(
            f"{path}: {len(missing)} of {len(files)} parts are missing, the first is {missing[0].name}",
            hint="the download is incomplete; run it again",
        )
