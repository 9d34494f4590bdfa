"""A path on a stale mount: the page reports it, and goes on."""

import threading
from pathlib import Path

import pytest

from moebox.errors import BadInput
from moebox.web import mounts
from moebox.web.mounts import MAX_BLOCKED, DiskProbe


@pytest.fixture
def gone(monkeypatch: pytest.MonkeyPatch):
    """A mount on which nothing answers until the test is over; such a mount cannot be made without root."""
    over = threading.Event()

    def stat(path: str) -> None:
        if path.startswith("/gone/"):
            over.wait()

    monkeypatch.setattr(mounts, "stat_path", stat)
    monkeypatch.setattr(mounts, "TIMEOUT_S", 0.05)
    yield
    over.set()


def waiting_threads(known: DiskProbe) -> int:
    """Threads that still wait for a disk."""
    return sum(map(threading.Thread.is_alive, known._threads.values()))


def test_a_path_that_never_answers_costs_one_thread(gone: None, tmp_path: Path):
    """However often it is asked for: forty questions took every thread of the page."""
    known = DiskProbe()
    for _ in range(40):
        with pytest.raises(BadInput, match="the disk has not answered"):
            known.require_answer("/gone/model")
    assert waiting_threads(known) == 1

    known.require_answer(str(tmp_path))
    known.require_answer("kimi-k2.6")


def test_many_paths_that_never_answer_are_bounded(gone: None):
    """After a few, others are refused without a try."""
    known = DiskProbe()
    for number in range(40):
        with pytest.raises(BadInput):
            known.require_answer(f"/gone/{number}")

    assert waiting_threads(known) == MAX_BLOCKED
