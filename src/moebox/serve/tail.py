"""Follows a log that another process writes and turns over."""

import os
from pathlib import Path
from typing import BinaryIO

BLOCK = 1 << 20


class LogTail:
    """What was added to `path` since the last look."""

    def __init__(self, path: Path, *, start: int = 0) -> None:
        self.path = path
        self._file: BinaryIO | None = None
        self._start = start  # bytes that are somebody else's, or read before

    def read_new(self) -> bytes:
        """The next piece, or nothing when there is none yet."""
        if self._file is None and not self._open():
            return b""
        assert self._file is not None
        data = self._file.read(BLOCK)
        if not data and self._turned():  # the old file is read to its end, the new one comes next
            self._file.close()
            self._file = None
            return self.read_new()
        return data

    def close(self) -> None:
        """Done following."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _open(self) -> bool:
        try:
            self._file = open(self.path, "rb", buffering=0)  # noqa: SIM115  (kept open between reads)
        except FileNotFoundError:
            return False
        self._file.seek(min(self._start, os.fstat(self._file.fileno()).st_size))
        self._start = 0
        return True

    def _turned(self) -> bool:
        assert self._file is not None
        try:
            return os.stat(self.path).st_ino != os.fstat(self._file.fileno()).st_ino
        except FileNotFoundError:
            return False
