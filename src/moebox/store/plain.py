"""Read files of a run folder or a package, which may be untrusted: only plain files of limited size.

A link would show a file from elsewhere in the report, and a pipe or a device would never end.
"""

import errno
import os
import stat
from pathlib import Path
from typing import Any, BinaryIO

from moebox import codec
from moebox.errors import BadInput, refuse_if

MAX_FILE_BYTES = 64 * 2**20  # the journal of a long run has some MiB


def is_plain_file(path: Path) -> bool:
    """True for a file that is not a link, pipe, device or folder."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return False


def list_entries(folder: Path, pattern: str) -> list[Path]:
    """The entries of a folder that match the pattern, sorted; none if the folder is a link."""
    return [] if os.path.islink(folder) else sorted(folder.glob(pattern))


def refuse_unusual(path: Path) -> None:
    """Raise BadInput if `path` exists and is not a plain file, or is a link."""
    if os.path.islink(path) or (path.exists() and not is_plain_file(path)):
        what = "a link" if os.path.islink(path) else "not a plain file"
        raise BadInput(f"{path}: is {what}", hint="moebox writes plain files only; remove it")


def refuse_unusual_within(folder: Path, *, but: str = "") -> None:
    """Raise BadInput if a folder contains anything but folders and plain files; the subfolder `but` is left out."""
    for place, names, file_names in os.walk(folder):
        if but and Path(place) == folder / but:
            names.clear()
            continue
        for name in (*names, *file_names):
            path = Path(place, name)
            if os.path.islink(path) or name not in names:
                refuse_unusual(path)


def open_bytes(path: Path) -> BinaryIO:
    """Open a plain file for reading. Raise OSError if it is not one or cannot be opened."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a plain file", str(path))
    return open(descriptor, "rb")


def read_bytes(path: Path, *, max_bytes: int = MAX_FILE_BYTES) -> bytes:
    """Read a plain file. Raise FileNotFoundError if there is none, BadInput if it is not plain."""
    try:
        file = open_bytes(path)
    except FileNotFoundError:
        raise
    except OSError as problem:
        reason = f"cannot be read: {problem.strerror}"
        if os.path.islink(path) or problem.errno == errno.EINVAL:
            reason = "is a link" if os.path.islink(path) else "is not a plain file"
        raise BadInput(f"{path}: {reason}", hint="moebox writes plain files only; put one in its place") from None
    with file:
        size = os.fstat(file.fileno()).st_size
        refuse_if(size > max_bytes, f"{path}: {size:,} bytes is more than moebox writes")
        return file.read(size)  # not max_bytes: `read` makes room for all that it is asked for


def read_text(path: Path) -> str:
    """Read the text of a plain file; invalid bytes are replaced."""
    return read_bytes(path, max_bytes=MAX_FILE_BYTES).decode("utf-8", "replace")


def load_json(path: Path) -> Any:
    return codec.parse_json(_read_settings(path), where=str(path))


def load_toml(path: Path) -> dict[str, object]:
    return codec.parse_toml(_read_settings(path), where=str(path))


def _read_settings(path: Path) -> str:
    try:
        return read_bytes(path, max_bytes=codec.MAX_FILE_BYTES).decode("utf-8")
    except FileNotFoundError:
        raise BadInput(f"{path}: no such file") from None
    except UnicodeDecodeError as problem:
        raise BadInput(f"{path}: cannot be read: {problem}") from None
