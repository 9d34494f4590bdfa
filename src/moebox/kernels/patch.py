"""Writes a remedy as a unified diff against the installed file, applies it with a backup, and takes it back.

A patch adds a branch for the capability and leaves what other GPUs run as it was. A file that is not the release's
own (by its hash) is not touched unless the person says so, and a patch applies whole or not at all.
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
from moebox.kernels.fix import LaunchRemedy

BACKUP_SUFFIX = ".moebox-original"
PATCH_MARK = "# moebox:"


@dataclass(frozen=True, slots=True, kw_only=True)
class FilePatch:
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


def remedy_patches(remedies: tuple[LaunchRemedy, ...], root: Path, capability: int) -> tuple[FilePatch, ...]:
    """A patch for each file that has launches to mend."""
    made: dict[Path, FilePatch] = {}
    for remedy in remedies:
        path = root / _place(remedy, root)
        before = made[path].before if path in made else read_engine_file(path)
        text = made[path].after if path in made else before
        after = _patch_text(text, remedy, capability)
        made[path] = FilePatch(path=path, name=str(path.relative_to(root)), before=before, after=after)
    return tuple(made.values())


def _place(remedy: LaunchRemedy, root: Path) -> str:
    """The file to change: where blocks are chosen, which for fused MoE is its configuration file."""
    file = remedy.launch.file
    if remedy.launch.kernel.startswith("fused_moe"):
        for found in sorted(root.glob("sglang/**/fused_moe_triton_config.py")):
            return str(found.relative_to(root))
    return file


def _patch_text(text: str, remedy: LaunchRemedy, capability: int) -> str:
    best, launch = remedy.candidates[0], remedy.launch
    about = f"{launch.kernel} asked {launch.shared_bytes:,} bytes, the limit is {launch.limit_bytes:,}; this asks"
    about = f"{PATCH_MARK} {about} {best.shared_bytes:,}"
    here = f"if torch.cuda.get_device_capability()[0] == {capability // 10}"
    if launch.kernel == "_fwd_kernel" and "BLOCK_M" in best.blocks:
        width = int(launch.blocks.get("BLOCK_DMODEL", 0)) + int(launch.blocks.get("BLOCK_DPE", 0))
        choice = {**best.blocks, "num_warps": best.num_warps, "num_stages": best.num_stages}
        return patch_extend_blocks(text, capability=capability, width=width, choice=choice, comment=about)
    if launch.kernel == "_fwd_grouped_kernel_stage1":
        lines = [
            f"{here} and k_buffer.element_size() == 1:",
            f"    {about}",
            f"    BLOCK, num_stages = {best.blocks['BLOCK_N']}, {best.num_stages}",
        ]
        return _insert_lines(text, r"^    _fwd_grouped_kernel_stage1\[grid\]\($", lines)
    start = text.find("def get_default_config(")
    if launch.kernel.startswith("fused_moe") and start >= 0:
        fp8 = 'dtype == "fp8_w8a8" and block_shape is None and M > E'
        lines = [
            f"{here} and {fp8}:",
            f"    {about}",
            f"    config |= {{"
            f'"BLOCK_SIZE_M": {best.blocks["BLOCK_SIZE_M"]}, "BLOCK_SIZE_N": {best.blocks["BLOCK_SIZE_N"]}, '
            f'"num_warps": {best.num_warps}, "num_stages": {best.num_stages}}}',
        ]
        return text[:start] + _insert_lines(text[start:], r"^    return config$", lines, last=True)
    raise Unsupported(f"{launch.file}: no place for a patch of {launch.kernel} is known")


def patch_extend_blocks(text: str, *, capability: int, width: int, choice: dict[str, int], comment: str) -> str:
    """SGLang's extend attention with a branch for one capability and width of head; `about` is its comment."""
    branch = f"if _is_cuda and CUDA_CAPABILITY[0] == {capability // 10} and Lq == {width}:"
    blocks = f"    BLOCK_M, BLOCK_N = ({choice['BLOCK_M']}, {choice['BLOCK_N']})"
    lines = [branch, f"    {comment}", blocks, f"    num_warps = {choice['num_warps']}"]
    text = _insert_lines(text, r"^    return BLOCK_DMODEL, BLOCK_DPE, BLOCK_DV, BLOCK_M, BLOCK_N, num_warps$", lines)
    if choice["num_stages"] == 1:  # as the engine has it
        return text
    return _insert_lines(
        text, r"^    _fwd_kernel\[grid\]\($", [branch, f"    num_stages = {choice['num_stages']}  {PATCH_MARK} as well"]
    )


def _insert_lines(text: str, anchor: str, lines: list[str], *, last: bool = False) -> str:
    """`lines` before the anchor line, at its indentation; the anchor must be there."""
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
    """Apply every patch, or none: what fails or is interrupted takes back those before it. Returns the backups."""
    done: list[FilePatch] = []
    try:
        for patch in patches:
            done.append(patch)
            apply_patch(patch, force=force)
    except BaseException:
        for patch in done:
            _undo_patch(patch, wait=patch is not done[-1])  # the last may itself have waited for its turn
        raise
    return [_backup_path(patch.path) for patch in patches]


def apply_patch(patch: FilePatch, *, force: bool = False) -> Path:
    """Write the patched file, the original kept beside it; returns the backup."""
    backup = _backup_path(patch.path)
    with (
        report_write_errors(patch.path, hint="patch it as the user who owns the engine"),
        _lock_folder(patch.path.parent),
    ):
        _check_patchable(patch, backup, force=force)
        _write(backup, patch.before.encode(), like=patch.path)
        _write(patch.path, patch.after.encode(), like=patch.path)
    return backup


def _check_patchable(patch: FilePatch, backup: Path, *, force: bool) -> None:
    now = read_engine_file(patch.path)
    if PATCH_MARK in now or (backup.exists() and backup.read_bytes() != now.encode()):
        raise BadInput(f"{patch.path}: is patched already", hint="`--revert` restores the original first")
    if now != patch.before:
        raise ExternalError(f"{patch.path}: changed while the patch was made")
    if not patch.path.stat().st_mode & stat.S_IWUSR:
        raise ExternalError(f"{patch.path}: is read-only", hint=f"chmod u+w {patch.path}, if it may be changed")
    if not force and not is_release_file(patch.path):
        raise BadInput(
            f"{patch.path}: is not a file of a release moebox knows; it may have been edited",
            hint="look at the diff, then add --yes to patch it anyway",
        )


def _undo_patch(patch: FilePatch, *, wait: bool) -> None:
    """Undo what `apply` did of a patch, as far as it came; what somebody else wrote stays."""
    backup = _backup_path(patch.path)
    with contextlib.suppress(OSError), _lock_folder(patch.path.parent, wait=wait):
        if backup.exists() and backup.read_bytes() == patch.before.encode():
            now = patch.path.read_bytes()
            if now == patch.after.encode():
                backup.replace(patch.path)
            elif now == patch.before.encode():
                backup.unlink()


def _backup_path(path: Path) -> Path:
    return path.with_name(path.name + BACKUP_SUFFIX)


@contextlib.contextmanager
def _lock_folder(folder: Path, *, wait: bool = True) -> Iterator[None]:
    """One moebox at a time changes files of a folder."""
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


def patched_files(root: Path, engine: str) -> list[Path]:
    """Files of the engine that carry a patch of ours."""
    return [
        path.with_name(path.name.removesuffix(BACKUP_SUFFIX))
        for path in sorted((root / engine).rglob(f"*{BACKUP_SUFFIX}"))
    ]


def is_release_file(path: Path) -> bool:
    """Whether the file is byte for byte one of a release in the table."""
    mark = hashlib.sha256(path.read_bytes()).hexdigest()
    return mark in catalogue.load_table("kernel_files")["sha256"]


def read_engine_file(path: Path) -> str:
    """A file of an engine, to the byte."""
    try:
        return path.read_bytes().decode()
    except OSError as problem:
        raise ExternalError(f"{path}: cannot be read: {problem.strerror}") from None
    except UnicodeDecodeError:
        raise BadInput(f"{path}: is not text; it cannot be patched") from None


def _write(path: Path, raw: bytes, *, like: Path) -> None:
    """Whole or not at all, with the permissions of `like`."""
    write_atomic(path, raw, mode=stat.S_IMODE(like.stat().st_mode))
