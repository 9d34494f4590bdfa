"""Checks tuned fused-MoE files for entries that cannot launch on an architecture.

For bf16, fp8 and int4 weights the shared memory follows from the block sizes (`probe.space.shared_bytes`); files of
other kinds, and those for kernels that are not Triton's, are left to the compiler.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moebox.core.kernel import Arch
from moebox.errors import BadInput
from moebox.kernels.probe.space import shared_bytes

_NAME = re.compile(
    r"E=\d+,N=\d+,device_name=[^,]+?(?:,dtype=(?P<dtype>[a-z0-9_]+?))?"
    r"(?:,block_shape=\[(?P<n>\d+), ?(?P<k>\d+)\])?(?:,.*)?(?:_down)?\.json"
)
_KINDS = {None: "bf16", "bf16": "bf16", "fp8_w8a8": "fp8_w8a8 block", "int8_w8a8": "fp8_w8a8 block"}
_KINDS |= {"int4_w4a16": "int4_w4a16"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One batch size of a file that asks too much."""

    tokens: int
    blocks: str
    shared_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TunedFile:
    """A file, and which of its entries cannot launch; None when they need compiling to know."""

    file: str
    entries: int
    bad: tuple[Entry, ...] | None

    @property
    def verdict(self) -> str:
        """launches, does not fit, or needs compiling."""
        return "needs compiling" if self.bad is None else "does not fit" if self.bad else "launches"


def check(folder: Path, arch: Arch) -> tuple[TunedFile, ...]:
    """Every tuned file under `folder`."""
    if not folder.is_dir():
        raise BadInput(f"{folder}: no such folder")
    files = [path for path in sorted(folder.rglob("E=*.json")) if _NAME.fullmatch(path.name)]
    return tuple(_check(path, arch) for path in files)


def _check(path: Path, arch: Arch) -> TunedFile:
    found = _NAME.fullmatch(path.name)
    kind = found["dtype"] if found else None
    deepest = min(int(found["n"]), int(found["k"])) if found and found["n"] else 1 << 30
    try:
        document: Any = json.loads(path.read_text())
        rows = {int(tokens): row for tokens, row in document.items() if tokens.isdigit()}
        triton = {tokens: row for tokens, row in rows.items() if "BLOCK_SIZE_N" in row}
        if kind not in _KINDS or not triton:
            return TunedFile(file=path.name, entries=len(rows), bad=None)
        sizes = {tokens: _size(_KINDS[kind], row, deepest) for tokens, row in triton.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise BadInput(f"{path}: not a fused-MoE configuration") from None
    bad = tuple(
        Entry(
            tokens=tokens,
            blocks="x".join(str(rows[tokens][f"BLOCK_SIZE_{side}"]) for side in "MNK"),
            shared_bytes=size,
        )
        for tokens, size in sorted(sizes.items())
        if size > arch.smem
    )
    return TunedFile(file=path.name, entries=len(rows), bad=bad)


def _size(kind: str, row: Mapping[str, int], deepest: int) -> int:
    """Bytes that an entry asks; `deepest` is the quantisation block, to which vLLM cuts BLOCK_SIZE_K."""
    return shared_bytes(kind, {**row, "BLOCK_SIZE_K": min(int(row["BLOCK_SIZE_K"]), deepest)})
