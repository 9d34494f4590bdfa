"""What is refused before anything starts: a missing engine, a wrong version, half a checkpoint, a taken port."""

import contextlib
import errno
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from moebox import codec, detect, engines
from moebox.core.box import Box
from moebox.core.deployment import Deployment
from moebox.core.gpu_list import VISIBLE_DEVICES
from moebox.core.plan import Launch
from moebox.core.recipe import Recipe
from moebox.core.traits import LAST_PORT, Traits
from moebox.engines import modules
from moebox.engines.refusals import PATCHABLE_SYMPTOMS
from moebox.errors import AnswerIsNo, BadInput, ExternalError, NotInstalled
from moebox.loose import get_path

WEIGHTS = (".safetensors", ".gguf", ".bin")
PORTS_TRIED = 50
PORTS_FROM = 20_000  # below the range that kernels give out by themselves
VERSION_WAIT_S = 60.0  # importing an engine's metadata is quick; a cold disk is not


def check_launch(deployment: Deployment, launch: Launch, argv: tuple[str, ...]) -> None:
    """Raise for the first thing that cannot work."""
    recipe = deployment.recipe
    if not uses_dummy_weights(recipe):
        check_checkpoint(deployment.weights_path, recipe)
    check_engine(deployment, argv)
    check_version(deployment, argv)
    check_kernels(deployment, argv, detect.load_box if recipe.kv == "fp8" else None)
    check_ports(deployment, launch)


def uses_dummy_weights(recipe: Recipe) -> bool:
    """Whether the engine makes its weights up, as in a rehearsal before the download."""
    invented = modules.behaviour_module(recipe.engine).DUMMY_FLAGS
    return bool(invented) and invented.items() <= recipe.flags.items()


def check_checkpoint(weights: str, recipe: Recipe) -> None:
    """A checkpoint on this machine must be there, whole."""
    path = Path(weights).expanduser()
    if recipe.runtime.mounts or not _local(weights, path):
        return
    if not path.exists():
        raise ExternalError(
            f"checkpoint {weights} is not there", hint="check the path, or download it first with `hf download`"
        )
    if path.is_dir() and not _holds_weights(path):
        raise ExternalError(
            f"checkpoint {weights} holds no weights, only what lies beside them",
            hint="download it first: `hf download REPOSITORY --local-dir` this folder",
        )
    _whole(weights, path)


def _whole(weights: str, path: Path) -> None:
    missing = missing_shards(path)
    if missing:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise ExternalError(
            f"checkpoint {weights} is incomplete: {', '.join(missing[:3])}{more} of its shards missing or empty",
            hint="download it again; `hf download` fetches only what is missing",
        )


def _local(weights: str, path: Path) -> bool:
    """Whether weights are meant to lie on this machine, and are no repository's name."""
    return weights.startswith(("/", ".", "~")) or weights.endswith(".gguf") or path.exists()


def _holds_weights(folder: Path) -> bool:
    return any(file.suffix in WEIGHTS for file in folder.iterdir())


def missing_shards(path: Path) -> list[str]:
    """Files that the checkpoint names and that are not there, or are empty."""
    folder = path.parent if path.is_file() else path
    names = _parts(path.name) if path.is_file() else sorted(_indexed(path))
    return [name for name in names if not is_nonempty_file(folder / name)]


def _indexed(folder: Path) -> set[str]:
    """The files that the indexes in a folder name."""
    return {name for index in folder.glob("*.safetensors.index.json") for name in _named_in(index)}


def _named_in(index: Path) -> set[str]:
    """Files that an index says tensors lie in."""
    shards = get_path(codec.load_json(index), "weight_map")
    if not isinstance(shards, dict):
        raise BadInput(f"{index}: has no weight_map")
    return {str(name) for name in shards.values()}


def _parts(name: str) -> list[str]:
    """Every part of a GGUF that is split; the file itself where it is not."""
    split = re.fullmatch(r"(.*)-(\d{5})-of-(\d{5})\.gguf", name)
    if split is None:
        return [name]
    return [f"{split[1]}-{number:05d}-of-{split[3]}.gguf" for number in range(1, int(split[3]) + 1)]


def is_nonempty_file(path: Path) -> bool:
    """A file with something in it."""
    try:
        return path.stat().st_size > 0
    except OSError:
        return False


def check_engine(deployment: Deployment, argv: tuple[str, ...]) -> None:
    """What is to be executed must exist."""
    recipe, traits = deployment.recipe, deployment.engine
    if recipe.runtime.kind == "embedded":
        _embedded(traits)
    elif shutil.which(argv[0]) is None:
        inside = recipe.runtime.kind in ("docker", "podman")
        what = recipe.runtime.kind if inside else recipe.engine
        native = "" if recipe.runtime.preset else ', or runtime.kind = "native" in the recipe'
        hint = f"install {what}{native}" if inside else traits.install
        raise NotInstalled(f"{what} is not installed here: {argv[0]} is not on PATH", hint=hint)


def _embedded(traits: Traits) -> None:
    from importlib.util import find_spec

    if not traits.embedded:
        raise BadInput(f"{traits.title} does not run embedded")
    if find_spec("xllamacpp") is None:
        raise NotInstalled("the embedded engine is not installed", hint="pip install 'moebox[embedded]'")


def check_version(deployment: Deployment, argv: tuple[str, ...]) -> None:
    """A recipe that names a version gets that one."""
    recipe = deployment.recipe
    wanted = recipe.engine_version
    if not wanted or recipe.runtime.kind != "native":
        return
    here = engine_version(deployment.engine, argv)
    if here and not (here == wanted or here.startswith((f"{wanted}.", f"{wanted}+"))):
        raise ExternalError(
            f"the recipe wants {recipe.engine} {wanted}, this machine has {here}",
            hint=f"install {wanted}, or change engine_version in the recipe (its flags are checked against it)",
        )


def version_command(python: str, package: str) -> list[str]:
    """The command that prints the version of a package under that Python."""
    return [python, "-c", f"import importlib.metadata as m; print(m.version({package!r}))"]


def engine_version(traits: Traits, argv: tuple[str, ...]) -> str:
    """The version that would run, or "" where it cannot be told."""
    if traits.package:
        return command_output(version_command(find_interpreter(argv[0]), traits.package))
    text = command_output([argv[0], "--version"])
    match = re.search(r"version:\s*(\d+)", text)
    return f"b{match.group(1)}" if match else ""


def check_kernels(deployment: Deployment, argv: tuple[str, ...], detect_box: Callable[[], Box] | None) -> None:
    """A kernel that cannot launch on these GPUs is refused, unless the engine that would run carries the patch."""
    recipe = deployment.recipe
    if detect_box is None or recipe.runtime.preset:
        return
    for warning in engines.find_refusals(deployment.on_box(detect_box())):
        if warning.symptom in PATCHABLE_SYMPTOMS and not _patched(recipe, argv):
            raise AnswerIsNo(warning.text, hint=warning.remedy)


def _patched(recipe: Recipe, argv: tuple[str, ...]) -> bool:
    from moebox.kernels.patch import patched_files
    from moebox.kernels.scan import package_folders

    places = package_folders(Path(find_interpreter(argv[0]))) if recipe.runtime.kind == "native" else []
    return any(patched_files(place, recipe.engine) for place in places)


def find_interpreter(program: str) -> str:
    """The Python that a console script runs in: the one its first line names."""
    path = shutil.which(program) or program
    if Path(path).name.startswith("python"):
        return path
    try:
        with open(path, "rb") as script:
            first = script.readline(4096).decode(errors="replace").strip()
    except OSError:
        return sys.executable
    return _named_by(first)


def _named_by(first_line: str) -> str:
    """The Python of a `#!` line, also through /usr/bin/env; this one where there is none."""
    words = first_line[2:].split() if first_line.startswith("#!") else []
    program = words[0] if words else ""
    if program.endswith("/env"):
        program = shutil.which(words[-1]) or ""
    return program if "python" in program else sys.executable


def command_output(argv: list[str]) -> str:
    """The last line a short command prints, or ""."""
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=VERSION_WAIT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    well = done.returncode == 0
    lines = ((well and done.stdout.strip()) or done.stderr.strip()).splitlines()
    named = [line for line in lines if "version:" in line]
    return next(iter(named), "".join(lines[-1:]) if well else "")


def check_ports(deployment: Deployment, launch: Launch) -> None:
    """Nobody else may listen on any port that the engine takes."""
    for number in deployment.engine.ports_used(launch.port):
        check_port(launch.host, number)


def check_port(host: str, number: int) -> None:
    """Nobody else may listen there."""
    with socket.socket(address_family(host), socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # llama.cpp shares its port, so closed connections of one that ended keep it from all who do not, for a minute.
        # An engine that listens shares it as well: then, and only then, somebody answers.
        if not accepts_connections(host, number):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        bind_port(probe, host, number)


def accepts_connections(host: str, number: int) -> bool:
    """Whether somebody accepts connections there."""
    with socket.socket(address_family(host), socket.SOCK_STREAM) as probe:
        probe.settimeout(1)
        with contextlib.suppress(OSError):  # a name that nobody knows: binding says so
            return probe.connect_ex((host, number)) == 0
    return False


def find_free_port(host: str = "127.0.0.1", offsets: tuple[int, ...] = ()) -> int:
    """A port nobody uses now, so that those `beside` it (counted from it) are there and free too."""
    last = LAST_PORT - max(offsets, default=0)
    for _ in range(PORTS_TRIED):
        with socket.socket(address_family(host), socket.SOCK_STREAM) as probe:
            bind_port(probe, host, 0)
            number = int(probe.getsockname()[1])
        if number > last:  # kernels give out ports up to 60,999
            number = PORTS_FROM + number % (last - PORTS_FROM)
        if all(port_is_free(host, number + offset) for offset in (0, *offsets)):
            return number
    raise ExternalError(f"no free port was found on {host}", hint="choose one with --port")


def port_is_free(host: str, number: int) -> bool:
    """Whether nobody listens there now."""
    try:
        check_port(host, number)
    except ExternalError:
        return False
    return True


def address_family(host: str) -> socket.AddressFamily:
    """IPv6 by its colons."""
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def bind_port(probe: socket.socket, host: str, number: int) -> None:
    """Take the address, or say why it cannot be had."""
    try:
        probe.bind((host, number))
    except OSError as problem:
        if problem.errno == errno.EADDRINUSE:
            hint = "choose another with --port, or stop that program"
            raise ExternalError(f"port {number} on {host} is taken by another program", hint=hint) from None
        raise ExternalError(
            f"cannot listen on {host}, port {number}: {problem.strerror}",
            hint="listen.host is an address of this machine",
        ) from None


def recipe_gpus(deployment: Deployment) -> tuple[int, ...]:
    """The GPUs that the recipe takes on this machine; none where there are none."""
    recipe = deployment.recipe
    if recipe.runtime.kind == "embedded":
        return ()
    named = recipe.env.get(VISIBLE_DEVICES, os.environ.get(VISIBLE_DEVICES))
    there = _gpus_here() if named is None else _numbers(named)
    if VISIBLE_DEVICES in recipe.env or deployment.engine.uses_all_gpus:
        return there
    return there[: recipe.parallel.gpu_count // max(recipe.parallel.nodes, 1)]


def _numbers(named: str) -> tuple[int, ...]:
    return tuple(int(word) for word in named.split(",") if word.strip().isdigit())


def _gpus_here() -> tuple[int, ...]:
    """Numbers of the GPUs that the driver shows."""
    numbers = [path.name.removeprefix("nvidia") for path in Path("/dev").glob("nvidia[0-9]*")]
    return tuple(sorted(int(number) for number in numbers if number.isdigit()))
