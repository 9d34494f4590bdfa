"""The job's folder, in memory: tools read and write it, so that no path of the agent reaches a disk.

Programs see it as files in the sandbox; `clients.py` writes it to a real folder for real clients.
"""

import posixpath
from collections.abc import Mapping

MAX_BYTES = 4 * 2**20  # of all files together
MAX_FILES = 500
MAX_NAME_CHARS = 200


class ToolRefused(Exception):
    """A tool cannot do what was asked; the text is its answer."""


class Workspace:
    """Files by their path within the folder."""

    def __init__(self, files: Mapping[str, str]) -> None:
        self.files: dict[str, bytes] = {name: text.encode() for name, text in files.items()}
        self.outside: list[str] = []  # requested paths outside the folder

    def resolve_path(self, given: str) -> str:
        """`given` as a path within the folder. Raise ToolRefused if it leads out of it."""
        name = posixpath.normpath(given.strip()) if given.strip() else "."
        leaves = name == ".." or name.startswith(("/", "../"))
        if leaves or "\0" in name:
            self.outside.append(given[:MAX_NAME_CHARS])
            raise ToolRefused(f"{given[:80]}: outside the job's folder; paths are relative to it")
        if len(name) > MAX_NAME_CHARS:
            raise ToolRefused("the path is too long")
        return name

    def read_text(self, given: str) -> str:
        name = self.resolve_path(given)
        if name not in self.files:
            raise ToolRefused(f"{given[:80]}: no such file; list_files shows all files")
        return self.files[name].decode(errors="replace")

    def write_text(self, given: str, text: str) -> str:
        """Write a whole file; return its path."""
        name, data = self.resolve_path(given), text.encode("utf-8", "replace")
        if name == "." or name in {posixpath.dirname(other) for other in self.files}:
            raise ToolRefused(f"{given[:80]}: is a folder")
        if any(name.startswith(f"{other}/") for other in self.files):
            raise ToolRefused(f"{given[:80]}: a file is in the place of a folder")
        self._require_room({**self.files, name: data})
        self.files[name] = data
        return name

    def replace_files(self, files: Mapping[str, bytes]) -> list[str]:
        """Replace all files by those a program left; return the paths that changed."""
        self._require_room(files)
        before, self.files = self.files, dict(files)
        names = sorted({*before, *self.files})
        return [name for name in names if before.get(name) != self.files.get(name)]

    def _require_room(self, files: Mapping[str, bytes]) -> None:
        if len(files) > MAX_FILES:
            raise ToolRefused(f"more than {MAX_FILES} files")
        if sum(map(len, files.values())) > MAX_BYTES:
            raise ToolRefused(f"more than {MAX_BYTES:,} bytes in all")
