"""Reads a Triton cache after a crash.

Triton writes a compiled kernel to its cache before it finds that the GPU cannot launch it, so the failing one is there.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moebox.core.kernel import find_arch
from moebox.errors import UnknownName, refuse_if

MAX_JSON_BYTES = 4 * 2**20  # of a kernel's description; larger files are something else


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedKernel:
    kernel: str
    arch: str
    shared_bytes: int
    limit_bytes: int
    num_warps: int
    num_stages: int
    triton: str
    folder: str

    @property
    def can_launch(self) -> bool:
        return self.shared_bytes <= self.limit_bytes


def read_cache(folder: Path, *, arch_name: str = "") -> tuple[CachedKernel, ...]:
    """Return every kernel in a cache, largest first, judged for `arch_name` or else for its own architecture."""
    text = f"{folder}: no such folder"
    refuse_if(not folder.is_dir(), text, hint="Triton's cache is ~/.triton/cache unless TRITON_CACHE_DIR is set")
    paths = [path for path in folder.rglob("*.json") if not path.name.startswith("__grp__")]
    found = [kernel for path in paths if (kernel := _parse_kernel(path, arch_name)) is not None]
    text = f"{folder}: holds no kernel that Triton compiled for a GPU moebox knows"
    hint = "the crashed server's cache is ~/.triton/cache of its user, in a container that of the container"
    refuse_if(not found, text, hint=hint)
    return tuple(sorted(found, key=lambda kernel: (-kernel.shared_bytes, kernel.kernel, kernel.folder)))


def _parse_kernel(path: Path, arch_name: str) -> CachedKernel | None:
    try:
        if path.stat().st_size > MAX_JSON_BYTES:
            return None
        about: Any = json.loads(path.read_text())
        number = about["target"]["arch"]
        return CachedKernel(
            kernel=str(about.get("name") or path.stem),
            arch=f"sm_{number}",
            shared_bytes=int(about["shared"]),
            limit_bytes=find_arch(arch_name or f"sm_{number}").smem,
            num_warps=int(about["num_warps"]),
            num_stages=int(about.get("num_stages") or 0),
            triton=str(about.get("triton_version", "")),
            folder=path.parent.name,
        )
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None  # not the description of a kernel
    except UnknownName:
        if arch_name:
            raise
        return None  # compiled for a GPU outside the table
