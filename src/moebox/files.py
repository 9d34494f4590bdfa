"""Files written whole or not at all, and the folders moebox keeps its own in (XDG base directories)."""

import contextlib
import errno
import os
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Literal

from moebox.errors import ExternalError, MoeboxError
from moebox.site import read_site

MAX_REMOVAL_S = 30.0  # for one tree; `rm -rf` of 3,000 nested folders took 0.2 to 10 s on ext4 (November 2026)
_READ_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_SCRATCH = re.compile(r"moebox-[a-z]+-(\d+)-\w+")
_left: set[str] = set()  # scratch folders that could not be removed: each is one warning of this process


def write_atomic(path: Path, data: str | bytes, *, mode: int | None = None, sync: bool = False) -> Path:
    """Write `path` so that a reader sees the old content or the new, never a part; its folder is made if need be.

    A pipe or a device takes the text itself: a file in its place would be a surprise. OSError leaves nothing behind.
    """
    raw = data.encode("utf-8", "backslashreplace") if isinstance(data, str) else data
    with open_atomic(path, mode=mode, sync=sync) as file:
        file.write(raw)
    return path


@contextlib.contextmanager
def open_atomic(path: Path, *, mode: int | None = None, sync: bool = False) -> Iterator[BinaryIO]:
    """`write_atomic` for what is written piece by piece: it takes the place of `path` when the block ends well."""
    if is_stream(path):
        number = _descriptor(path)
        sys.stdout.flush()  # it may be the same one
        with open(path if number is None else os.dup(number), "wb") as file:
            yield file
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    part = _part(path)
    try:
        with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666 if mode is None else mode), "wb") as file:
            yield file
            if sync:
                file.flush()
                os.fsync(file.fileno())
        if mode is not None:
            part.chmod(mode)  # past the umask
        part.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        raise


def make_private_folder(path: Path) -> Path:
    """Create a folder that only its owner may enter. One of this user's that others may enter is narrowed."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = path.stat()
    if status.st_uid == os.geteuid() and status.st_mode & 0o077:
        with contextlib.suppress(OSError):  # a file system without modes
            path.chmod(0o700)
    return path


def check_writable(path: Path) -> None:
    """OSError where `path` cannot be written, before the work whose result it is to hold; what is there stays."""
    if is_stream(path):  # not opened: the reader of a pipe would take that for its end
        number = errno.EISDIR if path.is_dir() else 0 if os.access(path, os.W_OK) else errno.EACCES
        if number:
            raise OSError(number, os.strerror(number), str(path))
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    part = _part(path)
    try:
        part.write_bytes(bytes(4096))  # an empty file may fit on a full disk
    finally:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)


def is_stream(path: Path) -> bool:
    """A pipe, a device, or what this process has open, like /dev/stdout: nothing takes its place."""
    return _descriptor(path) is not None or (path.exists() and not path.is_file())


def _descriptor(path: Path) -> int | None:
    """1 for /dev/stdout, even where the shell leads it into a file: that is written on from where it has got to."""
    for place in (path, path.readlink() if path.is_symlink() else path):
        if place.name.isdigit() and os.path.realpath(place.parent) == f"/proc/{os.getpid()}/fd":
            return int(place.name)
    return None


def _part(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}.part")


@contextlib.contextmanager
def report_write_errors(
    path: Path, *, error_type: type[MoeboxError] = ExternalError, hint: str | None = None
) -> Iterator[None]:
    """What is written in the block belongs to `path`: an error names it where it cannot be."""
    try:
        yield
    except OSError as problem:
        hint = hint or ("it is a folder: name a file in it" if problem.errno == errno.EISDIR else None)
        raise error_type(f"{path}: cannot be written: {problem.strerror}", hint=hint) from problem


@contextlib.contextmanager
def scratch_folder(purpose: str) -> Iterator[Path]:
    """A folder below the system's for temporary files, gone afterwards; those that killed processes left go first."""
    remove_stale_scratch()
    folder = tempfile.mkdtemp(prefix=f"moebox-{purpose}-{os.getpid()}-")
    try:
        yield Path(folder)
    finally:
        _remove_scratch(folder)


def remove_stale_scratch() -> None:
    """Remove our own scratch folders whose process is gone."""
    with contextlib.suppress(OSError):
        for entry in os.scandir(tempfile.gettempdir()):
            match = _SCRATCH.fullmatch(entry.name)
            if match is None or entry.path in _left or os.path.exists(f"/proc/{match[1]}"):
                continue
            if entry.is_dir(follow_symlinks=False) and entry.stat(follow_symlinks=False).st_uid == os.geteuid():
                _remove_scratch(entry.path)


def _remove_scratch(folder: str) -> None:
    """Remove a scratch folder, or print one warning."""
    if not remove_tree(folder):
        _left.add(folder)
        print(f"warning: {folder} could not be removed; remove it by hand", file=sys.stderr)


def remove_tree(path: str | Path, *, within_s: float = MAX_REMOVAL_S) -> bool:
    """Remove a folder with everything in it; return False if something is left. Never raises, never follows a link.

    Only the current folder is open, whatever the depth: the way back up is "..", compared with the folder that was
    left. Other file systems that are mounted inside are left alone.
    """
    until = time.monotonic() + within_s
    with contextlib.suppress(OSError):
        here = _open_folder(path)
        try:
            above = [(_identity(here), _remove_files(here, until))]  # for each open level: folders still to be removed
            while time.monotonic() < until:
                if above[-1][1]:
                    try:
                        inner = _open_folder(above[-1][1][-1], here)
                    except OSError:
                        above[-1][1].pop()
                        continue
                    os.close(here)
                    here = inner
                    same_device = _identity(here)[0] == above[0][0][0]
                    above.append((_identity(here), _remove_files(here, until) if same_device else []))
                    continue
                above.pop()
                if not above:
                    break
                inner, here = here, os.open("..", _READ_FOLDER, dir_fd=here)
                os.close(inner)
                if _identity(here) != above[-1][0]:
                    break  # another process moved the folder
                with contextlib.suppress(OSError):
                    os.rmdir(above[-1][1].pop(), dir_fd=here)
        finally:
            os.close(here)
        os.rmdir(path)
    return not os.path.lexists(path)


def _open_folder(path: str | Path, parent: int | None = None) -> int:
    """Open a folder that is not a link; its owner may read and change it from then on."""
    handle = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    try:
        if os.fstat(handle).st_mode & 0o700 != 0o700:
            os.chmod(f"/proc/self/fd/{handle}", 0o700)
        return os.open(".", _READ_FOLDER, dir_fd=handle)
    finally:
        os.close(handle)


def _identity(folder: int) -> tuple[int, int]:
    status = os.fstat(folder)
    return status.st_dev, status.st_ino


def _remove_files(folder: int, until: float) -> list[str]:
    """Remove everything from an open folder but folders; return the names of those."""
    folders = []
    for name in os.listdir(folder):
        if time.monotonic() > until:
            break
        try:
            os.unlink(name, dir_fd=folder)
        except IsADirectoryError:
            folders.append(name)
        except OSError:
            pass  # the folder that holds it stays, and that is reported
    return folders


def xdg_home(kind: Literal["data", "cache", "state", "config"]) -> Path:
    """The folder for what a user wants to keep, what can be made again, what programs note, and settings."""
    usual = {"data": ".local/share", "cache": ".cache", "state": ".local/state", "config": ".config"}
    return Path(os.environ.get(f"XDG_{kind.upper()}_HOME") or Path.home() / usual[kind])


def moebox_cache() -> Path:
    """Where moebox keeps what it can make again: $MOEBOX_CACHE, the machine's (site.py), or the user's own."""
    if named := os.environ.get("MOEBOX_CACHE"):
        return Path(named).expanduser()
    if shared := read_site().user_cache:
        with contextlib.suppress(OSError):  # not writable for this user
            if not shared.is_symlink() and make_private_folder(shared).stat().st_uid == os.geteuid():
                return shared  # and not one that another user made in this one's name
    return xdg_home("cache") / "moebox"


def moebox_state() -> Path:
    """Where moebox keeps engines that run and models that were read from the Hub: $MOEBOX_STATE, or the user's."""
    return Path(os.environ.get("MOEBOX_STATE") or xdg_home("state") / "moebox")
