"""Writes a remedy as a unified diff against the installed file, applies it with a backup, and reverts it.

A patch adds a branch for one GPU capability and leaves the code for other GPUs as it was. A file that is not the
release's own (by its hash) is not touched unless the user insists, and a patch applies whole or not at all.
"""

import contextlib
import difflib
import fcntl
import hashlib
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from moebox.core import catalogue
from moebox.errors import BadInput, ExternalError, Unsupported, refuse_if
from moebox.files import report_write_errors, write_atomic
from moebox.serve.preflight import BACKUP_SUFFIX, patched_files
from moebox_kernels.fix import LaunchRemedy

PATCH_MARK = "# moebox:"


@dataclass(frozen=True, slots=True, kw_only=True)
class FilePatch:
    path: Path  # on disk
    name: str  # below site-packages
    before: str
    after: str

    @property
    def diff(self) -> str:
        """The change as `patch -p1` takes it."""
        before, after = self.before.splitlines(keepends=True), self.after.splitlines(keepends=True)
        return "".join(difflib.unified_diff(before, after, f"a/{self.name}", f"b/{self.name}"))

    @property
    def backup(self) -> Path:
        return _backup_path(self.path)


def _backup_path(path: Path) -> Path:
    return path.with_name(path.name + BACKUP_SUFFIX)


def remedy_patches(remedies: tuple[LaunchRemedy, ...], root: Path, capability: int) -> tuple[FilePatch, ...]:
    """Return a patch for each file that has launches to fix."""
    made: dict[Path, FilePatch] = {}
    for remedy in remedies:
        path = root / remedy.launch.file
        if remedy.launch.kernel.startswith("fused_moe"):  # SGLang chooses its blocks in another file
            path = next(iter(sorted(root.glob("sglang/**/fused_moe_triton_config.py"))), path)
        before = made[path].before if path in made else read_engine_file(path)
        after = _patch_text(made[path].after if path in made else before, remedy, capability)
        made[path] = FilePatch(path=path, name=str(path.relative_to(root)), before=before, after=after)
    return tuple(made.values())


def _patch_text(text: str, remedy: LaunchRemedy, capability: int) -> str:
    best, launch = remedy.candidates[0], remedy.launch
    comment = (
        f"{PATCH_MARK} {launch.kernel} asked {launch.shared_bytes:,} bytes, the limit is {launch.limit_bytes:,}; "
        f"this asks {best.shared_bytes:,}"
    )
    here = f"if torch.cuda.get_device_capability()[0] == {capability // 10}"
    if launch.kernel == "_fwd_kernel" and "BLOCK_M" in best.blocks:
        width = int(launch.blocks.get("BLOCK_DMODEL", 0)) + int(launch.blocks.get("BLOCK_DPE", 0))
        choice = {**best.blocks, "num_warps": best.num_warps, "num_stages": best.num_stages}
        return patch_extend_blocks(text, capability=capability, width=width, choice=choice, comment=comment)
    if launch.kernel == "_fwd_grouped_kernel_stage1":
        lines = [
            f"{here} and k_buffer.element_size() == 1:",
            f"    {comment}",
            f"    BLOCK, num_stages = {best.blocks['BLOCK_N']}, {best.num_stages}",
        ]
        return _insert_lines(text, r"^    _fwd_grouped_kernel_stage1\[grid\]\($", lines)
    start = text.find("def get_default_config(")
    if launch.kernel.startswith("fused_moe") and start >= 0:
        fp8 = 'dtype == "fp8_w8a8" and block_shape is None and M > E'
        lines = [
            f"{here} and {fp8}:",
            f"    {comment}",
            f"    config |= {{"
            f'"BLOCK_SIZE_M": {best.blocks["BLOCK_SIZE_M"]}, "BLOCK_SIZE_N": {best.blocks["BLOCK_SIZE_N"]}, '
            f'"num_warps": {best.num_warps}, "num_stages": {best.num_stages}}}',
        ]
        return text[:start] + _insert_lines(text[start:], r"^    return config$", lines, last=True)
    raise Unsupported(f"{launch.file}: no place for a patch of {launch.kernel} is known")


def patch_extend_blocks(text: str, *, capability: int, width: int, choice: dict[str, int], comment: str) -> str:
    """Add a branch for one capability and head width to SGLang's extend attention."""
    branch = f"if _is_cuda and CUDA_CAPABILITY[0] == {capability // 10} and Lq == {width}:"
    blocks = f"    BLOCK_M, BLOCK_N = ({choice['BLOCK_M']}, {choice['BLOCK_N']})"
    lines = [branch, f"    {comment}", blocks, f"    num_warps = {choice['num_warps']}"]
    text = _insert_lines(text, r"^    return BLOCK_DMODEL, BLOCK_DPE, BLOCK_DV, BLOCK_M, BLOCK_N, num_warps$", lines)
    if choice["num_stages"] == 1:  # as the engine has it
        return text
    lines = [branch, f"    num_stages = {choice['num_stages']}  {PATCH_MARK} as well"]
    return _insert_lines(text, r"^    _fwd_kernel\[grid\]\($", lines)


def _insert_lines(text: str, anchor: str, lines: list[str], *, last: bool = False) -> str:
    """Insert `lines` before the anchor line, at its indentation. Raise Unsupported if the anchor is missing."""
    found = list(re.finditer(anchor, text, re.MULTILINE))
    if last:  # of the function that the text starts with
        end = re.search(r"^(?:def|class|@)", text[1:], re.MULTILINE)
        found = [match for match in found if not end or match.start() < end.start()][-1:]
    if not found:
        raise Unsupported("this version of the file has no known place for the patch")
    at = found[0].start()
    block = "".join(f"    {line}\n" for line in lines)
    return text[:at] + block + "\n" + text[at:]


def apply_all(patches: tuple[FilePatch, ...], *, force: bool = False) -> list[Path]:
    """Apply every patch, or none: a failure or an interrupt reverts those before it. Return the backups."""
    done: list[FilePatch] = []
    try:
        for patch in patches:
            done.append(patch)
            apply_patch(patch, force=force)
    except BaseException:
        for patch in done:  # undo as far as each came; another process's changes stay
            is_last = patch is done[-1]  # it may itself have waited for the lock
            with contextlib.suppress(OSError), _lock_folder(patch.path.parent, wait=not is_last):
                if patch.backup.exists() and patch.backup.read_bytes() == patch.before.encode():
                    now = patch.path.read_bytes()
                    if now == patch.after.encode():
                        patch.backup.replace(patch.path)
                    elif now == patch.before.encode():
                        patch.backup.unlink()
        raise
    return [patch.backup for patch in patches]


def apply_patch(patch: FilePatch, *, force: bool = False) -> Path:
    """Write the patched file, keep the original beside it, and return the backup."""
    path, backup = patch.path, patch.backup
    with report_write_errors(path, hint="patch it as the user who owns the engine"), _lock_folder(path.parent):
        now = read_engine_file(path)
        if PATCH_MARK in now or (backup.exists() and backup.read_bytes() != now.encode()):
            raise BadInput(f"{path}: is patched already", hint="`--revert` restores the original first")
        if now != patch.before:
            raise ExternalError(f"{path}: changed while the patch was made")
        mode = stat.S_IMODE(path.stat().st_mode)
        if not mode & stat.S_IWUSR:
            raise ExternalError(f"{path}: is read-only", hint=f"chmod u+w {path}, if it may be changed")
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        text = f"{path}: is not a file of a release moebox knows; it may have been edited"
        hint = "look at the diff, then add --yes to patch it anyway"
        refuse_if(not force and digest not in catalogue.load_table("kernel_files")["sha256"], text, hint=hint)
        write_atomic(backup, patch.before.encode(), mode=mode)
        write_atomic(path, patch.after.encode(), mode=mode)
    return backup


@contextlib.contextmanager
def _lock_folder(folder: Path, *, wait: bool = True) -> Iterator[None]:
    """Let only one moebox process change files of a folder."""
    held = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(held)


def revert_patches(root: Path, engine: str) -> list[Path]:
    """Restore every file that has a backup, byte for byte."""
    restored = []
    for path in patched_files(root, engine):
        try:
            with _lock_folder(path.parent):
                _backup_path(path).replace(path)
        except OSError as problem:
            raise ExternalError(f"{path}: cannot be restored: {problem.strerror}") from None
        restored.append(path)
    refuse_if(not restored, f"{root / engine}: nothing was patched here")
    return restored


def read_engine_file(path: Path) -> str:
    try:
        return path.read_bytes().decode()  # to the byte: no translation of line ends
    except OSError as problem:
        raise ExternalError(f"{path}: cannot be read: {problem.strerror}") from None
    except UnicodeDecodeError:
        raise BadInput(f"{path}: is not text; it cannot be patched") from None
