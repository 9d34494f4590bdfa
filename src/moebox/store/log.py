"""engine.log in bounded space: the beginning is kept for good, the middle goes first.

An engine's first error is the cause and its last lines are the present; what lies between can be dropped.

    engine.log.0   the beginning, never dropped
    engine.log.2   older
    engine.log.1   newer
    engine.log     now
"""

import os
from pathlib import Path

MAX_PIECE_BYTES = 32 * 2**20  # bytes of one piece; vLLM at its default verbosity writes a few MB a day
KEPT_PIECES = 3  # pieces beside the beginning


class EngineLog:
    """A log file that turns over by itself; `write` takes whatever bytes the engine printed."""

    def __init__(self, path: Path, *, limit: int = MAX_PIECE_BYTES, keep: int = KEPT_PIECES) -> None:
        self.path, self.limit, self.keep = path, limit, keep
        self._file = open(path, "ab", buffering=0)  # noqa: SIM115  (open as long as the engine lives)
        self._size = os.fstat(self._file.fileno()).st_size

    def write(self, data: bytes) -> None:
        """Append, turning over between lines when the piece is full."""
        if self._size and self._size + len(data) > self.limit:
            self._file.close()
            rotate_by_move(self.path, keep=self.keep)
            self._file = open(self.path, "ab", buffering=0)  # noqa: SIM115
            self._size = 0
        self._file.write(data)
        self._size += len(data)

    def close(self) -> None:
        """Done writing."""
        self._file.close()


def rotate_by_move(path: Path, *, keep: int = KEPT_PIECES) -> None:
    """Move `path` out of the way: to .0 the first time, then through .1 … .keep, the oldest dropped."""
    first = log_piece(path, 0)
    if not first.exists():
        path.replace(first)
        return
    for number in range(keep, 1, -1):
        if log_piece(path, number - 1).exists():
            log_piece(path, number - 1).replace(log_piece(path, number))
    path.replace(log_piece(path, 1))


def rotate_by_copy(path: Path, *, limit: int = MAX_PIECE_BYTES, keep: int = KEPT_PIECES) -> bool:
    """Turn over a log that another process holds open for appending: copied, then emptied. True if it was due."""
    try:
        if path.stat().st_size <= limit:
            return False
    except FileNotFoundError:
        return False
    copy = path.with_name(f".{path.name}.turning")
    copy.write_bytes(path.read_bytes())
    os.truncate(path, 0)
    target = log_piece(path, 0)
    if target.exists():
        for number in range(keep, 1, -1):
            if log_piece(path, number - 1).exists():
                log_piece(path, number - 1).replace(log_piece(path, number))
        target = log_piece(path, 1)
    copy.replace(target)
    return True


def log_piece(path: Path, number: int) -> Path:
    """The numbered piece beside `path`."""
    return path.with_name(f"{path.name}.{number}")


def log_pieces(path: Path) -> list[Path]:
    """What there is of a log, oldest first."""
    endings = [part.suffix[1:] for part in path.parent.glob(f"{path.name}.*")]
    numbers = sorted(int(ending) for ending in endings if ending.isdigit())
    first, later = numbers[:1] if 0 in numbers else [], list(filter(None, reversed(numbers)))
    return [log_piece(path, number) for number in first + later] + ([path] if os.path.lexists(path) else [])
