"""Checks tuned fused-MoE files for entries that cannot launch on an architecture.

For bf16, fp8 and int4 weights the shared memory follows from the block sizes (`probe.space.shared_bytes`); files of
other kinds, and those for kernels that are not Triton's, need compiling.
"""

import json
import re
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
    """A file and its entries that cannot launch, or None if they need compiling."""

    file: str
    entries: int
    bad: tuple[ConfigEntry, ...] | None

    @property
    def verdict(self) -> str:
        return "needs compiling" if self.bad is None else "does not fit" if self.bad else "launches"


def check_tuned_files(folder: Path, arch: Arch) -> tuple[TunedFile, ...]:
    refuse_if(not folder.is_dir(), f"{folder}: no such folder")
    checked = []
    for path in sorted(folder.rglob("E=*.json")):
        name = _NAME.fullmatch(path.name)
        if name is None:
            continue
        kind = _KINDS.get(name["dtype"])
        # vLLM cuts BLOCK_SIZE_K to the quantisation block.
        deepest = min(int(name["n"]), int(name["k"])) if name["n"] else 1 << 30
        entries = []
        try:
            document: Any = json.loads(path.read_text())
            rows = {int(tokens): row for tokens, row in document.items() if tokens.isdigit()}
            for tokens, row in sorted(rows.items()):
                if kind is None or "BLOCK_SIZE_N" not in row:  # unknown, or not for a Triton kernel
                    continue
                cut = {**row, "BLOCK_SIZE_K": min(int(row["BLOCK_SIZE_K"]), deepest)}
                blocks = "x".join(str(row[f"BLOCK_SIZE_{side}"]) for side in "MNK")
                entries.append(ConfigEntry(tokens=tokens, blocks=blocks, shared_bytes=shared_bytes(kind, cut)))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            raise BadInput(f"{path}: not a fused-MoE configuration") from None
        bad = tuple(entry for entry in entries if entry.shared_bytes > arch.smem) if entries else None
        checked.append(TunedFile(file=path.name, entries=len(rows), bad=bad))
    return tuple(checked)
