"""Paths of the address bar on disks that do not answer: a network mount that is gone holds whoever asks it for good.

Each such path costs the page one thread, however often it is asked for, and whoever asks waits for a moment only.
"""

import contextlib
import os
import threading

from moebox.errors import BadInput

PATIENCE_S = 3.0  # for a disk to say whether a file is there
MOST_HUNG = 8  # paths that hold a thread, beyond which no further one is tried


class DiskProbe:
    """Which paths are being asked for; threads of those that never answer stay in it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._asking: dict[str, threading.Thread] = {}

    @property
    def waiting_threads(self) -> int:
        """Threads that still wait for a disk."""
        return sum(thread.is_alive() for thread in self._asking.values())

    def require_answer(self, text: str) -> None:
        """BadInput where `text` is a path that does not answer; a name, or a path that is not there, is nobody's."""
        if "/" not in text:
            return
        thread = self._asked(os.path.expanduser(text))
        thread.join(PATIENCE_S)
        if thread.is_alive():
            hint = "is it on a network mount that is gone?"
            raise BadInput(f"{text}: the disk has not answered for {PATIENCE_S:g} s", hint=hint)

    def _asked(self, path: str) -> threading.Thread:
        """The one thread that asks for this path."""
        with self._lock:
            self._asking = {known: thread for known, thread in self._asking.items() if thread.is_alive()}
            if path in self._asking:
                return self._asking[path]
            if len(self._asking) >= MOST_HUNG:
                raise BadInput(f"{path}: {MOST_HUNG} other paths do not answer; no further one is tried")
            thread = threading.Thread(target=stat_path, args=(path,), daemon=True)
            thread.start()
            self._asking[path] = thread
            return thread


def stat_path(path: str) -> None:
    """Ask the disk; what it says is not needed."""
    with contextlib.suppress(OSError, ValueError):
        os.stat(path)


DISKS = DiskProbe()
