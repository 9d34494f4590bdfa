"""Downloads into the cache of huggingface_hub: only what is needed, resumed, several at once, and always verified.

Its own download (1.33) removes partial files and compares no hash. The layout is the same: `blobs/HASH`, and links to
them in `snapshots/COMMIT`, so that engines find the files by the name of the repository.
"""

import contextlib
import fcntl
import os
import shutil
import threading
from collections.abc import Callable, Collection
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from moebox import codec, files, loose
from moebox.errors import BadInput, ExternalError, MoeboxError, refuse_if
from moebox.hub import client
from moebox.hub.client import CHUNK, HubFile, HubListing, PermanentFailure
from moebox.hub.names import describe_contents, group_gguf_files, missing_gguf_parts, weight_files
from moebox.units import format_gb

INDEX = "model.safetensors.index.json"
TEXT_SUFFIXES = (".json", ".jinja", ".txt", ".model", ".tiktoken", ".jsonl", ".yaml")
RETRIES = 6  # in a row, of one file, after connections that brought less than CHUNK: 31 s of pauses
MAX_DAMAGED = 3  # times that a complete file may have another hash
PAUSE_S = 0.5  # before the first retry, and twice as long before each other one
SPARE_BYTES = 1 << 30  # left free on the disk: engines write caches of compiled kernels


class FetchStopped(MoeboxError):
    """Another file failed, or the user interrupted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedFile:
    """A file in the cache, and whether it was there, intact, before."""

    path: str
    size: int
    was_there: bool = False


def select_files(listing: HubListing, *, gguf: str = "", with_code: bool = False) -> tuple[HubFile, ...]:
    """Select what an engine loads: the parts of one GGUF file, or shards of the index with tokenizer and settings.

    `gguf` is the first part. Pictures, other formats and, without `with_code`, Python files are left out.
    """
    groups, shards = group_gguf_files(listing.files), {file.path for file in listing.files}
    if len(groups) == 1 and not any(path.endswith(".safetensors") for path in shards):
        gguf = next(iter(groups.values()))[0].path
    if gguf:
        parts = next((parts for parts in groups.values() if parts[0].path == gguf), [])
        refuse_if(not parts, f"{listing.repo}: {gguf} is not there")
        lacks = missing_gguf_parts(parts)
        refuse_if(lacks, f"{listing.repo}: {gguf}: {lacks}", hint="name another: `moebox models show ORG/REPO`")
        return tuple(parts)
    if index := listing.find(INDEX):
        where, text = f"{listing.repo}/{INDEX}", client.read_whole_file(listing, index).decode(errors="replace")
        named = set(map(str, loose.get_object(codec.parse_json(text, where=where), "weight_map").values()))
        refuse_if(not named, f"{where}: has no weight_map")
        missing = min(named - shards, default="")
        refuse_if(missing, f"{where}: names {missing}, which the repository does not have")
        shards = named
    else:
        shards = set(weight_files(shards, listing.repo))
    hint = f"such as {listing.repo}:{next(iter(groups), '')}"
    refuse_if(groups and not shards, f"{listing.repo}: name one of its GGUF files: {', '.join(groups)}", hint=hint)
    if not shards:
        raise describe_contents(listing)
    suffixes = (*TEXT_SUFFIXES, ".py") if with_code else TEXT_SUFFIXES
    return tuple(
        file
        for file in listing.files
        if file.path in shards or (file.path.endswith(suffixes) and ("/" not in file.path or with_code))
    )


class VerifiedFiles:
    """The files whose hash was compared once, remembered by path, size and time of change."""

    def __init__(self) -> None:
        self.path = files.moebox_state() / "verified.json"
        self._lock = threading.Lock()

    def _read(self) -> dict[str, list[object]]:
        with contextlib.suppress(BadInput):
            known = codec.load_json(self.path) if self.path.is_file() else {}
            return known if isinstance(known, dict) else {}
        return {}

    def contains(self, path: Path, digest: str) -> bool:
        facts = path.stat()
        return self._read().get(str(path)) == [facts.st_size, facts.st_mtime_ns, digest]

    def add(self, path: Path, digest: str) -> None:
        facts = path.stat()
        with self._lock, files.report_write_errors(self.path):
            kept = {name: row for name, row in self._read().items() if os.path.exists(name)}
            kept[str(path)] = [facts.st_size, facts.st_mtime_ns, digest]
            files.write_atomic(self.path, codec.to_json(kept, indent=None))


class Fetcher:
    """Fetches files of one commit; `advance` is called with the bytes that arrived, or were there."""

    def __init__(
        self, listing: HubListing, *, advance: Callable[[int], None], recheck: bool = False, retries: int = RETRIES
    ) -> None:
        self.listing, self.recheck, self.advance, self.retries = listing, recheck, advance, retries
        self.folder = client.repository_folder(listing.repo)
        self.snapshot = self.folder / "snapshots" / listing.commit
        self.verified = VerifiedFiles()
        self.stop = threading.Event()

    def missing_bytes(self, wanted: Collection[HubFile]) -> int:
        total = 0
        for file in {file.digest: file for file in wanted}.values():
            blob = self._blob(file)
            with files.report_write_errors(self.folder):
                here = next(filter(Path.exists, (blob, self._part(blob))), None)
                total += max(0, file.size - (here.stat().st_size if here else 0))
        return total

    def check_room(self, wanted: Collection[HubFile]) -> None:
        """Raise ExternalError if the disk has no room for the rest."""
        need = self.missing_bytes(wanted)
        with files.report_write_errors(self.folder):
            make_shared_folder(self.folder)
            free = shutil.disk_usage(self.folder).free
        if need and need + SPARE_BYTES > free:
            text = f"{self.listing.repo}: needs {format_gb(need)} more on the disk of {self.folder}"
            hint = "free some, or move the cache with HF_HOME"
            raise ExternalError(f"{text}, which has {format_gb(free)} free", hint=hint)

    def fetch_all(self, wanted: Collection[HubFile], *, at_once: int) -> list[FetchedFile]:
        """Fetch all files; after the first failure the others stop, and keep what has arrived."""
        self.check_room(wanted)
        same: dict[str, list[HubFile]] = {}  # files with the same content are one blob
        for file in wanted:
            same.setdefault(file.digest, []).append(file)
        with ThreadPoolExecutor(at_once) as pool:
            jobs = [pool.submit(lambda group: [self.fetch(file) for file in group], group) for group in same.values()]
            try:
                wait(jobs, return_when=FIRST_EXCEPTION)
            finally:
                self.stop.set()
                for job in jobs:
                    job.cancel()
        failed = [job.exception() for job in jobs if not job.cancelled() and job.exception()]
        for problem in sorted(filter(None, failed), key=lambda problem: isinstance(problem, FetchStopped)):
            raise problem
        revision = self.listing.revision or "main"
        if revision != self.listing.commit:  # engines look up the branch here
            with files.report_write_errors(self.folder):
                files.write_atomic(self.folder / "refs" / revision, self.listing.commit)
        return [fetched for job in jobs for fetched in job.result()]

    def fetch(self, file: HubFile) -> FetchedFile:
        """Bring one file into the cache unless it is there and intact."""
        blob, link = self._blob(file), self.snapshot / file.path
        with client.report_hub_errors(self.listing.repo, self.listing.revision):
            for path in (blob, link):
                make_shared_folder(path.parent)
            if link.is_file() and not link.is_symlink():  # a cache without links
                blob = link
            was_there = blob.is_file() and self._is_intact(blob, file)
            if was_there:
                self.advance(file.size)
            else:
                self._download(file, blob)
                self.verified.add(blob, file.digest)
            if link != blob and not (link.is_symlink() and link.resolve() == blob.resolve()):
                link.unlink(missing_ok=True)
                link.symlink_to(os.path.relpath(blob, link.parent))
        return FetchedFile(path=file.path, size=file.size, was_there=was_there)

    def _is_intact(self, blob: Path, file: HubFile) -> bool:
        if blob.stat().st_size != file.size:
            return False
        if not self.recheck and self.verified.contains(blob, file.digest):
            return True
        check = file.new_hash()
        with open(blob, "rb") as data:
            while chunk := data.read(CHUNK):
                check.update(chunk)
                if self.stop.is_set():
                    raise FetchStopped(file.path)
        if check.hexdigest() != file.digest:
            return False
        self.verified.add(blob, file.digest)
        return True

    def _download(self, file: HubFile, blob: Path) -> None:
        """Download a file, going on with what arrived before, until its hash is right."""
        part = self._part(blob)
        if part.exists() and not os.access(part, os.W_OK):  # of another user, who does not fetch it now
            with open(part, "rb") as other:  # a lock needs no right to write
                lock_part(other, file)
            part = part.with_name(f"{part.name}-{os.geteuid()}")
        if blob.is_file() and not blob.is_symlink() and blob.stat().st_size < file.size and not part.exists():
            os.replace(blob, part)  # its beginning may be right
        blob.unlink(missing_ok=True)  # no engine may load a damaged file
        with open(part, "a+b") as out:
            lock_part(out, file)
            if is_shared(part.parent) and os.fstat(out.fileno()).st_uid == os.geteuid():
                os.fchmod(out.fileno(), 0o664)  # so that the group can go on with it, and all can see the lock
            for _ in range(MAX_DAMAGED):
                if self._fill(file, out) == file.digest:
                    out.flush()
                    os.fsync(out.fileno())
                    os.replace(part, blob)
                    return
                self.advance(-file.size)
                out.truncate(0)
        part.unlink()
        text = f"{self.listing.repo}: {file.path} arrived damaged {MAX_DAMAGED} times: its hash is not the Hub's"
        raise ExternalError(text, hint="try again later, or another HF_ENDPOINT; complete files are kept")

    def _fill(self, file: HubFile, out: IO[bytes]) -> str:
        """Read on until the file is complete; return its hash."""
        check = file.new_hash()
        out.seek(0)
        while chunk := out.read(CHUNK):
            check.update(chunk)
        at, failures = out.tell(), 0
        self.advance(at)
        while at < file.size:
            before = at
            try:
                with client.open_remote_file(self.listing, file, at) as chunks:
                    for chunk in chunks:
                        out.write(chunk)
                        check.update(chunk)
                        at += len(chunk)
                        self.advance(len(chunk))
                        if self.stop.is_set():
                            raise FetchStopped(file.path)
                reason = "the connection ended early"
            except PermanentFailure:
                raise
            except ExternalError as problem:
                reason = problem.message
            if at < file.size:
                failures = 0 if at - before >= CHUNK else failures + 1
                if failures > self.retries:
                    text = f"{self.listing.repo}: {file.path} stopped at {format_gb(at)} of {format_gb(file.size)}"
                    hint = "the same command goes on from there"
                    raise ExternalError(f"{text}: {reason.removeprefix(f'{self.listing.repo}: ')}", hint=hint)
                if self.stop.wait(PAUSE_S * 2 ** max(failures - 1, 0)):
                    raise FetchStopped(file.path)
        return check.hexdigest()

    def _blob(self, file: HubFile) -> Path:
        return self.folder / "blobs" / file.digest

    def _part(self, blob: Path) -> Path:
        return blob.with_name(f"{blob.name}.moebox-part")


def lock_part(part: IO[bytes], file: HubFile) -> None:
    """Lock a partial file. Raise ExternalError if another process, of any user, has it."""
    try:
        fcntl.flock(part, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        owner = os.fstat(part.fileno()).st_uid
        who = "another process" if owner == os.geteuid() else f"a process of user {owner}"
        raise ExternalError(f"{file.path}: {who} is fetching it", hint="wait for it") from None


def is_shared(folder: Path) -> bool:
    """True if the group of a folder may write in it: users share it on purpose."""
    return bool(folder.stat().st_mode & 0o020)


def make_shared_folder(folder: Path) -> None:
    """Make a folder and its parents; inside a folder that users share, their group may write in them too."""
    if folder.is_dir():
        return
    make_shared_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    if is_shared(folder.parent) and folder.stat().st_uid == os.geteuid():
        folder.chmod(0o775 | folder.parent.stat().st_mode & 0o2000)
