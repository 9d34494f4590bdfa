"""The folder of one run, for writing and reading.

A full disk ends a run only if it is `strict`. Otherwise lost writes are counted, a warning is printed, and the journal
gets a `journal.lost` event as soon as there is space again, so that the report can list what is missing.
"""

import contextlib
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
ELSEWHERE = "set the variable MOEBOX_RUNS to another folder"
PIPELINE, PIPELINE_BEFORE = "pipeline.json", "story.json"  # written by `moebox run`; the second is its name up to 0.1


def runs_dir(named: Path | None = None) -> Path:
    """The folder of all runs: `named`, $MOEBOX_RUNS, or moebox/runs in the user's data directory."""
    home = named or Path(os.environ.get("MOEBOX_RUNS") or files.xdg_home("data") / "moebox" / "runs")
    refuse_if(os.path.isfile(home), f"{home}: is a file, not a folder of runs")
    return home


def safe_name(name: str) -> str:
    """Reduce a name to at most 60 characters that are safe in file names; may become ""."""
    return re.sub(r"[^A-Za-z0-9._+-]+", "-", name).strip("-.")[:60]


def _matching_folders(name: str, home: Path) -> list[Path]:
    """The folder at that path, the latest run, or all folders whose name begins or ends so."""
    for path in (Path(name), home / name):
        if path.is_dir():
            return [path]
    folders = sorted(filter(Path.is_dir, home.iterdir())) if home.is_dir() else []
    if name == LATEST:
        return folders[-1:]
    return [folder for folder in folders if folder.name.startswith(name) or folder.name.endswith(name)]


class Run:
    def __init__(self, path: Path | str, *, strict: bool = False) -> None:
        self.path = Path(path)
        self.strict = strict  # raise if the disk is full while a file is written; events are only counted
        self.lost: dict[str, int] = {}  # file -> writes that failed because the disk was full
        self._lock: BinaryIO | None = None
        self._has_warned = False

    @classmethod
    def create(cls, name: str, *, runs: Path | None = None, simulation: bool = False) -> "Run":
        """Create a folder named by time, name and random letters, so that two runs never share one."""
        stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
        path = runs_dir(runs) / f"{stamp}-{safe_name(name) or 'run'}-{secrets.token_hex(2)}"
        try:
            if runs is None and not os.environ.get("MOEBOX_RUNS"):
                files.make_private_folder(files.xdg_home("data") / "moebox")
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.mkdir(mode=0o700, exist_ok=False)
        except OSError as problem:
            raise BadInput(f"{path}: cannot make the run folder: {problem.strerror}", hint=ELSEWHERE) from None
        run = cls(path)
        run.acquire_lock()
        about = {"format": FORMAT, "moebox": __version__, "name": name, "created": time.time(), "pid": os.getpid()}
        run.write_json("run.json", {**about, **({"simulation": True} if simulation else {})})
        return run

    @classmethod
    def open(cls, name: str, *, runs: Path | None = None) -> "Run":
        """Open a run by its path, its folder name, a unique beginning or end of it, or "latest"."""
        home = runs_dir(runs)
        matches = _matching_folders(name, home) if name else []
        refuse_if(name == LATEST and not matches, f"there are no runs in {home} yet", hint="`moebox run` makes one")
        refuse_if(not matches, f"no run called {name!r} in {home}", hint="`moebox runs` lists them")
        hint = ", ".join(folder.name for folder in matches[:5])
        refuse_if(len(matches) > 1, f"{len(matches)} runs are called {name!r}…", hint=hint)
        text = f"{matches[0]}: permission denied"
        refuse_if(not os.access(matches[0], os.R_OK | os.X_OK, effective_ids=True), text, hint="ask its owner")
        return cls(matches[0])

    @classmethod
    def resume(cls, name: str) -> "Run":
        """Open a run and lock it. Raise BadInput if another process holds the lock."""
        run = cls.open(name)
        refuse_if(not run.acquire_lock(), f"{run.path} is in use by another moebox process")
        return run

    @classmethod
    def open_shared(cls, name: str) -> "Run":
        """Open a run to add files to it; lock it unless another process, such as `up`, holds the lock."""
        run = cls.open(name)
        run.acquire_lock()
        return run

    @property
    def id(self) -> str:
        return self.path.name

    def make_folder(self, name: str) -> "Run":
        """Make a folder inside this run, for an engine or a part of the work with files of its own."""
        (self.path / name).mkdir(parents=True, exist_ok=True)
        return Run(self.path / name, strict=self.strict)

    def acquire_lock(self) -> bool:
        """Lock the run until this process ends; False if another process holds the lock."""
        if self._lock is None:
            plain.refuse_unusual_within(self.path, but="tasks")  # before we write into an untrusted folder
            with files.report_write_errors(self.path, error_type=BadInput):
                files.make_private_folder(self.path)
                lock = open(self.path / ".lock", "ab")  # noqa: SIM115  (open while the lock is held)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                lock.close()
                return False
            self._lock = lock
            with contextlib.suppress(OSError):  # a full disk: it cannot be stopped from the page
                lock.truncate(0)
                lock.write(b"%d\n" % os.getpid())
                lock.flush()
        return True

    def release_lock(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    @property
    def is_locked(self) -> bool:
        """True if a process, this one included, holds the lock."""
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
        """Append one event; `sync` forces it to disk first."""
        path, now = self.path / "events.jsonl", time.time()
        lines = b""
        if self.lost:
            lines = journal.journal_line(now, JournalLost(files=dict(self.lost)))
        try:
            journal.append_line(path, lines + journal.journal_line(now, event), sync=sync)
        except OSError as problem:
            self._count_loss("events.jsonl", problem)
            return
        self.lost.clear()

    def read_events(self) -> Iterator[Event]:
        return (entry.event for entry in self.read_journal().entries)

    def read_journal(self) -> journal.Journal:
        return journal.read_journal(self.path / "events.jsonl")

    def write_file(self, name: str, text: str | bytes) -> Path:
        """Write a file of the run atomically; if the disk is full, count it as lost (raise if strict).

        Raise BadInput if the path passes through a link, or is not a plain file.
        """
        path = self.path / name
        for place in filter(os.path.islink, [*path.parents][: len(Path(name).parents) - 1]):
            plain.refuse_unusual(place)
        plain.refuse_unusual(path)
        try:
            files.write_atomic(path, hide_known_keys(text) if isinstance(text, str) else text, mode=0o600, sync=True)
        except OSError as problem:
            if self.strict:
                raise
            self._count_loss(name, problem)
        return path

    def write_json(self, name: str, value: Any) -> Path:
        """Write a value as JSON; NaN becomes null."""
        return self.write_file(name, codec.to_json(journal.replace_nonfinite(codec.to_plain(value))))

    def read_json(self, name: str) -> Any:
        """Read a JSON file of the run, None if there is none."""
        path = self.path / name
        return plain.load_json(path) if os.path.lexists(path) else None

    def read_pipeline(self) -> Any:
        """Read the file of `moebox run`, also under its earlier name; None if there is none."""
        document = self.read_json(PIPELINE)
        return self.read_json(PIPELINE_BEFORE) if document is None else document

    def _count_loss(self, name: str, problem: OSError) -> None:
        """Count a write that failed because the disk is full; raise any other error."""
        if problem.errno not in DISK_FULL_ERRORS:
            raise problem
        if not self._has_warned and not self.strict:
            print(f"warning: {self.path}: {problem.strerror}; going on without recording everything", file=sys.stderr)
            self._has_warned = True
        self.lost[name] = self.lost.get(name, 0) + 1
