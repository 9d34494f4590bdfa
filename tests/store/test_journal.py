"""The journal: the reader gets every complete event and a note of the rest, however the writer ended."""

import json
import math
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moebox.core.event import JournalLost, PipelineResumed, UnknownEvent
from moebox.store import Run
from moebox.store.journal import Journal, append_line, journal_line, parse_line, read_journal


def tick(number: int, **more: object) -> UnknownEvent:
    """An event with a number."""
    return UnknownEvent(name="tick", fields={"n": number, **more})


def numbers(journal: Journal) -> list[object]:
    """Those of its events."""
    return [entry.event.data["n"] for entry in journal.entries]


def test_a_journal_cut_at_any_byte_gives_every_whole_event_and_reports_the_incomplete_one(tmp_path: Path) -> None:
    """Killed at any byte: all events with their last brace come back; an incomplete one is dropped and reported."""
    lines = [journal_line(float(number), tick(number, text="größer — 試し")) for number in range(4)]
    whole = b"".join(lines)
    path = tmp_path / "events.jsonl"
    for cut in range(len(whole) + 1):
        path.write_bytes(whole[:cut])
        ends = [len(b"".join(lines[: number + 1])) for number in range(4)]
        complete = sum(cut >= end - 1 for end in ends)  # without its newline an event is still whole
        journal = read_journal(path)
        assert numbers(journal) == list(range(complete))
        left = cut - (ends[complete - 1] if complete else 0)
        assert [("cut short" in note) for note in journal.notes] == [True] * (left > 0)


def test_a_journal_cut_at_any_byte_can_be_written_on(tmp_path: Path) -> None:
    """Resuming after a crash: the next event is never swallowed by the incomplete line before it."""
    whole = journal_line(1.0, tick(1)) + journal_line(2.0, tick(2, text="x"))
    path = tmp_path / "events.jsonl"
    for cut in range(len(whole) + 1):
        path.write_bytes(whole[:cut])
        before = len(read_journal(path).entries)
        append_line(path, journal_line(3.0, PipelineResumed()))
        journal = read_journal(path)
        assert len(journal.entries) == before + 1
        assert journal.entries[-1].event == PipelineResumed()


def test_a_writer_killed_in_mid_flow_leaves_a_readable_journal(tmp_path: Path) -> None:
    """kill -9 of a real process that writes as fast as it can: every number up to the last is there, in order."""
    code = (
        "import sys\nfrom pathlib import Path\nfrom moebox.store import Run\n"
        "from moebox.core.event import UnknownEvent\n"
        "run = Run(Path(sys.argv[1])); n = 0\n"
        "while True:\n run.add_event(UnknownEvent(name='tick', fields=dict(n=n, pad='x' * 500))); n += 1\n"
        " if n == 50: print('go', flush=True)\n"
    )
    child = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    child.stdout.readline()
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()
    journal = Run(tmp_path).read_journal()
    assert numbers(journal) == list(range(len(journal.entries)))
    assert len(journal.entries) >= 50


def test_two_writers_at_once_lose_nothing(tmp_path: Path) -> None:
    """Two processes append to one journal: all lines of both arrive whole."""
    code = (
        "import sys\nfrom pathlib import Path\nfrom moebox.store import Run\n"
        "from moebox.core.event import UnknownEvent\n"
        "run = Run(Path(sys.argv[1]))\n"
        "for n in range(200): run.add_event(UnknownEvent(name=sys.argv[2], fields={'n': n}))"
    )
    children = [subprocess.Popen([sys.executable, "-c", code, str(tmp_path), kind]) for kind in ("a", "b")]
    assert [child.wait() for child in children] == [0, 0]
    journal = Run(tmp_path).read_journal()
    assert not journal.notes
    for kind in ("a", "b"):
        assert [entry.event.data["n"] for entry in journal.entries if entry.kind == kind] == list(range(200))


def test_nan_and_infinity_become_null(tmp_path: Path) -> None:
    """A value that JSON does not have is written as null, so that every reader can read it."""
    run = Run(tmp_path)
    run.add_event(UnknownEvent(name="odd", fields={"value": math.nan, "inner": {"more": [math.inf, 1.5]}}))
    line = (tmp_path / "events.jsonl").read_text()
    assert json.loads(line, parse_constant=lambda word: pytest.fail(word))["data"] == {
        "value": None,
        "inner": {"more": [None, 1.5]},
    }
    run.write_json("measurements/x.json", {"a": math.nan})
    assert run.read_json("measurements/x.json") == {"a": None}


@pytest.mark.parametrize("number", [b"NaN", b"-Infinity", b"1e999"])
def test_numbers_that_are_none_are_read_as_null(number: bytes) -> None:
    """Other programs write them: no figure of a report may be computed from one."""
    entry = parse_line(b'{"time": ' + number + b', "kind": "tick", "data": {"n": [' + number + b"]}}")

    assert entry
    assert (entry.time, entry.event.data) == (0.0, {"n": [None]})


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=400))
def test_any_bytes_at_all_can_be_read(raw: bytes) -> None:
    """No content of the file makes the reader fail."""
    for line in raw.split(b"\n"):
        entry = parse_line(line)
        assert entry is None or (isinstance(entry.event.data, dict) and math.isfinite(entry.time))


def test_nesting_without_end_is_passed_over(tmp_path: Path) -> None:
    """A hostile line of a hundred thousand braces is one incomplete line, not a crash."""
    path = tmp_path / "events.jsonl"
    path.write_bytes(b'{"kind": ' + b"[" * 100_000 + b"\n" + journal_line(1.0, UnknownEvent(name="fine")))
    journal = read_journal(path)
    assert [entry.kind for entry in journal.entries] == ["fine"]
    assert journal.notes[0].endswith("is not an event and was skipped")


def test_a_full_disk_is_reported_once_and_noted_when_there_is_room(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Events that a full disk refuses are counted; the first that fits again is preceded by the count."""
    run = Run(tmp_path)
    os.symlink("/dev/full", tmp_path / "events.jsonl")
    for number in range(3):
        run.add_event(tick(number))
    assert capsys.readouterr().err.count("No space left") == 1
    (tmp_path / "events.jsonl").unlink()
    run.add_event(tick(3))
    assert list(run.read_events()) == [JournalLost(files={"events.jsonl": 3}), tick(3)]


def test_a_file_that_does_not_fit_leaves_the_old_one_whole(tmp_path: Path) -> None:
    """Writing under a limit on file size: the previous version stays, no half file is left, the process goes on."""
    code = (
        "import resource, sys; from pathlib import Path\n"
        "from moebox.store import Run; from moebox.core.event import UnknownEvent\n"
        "run = Run(Path(sys.argv[1])); run.write_file('plan.json', '{\"v\": 1}')\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
        "run.write_file('plan.json', 'x' * 100_000); run.add_event(UnknownEvent(name='after')); print(run.lost)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stderr.count("warning:") == 1
    assert Run(tmp_path).read_json("plan.json") == {"v": 1}
    assert [path.name for path in tmp_path.iterdir() if path.name.endswith(".part")] == []
    assert [event.kind for event in Run(tmp_path).read_events()] == ["journal.lost", "after"]
