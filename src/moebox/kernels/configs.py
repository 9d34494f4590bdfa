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
from moebox.errors import BadInput, refuse_if
from moebox.kernels.probe.space import shared_bytes

_NAME = re.compile(
    r"E=\d+,N=\d+,device_name=[^,]+?(?:,dtype=(?P<dtype>[a-z0-9_]+?))?"
    r"(?:,block_shape=\[(?P<n>\d+), ?(?P<k>\d+)\])?(?:,.*)?(?:_down)?\.json"
)
_KINDS = {None: "bf16", "bf16": "bf16", "fp8_w8a8": "fp8_w8a8 block", "int8_w8a8": "fp8_w8a8 block"}
_KINDS |= {"int4_w4a16": "int4_w4a16"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigEntry:
    """One batch size of a file."""

    tokens: int
    blocks: str
    shared_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TunedFile:
    """A file, and which of its entries cannot launch; None when they need compiling to know."""

    file: str
    entries: int
    bad: tuple[ConfigEntry, ...] | None

    @property
    def verdict(self) -> str:
        """launches, does not fit, or needs compiling."""
        return "needs compiling" if self.bad is None else "does not fit" if self.bad else "launches"


def check_tuned_files(folder: Path, arch: Arch) -> tuple[TunedFile, ...]:
    """Every tuned file under `folder`."""
    refuse_if(not folder.is_dir(), f"{folder}: no such folder")
    files = [path for path in sorted(folder.rglob("E=*.json")) if _NAME.fullmatch(path.name)]
    return tuple(_check(path, arch) for path in files)


def _check(path: Path, arch: Arch) -> TunedFile:
    try:
        document: Any = json.loads(path.read_text())
        rows = {int(tokens): row for tokens, row in document.items() if tokens.isdigit()}
        entries = _entries(path.name, rows)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise BadInput(f"{path}: not a fused-MoE configuration") from None
    if not entries:
        return TunedFile(file=path.name, entries=len(rows), bad=None)
    bad = tuple(entry for entry in entries if entry.shared_bytes > arch.smem)
    return TunedFile(file=path.name, entries=len(rows), bad=bad)


def _entries(name: str, rows: Mapping[int, Any]) -> list[ConfigEntry]:
    """The entries that Triton's kernels read, by tokens; none where the file's name is of a kind not known here."""
    found = _NAME.fullmatch(name)
    kind = _KINDS.get(found["dtype"]) if found else None
    if found is None or kind is None:
        return []
    deepest = min(int(found["n"]), int(found["k"])) if found["n"] else 1 << 30
    triton = {tokens: row for tokens, row in sorted(rows.items()) if "BLOCK_SIZE_N" in row}
    return [_entry(tokens, row, _size(kind, row, deepest)) for tokens, row in triton.items()]


def _entry(tokens: int, row: Mapping[str, int], shared_bytes: int) -> ConfigEntry:
    blocks = "x".join(str(row[f"BLOCK_SIZE_{side}"]) for side in "MNK")
    return ConfigEntry(tokens=tokens, blocks=blocks, shared_bytes=shared_bytes)


def _size(kind: str, row: Mapping[str, int], deepest: int) -> int:
    """Bytes that an entry asks; `deepest` is the quantisation block, to which vLLM cuts BLOCK_SIZE_K."""
    return shared_bytes(kind, {**row, "BLOCK_SIZE_K": min(int(row["BLOCK_SIZE_K"]), deepest)})
