"""What runs now: one small record per engine, and the ports and GPUs they hold.

    STATE/instances/ID.json       who it is: run, recipe, engine, address (written by `up`)
    STATE/instances/ID.life.json  how it is: processes, exit code (written by its guard)
    STATE/leases/port-8000        locked by the guard as long as it lives; says who holds it

A lease is a lock on an open file, so the kernel gives it back whatever happens to its holder.
"""

import contextlib
import dataclasses
import fcntl
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from moebox import codec, files
from moebox.errors import BadInput, ExternalError, suggest_names
from moebox.serve.guard import MARK, GuardState

if TYPE_CHECKING:
    from moebox.store import Run


def state_dir() -> Path:
    """Where records live: $MOEBOX_STATE, or moebox in the user's state directory."""
    return Path(os.environ.get("MOEBOX_STATE") or files.state_home() / "moebox")


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """One engine that moebox started."""

    id: str
    run: str
    recipe: str
    engine: str
    model: str  # the name it is served under
    base_url: str
    port: int
    gpus: tuple[int, ...] = ()
    key_env: str = ""
    runtime: str = "native"
    container: str = ""
    job: str = ""  # Slurm's, on other nodes
    guard: int = 0
    guard_started: int = 0  # the kernel's start tick of that pid, so that a reused pid is not mistaken for it
    started: float = 0.0
    ready: float = 0.0  # when it first answered a chat
    detached: bool = False

    @property
    def is_alive(self) -> bool:
        """Its guard lives; with it the engine, or what is being done about it."""
        return self.guard > 0 and process_start_tick(self.guard) == self.guard_started

    @property
    def guard_state(self) -> GuardState:
        """What its guard last wrote; blank before its first word."""
        try:
            return msgspec.json.decode(guard_state_path(self.id).read_bytes(), type=GuardState)
        except (OSError, msgspec.DecodeError):
            return GuardState()

    @property
    def status(self) -> str:
        """starting, ready, stopping, exited, or lost: the guard vanished without a word."""
        written = self.guard_state.status
        if not self.is_alive:
            return "exited" if written == "exited" else "lost"
        if written == "stopping":
            return written
        return "ready" if self.ready else "starting"


def instances_dir() -> Path:
    """The folder of records, made if need be."""
    path = state_dir() / "instances"
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise BadInput(
            f"{path}: cannot be made: {problem.strerror}", hint="set MOEBOX_STATE to a folder you own"
        ) from None
    return path


def guard_state_path(name: str) -> Path:
    """Where a guard writes how its engine is."""
    return instances_dir() / f"{name}.life.json"


def save_instance(instance: Instance) -> Instance:
    """Write the record, whole or not at all."""
    path = instances_dir() / f"{instance.id}.json"
    files.write_atomic(path, codec.to_json(instance))
    return instance


def forget_instance(name: str) -> None:
    """Remove the record of an engine that is gone."""
    for path in (instances_dir() / f"{name}.json", guard_state_path(name)):
        path.unlink(missing_ok=True)


def list_instances() -> list[Instance]:
    """Every record, oldest first; one that cannot be read is passed over."""
    found = []
    for path in instances_dir().glob("*.json"):
        if path.name.endswith(".life.json") or path.name.startswith("."):
            continue
        with contextlib.suppress(BadInput, FileNotFoundError):
            found.append(codec.decode(Instance, codec.load_json(path), where=str(path)))
    return sorted(found, key=lambda instance: (instance.started, instance.id))


def instances_by_id() -> dict[str, Instance]:
    """Every record, by its id."""
    return {instance.id: instance for instance in list_instances()}


def live_run_folders() -> dict[Path, str]:
    """The engines that live, by the folder they write into; asking makes no folder."""
    known = list_instances() if state_dir().is_dir() else []
    return {Path(instance.run).resolve(): instance.id for instance in known if instance.is_alive}


def engine_writing_to(engines: dict[Path, str], run: Path) -> str:
    """The one of `folders` that writes into this run's; "" where none does."""
    return next((name for folder, name in engines.items() if folder.is_relative_to(run.resolve())), "")


def is_run_active(run: "Run", engines: dict[Path, str], *, unfinished_step: str) -> bool:
    """Whether somebody works on a run, or one of the engines of `folders` serves from it.

    An engine of a run that was left in a step (`left_in`) serves nobody: its guard is stopping it.
    """
    return run.is_locked or (not unfinished_step and bool(engine_writing_to(engines, run.path)))


def find_instance(name: str | None) -> Instance:
    """The instance called `name` (id, its beginning, or the recipe's name); the only live one when None."""
    known = list_instances()
    if name is None:
        return _only_live(known)
    matching = _called(known, name)
    matching = _living(matching) or matching
    if not matching:
        hint = suggest_names(name, [instance.id for instance in known]) if known else "nothing is running"
        raise BadInput(f"no engine called {name!r}", hint=hint)
    if len(matching) > 1:
        raise BadInput(f"{len(matching)} engines are called {name!r}", hint=_ids(matching))
    return matching[0]


def _only_live(known: list[Instance]) -> Instance:
    """The one that lives; where none does, the one whose record is left."""
    if not known:
        raise ExternalError("nothing is running", hint="`moebox up RECIPE` starts an engine")
    live = _living(known)
    if len(live) > 1:
        raise BadInput(f"{len(live)} engines are running: say which", hint=_ids(live))
    if not live and len(known) > 1:
        hint = "`moebox up RECIPE` starts one; `moebox ps` lists those that ended"
        raise ExternalError(f"nothing is running: {len(known)} engines have ended", hint=hint)
    return (live or known)[0]


def _living(known: list[Instance]) -> list[Instance]:
    return [instance for instance in known if instance.is_alive]


def _called(known: list[Instance], name: str) -> list[Instance]:
    """The one of that id; else those whose id begins so, or whose recipe is called so."""
    exact = [instance for instance in known if instance.id == name]
    return exact or [instance for instance in known if name == instance.recipe or instance.id.startswith(name)]


def _ids(instances: list[Instance]) -> str:
    return ", ".join(instance.id for instance in instances)


def process_start_tick(pid: int) -> int:
    """When `pid` started, in the kernel's ticks; -1 when there is no such process."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except (OSError, IndexError):
        return -1
    return -1 if fields[0] == "Z" else int(fields[19])  # field 22 of proc(5), counted after the name


def instance_mark(name: str) -> str:
    """What every process of an engine carries in its environment: which one it is, and of whose records."""
    return f"{name}@{state_dir().absolute()}"


def orphan_processes() -> dict[str, list[int]]:
    """Processes of engines whose guard is gone, by instance; those of other state folders are not ours to name."""
    guarded = {instance.id for instance in _living(list_instances())}
    return {name: pids for name, pids in marked_processes().items() if name not in guarded}


def marked_processes() -> dict[str, list[int]]:
    """Every process that carries a mark of this state folder, by instance."""
    found: dict[str, list[int]] = {}
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        if pid == os.getpid():
            continue
        with contextlib.suppress(OSError):
            for name in _marks(Path(f"/proc/{pid}/environ").read_bytes()):
                found.setdefault(name, []).append(pid)
    return found


def _marks(environ: bytes) -> list[str]:
    """The instances of this state folder that a process's environment names."""
    begin, end = f"{MARK}=".encode(), f"@{state_dir().absolute()}".encode()
    marks = [pair for pair in environ.split(b"\0") if pair.startswith(begin) and pair.endswith(end)]
    return [mark[len(begin) : -len(end)].decode(errors="replace") for mark in marks]


class Lease:
    """A port or a GPU that one engine holds."""

    def __init__(self, name: str, holder: str) -> None:
        folder = state_dir() / "leases"
        folder.mkdir(parents=True, exist_ok=True)
        self.name = name
        self.file = open(folder / name, "a+", encoding="utf-8")  # noqa: SIM115  (held on purpose)
        try:
            fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self.file.seek(0)
            other = self.file.read(200).strip() or "another moebox"
            self.file.close()
            raise ExternalError(
                f"{name.replace('-', ' ')} is in use by {other}",
                hint=f"`moebox down {other}` stops it, or choose another",
            ) from None
        self.file.truncate(0)
        self.file.write(holder)
        self.file.flush()

    @property
    def descriptor(self) -> int:
        """To be passed on to the guard, which holds it from then on."""
        return self.file.fileno()

    def close(self) -> None:
        """Let go of this copy; the lease ends with the last one."""
        self.file.close()


@contextlib.contextmanager
def take_leases(names: Iterable[str], holder: str) -> Any:
    """All of these leases or none; this process's copies are closed at the end."""
    held: list[Lease] = []
    try:
        for name in sorted(names):
            held.append(Lease(name, holder))  # noqa: PERF401  (each must be closed if a later one fails)
        yield held
    finally:
        for lease in held:
            lease.close()


def update_instance(instance: Instance, **fields: Any) -> Instance:
    """The record with some fields new, saved."""
    return save_instance(dataclasses.replace(instance, **fields))
