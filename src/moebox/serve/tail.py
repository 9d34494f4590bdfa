"""Follow a log that another process writes and rotates."""

import os
from pathlib import Path
from typing import BinaryIO

BLOCK = 1 << 20


class LogTail:
    """Reads what was added to a file since the last read."""

    def __init__(self, path: Path, *, start: int = 0) -> None:
        self.path = path
        self._file: BinaryIO | None = None
        self._start = start  # bytes to skip: of an earlier run, or read before

    def read_new(self) -> bytes:
        """Read the next block, or b"" if there is none yet."""
        if self._file is None:
            try:
                self._file = open(self.path, "rb", buffering=0)  # noqa: SIM115  (kept open between reads)
            except FileNotFoundError:
                return b""
            self._file.seek(min(self._start, os.fstat(self._file.fileno()).st_size))
            self._start = 0
        data = self._file.read(BLOCK)
        if data:
            return data
        try:
            rotated = os.stat(self.path).st_ino != os.fstat(self._file.fileno()).st_ino
        except FileNotFoundError:
            rotated = False
        if not rotated:
            return b""
        self.close()
        return self.read_new()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
