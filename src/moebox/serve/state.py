"""Records of running engines, leases of the ports and GPUs they use, and keys that moebox made for its own servers.

    STATE/instances/ID.json       run, recipe, engine, address (written by `up`)
    STATE/instances/ID.life.json  processes, exit code (written by its guard)
    STATE/leases/port-8000        locked by the guard as long as it lives; has the holder's id
    STATE/keys/8000.json          mode 0600, in a folder of mode 0700; valid as long as the process in it lives

A lease is a lock on an open file, so the kernel releases it whatever happens to its holder.
"""

import contextlib
import dataclasses
import fcntl
import os
import secrets
import time
import urllib.parse
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from moebox import codec, files
from moebox.errors import BadInput, ExternalError, UnknownName, refuse_if, suggest_names
from moebox.serve.guard import MARK, GuardState

if TYPE_CHECKING:
    from moebox.store import Run

TWIN_KEY = "MOEBOX_TWIN_KEY"  # the variable by which twins, routers and clients name such a key
KEY_BYTES = 24  # 192 bits


def state_dir() -> Path:
    """$MOEBOX_STATE, or moebox in the user's state directory."""
    return files.moebox_state()


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """One engine that moebox started."""

    id: str
    run: str
    recipe: str
    engine: str
    model: str  # the served name
    base_url: str
    port: int
    gpus: tuple[int, ...] = ()
    key_env: str = ""
    runtime: str = "native"
    container: str = ""
    job: str = ""  # its Slurm allocation
    guard: int = 0
    guard_started: int = 0  # the kernel's start tick of that pid, so that a reused pid is not mistaken for it
    started: float = 0.0
    ready: float = 0.0  # when it first answered a chat
    detached: bool = False
    kv_store: str = ""  # folder in which its slots are saved before it is stopped

    @property
    def is_alive(self) -> bool:
        """Its guard lives, which supervises or stops the engine."""
        return self.guard > 0 and process_start_tick(self.guard) == self.guard_started

    @property
    def guard_state(self) -> GuardState:
        """What its guard last wrote; blank before that."""
        try:
            return msgspec.json.decode(guard_state_path(self.id).read_bytes(), type=GuardState)
        except (OSError, msgspec.DecodeError):
            return GuardState()

    @property
    def status(self) -> str:
        """starting, ready, stopping, exited, or lost (the guard vanished)."""
        written = self.guard_state.status
        if not self.is_alive:
            return "exited" if written == "exited" else "lost"
        if written == "stopping":
            return written
        return "ready" if self.ready else "starting"


def instances_dir() -> Path:
    """The folder of records, created if it does not exist."""
    path = state_dir() / "instances"
    try:
        files.make_private_folder(path)
    except OSError as problem:
        raise BadInput(
            f"{path}: cannot be made: {problem.strerror}", hint="set MOEBOX_STATE to a folder you own"
        ) from None
    return path


def guard_state_path(name: str) -> Path:
    return instances_dir() / f"{name}.life.json"


def save_instance(instance: Instance) -> Instance:
    files.write_atomic(instances_dir() / f"{instance.id}.json", codec.to_json(instance), mode=0o600)
    return instance


def forget_instance(name: str) -> None:
    for path in (instances_dir() / f"{name}.json", guard_state_path(name)):
        path.unlink(missing_ok=True)


def list_instances() -> list[Instance]:
    """Every readable record, oldest first."""
    found = []
    for path in instances_dir().glob("*.json"):
        if path.name.endswith(".life.json") or path.name.startswith("."):
            continue
        with contextlib.suppress(BadInput, FileNotFoundError):
            found.append(codec.decode(Instance, codec.load_json(path), where=str(path)))
    return sorted(found, key=lambda instance: (instance.started, instance.id))


def instances_by_id() -> dict[str, Instance]:
    return {instance.id: instance for instance in list_instances()}


def live_run_folders() -> dict[Path, str]:
    """Ids of live engines by run folder. Creates no folder."""
    known = list_instances() if state_dir().is_dir() else []
    return {Path(instance.run).resolve(): instance.id for instance in known if instance.is_alive}


def engine_writing_to(engines: dict[Path, str], run: Path) -> str:
    return next((name for folder, name in engines.items() if folder.is_relative_to(run.resolve())), "")


def is_run_active(run: "Run", engines: dict[Path, str], *, unfinished_step: str) -> bool:
    """Whether a process works on a run, or one of `engines` serves from it.

    The engine of a run that was interrupted in a step does not count: its guard is stopping it.
    """
    return run.is_locked or (not unfinished_step and bool(engine_writing_to(engines, run.path)))


def find_instance(name: str | None) -> Instance:
    """Find an instance by id, prefix of the id, or recipe; if `name` is None, the only live one."""
    known = list_instances()
    if name is None:
        matching = known
        if not known:
            raise ExternalError("nothing is running", hint="`moebox up RECIPE` starts an engine, or give a URL")
    else:
        matching = [instance for instance in known if instance.id == name]
        matching = matching or [each for each in known if name == each.recipe or each.id.startswith(name)]
        if not matching:
            hint = suggest_names(name, [instance.id for instance in known]) if known else "nothing is running"
            raise UnknownName("engine", name, (), hint=hint)
    live = [instance for instance in matching if instance.is_alive]
    found = live or matching
    if len(found) > 1:
        ids = ", ".join(instance.id for instance in found)
        refuse_if(name is not None, f"{len(found)} engines are called {name!r}", hint=ids)
        refuse_if(live, f"{len(live)} engines are running: name one", hint=ids)
        hint = "`moebox up RECIPE` starts one; `moebox ps` lists those that ended"
        raise ExternalError(f"nothing is running: {len(known)} engines have ended", hint=hint)
    return found[0]


def wait_for(condition: Callable[[], bool], patience_s: float, *, every_s: float) -> bool:
    """Poll until the condition is true. Return False if it is not within `patience_s`."""
    until = time.monotonic() + patience_s
    while not condition():
        if time.monotonic() >= until:
            return False
        time.sleep(every_s)
    return True


def process_start_tick(pid: int) -> int:
    """When `pid` started, in the kernel's ticks; -1 if there is no such process."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except (OSError, IndexError):
        return -1
    return -1 if fields[0] == "Z" else int(fields[19])  # field 22 of proc(5), counted after the name


def instance_mark(name: str) -> str:
    """The mark in the environment of every process of an engine: its id and state folder."""
    return f"{name}@{state_dir().absolute()}"


def orphan_processes() -> dict[str, list[int]]:
    """Processes of this state folder's engines whose guard is gone, by instance."""
    guarded = {instance.id for instance in list_instances() if instance.is_alive}
    return {name: pids for name, pids in marked_processes().items() if name not in guarded}


def marked_processes() -> dict[str, list[int]]:
    """Every process that carries a mark of this state folder, by instance."""
    begin, end = f"{MARK}=".encode(), f"@{state_dir().absolute()}".encode()
    found: dict[str, list[int]] = {}
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        if pid == os.getpid():
            continue
        with contextlib.suppress(OSError):
            for pair in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                if pair.startswith(begin) and pair.endswith(end):
                    found.setdefault(pair[len(begin) : -len(end)].decode(errors="replace"), []).append(pid)
    return found


class Lease:
    """A port or GPU that one engine uses."""

    def __init__(self, name: str, holder: str) -> None:
        folder = state_dir() / "leases"
        files.make_private_folder(folder)
        self.name = name
        self.file = open(folder / name, "a+", encoding="utf-8")  # noqa: SIM115  (kept open)
        try:
            fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self.file.seek(0)
            other = self.file.read(200).strip() or "another moebox"
            self.file.close()
            is_command = " " in other  # the name of a run has no spaces
            hint = "wait until it ends" if is_command else f"`moebox down {other}` stops it, or choose another"
            raise ExternalError(f"{name.replace('-', ' ')} is in use by {other}", hint=hint) from None
        self.file.truncate(0)
        self.file.write(holder)
        self.file.flush()

    def close(self) -> None:
        """Close this copy; the lease ends with the last one."""
        self.file.close()


def held_services() -> dict[str, int]:
    """Recipes that `moebox up --service` keeps up, and its process; between two starts no engine of it is known."""
    found = {}
    for path in (state_dir() / "leases").glob("service-*"):
        with path.open(encoding="utf-8") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except OSError:
                holder = file.read(200).rpartition(" ")[2]
                found[path.name.removeprefix("service-")] = int(holder) if holder.isdecimal() else 0
    return found


@contextlib.contextmanager
def hold_endpoint(url: str, holder: str) -> Iterator[None]:
    """Hold a server while it is checked or measured, so that no other moebox command of this user disturbs it.

    Raise ExternalError if another command holds it. The hold ends with the process, however it ends.
    """
    parts = urllib.parse.urlsplit(url)
    try:
        lease = Lease(f"endpoint-{parts.hostname}-{parts.port or parts.scheme}", f"{holder} (process {os.getpid()})")
    except ExternalError as problem:
        other = problem.message.rpartition(" is in use by ")[2]
        hint = "wait until it ends: each would change what the other measures"
        raise ExternalError(f"{url} is being measured by {other}", hint=hint) from None
    with contextlib.closing(lease):
        yield


@contextlib.contextmanager
def take_leases(names: Iterable[str], holder: str) -> Iterator[tuple[int, ...]]:
    """Take all of these leases or none, and yield their descriptors, which the guard then holds.

    This process's copies are closed at the end.
    """
    with contextlib.ExitStack() as held:
        leases = [held.enter_context(contextlib.closing(Lease(name, holder))) for name in sorted(names)]
        yield tuple(lease.file.fileno() for lease in leases)


def update_instance(instance: Instance, **fields: Any) -> Instance:
    return save_instance(dataclasses.replace(instance, **fields))


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerKey:
    """The key of a server, and a process that lives as long as the server."""

    pid: int
    started: int  # the kernel's start tick of that pid
    key: str = field(repr=False)


def make_key() -> str:
    return secrets.token_urlsafe(KEY_BYTES)


def keep_key(port: int, key: str, *, pid: int) -> Path:
    """Write the key of the server on `port`, readable by this user alone; return its path."""
    folder = state_dir() / "keys"
    hint = "set MOEBOX_STATE to a folder you own"
    with files.report_write_errors(folder, error_type=BadInput, hint=hint):
        files.make_private_folder(folder)
        refuse_if(folder.stat().st_uid != os.geteuid(), f"{folder}: belongs to another user", hint=hint)
        for old in folder.glob("*.json"):
            if _read_key(old) is None:
                old.unlink(missing_ok=True)
        kept = ServerKey(pid=pid, started=process_start_tick(pid), key=key)
        return files.write_atomic(folder / f"{port}.json", codec.to_json(kept), mode=0o600)


def find_key(variable: str, url: str) -> str | None:
    """The key in an environment variable, or the one that moebox made for the server at http://127.0.0.1:PORT.

    Under another name, such as localhost, another user's server could have that port of another address.
    """
    given = os.environ.get(variable) or None
    if given and variable != TWIN_KEY:  # which may hold the key of an earlier twin
        return given
    try:
        parts = urllib.parse.urlsplit(url if "://" in url else f"http://{url}")
        here = parts.scheme == "http" and parts.hostname == "127.0.0.1" and parts.port
    except ValueError:
        return given
    kept = _read_key(state_dir() / "keys" / f"{parts.port}.json") if here else None
    return kept.key if kept else given


def _read_key(path: Path) -> ServerKey | None:
    """The key in a file, if this user wrote it and its server lives."""
    with contextlib.suppress(OSError, BadInput):
        if path.lstat().st_uid == os.geteuid():
            kept = codec.decode(ServerKey, codec.load_json(path), where=str(path))
            return kept if process_start_tick(kept.pid) == kept.started else None
    return None
