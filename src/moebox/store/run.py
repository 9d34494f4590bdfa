"""One run's folder, open for writing and reading.

A full disk ends a run only where it is `strict`. Elsewhere what could not be written is counted, told once on stderr,
and noted in the journal as `journal.lost` as soon as there is room again, so that the report can say what is missing.
"""

import errno
import fcntl
import os
import re
import secrets
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from moebox import __version__, codec, files
from moebox.core.event import Event, JournalLost
from moebox.errors import BadInput, refuse_if
from moebox.redact import hide_known_keys
from moebox.store import journal, plain

FORMAT = 1
DISK_FULL_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})  # the disk, the quota, the shell's file limit
LATEST = "latest"
ELSEWHERE = "the variable MOEBOX_RUNS puts runs elsewhere"
PIPELINE, PIPELINE_BEFORE = "pipeline.json", "story.json"  # what `moebox run` keeps; its name up to 0.1


def runs_dir(named: Path | None = None) -> Path:
    """Where runs live: the folder that is named, $MOEBOX_RUNS, or moebox/runs in the user's data directory."""
    home = named or Path(os.environ.get("MOEBOX_RUNS") or files.data_home() / "moebox" / "runs")
    refuse_if(os.path.isfile(home), f"{home}: is a file, not a folder of runs")
    return home


def safe_name(name: str) -> str:
    """What of a name can stand in a file's, at most 60 characters; "" where nothing can."""
    return re.sub(r"[^A-Za-z0-9._+-]+", "-", name).strip("-.")[:60]


def _folders(home: Path) -> list[Path]:
    return sorted(path for path in home.iterdir() if path.is_dir()) if home.is_dir() else []


def _is_called(folder: str, name: str) -> bool:
    """By its beginning or its end."""
    return folder.startswith(name) or folder.endswith(name)


def _meant(name: str, home: Path) -> list[Path]:
    """The folder at that path, the latest run, or all that are called so."""
    for path in (Path(name), home / name):
        if path.is_dir():
            return [path]
    folders = _folders(home)
    if name == LATEST:
        return folders[-1:]
    return [folder for folder in folders if _is_called(folder.name, name)]


class Run:
    """One run's folder."""

    def __init__(self, path: Path | str, *, strict: bool = False) -> None:
        self.path = Path(path)
        self.strict = strict  # a file that a full disk refuses raises its OSError; events are counted as ever
        self.lost: dict[str, int] = {}  # file -> writes that a full disk refused
        self._lock: BinaryIO | None = None
        self._told = False

    @classmethod
    def create(cls, name: str, *, runs: Path | None = None, simulation: bool = False) -> "Run":
        """A new folder named by time, name and a few random letters, so that two at once never share one."""
        stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
        path = runs_dir(runs) / f"{stamp}-{safe_name(name) or 'run'}-{secrets.token_hex(2)}"
        try:
            path.mkdir(parents=True, exist_ok=False)
        except OSError as problem:
            raise BadInput(f"{path}: cannot make the run folder: {problem.strerror}", hint=ELSEWHERE) from None
        run = cls(path)
        run.acquire_lock()
        about = {"format": FORMAT, "moebox": __version__, "name": name, "created": time.time(), "pid": os.getpid()}
        run.write_json("run.json", {**about, **({"simulation": True} if simulation else {})})
        return run

    @classmethod
    def open(cls, name: str, *, runs: Path | None = None) -> "Run":
        """The run with this path, folder name, unmistakable beginning or end of one, or the latest."""
        home = runs_dir(runs)
        matches = _meant(name, home) if name else []
        if name == LATEST and not matches:
            raise BadInput(f"there are no runs in {home} yet", hint="`moebox run` makes one")
        if not matches:
            raise BadInput(f"no run called {name!r} in {home}", hint="`moebox runs` lists them")
        if len(matches) > 1:
            names = ", ".join(folder.name for folder in matches[:5])
            raise BadInput(f"{len(matches)} runs are called {name!r}…", hint=names)
        if not os.access(matches[0], os.R_OK | os.X_OK, effective_ids=True):
            raise BadInput(f"{matches[0]}: may not be read", hint="ask whoever owns it")
        return cls(matches[0])

    @classmethod
    def resume(cls, name: str, *, runs: Path | None = None) -> "Run":
        """The run called `name`, held; BadInput where another moebox works on it."""
        run = cls.open(name, runs=runs)
        refuse_if(not run.acquire_lock(), f"{run.path} is being worked on by another moebox")
        return run

    @classmethod
    def open_shared(cls, name: str, *, runs: Path | None = None) -> "Run":
        """The run called `name`, to add files to; held unless another moebox does so already, an `up` perhaps."""
        run = cls.open(name, runs=runs)
        run.acquire_lock()
        return run

    @property
    def id(self) -> str:
        """The folder's name."""
        return self.path.name

    def acquire_lock(self) -> bool:
        """Mark the run as being worked on until this process ends; False when another one holds it."""
        if self._lock is None:
            plain.refuse_unusual_within(self.path, but="tasks")  # a stranger's folder: we are about to write into it
            with files.report_write_errors(self.path, error_type=BadInput):
                lock = open(self.path / ".lock", "ab")  # noqa: SIM115  (held open on purpose)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                lock.close()
                return False
            self._lock = lock
        return True

    def release_lock(self) -> None:
        """Undo `hold`."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    @property
    def is_locked(self) -> bool:
        """Somebody, this process included, is working on it."""
        if self._lock is not None:
            return True
        try:
            with plain.open_bytes(self.path / ".lock") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    def add_event(self, event: Event, *, sync: bool = False) -> None:
        """Append one event; `sync` forces it to disk before going on."""
        path, now = self.path / "events.jsonl", time.time()
        lines = b""
        if self.lost:
            lines = journal.journal_line(now, JournalLost(files=dict(self.lost)))
        try:
            journal.append_line(path, lines + journal.journal_line(now, event), sync=sync)
        except OSError as problem:
            self._losing("events.jsonl", problem)
            return
        self.lost.clear()

    def read_events(self) -> Iterator[Event]:
        """Events in order; a torn line is passed over (`journal` tells which)."""
        return (entry.event for entry in self.read_journal().entries)

    def read_journal(self) -> journal.Journal:
        """The events and what of the journal could not be read."""
        return journal.read_journal(self.path / "events.jsonl")

    def write_file(self, name: str, text: str | bytes) -> Path:
        """Write a file of the run whole or not at all; refused by a full disk it is counted as lost, unless strict.

        BadInput where a link leads elsewhere, or something stands there that is no plain file.
        """
        path = self.path / name
        plain.refuse_unusual_along(self.path, path)
        try:
            files.write_atomic(path, hide_known_keys(text) if isinstance(text, str) else text, sync=True)
        except OSError as problem:
            if self.strict:
                raise
            self._losing(name, problem)
        return path

    def remove_partial_files(self) -> None:
        """Remove what a writer that was killed left half-written; only for who holds the run."""
        for half in self.path.rglob(".*.part"):
            half.unlink(missing_ok=True)

    def write_json(self, name: str, value: Any) -> Path:
        """`write`, as JSON; NaN becomes null."""
        return self.write_file(name, codec.to_json(journal.replace_nonfinite(codec.to_plain(value))))

    def read_json(self, name: str) -> Any:
        """A JSON file of the run, or None where there is none."""
        path = self.path / name
        return plain.load_json(path) if os.path.lexists(path) else None

    def read_pipeline(self) -> Any:
        """The file of `moebox run`, also under its earlier name; None where the run is no pipeline."""
        document = self.read_json(PIPELINE)
        return self.read_json(PIPELINE_BEFORE) if document is None else document

    def _losing(self, name: str, problem: OSError) -> None:
        """Count a write that a full disk refused; anything else is raised."""
        if problem.errno not in DISK_FULL_ERRORS:
            raise problem
        if not self._told and not self.strict:
            print(
                f"warning: {self.path}: {problem.strerror}; going on without writing everything down", file=sys.stderr
            )
            self._told = True
        self.lost[name] = self.lost.get(name, 0) + 1
