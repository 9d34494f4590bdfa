"""Install one version of an engine: an environment of its own, a build from source, or an image by digest.

Everything happens in a part folder, which gets its final name when the version was seen to be there.
"""

import contextlib
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from moebox import codec, files
from moebox.core import registry
from moebox.core.engine_source import EngineSource
from moebox.core.setting import flag_words
from moebox.core.versions import same_version
from moebox.data import load_table
from moebox.detect import load_box
from moebox.engines.engine import load_engine
from moebox.environment import chosen_environment
from moebox.errors import ExternalError, NotInstalled, Unsupported, refuse_if
from moebox.redact import hide_known_keys, hide_secrets
from moebox.serve import installs, preflight
from moebox.serve.installs import CONTAINER_TOOLS, InstalledEngine
from moebox.site import read_site
from moebox.units import format_gb

PROBLEM = re.compile(
    r"^(ERROR(?!: Ignored the following)|error|CMake Error|fatal|Error)\b|: error:|: fatal error:|No solution found|× "
)
Notify = Callable[[str], None]


def install_engine(source: EngineSource, *, tree: str = "", notify: Notify = lambda text: None) -> InstalledEngine:
    """Install a version, or return the installation that is there. Raise ExternalError with the reason if it fails.

    `tree` is the source of a build: a folder, a git repository or its URL.
    """
    if known := installs.find_install(source.engine, source.version, (source.kind,)):
        if known.commit:  # its branch may have moved since
            day = time.strftime("%-d %B %Y", time.localtime(known.installed))
            notify(f"built from {known.commit[:12]} on {day}; to build it anew: `moebox engines remove {known.name}`")
        return known
    files.make_private_folder(installs.engines_dir())
    require_disk(source, notify)
    with installs.part_folder(installs.install_folder(source.engine, source.version).name) as (part, lock):
        installer = Installer(source, part, lock, notify)
        if source.kind == "package":
            found = installer.install_package()
        elif source.kind == "build":
            found = installer.build(tree)
        else:
            found = installer.pull_image()
        folder = installs.install_folder(found.engine, found.version)
        size = sum(path.stat().st_size for path in part.rglob("*") if path.is_file() and not path.is_symlink())
        path = "" if found.image else str(folder)
        found = replace(found, path=path, bytes=found.bytes or size, installed=time.time())
        files.write_atomic(part / installs.RECORD, codec.to_json(found), sync=True)
        if folder.exists():  # "0.32" and 0.32.0 are the same version
            return found
        os.rename(part, folder)
    return found


def disk_bytes(source: EngineSource) -> int:
    """The size of another version, by one that is installed or by the table; 0 if it is not known."""
    known = load_table("installs").get(source.engine, {}).get(source.kind, 0)
    kinds = [(each.bytes, each.engine, each.kind) for each in installs.list_installs()]
    return max((size for size, *kind in kinds if kind == [source.engine, source.kind]), default=int(known))


def require_disk(source: EngineSource, notify: Notify) -> None:
    """Raise ExternalError if the disk does not hold another version."""
    needed = disk_bytes(source)
    folder = Path("/var/lib/docker") if source.kind == "image" else installs.engines_dir()
    folder = folder if folder.exists() else installs.engines_dir()
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise ExternalError(
            f"{source} needs about {format_gb(needed)} of disk, {folder} has {format_gb(free)} free",
            hint="`moebox engines remove NAME` frees a version; MOEBOX_STATE names another folder",
        )
    if needed >= 1e6:
        notify(f"needs about {format_gb(needed)} of disk, {format_gb(free)} are free")


def pip_environment() -> tuple[list[str], dict[str, str]]:
    """Options of pip and uv by the site's settings, and the user's own variables of both."""
    settings = read_site().packages
    options = flag_words({flag: getattr(settings, key) for key, flag in load_table("pip")["options"].items()})
    return options, {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "UV_"))}


class Installer:
    """One installation under way in its part folder."""

    def __init__(self, source: EngineSource, part: Path, lock: int, notify: Notify) -> None:
        self.source, self.part, self.notify = source, part, notify
        self.locks: tuple[int, ...] = (lock,)
        self.log = installs.engines_dir() / f"{part.name.removeprefix(installs.PART).partition('-')[2]}.log"
        self.log.unlink(missing_ok=True)

    def install_package(self) -> InstalledEngine:
        """Make an environment and install the package with uv, or with pip if there is no uv."""
        source, python = self.source, str(self.part / "bin" / "python")
        package = registry.engine_traits(source.engine).package
        refuse_if(not package, f"{source.engine} is not a Python package", hint=f"build it: {source.engine}@COMMIT DIR")
        options, env = pip_environment()
        words = [*options, f"{package}=={source.version}"]
        uv = shutil.which("uv")
        if uv:
            uv_names = load_table("pip")["uv_names"]
            env = {uv_names[name]: value for name, value in env.items() if name in uv_names} | env
            self.run(uv, "venv", "--quiet", "--allow-existing", "--python", sys.executable, str(self.part), env=env)
            self.run(uv, "pip", "install", "--python", python, *words, env=env)
        elif find_spec("pip"):
            self.run(sys.executable, "-m", "venv", "--without-pip", str(self.part))
            pip = (sys.executable, "-m", "pip", "--python", python)
            self.run(*pip, "install", "--disable-pip-version-check", *words, env=env)
        else:
            self.run(sys.executable, "-m", "venv", str(self.part))
            self.run(python, "-m", "pip", "install", "--disable-pip-version-check", *words, env=env)
        version = preflight.command_output(preflight.version_command(python, package))
        if not same_version(source.version, version):
            raise ExternalError(f"{source} was not installed: the environment has {package} {version or 'not at all'}")
        final = installs.install_folder(source.engine, version)
        for script in (self.part / "bin").iterdir():  # their first line names the interpreter in the part folder
            if script.is_file() and not script.is_symlink():
                script.write_bytes(script.read_bytes().replace(str(self.part).encode(), str(final).encode()))
        return InstalledEngine(engine=source.engine, version=version, kind="package", tool="uv" if uv else "pip")

    def build(self, tree: str) -> InstalledEngine:
        """Build a commit or tag of a git repository, or a plain source tree, for this machine.

        Only what differs from the last build is compiled.
        """
        source, box = self.source, load_box()
        build_commands, jobs = load_engine(source.engine).build_commands, len(os.sched_getaffinity(0))
        if not build_commands(tree, "", box, jobs):
            raise Unsupported(f"moebox cannot build {source.engine}", hint=f"install it: {source.engine}==VERSION")
        earlier = [each.source for each in installs.list_installs() if each.engine == source.engine and each.source]
        tree = tree or ["", *earlier][-1]
        refuse_if(not tree, f"{source}: which source tree?", hint=f"moebox engines install {source} DIR")
        remote = "://" in tree
        is_git = remote or tree.endswith(".git") or (Path(tree) / ".git").exists()
        text = f"{tree}: not a source tree"
        refuse_if(not is_git and not Path(tree).is_dir(), text, hint="a folder, a git repository or its URL")
        tree = tree if remote else str(Path(tree).resolve())
        with installs.build_folder(source.engine, tree, self.notify) as (work, lock):
            self.locks = (*self.locks, lock)
            commit = self.check_out(tree, work / "source") if is_git else ""
            (work / "build" / "CMakeCache.txt").unlink(missing_ok=True)  # defaults of another version's options
            files.remove_tree(work / "bin")
            (work / "bin").mkdir()
            for argv in build_commands(str(work / "source") if is_git else tree, str(work), box, jobs):
                self.run(*argv)
            if not any((work / "bin").iterdir()):
                raise ExternalError(f"{source} was not built: the build made no program", hint=f"log: {self.log}")
            os.rename(work / "bin", self.part / "bin")
        row = InstalledEngine(engine=source.engine, version=source.version, kind="build", tool="cmake")
        return replace(row, commit=commit, source=tree)

    def check_out(self, tree: str, checkout: Path) -> str:
        """Check a version out, so that files that are the same in the last one keep their times. Return its commit."""
        version = self.source.version
        if not checkout.exists():
            shared = () if "://" in tree else ("--shared",)
            self.run("git", "clone", "--quiet", "--no-checkout", *shared, tree, str(checkout))
        git = ("git", "-C", str(checkout))
        self.run(*git, "fetch", "--quiet", "--force", "--tags", "origin", "HEAD", "+refs/heads/*:refs/remotes/origin/*")
        names = ("FETCH_HEAD",) if version == "HEAD" else (f"origin/{version}", version)
        find = [*git, "rev-parse", "--verify", "--quiet", "--end-of-options"]
        found = (preflight.command_output([*find, f"{name}^{{commit}}"]) for name in names)
        commit = next(filter(None, found), "")
        text = f"{self.source}: {hide_secrets(tree)} has no commit, tag or branch {version}"
        refuse_if(not commit, text, hint="`git fetch --tags` there gets newer ones, `git tag` lists them")
        self.run(*git, "checkout", "--quiet", "--force", "--detach", commit)
        return commit

    def pull_image(self) -> InstalledEngine:
        """Pull an image and record its digest, by which it is started from then on."""
        source = self.source
        tool = next(filter(shutil.which, CONTAINER_TOOLS), "")
        if not tool:
            raise NotInstalled("neither docker nor podman is installed", hint="install one of them, or a package")
        self.run(tool, "pull", source.image)
        inspect = [tool, "image", "inspect", "--format", "{{index .RepoDigests 0}} {{.Size}}", source.image]
        image, _, size = preflight.command_output(inspect).partition(" ")
        if "@sha256:" not in image:
            raise ExternalError(f"{source.image} has no digest after it was pulled", hint=f"log: {self.log}")
        row = InstalledEngine(engine=source.engine, version=source.version, kind="image", tool=tool)
        return replace(row, image=image, bytes=int(size) if size.isdigit() else 0)

    def run(self, *argv: str, env: dict[str, str] | None = None) -> None:
        """Run one command with its output in the log. Raise ExternalError with the line that shows why it failed."""
        self.notify(" ".join(argv[:4]))
        if shutil.which(argv[0]) is None:
            raise NotInstalled(f"{argv[0]} is not installed, and {self.source} needs it")
        start = self.log.stat().st_size if self.log.exists() else 0
        with open(self.log, "ab") as log:
            child = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=chosen_environment(env),
                pass_fds=self.locks,  # as long as it lives, its folders are not removed by another moebox
                start_new_session=True,
            )
            try:
                code = child.wait()
            except BaseException:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child.pid, 15)
                child.wait()
                raise
        if code == 0:
            return
        with open(self.log, "rb") as log:
            log.seek(start)
            lines = [line.strip() for line in log.read().decode(errors="replace").splitlines() if line.strip()]
        place = next((place for place, line in enumerate(lines) if PROBLEM.search(line)), len(lines) - 1)
        reason = lines[place] if lines else f"exit code {code}"
        if reason.endswith(":") and lines[place + 1 :]:  # CMake and uv name the place first
            reason += f" {lines[place + 1]}"
        reason = hide_secrets(hide_known_keys(reason))[:300]
        raise ExternalError(f"{self.source} was not installed: {reason}", hint=f"log: {self.log}")
