"""`moebox logs`: print or follow an engine's log."""

import re
import sys
import time
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from moebox.errors import BadInput, refuse_if
from moebox.escape import escape_invisible

COLOURS = re.compile(r"\x1b\[[\d;]*m")  # engines colour their logs; left out rather than escaped
BLOCK = 65536


def logs(
    name: str | None = None,
    /,
    *,
    follow: Annotated[bool, Parameter(name=("--follow", "-f"), negative=())] = False,
    lines: Annotated[int | None, Parameter(name=("--lines", "-n"))] = None,
) -> int:
    """Print the log of an engine, running or not.

    Args:
        name: The engine's id (or its beginning), its recipe's name, or a run. Default: the only running engine.
        follow: Keep printing until the engine ends or Ctrl-C.
        lines: Print only the last N lines.
    """
    from moebox.serve import state
    from moebox.serve.tail import LogTail
    from moebox.store import Run, plain
    from moebox.store.log import log_pieces

    refuse_if(lines is not None and lines < 0, f"--lines {lines}: must not be negative")
    instance = None
    try:
        instance = state.find_instance(name)
        path = Path(instance.run) / "engine.log"
    except BadInput:
        if name is None:
            raise
        path = Run.open(name).path / "engine.log"
    for piece in log_pieces(path):
        plain.refuse_unusual(piece)
    if lines is None:
        for piece in log_pieces(path)[:-1]:  # a long log is kept in pieces: its beginning, and the newest
            with open(piece, "rb") as file:
                while data := file.read(BLOCK):
                    print_bytes(data)
    tail = LogTail(path, start=last_lines_offset(path, lines) if lines is not None else 0)
    while True:
        data = tail.read_new()
        if data:
            print_bytes(data)
        elif not follow or not instance or not instance.is_alive:
            return 0
        else:
            time.sleep(0.2)


def print_bytes(data: bytes) -> None:
    """Print a part of a log: unchanged into a file or pipe, without control sequences on a terminal."""
    if sys.stdout.isatty():
        data = escape_invisible(COLOURS.sub("", data.decode("utf-8", "replace").replace("\r\n", "\n"))).encode()
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def last_lines_offset(path: Path, wanted: int) -> int:
    """Return where the last `wanted` lines begin, reading backwards a block at a time."""
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        return 0
    if not wanted:
        return size
    with open(path, "rb") as file:
        at, block = size, b""
        while at > 0 and block[:-1].count(b"\n") < wanted:  # the last line's own end does not count
            before, at = at, max(0, at - BLOCK)
            file.seek(at)
            block = file.read(before - at) + block
    return size - sum(map(len, block.splitlines(keepends=True)[-wanted:]))
