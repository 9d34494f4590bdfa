"""Files of a run folder or a package, which may come from anybody: only plain ones are read, and only of a sane size.

A link would show a file from elsewhere in the report, and a pipe or a device would never end.
"""

import os
import stat
from pathlib import Path
from typing import Any

from moebox import codec
from moebox.errors import BadInput

LARGEST = 64 * 2**20  # bytes; a journal of a long run has some


def is_plain(path: Path) -> bool:
    """A file that is no link, pipe, device or folder."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return False


def read_bytes(path: Path, *, most: int = LARGEST) -> bytes:
    """The bytes of a plain file; FileNotFoundError where there is none, BadInput for what is not plain."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise
    except OSError as problem:
        why = "is a link" if path.is_symlink() else f"cannot be read: {problem.strerror}"
        raise BadInput(f"{path}: {why}", hint="moebox writes plain files only; put one in its place") from None
    with open(descriptor, "rb") as file:
        about = os.fstat(descriptor)
        if not stat.S_ISREG(about.st_mode):
            raise BadInput(f"{path}: is not a plain file", hint="moebox writes plain files only; put one in its place")
        if about.st_size > most:
            raise BadInput(f"{path}: {about.st_size:,} bytes is more than moebox writes")
        return file.read(most)


def read_text(path: Path) -> str:
    """The text of a plain file, whatever bytes are in it."""
    return read_bytes(path, most=LARGEST).decode("utf-8", "replace")


def load_json(path: Path) -> Any:
    """The JSON of a plain file."""
    return codec.parse_json(_settings(path), where=str(path))


def load_toml(path: Path) -> dict[str, object]:
    """The TOML of a plain file."""
    return codec.parse_toml(_settings(path), where=str(path))


def _settings(path: Path) -> str:
    try:
        return read_bytes(path, most=codec.LARGEST).decode("utf-8")
    except FileNotFoundError:
        raise BadInput(f"{path}: no such file") from None
    except UnicodeDecodeError as problem:
        raise BadInput(f"{path}: cannot be read: {problem}") from None
