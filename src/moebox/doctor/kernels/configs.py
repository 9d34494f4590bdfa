"""Checks tuned fused-MoE files for entries that cannot launch on an architecture.

For bf16 and fp8 weights the shared memory follows exactly from the block sizes: the pipeline keeps all but one
stage of both tiles. Mixed int4 tiles do not follow that rule and are left to the compiler.
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moebox.core.kernel import Arch
from moebox.errors import BadInput

_NAME = re.compile(
    r"E=\d+,N=\d+,device_name=[^,]+?(?:,dtype=(?P<dtype>[a-z0-9_]+))?"
    r"(?:,block_shape=\[(?P<n>\d+), ?(?P<k>\d+)\])?(?:,.*)?(?:_down)?\.json"
)
_BYTES = {None: 2, "bf16": 2, "fp8_w8a8": 1, "int8_w8a8": 1}


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


def shared_bytes(config: dict[str, Any], element: int, deepest: int = 1 << 30) -> int:
    """Shared memory of the fused MoE kernel: (stages - 1) tiles of A and B.

    `deepest` is the quantisation block, to which the engines cut BLOCK_SIZE_K.
    """
    rows, columns = int(config["BLOCK_SIZE_M"]), int(config["BLOCK_SIZE_N"])
    depth = min(int(config["BLOCK_SIZE_K"]), deepest)
    return max(int(config.get("num_stages", 3)) - 1, 1) * (rows + columns) * depth * element


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
        if kind not in _BYTES:
            return TunedFile(file=path.name, entries=len(rows), bad=None)
        sizes = {tokens: shared_bytes(row, _BYTES[kind], deepest) for tokens, row in rows.items()}
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
