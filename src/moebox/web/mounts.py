"""Paths on disks that do not answer: a stale network mount blocks every process that uses it.

Each such path costs the page one thread, however often it is requested, and a request waits only for a moment.
"""

import contextlib
import os
import threading

from moebox.errors import BadInput, refuse_if

TIMEOUT_S = 3.0  # for a disk to answer whether a file exists
MAX_BLOCKED = 8  # paths that block a thread; beyond this no further path is tried


class DiskProbe:
    """Paths that are being probed; threads of those that never answer stay in it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._threads: dict[str, threading.Thread] = {}

    def require_answer(self, text: str) -> None:
        """Raise BadInput if `text` is a path that does not answer. Names and missing paths pass."""
        if "/" not in text:
            return
        path = os.path.expanduser(text)
        with self._lock:
            self._threads = {known: thread for known, thread in self._threads.items() if thread.is_alive()}
            if path not in self._threads:
                problem = f"{path}: {MAX_BLOCKED} other paths do not answer; no further one is tried"
                refuse_if(len(self._threads) >= MAX_BLOCKED, problem)
                self._threads[path] = threading.Thread(target=stat_path, args=(path,), daemon=True)
                self._threads[path].start()
            thread = self._threads[path]
        thread.join(TIMEOUT_S)
        if thread.is_alive():
            hint = "is it on a network mount that is gone?"
            raise BadInput(f"{text}: the disk has not answered for {TIMEOUT_S:g} s", hint=hint)


def stat_path(path: str) -> None:
    """Wait for the disk to answer; its answer is not needed."""
    with contextlib.suppress(OSError, ValueError):
        os.stat(path)


DISKS = DiskProbe()
