"""The job's folder, in memory: what tools read and write, so that no path of the agent's ever meets a disk.

Programs see it as files in the sandbox; real clients, which need a folder, get one written out by `clients.py`.
"""

import posixpath
from collections.abc import Mapping

MOST_BYTES = 4 * 2**20  # of all files together
MOST_FILES = 500
LONGEST_NAME = 200


class ToolRefused(Exception):
    """What was asked of the folder cannot be done; the text is the tool's answer."""


class Workspace:
    """Files by their path within the folder."""

    def __init__(self, files: Mapping[str, str]) -> None:
        self.files: dict[str, bytes] = {name: text.encode() for name, text in files.items()}
        self.outside: list[str] = []  # paths that were asked for and lie elsewhere

    def resolve_path(self, given: str) -> str:
        """`given` as a path within the folder; Refused where it leads out of it."""
        name = posixpath.normpath(given.strip()) if given.strip() else "."
        leaves = name == ".." or name.startswith(("/", "../"))
        if leaves or "\0" in name:
            self.outside.append(given[:LONGEST_NAME])
            raise ToolRefused(f"{given[:80]}: outside the job's folder; paths are relative to it")
        if len(name) > LONGEST_NAME:
            raise ToolRefused("the path is too long")
        return name

    def read_text(self, given: str) -> str:
        """A file's text."""
        name = self.resolve_path(given)
        if name not in self.files:
            raise ToolRefused(f"{given[:80]}: no such file; list_files shows what there is")
        return self.files[name].decode(errors="replace")

    def write_text(self, given: str, text: str) -> str:
        """Write a file whole; its path."""
        name = self.resolve_path(given)
        if name == "." or name in {posixpath.dirname(other) for other in self.files}:
            raise ToolRefused(f"{given[:80]}: is a folder")
        if any(name.startswith(f"{other}/") for other in self.files):
            raise ToolRefused(f"{given[:80]}: a file stands where a folder is needed")
        self._room({**self.files, name: text.encode("utf-8", "replace")})
        self.files[name] = text.encode("utf-8", "replace")
        return name

    def replace_files(self, files: Mapping[str, bytes]) -> list[str]:
        """Take over what a program left; the paths that changed."""
        self._room(files)
        before, self.files = self.files, dict(files)
        names = sorted({*before, *self.files})
        return [name for name in names if before.get(name) != self.files.get(name)]

    def _room(self, files: Mapping[str, bytes]) -> None:
        if len(files) > MOST_FILES:
            raise ToolRefused(f"more than {MOST_FILES} files")
        if sum(map(len, files.values())) > MOST_BYTES:
            raise ToolRefused(f"more than {MOST_BYTES:,} bytes in all")
