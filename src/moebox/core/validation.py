"""Validation of the texts in a recipe.

Recipes are shared, so one may come from an untrusted source: each text that ends up in a command line, a unit, a YAML
file or a script must match a pattern here before it is used. Two fields name programs by design, `runtime.entry` and
`runtime.setup`; they are one program with its arguments, never text for a shell. Of docker and podman only options are
allowed that give the container no more of the machine than its GPUs. Renderers quote on top of this.
"""

import ipaddress
import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from moebox import codec
from moebox.core.catalogue import load_table
from moebox.core.change import get_setting
from moebox.core.recipe import FORMAT, Recipe, Runtime
from moebox.core.traits import LAST_PORT
from moebox.errors import BadInput, refuse_if, refuse_out_of_range, suggest_names
from moebox.redact import contains_token

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
WORD = re.compile(r"[A-Za-z0-9._+-]{0,64}")  # versions, parsers, methods
ONE_WORD = ("engine_version", "kv", "tool_parser", "reasoning_parser", "speculate.method")
PATHS = ("served_name", "checkpoint", "model", "speculate.draft", "runtime.python")  # with a leading dash, a flag
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
LABEL = re.compile(r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?")  # one part of a host name, RFC 1123
SECRET = re.compile(r"(^|[-_])(api[-_]?key|hf[-_]token|token|password|passwd|secret|access[-_]key)$", re.IGNORECASE)
# Variables that make a shell, the loader or an interpreter run something, or that a shell reserves.
HOOKS = re.compile(
    r"BASH.*|ENV|SHELLOPTS|PS[0-4]|PROMPT_COMMAND|IFS|CDPATH|GLOBIGNORE|PATH|HOME|SHELL|(E?U|PP)ID|_|FUNCNAME|LINENO"
    r"|RANDOM|SECONDS|DIRSTACK|GROUPS|HIST.*|OPT(ARG|ERR|IND)|GCONV_PATH|HOSTALIASES|NODE_OPTIONS|PERL5.*|RUBYOPT|GIT_.*"
    r"|MOEBOX_.*|SLURM_.*"
)
LOADER = re.compile(r"LD_.*|PYTHON(PATH|HOME|STARTUP|INSPECT|BREAKPOINT|WARNINGS|USERBASE|EXECUTABLE)")
SHELLS = re.compile(r"(ba|da|z|k|mk|c|tc|fi|a)?sh|busybox|eval|exec|source|\.|sudo|su|doas|ssh|xargs|env")
CODE = ("-c", "-e", "--eval", "--command", "-ic", "-lc")  # flags of interpreters before program text
INSTALLERS = ("pip", "pip3", "uv", "apt-get", "apt", "apk", "dnf", "microdnf", "yum", "conda", "mamba", "micromamba")
NO_SECRETS = "which a recipe must not contain"  # it is copied into runs, packages and reports
EXPORT_HINT = "export it, and name the variable in listen.key_env (HF_TOKEN is passed on by itself)"
ENTRY_HINT = 'e.g. "python3 -m sglang.launch_server"'
SETUP_HINT = f"installers joined by && ({', '.join(INSTALLERS[:4])}, …); for more, build an image"

# A reference as the OCI distribution specification writes it: [host[:port]/]path[:tag][@digest].
IMAGE = re.compile(
    r"(?:(?:[A-Za-z0-9](?:[A-Za-z0-9.-]{0,252}[A-Za-z0-9])?)(?::\d{1,5})?/)?"
    r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*)*"
    r"(?::[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?"
    r"(?:@[a-z0-9]+(?:[.+_-][a-z0-9]+)*:[0-9a-fA-F]{32,})?"
)
VOLUME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{1,127}")
MODES = re.compile(r"(ro|rw|z|Z|cached|delegated|consistent|nocopy|r?(shared|slave|private))(,\w+)*")
# Folders with the system's programs and settings, or with the socket of a daemon that is root.
SYSTEM_FOLDERS: tuple[str, ...] = ("/etc", "/proc", "/sys", "/boot", "/dev", "/run", "/var/run", "/var/lib/docker")
SYSTEM_FOLDERS += ("/var/lib/containers", "/usr", "/bin", "/sbin", "/lib", "/lib64")
HOME_ROOTS = ("/", "/home", "/root", "/var", "~", "~/")  # not as a whole; folders below them are allowed
PRIVATE_NAMES = frozenset(
    {".ssh", ".gnupg", ".aws", ".azure", ".kube", ".docker", ".config", ".netrc", ".password-store", ".local"}
)
MOUNT_HINT = "mount the folder itself, e.g. /data/models"
RENDER_HINT = "`moebox render` writes a script to which you can add such an option yourself"
OPTIONS: Mapping[str, str] = load_table("container_options")  # option -> pattern of its values, "" if it has none


def read_recipe(path: Path) -> Recipe:
    document = codec.load_toml(path)
    hint = "`moebox plan MODEL -o recipe.toml` writes one"
    refuse_if(not document, f"{path}: is empty, not a recipe", hint=hint)
    box = "gpus" in document and "engine" not in document
    refuse_if(box, f"{path}: is a box file, not a recipe", hint=f"`moebox plan MODEL --box {path}` plans for it")
    recipe = codec.decode(Recipe, document, where=str(path))
    try:
        validate_recipe(recipe)
    except BadInput as problem:
        raise BadInput(f"{path}: {problem.message}", hint=problem.hint) from None
    return recipe


def validate_recipe(recipe: Recipe) -> None:
    """Raise BadInput for the first text of a recipe that is invalid or unsafe."""
    refuse_if(recipe.format > FORMAT, f"format {recipe.format} is newer than this moebox, which reads up to {FORMAT}")
    texts = list(_all_texts(codec.to_plain(recipe), ""))
    for path, _, text in texts:  # a line break ends a line of a rendered file, and in YAML so does U+2028
        hidden = next((character for character in text if not character.isprintable()), None)
        if hidden is not None:
            raise BadInput(f"{path}: contains a control character (U+{ord(hidden):04X})", hint="write it on one line")
    _check_names(recipe)
    _check_variables(recipe)
    for _, place, text in texts:
        if contains_token(text):
            raise BadInput(f"{place}: looks like a key or password, {NO_SECRETS}", hint=EXPORT_HINT)
    _check_host(recipe)
    _check_runtime(recipe.runtime)
    if recipe.runtime.kind in ("docker", "podman"):
        checkpoint = recipe.checkpoint
        relative = checkpoint.startswith(".")
        refuse_if(relative, f"checkpoint: a container needs the whole path, not {checkpoint!r}")
        if checkpoint.startswith(("/", "~")):
            weights = PurePosixPath(checkpoint)
            _check_host_path("checkpoint", str(weights.parent if weights.suffix == ".gguf" else weights))


def _all_texts(value: Any, path: str) -> Iterator[tuple[str, str, str]]:
    """Yield every text of a document with its path, and with a description of its place that does not quote it."""
    if isinstance(value, str):
        yield path, path, value
        return
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list | tuple) else ()
    for key, item in items:
        prefix = f"{path}." if path else ""
        if isinstance(key, str):
            yield f"{prefix}{key!r}", f"a key of {path or 'the recipe'}", key
        yield from _all_texts(item, f"{prefix}{key}")


def _check_names(recipe: Recipe) -> None:
    text = f"name: {recipe.name!r} may contain only letters, digits, dots and dashes"
    refuse_if(not NAME.fullmatch(recipe.name), text, hint="begin with a letter or digit")
    for path in ONE_WORD:
        word = str(get_setting(recipe, path) or "")
        refuse_if(not WORD.fullmatch(word), f"{path}: {word!r} is not a valid name")
    version = recipe.engine_version
    named = version in ("", "nightly", "latest", "main") or re.search(r"\d|^[a-f]{7,40}$", version)
    refuse_if(not named, f"engine_version: {version!r} is not a version", hint='write it like "0.32.0" or "b11669"')
    for path in PATHS:
        name = str(get_setting(recipe, path) or "")
        refuse_if(name.startswith("-"), f"{path}: {name!r} would be read as a flag")
    draft = recipe.speculate.draft if recipe.speculate else ""
    refuse_if(re.search(r'["\\]', draft), 'speculate.draft: a path or repository cannot contain " or \\')
    python = recipe.runtime.python
    refuse_if("=" in python, f"runtime.python: {python!r} is not a path of an interpreter or venv")


def _check_variables(recipe: Recipe) -> None:
    in_container = recipe.runtime.kind in ("docker", "podman")
    for name in recipe.env:
        hint = "letters, digits and _, as in a shell"
        refuse_if(not VARIABLE.fullmatch(name), f"env: {name!r} is not a valid name of a variable", hint=hint)
        unsafe = HOOKS.fullmatch(name) or (LOADER.fullmatch(name) and not in_container)
        text = f"env.{name}: decides which programs run, so a recipe must not set it"
        refuse_if(unsafe, text, hint="export it yourself before you start the engine")
    key = recipe.listen.key_env
    refuse_if(key and not VARIABLE.fullmatch(key), "listen.key_env: is the name of a variable, not the key itself")
    for table, names in (("flags", recipe.flags), ("env", recipe.env)):
        for name in names:
            refuse_if(SECRET.search(name.lstrip("-")), f"{table}.{name}: a secret, {NO_SECRETS}", hint=EXPORT_HINT)


def _check_host(recipe: Recipe) -> None:
    refuse_out_of_range("listen.port", recipe.listen.port, 0, LAST_PORT)  # 0: any free port
    host = recipe.listen.host
    try:
        if "%" not in str(ipaddress.ip_address(host)):
            return
    except ValueError:
        pass
    labels = host.removesuffix(".").split(".")
    hint = "e.g. 127.0.0.1, 0.0.0.0 or ::1"
    text = f"listen.host: {host!r} is not a valid address or host name"
    refuse_if(len(host) > 253 or not all(map(LABEL.fullmatch, labels)), text, hint=hint)
    text = f"listen.host: a container's port is published on an address, not on {host!r}"
    refuse_if(recipe.runtime.kind in ("docker", "podman") and host != "localhost", text)


def _check_runtime(runtime: Runtime) -> None:
    parse_entry(runtime.entry)
    _check_setup(runtime.setup)
    hint = 'e.g. "vllm/vllm-openai:v0.32.0"'
    text = f"runtime.image: {runtime.image!r} is not a valid image name"
    refuse_if(runtime.image and (len(runtime.image) > 512 or not IMAGE.fullmatch(runtime.image)), text, hint=hint)
    if runtime.models_dir:
        _check_host_path("runtime.models_dir", runtime.models_dir)
    for source, target in runtime.mounts.items():
        _check_host_path("runtime.mounts", source)
        folder, _, mode = target.partition(":")
        hint = 'e.g. "/models:ro"'
        text = f"runtime.mounts: {target!r} is not a valid path in the container"
        refuse_if(not folder.startswith("/") or folder == "/", text, hint=hint)
        _refuse_colon_and_parent("runtime.mounts", folder)
        text = f"runtime.mounts: {mode!r} is not a valid mode of a mount"
        refuse_if(mode and not MODES.fullmatch(mode), text, hint="ro or rw")
    parse_options(runtime.options)


def _check_host_path(path: str, text: str) -> None:
    """Raise BadInput unless `text` is a folder of this machine that a container may see, or a volume's name."""
    if not text.startswith(("/", "~/")):
        hint = "begin with / or ~/, or name a volume"
        refuse_if(not VOLUME.fullmatch(text), f"{path}: {text!r} is not a valid folder", hint=hint)
        return
    _refuse_colon_and_parent(path, text)
    folder = PurePosixPath(text)
    if any(map(folder.is_relative_to, SYSTEM_FOLDERS)) and not str(folder).startswith("/dev/shm"):  # noqa: S108
        raise BadInput(f"{path}: {text} is a system folder, which a container must not see", hint=MOUNT_HINT)
    is_home = len(folder.parts) == 3 and folder.parts[1] == "home"
    private = is_home or str(folder) in HOME_ROOTS or not PRIVATE_NAMES.isdisjoint(folder.parts)
    refuse_if(private, f"{path}: {text} contains more than weights", hint=MOUNT_HINT)
    refuse_if(str(folder).endswith(".sock"), f"{path}: {text} is a socket, not a folder of weights", hint=MOUNT_HINT)


def _refuse_colon_and_parent(path: str, text: str) -> None:
    """Docker splits a mount at its colons, and `..` leads to another folder than the one that was checked."""
    split = ":" in text or ".." in PurePosixPath(text).parts
    refuse_if(split, f"{path}: {text!r} contains a colon or ..", hint=MOUNT_HINT)


def parse_options(words: tuple[str, ...]) -> list[tuple[str, str]]:
    """Return the options for docker and podman with their values. Raise BadInput for one that is not allowed."""
    found: list[tuple[str, str]] = []
    rest = list(words)
    while rest:
        name, joined, value = rest.pop(0).partition("=")
        if name not in OPTIONS:
            near = suggest_names(name, [option for option in OPTIONS if option.startswith("--")])
            hint = near if name.startswith("-") and "?" in near else RENDER_HINT
            raise BadInput(f"runtime.options: {name!r} is not allowed in a recipe", hint=hint)
        if OPTIONS[name] and not joined:
            value = rest.pop(0) if rest else ""
        text = f"runtime.options: {name} {value!r} is not allowed in a recipe"
        refuse_if(not re.fullmatch(OPTIONS[name], value), text, hint=RENDER_HINT)
        found.append((name, value))
    return found


def parse_entry(text: str) -> tuple[str, ...]:
    """Split `runtime.entry` into a program and its arguments. Raise BadInput for a shell or the text of a program."""
    if not text:
        return ()
    words = _split_words("runtime.entry", text)
    refuse_if(not words, "runtime.entry: names no program", hint=ENTRY_HINT)
    program = PurePosixPath(words[0]).name
    invalid = words[0].startswith("-") or "=" in words[0] or not program
    refuse_if(invalid, f"runtime.entry: {words[0]!r} is not a valid program", hint=ENTRY_HINT)
    shell = SHELLS.fullmatch(program) or not set(CODE).isdisjoint(words[1:])
    hint = "put the commands into a file of your own, and name that"
    refuse_if(shell, f"runtime.entry: {program} would run program text, not an engine", hint=hint)
    return words


def _check_setup(text: str) -> None:
    """Raise BadInput unless `runtime.setup` is installers joined by &&, with nothing that a shell would expand."""
    if not text:
        return
    if re.search(r"[$`\\#!*?~{}\[\]]", text):
        raise BadInput("runtime.setup: contains a character that a shell would expand", hint=SETUP_HINT)
    _split_words("runtime.setup", text)
    lexer = shlex.shlex(text, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    commands: list[list[str]] = [[]]
    for word in lexer:
        if word == "&&":
            commands.append([])
        elif set(word) <= set("();<>|&"):
            raise BadInput(f"runtime.setup: {word!r} is not allowed", hint=SETUP_HINT)
        else:
            commands[-1].append(word)
    for words in commands:
        pip = words[:3] in (["python", "-m", "pip"], ["python3", "-m", "pip"])
        text = f"runtime.setup: {' '.join(words)!r} is not an installer"
        refuse_if(not pip and (not words or words[0] not in INSTALLERS), text, hint=SETUP_HINT)


def _split_words(path: str, text: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(text))
    except ValueError as problem:
        raise BadInput(f"{path}: {text!r} cannot be split into words: {str(problem).lower()}") from None
