"""The folder that foreign code works in: compared with its quota, and read back. Standard library only.

Folders are opened one below the other by descriptor, so no path is too long and no link is followed.
"""

import contextlib
import os
import stat
from collections.abc import Collection, Iterator

MAX_DEPTH = 32  # folders inside each other
_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def find_excess(folder: str, *, max_bytes: int, max_entries: int) -> str:
    """Return which quota the folder exceeds, in words, or ""."""
    size = 0
    for entries, (path, status, _) in enumerate(_walk(folder, make_readable=True), 1):
        is_folder = stat.S_ISDIR(status.st_mode)
        size += 0 if is_folder else status.st_blocks * 512  # stat(2): always units of 512 bytes
        if size > max_bytes:
            return f"wrote more than {max_bytes:,} bytes"
        if entries > max_entries:
            return f"made more than {max_entries:,} files and folders"
        if is_folder and path.count("/") >= MAX_DEPTH:
            return f"made more than {MAX_DEPTH} folders inside each other"
    return ""


def read_files(
    folder: str, *, max_files: int, max_bytes: int, skipped_folders: Collection[str]
) -> tuple[dict[str, bytes], bool]:
    """Read the plain files in the folder by path; the second value is False if there are more than these bounds allow.

    Folders named in `skipped_folders` are not opened, and a file that cannot be read is left out.
    """
    found: dict[str, bytes] = {}
    size = 0
    for path, status, parent in _walk(folder, skipped_folders):
        if not stat.S_ISREG(status.st_mode):
            continue
        size += status.st_size
        if len(found) >= max_files or size > max_bytes:
            return found, False
        with contextlib.suppress(OSError), open(os.open(path.rpartition("/")[2], _OPEN, dir_fd=parent), "rb") as file:
            found[path] = file.read(status.st_size)
    return found, True


def _walk(
    folder: str, skipped_folders: Collection[str] = (), *, make_readable: bool = False
) -> Iterator[tuple[str, os.stat_result, int]]:
    """Yield everything in the folder, no deeper than one level beyond MAX_DEPTH: path, lstat, open parent.

    `make_readable` is for a jail's folder, which cannot hold links: code could hide what it made in a folder that its
    owner may not read.
    """
    opened = [os.open(folder, _OPEN | os.O_DIRECTORY)]
    levels = [iter(_list_names(opened[0]))]  # names that are left in each open folder
    parts: list[str] = []
    try:
        while levels:
            name = next(levels[-1], None)
            if name is None:
                os.close(opened.pop())
                levels.pop()
                parts = parts[:-1]
                continue
            try:
                status = os.stat(name, dir_fd=opened[-1], follow_symlinks=False)
            except OSError:
                continue  # the code is still running, and removed it
            yield "/".join((*parts, name)), status, opened[-1]
            if not stat.S_ISDIR(status.st_mode) or name in skipped_folders or len(parts) >= MAX_DEPTH:
                continue
            try:
                if make_readable and status.st_mode & 0o700 != 0o700:
                    os.chmod(name, 0o700, dir_fd=opened[-1])
                opened.append(os.open(name, _OPEN | os.O_DIRECTORY, dir_fd=opened[-1]))
                levels.append(iter(_list_names(opened[-1])))
                parts = [*parts, name]
            except OSError:
                if len(opened) > len(levels):
                    os.close(opened.pop())
    finally:
        for descriptor in opened:
            os.close(descriptor)


def _list_names(folder: int) -> list[str]:
    """Return the names in an open folder, folders last."""
    with os.scandir(folder) as entries:
        return [name for _, name in sorted((entry.is_dir(follow_symlinks=False), entry.name) for entry in entries)]
