"""Validation of the texts in a recipe.

Recipes are shared, so one may come from an untrusted source: each text that ends up in a command line, a unit, a YAML
file or a script must match a pattern here before it is used. Two fields name programs by design, `runtime.entry` and
`runtime.setup`; they are one program with its arguments, never text for a shell. Of docker and podman only options are
allowed that give the container no more of the machine than its GPUs. Renderers quote on top of this.
"""

import contextlib
import dataclasses
import ipaddress
import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from moebox import codec
from moebox.core.catalogue import load_table
from moebox.core.recipe import FORMAT, Listen, Recipe, Runtime, Speculate
from moebox.core.traits import LAST_PORT
from moebox.errors import BadInput, prefix_errors, refuse_if, suggest_names
from moebox.redact import contains_token

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
WORD = re.compile(r"[A-Za-z0-9._+-]{0,64}")  # versions, parsers, methods
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
LABEL = re.compile(r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?")  # one part of a host name, RFC 1123
SECRET = re.compile(
    r"(^|[-_])(api[-_]?key|hf[-_]token|(?<!per[-_])(?<!first[-_])token|password|passwd|secret|access[-_]key)$",
    re.IGNORECASE,
)
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
Rule = tuple[object, str, str | None]  # whether it is broken, the message, and how to fix it


def read_recipe(path: Path) -> Recipe:
    document = codec.load_toml(path)
    hint = "`moebox plan MODEL -o recipe.toml` writes one"
    refuse_if(not document, f"{path}: is empty, not a recipe", hint=hint)
    box = "gpus" in document and "engine" not in document
    refuse_if(box, f"{path}: is a box file, not a recipe", hint=f"`moebox plan MODEL --box {path}` plans for it")
    recipe = codec.decode(Recipe, document, where=str(path))
    with prefix_errors(str(path)):
        validate_recipe(recipe)
    return recipe


def validate_recipe(recipe: Recipe) -> None:
    """Raise BadInput for the first text of a recipe that is invalid or unsafe."""
    for wrong, text, hint in _rules(recipe):
        if wrong:
            raise BadInput(text, hint=hint)


def _rules(recipe: Recipe) -> Iterator[Rule]:
    """Yield every rule with whether this recipe breaks it; a rule may rely on the ones before it."""
    yield recipe.format > FORMAT, f"format {recipe.format} is newer than this moebox, which reads up to {FORMAT}", None
    texts = list(_all_texts(dataclasses.asdict(recipe), ""))
    for path, _, text in texts:  # a line break ends a line of a rendered file, and in YAML so does U+2028
        hidden = next((character for character in text if not character.isprintable()), "")
        code = f"U+{ord(hidden or ' '):04X}"
        yield hidden, f"{path}: contains a control character ({code})", "write it on one line"
    yield from _name_rules(recipe)
    in_container = recipe.runtime.kind in ("docker", "podman")
    yield from _variable_rules(recipe, in_container)
    for _, place, text in texts:
        yield contains_token(text), f"{place}: looks like a key or password, {NO_SECRETS}", EXPORT_HINT
    yield from _listen_rules(recipe.listen, in_container)
    yield from _runtime_rules(recipe.runtime)
    if in_container:
        checkpoint = recipe.checkpoint
        yield checkpoint.startswith("."), f"checkpoint: a container needs the whole path, not {checkpoint!r}", None
        if checkpoint.startswith(("/", "~")):
            weights = PurePosixPath(checkpoint)
            yield from _host_path_rules("checkpoint", str(weights.parent if weights.suffix == ".gguf" else weights))


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


def _name_rules(recipe: Recipe) -> Iterator[Rule]:
    text = f"name: {recipe.name!r} may contain only letters, digits, dots and dashes"
    yield not NAME.fullmatch(recipe.name), text, "begin with a letter or digit"
    draft = recipe.speculate or Speculate(method="", draft="")
    version = recipe.engine_version
    words = {"engine_version": version, "kv": recipe.kv, "tool_parser": recipe.tool_parser}
    words |= {"reasoning_parser": recipe.reasoning_parser, "speculate.method": draft.method}
    for path, word in words.items():
        yield not WORD.fullmatch(word or ""), f"{path}: {word!r} is not a valid name", None
    text = f"engine_version: {version!r} is not a version"
    yield version.startswith((".", "_", "+", "-")), text, 'write it like "0.32.0" or "b11669"'
    names = {"served_name": recipe.served_name, "checkpoint": recipe.checkpoint, "model": recipe.model}
    names |= {"speculate.draft": draft.draft, "runtime.python": recipe.runtime.python}
    for path, name in names.items():
        yield name.startswith("-"), f"{path}: {name!r} would be read as a flag", None
    yield re.search(r'["\\]', draft.draft), 'speculate.draft: a path or repository cannot contain " or \\', None
    python = recipe.runtime.python
    yield "=" in python, f"runtime.python: {python!r} is not a path of an interpreter or venv", None


def _variable_rules(recipe: Recipe, in_container: bool) -> Iterator[Rule]:
    for name in recipe.env:
        text = f"env: {name!r} is not a valid name of a variable"
        yield not VARIABLE.fullmatch(name), text, "letters, digits and _, as in a shell"
        unsafe = HOOKS.fullmatch(name) or (LOADER.fullmatch(name) and not in_container)
        text = f"env.{name}: decides which programs run, so a recipe must not set it"
        yield unsafe, text, "export it yourself before you start the engine"
    key = recipe.listen.key_env
    yield key and not VARIABLE.fullmatch(key), "listen.key_env: is the name of a variable, not the key itself", None
    for table, names in (("flags", recipe.flags), ("env", recipe.env)):
        for name in names:
            yield SECRET.search(name.lstrip("-")), f"{table}.{name}: a secret, {NO_SECRETS}", EXPORT_HINT


def _listen_rules(listen: Listen, in_container: bool) -> Iterator[Rule]:
    port, host = listen.port, listen.host  # port 0: any free one
    yield not 0 <= port <= LAST_PORT, f"listen.port {port} is out of range", f"from 0 to {LAST_PORT:,}"
    with contextlib.suppress(ValueError):
        if "%" not in str(ipaddress.ip_address(host)):
            return
    invalid = len(host) > 253 or not all(map(LABEL.fullmatch, host.removesuffix(".").split(".")))
    text = f"listen.host: {host!r} is not a valid address or host name"
    yield invalid, text, "e.g. 127.0.0.1, 0.0.0.0 or ::1"
    text = f"listen.host: a container's port is published on an address, not on {host!r}"
    yield in_container and host != "localhost", text, None


def _runtime_rules(runtime: Runtime) -> Iterator[Rule]:
    parse_entry(runtime.entry)
    _check_setup(runtime.setup)
    text = f"runtime.image: {runtime.image!r} is not a valid image name"
    invalid = runtime.image and (len(runtime.image) > 512 or not IMAGE.fullmatch(runtime.image))
    yield invalid, text, 'e.g. "vllm/vllm-openai:v0.32.0"'
    if runtime.models_dir:
        yield from _host_path_rules("runtime.models_dir", runtime.models_dir)
    for source, target in runtime.mounts.items():
        yield from _host_path_rules("runtime.mounts", source)
        folder, _, mode = target.partition(":")
        text = f"runtime.mounts: {target!r} is not a valid path in the container"
        yield not folder.startswith("/") or folder == "/", text, 'e.g. "/models:ro"'
        yield _leads_elsewhere(folder), f"runtime.mounts: {folder!r} contains a colon or ..", MOUNT_HINT
        text = f"runtime.mounts: {mode!r} is not a valid mode of a mount"
        yield mode and not MODES.fullmatch(mode), text, "ro or rw"
    parse_options(runtime.options)


def _host_path_rules(path: str, text: str) -> Iterator[Rule]:
    """Yield the rules for a folder of this machine that a container may see, or for a volume's name."""
    if not text.startswith(("/", "~/")):
        hint = "begin with / or ~/, or name a volume"
        yield not VOLUME.fullmatch(text), f"{path}: {text!r} is not a valid folder", hint
        return
    yield _leads_elsewhere(text), f"{path}: {text!r} contains a colon or ..", MOUNT_HINT
    folder = PurePosixPath(text)
    system = any(map(folder.is_relative_to, SYSTEM_FOLDERS)) and not str(folder).startswith("/dev/shm")  # noqa: S108
    yield system, f"{path}: {text} is a system folder, which a container must not see", MOUNT_HINT
    is_home = len(folder.parts) == 3 and folder.parts[1] == "home"
    private = is_home or str(folder) in HOME_ROOTS or not PRIVATE_NAMES.isdisjoint(folder.parts)
    yield private, f"{path}: {text} contains more than weights", MOUNT_HINT
    yield str(folder).endswith(".sock"), f"{path}: {text} is a socket, not a folder of weights", MOUNT_HINT


def _leads_elsewhere(text: str) -> bool:
    """Docker splits a mount at its colons, and `..` leads to another folder than the one that was checked."""
    return ":" in text or ".." in PurePosixPath(text).parts


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
