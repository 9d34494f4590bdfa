"""Engine versions that moebox installed, and those that were on the machine before.

    STATE/engines/vllm-0.32.0/engine.json      what it is; written before the folder gets this name
    STATE/engines/vllm-0.32.0/bin/vllm         the program of an environment or build
    STATE/engines/.part-…/                     an installation under way; never used, removed once its process is gone
    STATE/engines/.build-…/                    sources and objects of a tree's last build, for the next one

An image has a folder with engine.json alone; its layers lie with docker or podman.
"""

import contextlib
import dataclasses
import fcntl
import hashlib
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from moebox import codec, files
from moebox.core import registry
from moebox.core.engine_source import EngineSource, SourceKind, parse_image
from moebox.core.recipe import Recipe, Runtime
from moebox.core.versions import same_version
from moebox.detect.host import run_program
from moebox.environment import chosen_environment
from moebox.errors import BadInput, ExternalError, UnknownName
from moebox.serve import preflight, state
from moebox.store.run import safe_name

RECORD = "engine.json"
PART, BUILD = ".part-", ".build-"
DAY_S = 86_400.0
LOCK = ".moebox.lock"  # uv locks an environment by its file .lock
LIST_WAIT_S = 20.0  # for docker or podman to list images
CONTAINER_TOOLS = ("docker", "podman")


@dataclass(frozen=True, slots=True, kw_only=True)
class InstalledEngine:
    engine: str
    version: str
    kind: SourceKind
    tool: str = ""  # uv, pip, cmake, docker or podman
    path: str = ""  # folder with bin/; "" for an image
    image: str = ""  # name@sha256:…
    commit: str = ""  # of a build
    source: str = ""  # of a build: its source tree
    bytes: int = 0
    installed: float = 0.0
    managed: bool = True  # moebox installed it and can remove it

    @property
    def name(self) -> str:
        """ENGINE==VERSION or ENGINE@BUILD."""
        return str(EngineSource(kind=self.kind, engine=self.engine, version=self.version))


def engines_dir() -> Path:
    return state.state_dir() / "engines"


def install_folder(engine: str, version: str) -> Path:
    return engines_dir() / safe_name(f"{engine}-{version}")


def list_installs() -> list[InstalledEngine]:
    """Every complete installation, by engine and time."""
    found = []
    for path in engines_dir().glob(f"[!.]*/{RECORD}"):
        with contextlib.suppress(BadInput, FileNotFoundError):
            found.append(codec.decode(InstalledEngine, codec.load_json(path), where=str(path)))
    return sorted(found, key=lambda each: (each.engine, each.installed))


def find_install(engine: str, version: str, kinds: tuple[SourceKind, ...]) -> InstalledEngine | None:
    """The installation of a version, the newest if "0.32" or "" means several; None if there is none."""
    fitting = [each for each in list_installs() if each.engine == engine and each.kind in kinds]
    exact = [each for each in fitting if version and version in (each.version, each.commit)]
    alike = [each for each in fitting if not version or same_version(version, each.version)]
    return next(reversed(exact or alike), None)


def installed_runtime(engine: str, version: str, runtime: Runtime) -> Runtime:
    """The runtime with the environment, build or image of an engine's version, if moebox installed that.

    Without a version the newest installation is used if the engine is not on PATH. An interpreter, program or image
    that the runtime names itself is kept.
    """
    program = registry.engine_traits(engine).program
    elsewhere = runtime.kind != "native" or (program and shutil.which(program[0]))
    if runtime.python or runtime.entry or runtime.image or runtime.preset or (elsewhere and not version):
        return runtime
    if runtime.kind == "native" and (found := find_install(engine, version, ("package", "build"))):
        return dataclasses.replace(runtime, python=found.path)
    if runtime.kind in CONTAINER_TOOLS and (found := find_install(engine, version, ("image",))):
        return dataclasses.replace(runtime, image=found.image)
    return runtime


def find_unmanaged() -> list[InstalledEngine]:
    """Engines on PATH, the embedded one, and images of engines that moebox did not pull."""
    found: list[InstalledEngine] = []
    for traits in registry.all_traits():
        own = InstalledEngine(engine=traits.name, version="", kind="package", tool="PATH", managed=False)
        program = shutil.which(traits.program[0]) if traits.program else None
        if program and (version := preflight.engine_version(traits, (program,))):
            kind: SourceKind = "package" if traits.package else "build"
            found.append(dataclasses.replace(own, version=version, kind=kind, path=program))
        if traits.embedded:
            with contextlib.suppress(metadata.PackageNotFoundError):
                version = f"xllamacpp {metadata.version('xllamacpp')}"
                found.append(dataclasses.replace(own, version=version, tool="embedded"))
    known = {each.image.rpartition("@")[2] for each in list_installs() if each.image}
    return found + [each for each in list_images() if each.image.rpartition("@")[2] not in known]


def list_images() -> list[InstalledEngine]:
    """Images of known engines that docker or podman hold."""
    found = []
    for tool in filter(shutil.which, CONTAINER_TOOLS):
        argv = [tool, "images", "--digests", "--format", "{{.Repository}}\t{{.Tag}}\t{{.Digest}}"]
        for line in run_program(argv, seconds=LIST_WAIT_S)[0].splitlines():
            repository, tag, digest = [*line.split("\t"), "", ""][:3]
            with contextlib.suppress(BadInput):
                source = parse_image(f"{repository}:{tag}")
                image = f"{repository}@{digest}" if digest.startswith("sha256:") else f"{repository}:{tag}"
                row = InstalledEngine(engine=source.engine, version=source.version, kind="image", managed=False)
                found.append(dataclasses.replace(row, image=image, tool=tool))
    return found


def live_users(install: InstalledEngine) -> list[str]:
    users = []
    for instance in state.list_instances():
        with contextlib.suppress(BadInput, OSError):
            runtime = codec.read_toml(Recipe, Path(instance.run) / "recipe.toml").runtime
            mine = runtime.image == install.image if install.image else runtime.python == install.path
            if instance.is_alive and mine and (install.image or install.path):
                users.append(instance.id)
    return users


def remove_install(name: str) -> InstalledEngine:
    """Remove an installation by ENGINE==VERSION, ENGINE@BUILD or image. Raise if a live engine uses it."""
    known = list_installs()
    wanted = [each for each in known if name in (each.name, each.image, f"{each.engine}@{each.commit}")]
    if not wanted or name in ("", f"{wanted[0].engine}@"):  # a package has no image, and an image no commit
        raise UnknownName("installed engine", name, [each.name for each in known])
    install = wanted[0]
    if users := live_users(install):
        raise ExternalError(f"{install.name} is used by {', '.join(users)}", hint=f"`moebox down {users[0]}` stops it")
    if install.image:
        argv = [install.tool, "rmi", install.image]
        done = subprocess.run(argv, capture_output=True, text=True, check=False, env=chosen_environment())
        if done.returncode and "no such image" not in done.stderr.lower():
            raise ExternalError(f"{install.image} was not removed: {done.stderr.strip().splitlines()[-1][:200]}")
    folder = install_folder(install.engine, install.version)
    gone = engines_dir() / f"{PART}gone-{os.getpid()}-{folder.name}"
    os.rename(folder, gone)  # from here on it is not used, even if removing it is interrupted
    if not files.remove_tree(gone):
        raise ExternalError(f"{gone} could not be removed completely", hint="remove it by hand")
    remove_stale_parts(idle_s=0)
    return install


@contextlib.contextmanager
def part_folder(name: str) -> Iterator[tuple[Path, int]]:
    """A folder for an installation under way, with a lock that its programs hold too; removed unless it was renamed."""
    remove_stale_parts()
    folder = engines_dir()
    files.make_private_folder(folder)
    part = folder / f"{PART}{os.getpid()}-{name}"
    part.mkdir(mode=0o700)
    try:
        with open(part / LOCK, "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield part, lock.fileno()
    finally:
        if part.exists() and not files.remove_tree(part):
            raise ExternalError(f"{part} could not be removed", hint="remove it by hand")


@contextlib.contextmanager
def build_folder(engine: str, tree: str, notify: Callable[[str], None]) -> Iterator[tuple[Path, int]]:
    """The folder in which builds of a source tree are made one after another, with a lock. It stays afterwards."""
    folder = build_path(engine, tree)
    files.make_private_folder(folder)
    with open(folder / LOCK, "a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            notify(f"waiting for another build of {tree}")
            fcntl.flock(lock, fcntl.LOCK_EX)
        lock.seek(0)
        if lock.read():  # its process was killed, and may have left half a file
            for name in ("source", "build"):
                files.remove_tree(folder / name)
        lock.truncate(0)
        print("under way", file=lock, flush=True)
        try:
            yield folder, lock.fileno()
        finally:
            lock.truncate(0)


def build_path(engine: str, tree: str) -> Path:
    return engines_dir() / f"{BUILD}{safe_name(engine)}-{hashlib.sha256(tree.encode()).hexdigest()[:8]}"


def remove_stale_parts(idle_s: float = DAY_S) -> int:
    """Remove installations whose processes are gone, and folders of builds of which none is installed. Count them."""
    used = {build_path(each.engine, each.source) for each in list_installs() if each.source}
    parts = [*engines_dir().glob(f"{PART}*")]
    for path in set(engines_dir().glob(f"{BUILD}*")) - used:
        with contextlib.suppress(OSError):
            parts += [path] * (time.time() - (path / LOCK).stat().st_mtime >= idle_s)
    removed = 0
    for part in parts:
        with contextlib.suppress(OSError), open(part / LOCK, "a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails as long as an installer lives
            removed += files.remove_tree(part)
    return removed
