"""`moebox logs`: an engine's words."""

import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from moebox.errors import BadInput, refuse_if
from moebox.escape import escape_invisible

if TYPE_CHECKING:
    from moebox.serve.tail import LogTail

COLOURS = re.compile(r"\x1b\[[\d;]*m")  # engines colour their logs; left out rather than spelled out


def logs(
    name: str | None = None,
    /,
    *,
    follow: Annotated[bool, Parameter(name=("--follow", "-f"), negative=())] = False,
    lines: Annotated[int | None, Parameter(name=("--lines", "-n"))] = None,
) -> int:
    """Print the log of an engine, running or not.

    Args:
        name: The engine's id (or its beginning), its recipe's name, or a run; the only running one when left out.
        follow: Keep printing until the engine ends or Ctrl-C.
        lines: Print only the last N lines.
    """
    refuse_if(lines is not None and lines < 0, f"--lines {lines}: must not be negative")
    path, alive = find_log(name)
    from moebox.serve.tail import LogTail
    from moebox.store import plain
    from moebox.store.log import log_pieces

    for piece in log_pieces(path):
        plain.refuse_unusual(piece)
    if lines is None:
        for piece in log_pieces(path)[:-1]:  # a long log is kept in pieces: its beginning, and the newest
            print_file(piece)
    print_rest(LogTail(path, start=last_lines_offset(path, lines) if lines is not None else 0), alive, follow=follow)
    return 0


def print_rest(tail: "LogTail", alive: Callable[[], bool], *, follow: bool) -> None:
    """Everything up to the end of a log; `follow` waits for more while its engine is alive."""
    while True:
        data = tail.read_new()
        if data:
            print_bytes(data)
        elif not follow or not alive():
            return
        else:
            time.sleep(0.2)


def print_file(path: Path) -> None:
    """A piece of a log from its beginning to its end."""
    with open(path, "rb") as file:
        while data := file.read(65536):
            print_bytes(data)


def print_bytes(data: bytes) -> None:
    """A piece of a log: as it is into a file or a pipe, without what would drive a terminal on one."""
    if sys.stdout.isatty():
        data = escape_invisible(COLOURS.sub("", data.decode("utf-8", "replace").replace("\r\n", "\n"))).encode()
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def find_log(name: str | None) -> tuple[Path, Callable[[], bool]]:
    """The log's path, and a way to ask whether there may be more."""
    from moebox.serve import state
    from moebox.store import Run

    try:
        found = state.find_instance(name)
    except BadInput:
        if name is None:
            raise
        run = Run.open(name)
        return run.path / "engine.log", lambda: False
    return Path(found.run) / "engine.log", lambda: found.is_alive


def last_lines_offset(path: Path, wanted: int) -> int:
    """Where the last `wanted` lines begin, read backwards a block at a time."""
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        return 0
    if not wanted:
        return size
    with open(path, "rb") as file:
        at, block = size, b""
        while at > 0 and block[:-1].count(b"\n") < wanted:  # the last line's own end does not count
            before, at = at, max(0, at - 65536)
            file.seek(at)
            block = file.read(before - at) + block
    lines = block.splitlines(keepends=True)
    return size - sum(map(len, lines[-wanted:]))
