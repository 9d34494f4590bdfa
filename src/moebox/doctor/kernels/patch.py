"""Writes a remedy as a unified diff against the installed file, applies it with a backup, and takes it back.

A patch adds a branch for the capability and leaves what other GPUs run as it was. A file that is not the release's
own (by its hash) is not touched unless the person says so, and a patch applies whole or not at all.
"""

import difflib
import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path

from moebox.core import catalogue
from moebox.doctor.kernels.fix import Remedy
from moebox.errors import BadInput, Outside, Unsupported

BACKUP = ".moebox-original"
MARK = "# moebox:"


@dataclass(frozen=True, slots=True, kw_only=True)
class Patch:
    """One file before and after."""

    path: Path  # on disk
    name: str  # below site-packages
    before: str
    after: str

    @property
    def diff(self) -> str:
        """The change as `patch -p1` takes it."""
        lines = difflib.unified_diff(
            self.before.splitlines(keepends=True),
            self.after.splitlines(keepends=True),
            f"a/{self.name}",
            f"b/{self.name}",
        )
        return "".join(lines)


def patches(remedies: tuple[Remedy, ...], root: Path, capability: int) -> tuple[Patch, ...]:
    """A patch for each file that has launches to mend."""
    made: dict[Path, Patch] = {}
    for remedy in remedies:
        path = root / _place(remedy, root)
        before = made[path].before if path in made else _read(path)
        text = made[path].after if path in made else before
        after = _mended(text, remedy, capability)
        made[path] = Patch(path=path, name=str(path.relative_to(root)), before=before, after=after)
    return tuple(made.values())


def _place(remedy: Remedy, root: Path) -> str:
    """The file to change: where blocks are chosen, which for fused MoE is its configuration file."""
    file = remedy.launch.file
    if remedy.launch.kernel.startswith("fused_moe"):
        for found in sorted(root.glob("sglang/**/fused_moe_triton_config.py")):
            return str(found.relative_to(root))
    return file


def _mended(text: str, remedy: Remedy, capability: int) -> str:
    best, launch = remedy.found[0], remedy.launch
    about = f"{launch.kernel} asked {launch.shared_bytes:,} bytes, the limit is {launch.limit_bytes:,}; this asks"
    about = f"{MARK} {about} {best.shared_bytes:,}"
    family = capability // 10
    if launch.kernel == "_fwd_kernel" and "BLOCK_M" in best.blocks:
        wide = int(launch.blocks.get("BLOCK_DMODEL", 0)) + int(launch.blocks.get("BLOCK_DPE", 0))
        lines = [
            f"if _is_cuda and CUDA_CAPABILITY[0] == {family} and Lq == {wide}:",
            f"    {about}",
            f"    BLOCK_M, BLOCK_N = ({best.blocks['BLOCK_M']}, {best.blocks['BLOCK_N']})",
            f"    num_warps = {best.num_warps}",
        ]
        return _insert(text, r"^    return BLOCK_DMODEL, BLOCK_DPE, BLOCK_DV, BLOCK_M, BLOCK_N, num_warps$", lines)
    if launch.kernel == "_fwd_grouped_kernel_stage1":
        lines = [
            f"if torch.cuda.get_device_capability()[0] == {family} and k_buffer.element_size() == 1:",
            f"    {about}",
            f"    BLOCK, num_stages = {best.blocks['BLOCK_N']}, {best.num_stages}",
        ]
        return _insert(text, r"^    _fwd_grouped_kernel_stage1\[grid\]\($", lines)
    if launch.kernel.startswith("fused_moe"):
        fp8 = 'dtype == "fp8_w8a8" and block_shape is None and M > E'
        lines = [
            f"if torch.cuda.get_device_capability()[0] == {family} and {fp8}:",
            f"    {about}",
            f"    config |= {{"
            f'"BLOCK_SIZE_M": {best.blocks["BLOCK_SIZE_M"]}, "BLOCK_SIZE_N": {best.blocks["BLOCK_SIZE_N"]}, '
            f'"num_warps": {best.num_warps}, "num_stages": {best.num_stages}}}',
        ]
        start = text.find("def get_default_config(")
        if start < 0:
            raise Unsupported(f"{launch.file}: no place for a patch of {launch.kernel} is known")
        return text[:start] + _insert(text[start:], r"^    return config$", lines, last=True)
    raise Unsupported(f"{launch.file}: no place for a patch of {launch.kernel} is known")


def _insert(text: str, anchor: str, lines: list[str], *, last: bool = False) -> str:
    """`lines` before the anchor line, at its indentation; the anchor must be there."""
    found = list(re.finditer(anchor, text, re.MULTILINE))
    if last:  # of the function that the text starts with
        end = re.search(r"^(?:def|class|@)", text[1:], re.MULTILINE)
        found = [one for one in found if not end or one.start() < end.start()][-1:]
    if not found:
        raise Unsupported("this version of the file has no known place for the patch")
    at = found[0].start()
    block = "".join(f"    {line}\n" for line in lines)
    return text[:at] + block + "\n" + text[at:]


def apply(patch: Patch, *, anyway: bool = False) -> Path:
    """Write the patched file, the original kept beside it; returns the backup."""
    if _read(patch.path) != patch.before:
        raise Outside(f"{patch.path}: changed while the patch was made")
    if MARK in patch.before:
        raise BadInput(f"{patch.path}: is patched already", hint="`--revert` restores the original first")
    if not anyway and not known(patch.path):
        raise BadInput(
            f"{patch.path}: is not a file of a release moebox knows; it may have been edited",
            hint="look at the diff, then add --yes to patch it anyway",
        )
    backup = patch.path.with_name(patch.path.name + BACKUP)
    try:
        raw = patch.path.read_bytes()
        _write(backup, raw)
        _write(patch.path, patch.after.encode())
    except OSError as problem:
        raise Outside(f"{patch.path}: cannot be written: {problem.strerror}") from None
    return backup


def revert(root: Path, engine: str) -> list[Path]:
    """Restore every file that has a backup, byte for byte."""
    restored = []
    for path in patched(root, engine):
        try:
            path.with_name(path.name + BACKUP).replace(path)
        except OSError as problem:
            raise Outside(f"{path}: cannot be restored: {problem.strerror}") from None
        restored.append(path)
    if not restored:
        raise BadInput(f"{root / engine}: nothing was patched here")
    return restored


def patched(root: Path, engine: str) -> list[Path]:
    """Files of the engine that carry a patch of ours."""
    return [path.with_name(path.name.removesuffix(BACKUP)) for path in sorted((root / engine).rglob(f"*{BACKUP}"))]


def known(path: Path) -> bool:
    """Whether the file is byte for byte one of a release in the table."""
    mark = hashlib.sha256(path.read_bytes()).hexdigest()
    return mark in catalogue.table("kernel_files")["sha256"]


def _read(path: Path) -> str:
    try:
        return path.read_bytes().decode()
    except OSError as problem:
        raise Outside(f"{path}: cannot be read: {problem.strerror}") from None


def _write(path: Path, raw: bytes) -> None:
    half = path.with_name(f".{path.name}.{os.getpid()}.part")
    half.write_bytes(raw)
    half.replace(path)
