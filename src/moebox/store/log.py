"""engine.log in bounded space: the beginning and the end are kept, the middle is dropped.

An engine's first error is the cause and its last lines are the present state.

    engine.log.0   the beginning, never dropped
    engine.log.2   older
    engine.log.1   newer
    engine.log     now
"""

import os
from itertools import pairwise
from pathlib import Path

MAX_PIECE_BYTES = 32 * 2**20  # vLLM at its default verbosity writes a few MB a day
KEPT_PIECES = 3  # beside the beginning


class EngineLog:
    def __init__(self, path: Path, *, limit: int = MAX_PIECE_BYTES, keep: int = KEPT_PIECES) -> None:
        self.path, self.limit, self.keep = path, limit, keep
        self._file = open(path, "ab", buffering=0)  # noqa: SIM115  (open as long as the engine lives)
        self._size = os.fstat(self._file.fileno()).st_size

    def write(self, data: bytes) -> None:
        """Append, and rotate before that if the piece is full."""
        if self._size and self._size + len(data) > self.limit:
            self._file.close()
            target = log_piece(self.path, 0)
            if target.exists():  # it stays; older pieces move up to the place of the oldest
                pieces = [log_piece(self.path, number) for number in range(self.keep, 0, -1)]
                for older, newer in pairwise(pieces):
                    if newer.exists():
                        newer.replace(older)
                target = pieces[-1]
            self.path.replace(target)
            self._file = open(self.path, "ab", buffering=0)  # noqa: SIM115
            self._size = 0
        self._file.write(data)
        self._size += len(data)

    def close(self) -> None:
        self._file.close()


def log_piece(path: Path, number: int) -> Path:
    return path.with_name(f"{path.name}.{number}")


def log_pieces(path: Path) -> list[Path]:
    """The existing pieces of a log, oldest first."""
    endings = [part.suffix[1:] for part in path.parent.glob(f"{path.name}.*")]
    numbers = sorted(int(ending) for ending in endings if ending.isdigit())
    first, later = numbers[:1] if 0 in numbers else [], list(filter(None, reversed(numbers)))
    return [log_piece(path, number) for number in first + later] + ([path] if os.path.lexists(path) else [])
