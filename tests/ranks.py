"""Processes of a launch over several nodes."""

import contextlib
from pathlib import Path

from moebox.serve.agent import processes_with_mark


def of_rank(mark: str, rank: int) -> list[int]:
    """Those of one rank, by their command line."""
    found = []
    for pid in processes_with_mark(mark):
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if b"--node-rank" in words and words[words.index(b"--node-rank") + 1] == str(rank).encode():
                found.append(pid)
    return found
