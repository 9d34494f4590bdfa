"""Checks before a launch: engine, version, checkpoint, kernels, ports."""

import contextlib
import errno
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from moebox import codec, detect, engines
from moebox.checkpoint.gguf import gguf_damage
from moebox.checkpoint.safetensors import is_nonempty_file, shard_damage
from moebox.core.box import Box
from moebox.core.deployment import Deployment
from moebox.core.plan import Launch
from moebox.core.recipe import Recipe
from moebox.core.traits import LAST_PORT, Traits
from moebox.core.versions import are_comparable, is_commit, same_version
from moebox.detect.health import DISK_BYTES, measure_read_rate
from moebox.engines.assemble import image_name
from moebox.engines.engine import load_engine
from moebox.engines.flags import newest_version
from moebox.engines.support import PATCHABLE_SYMPTOMS
from moebox.environment import chosen_environment
from moebox.errors import AnswerIsNo, BadInput, ExternalError, NotInstalled, refuse_if
from moebox.hub.client import find_snapshot
from moebox.hub.names import gguf_part_names, parse_repo_name
from moebox.loose import get_path
from moebox.serve.agent import port_is_open
from moebox.site import read_site

BACKUP_SUFFIX = ".moebox-original"  # of an engine's file that `moebox doctor kernels` patched
WEIGHTS = (".safetensors", ".gguf", ".bin")
PORTS_TRIED = 50
PORTS_FROM, EPHEMERAL_FROM = 20_000, 32_768  # the kernel gives ports of its ephemeral range to any program
VERSION_WAIT_S = 60.0  # importing an engine's metadata is quick; a cold disk is not


def check_launch(deployment: Deployment, launch: Launch, argv: tuple[str, ...]) -> None:
    """Raise for the first problem that would make the launch fail."""
    recipe = deployment.recipe
    if not uses_dummy_weights(recipe):
        check_checkpoint(deployment.weights_path, recipe)
    check_engine(deployment, argv)
    check_version(deployment, argv)
    check_kernels(deployment, argv, detect.load_box if recipe.kv == "fp8" else None)
    for port in deployment.engine.ports_used(launch.port):
        check_port(launch.host, port)


def uses_dummy_weights(recipe: Recipe) -> bool:
    """Whether the engine invents its weights, as in a rehearsal before the download."""
    flags = load_engine(recipe.engine).dummy_flags
    return bool(flags) and flags.items() <= recipe.flags.items()


def check_checkpoint(weights: str, recipe: Recipe) -> None:
    """Raise if a checkpoint on this machine is missing, incomplete or damaged."""
    path = Path(weights).expanduser()
    is_local = weights.startswith(("/", ".", "~")) or weights.endswith(".gguf") or path.exists()
    if recipe.runtime.mounts:
        return
    if not is_local:  # a repository, of which the engine downloads what the cache lacks
        if parse_repo_name(weights) and (cached := find_snapshot(weights, str(recipe.flags.get("revision", "")))):
            refuse_damaged_shards(cached, f"`moebox fetch {weights}` fetches it again")
        return
    if not path.exists():
        text = f"checkpoint {weights} not found"
        raise ExternalError(text, hint="check the path, or download it first with `hf download`")
    if path.is_dir() and not any(file.suffix in WEIGHTS for file in path.iterdir()):
        text = f"checkpoint {weights} holds no weights, only other files"
        raise ExternalError(text, hint="download it first: `hf download REPOSITORY --local-dir` this folder")
    missing = missing_shards(path)
    if missing:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        text = f"checkpoint {weights} is incomplete: {', '.join(missing[:3])}{more} of its shards missing or empty"
        raise ExternalError(text, hint="download it again; `hf download` fetches only what is missing")
    refuse_damaged_shards(
        path, "download it again, or name the repository for `moebox fetch`, which takes only what is damaged"
    )


def refuse_damaged_shards(path: Path, hint: str) -> None:
    """Raise ExternalError if a shard has another size than its own header describes, or lacks tensors of the index."""
    if path.is_file():
        damaged = {part.name: gguf_damage(part) for part in gguf_parts(path)}
    else:
        named = named_shards(path)
        shards = [path / name for name in named if "/" not in name] or list(path.glob("*.safetensors"))
        damaged = {file.name: shard_damage(file, named.get(file.name, ())) for file in shards if file.is_file()}
    damaged = {name: reason for name, reason in sorted(damaged.items()) if reason}
    if damaged:
        name, reason = next(iter(damaged.items()))
        more = f"; so are {len(damaged) - 1} more" if len(damaged) > 1 else ""
        raise ExternalError(f"{path if path.is_dir() else path.parent}/{name} is damaged: it {reason}{more}", hint=hint)


def gguf_parts(path: Path) -> list[Path]:
    """Return the existing parts of a GGUF file, of which one is named."""
    return list(filter(Path.exists, map(path.with_name, gguf_part_names(path.name))))


def weight_files(deployment: Deployment) -> list[Path]:
    """Return the files of the weights on this machine, in the Hub's cache if a repository is named."""
    name, checkpoint = deployment.weights_path, deployment.known_checkpoint
    path = Path(name).expanduser()
    if not path.exists():
        cached = find_snapshot(name, deployment.revision) if parse_repo_name(name) else None
        path = cached / checkpoint.file if cached and checkpoint else cached or path
    shards = gguf_parts(path) if path.suffix == ".gguf" else sorted(path.glob("*.safetensors"))
    return list(filter(Path.is_file, shards or sorted(path.glob("*.bin"))))


def measure_weights_disk(deployment: Deployment) -> tuple[int, float]:
    """Bytes of the weights on this machine and the rate of their disk; 0 if they are few, invented or not here."""
    found = [] if uses_dummy_weights(deployment.recipe) else weight_files(deployment)
    sizes = {file: file.stat().st_size for file in found}
    largest = max(sizes, key=lambda file: sizes[file], default=None)
    if largest is None or sizes[largest] < DISK_BYTES:
        return 0, 0.0
    try:
        return sum(sizes.values()), measure_read_rate(largest)
    except OSError:  # the engine's own message is the better one
        return 0, 0.0


def named_shards(path: Path) -> dict[str, list[str]]:
    """Shards that a GGUF or the safetensors indexes of a folder name, with their tensors."""
    if path.is_file():
        return {name: [] for name in gguf_part_names(path.name)}
    named: dict[str, list[str]] = {}
    for index in path.glob("*.safetensors.index.json"):
        shards = get_path(codec.load_json(index), "weight_map")
        if not isinstance(shards, dict):
            raise BadInput(f"{index}: has no weight_map")
        for tensor, name in shards.items():
            named.setdefault(str(name), []).append(tensor)
    return named


def missing_shards(path: Path) -> list[str]:
    """Shards of a GGUF or of safetensors indexes that do not exist, or are empty."""
    folder = path.parent if path.is_file() else path
    return [name for name in sorted(named_shards(path)) if not is_nonempty_file(folder / name)]


def check_engine(deployment: Deployment, argv: tuple[str, ...]) -> None:
    recipe, traits = deployment.recipe, deployment.engine
    if recipe.runtime.kind == "embedded":
        refuse_if(not traits.embedded, f"{traits.title} does not run embedded")
        if find_spec("xllamacpp") is None:
            raise NotInstalled("the embedded engine is not installed", hint="pip install 'moebox[embedded]'")
    elif shutil.which(argv[0]) is None:
        inside = recipe.runtime.kind in ("docker", "podman")
        what = recipe.runtime.kind if inside else recipe.engine
        native = "" if recipe.runtime.preset else ', or runtime.kind = "native" in the recipe'
        version = recipe.engine_version or newest_version(recipe.engine)
        source = f"{recipe.engine}=={version}" if traits.package else f"{recipe.engine}@COMMIT SOURCE_FOLDER"
        own = f"`moebox engines install {source}`, or {traits.install}"
        hint = f"install {what}{native}" if inside else own
        raise NotInstalled(f"{what} is not installed here: {argv[0]} is not on PATH", hint=hint)


def check_version(deployment: Deployment, argv: tuple[str, ...]) -> None:
    """Raise if the recipe names an engine version and another one is installed."""
    recipe = deployment.recipe
    wanted = recipe.engine_version
    managed = recipe.runtime.python and (Path(recipe.runtime.python) / "engine.json").exists()  # serve/installs.py
    if not wanted or managed or recipe.runtime.kind != "native":
        return
    here = engine_version(deployment.engine, argv)
    is_another = are_comparable(wanted, here) or is_commit(wanted)  # a branch or a date has no number to compare
    if here and is_another and not same_version(wanted, here):
        spec = f"{recipe.engine}=={wanted}" if deployment.engine.package else f"{recipe.engine}@{wanted} DIR"
        text = f"the recipe wants {recipe.engine} {wanted}, this machine has {here}"
        raise ExternalError(text, hint=f"`moebox engines install {spec}`, or change engine_version in the recipe")


def version_command(python: str, package: str) -> list[str]:
    """The command that prints the version of a package under that Python."""
    return [python, "-c", f"import importlib.metadata as m; print(m.version({package!r}))"]


def engine_version(traits: Traits, argv: tuple[str, ...]) -> str:
    if traits.package:
        return command_output(version_command(find_interpreter(argv[0]), traits.package))
    text = command_output([argv[0], "--version"])
    match = re.search(r"version:\s*(?:[\d.]+\S* \(build )?(\d+)\b", text)  # 4321 (abc), or 0.2.0-dev (build 4321, …)
    return f"b{match.group(1)}" if match else ""


def running_version(deployment: Deployment) -> str:
    """The version that a launch on this machine uses, or "" if it is unknown; an image has its own."""
    recipe = deployment.recipe
    if recipe.runtime.kind == "native":
        return engine_version(deployment.engine, load_engine(recipe.engine).entry_command(recipe))
    embedded = version_command(sys.executable, "xllamacpp")
    return command_output(embedded) if recipe.runtime.kind == "embedded" else ""


def image_digest(deployment: Deployment) -> str:
    """The digest of the image that a container engine starts from, or "" if it is not on this machine yet."""
    tool = deployment.recipe.runtime.kind
    if tool not in ("docker", "podman"):
        return ""
    return command_output([tool, "image", "inspect", "--format", "{{.Id}}", image_name(deployment)])


def check_kernels(deployment: Deployment, argv: tuple[str, ...], detect_box: Callable[[], Box] | None) -> None:
    """Raise if a kernel cannot launch on these GPUs, unless the installed engine is patched."""
    recipe = deployment.recipe
    if detect_box is None or recipe.runtime.preset:
        return
    warnings = engines.find_refusals(deployment.on_box(detect_box()))
    warnings = [warning for warning in warnings if warning.symptom in PATCHABLE_SYMPTOMS]
    if not warnings:
        return
    folders = package_folders(Path(find_interpreter(argv[0]))) if recipe.runtime.kind == "native" else []
    if not any(patched_files(folder, recipe.engine) for folder in folders):
        raise AnswerIsNo(warnings[0].text, hint=warnings[0].remedy)


def package_folders(python: Path) -> list[Path]:
    """Return the folders where a Python keeps packages: a venv's, and those of Debian's own."""
    kinds = ("lib/python3*/site-packages", "local/lib/python3*/dist-packages", "lib/python3*/dist-packages")
    return [place for kind in kinds for place in sorted(python.parent.parent.glob(kind))]


def patched_files(root: Path, engine: str) -> list[Path]:
    """Return the engine's files that carry a patch of moebox."""
    backups = sorted((root / engine).rglob(f"*{BACKUP_SUFFIX}"))
    return [path.with_name(path.name.removesuffix(BACKUP_SUFFIX)) for path in backups]


def find_interpreter(program: str) -> str:
    """The Python of a console script, from its `#!` line; this one if there is none."""
    path = shutil.which(program) or program
    if Path(path).name.startswith("python"):
        return path
    try:
        with open(path, "rb") as script:
            first_line = script.readline(4096).decode(errors="replace").strip()
    except OSError:
        return sys.executable
    words = first_line[2:].split() if first_line.startswith("#!") else []
    program = words[0] if words else ""
    if program.endswith("/env"):  # #!/usr/bin/env python3
        program = shutil.which(words[-1]) or ""
    return program if "python" in program else sys.executable


def command_output(argv: list[str]) -> str:
    """The line with "version:" that a short command prints, else its last line, or ""."""
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, timeout=VERSION_WAIT_S, check=False, env=chosen_environment()
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    succeeded = done.returncode == 0
    lines = ((succeeded and done.stdout.strip()) or done.stderr.strip()).splitlines()
    with_version = [line for line in lines if "version:" in line]
    return next(iter(with_version), "".join(lines[-1:]) if succeeded else "")


def check_port(host: str, number: int) -> None:
    """Raise if another process listens on the port."""
    with socket.socket(address_family(host), socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # llama.cpp sets SO_REUSEPORT: for a minute after it ended, its closed connections block sockets without it.
        # A live engine sets it too, so a shared bind is tried only if nothing accepts connections.
        if not port_is_open(host, number):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        bind_port(probe, host, number)


def find_free_port(host: str = "127.0.0.1", offsets: tuple[int, ...] = ()) -> int:
    """A free port, such that the ports at `offsets` from it are free too."""
    last = LAST_PORT - max(offsets, default=0)
    for _ in range(PORTS_TRIED):
        with socket.socket(address_family(host), socket.SOCK_STREAM) as probe:
            bind_port(probe, host, 0)
            number = int(probe.getsockname()[1])
        if ports := read_site().ports:
            number = ports[0] + number % max(1, min(ports[1], last) - ports[0] + 1)
        else:  # below the ephemeral ports: one of those may be given to another program before the engine listens
            number = PORTS_FROM + number % (EPHEMERAL_FROM - PORTS_FROM)
        if all(port_is_free(host, number + offset) for offset in (0, *offsets)):
            return number
    raise ExternalError(f"no free port was found on {host}", hint="choose one with --port")


def port_is_free(host: str, number: int) -> bool:
    with contextlib.suppress(ExternalError):
        check_port(host, number)
        return True
    return False


def address_family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def bind_port(probe: socket.socket, host: str, number: int) -> None:
    """Bind the socket. Raise ExternalError with the reason if that fails."""
    try:
        probe.bind((host, number))
    except OSError as problem:
        if problem.errno == errno.EADDRINUSE:
            hint = "choose another with --port, or stop that program"
            raise ExternalError(f"port {number} on {host} is taken by another program", hint=hint) from None
        hint = "listen.host is an address of this machine"
        raise ExternalError(f"cannot listen on {host}, port {number}: {problem.strerror}", hint=hint) from None
