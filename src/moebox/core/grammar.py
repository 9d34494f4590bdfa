"""What the texts of a recipe may be. Recipes are shared, so one may come from anybody: each text that ends up in a
command line, a unit, a YAML file or a script has a form here, and what has another form is refused before it is used.

Two fields name programs by design, `runtime.entry` and `runtime.setup`; they stay one program with its arguments, never
text for a shell. Renderers quote on top of this, each by its own rules.
"""

import ipaddress
import re
import shlex
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import Any

from moebox import codec
from moebox.core import containers
from moebox.core.change import get_setting
from moebox.core.recipe import FORMAT, Recipe, Runtime
from moebox.core.traits import LAST_PORT
from moebox.errors import BadInput, refuse_if, refuse_out_of_range
from moebox.redact import contains_token

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
WORD = re.compile(r"[A-Za-z0-9._+-]{0,64}")  # versions, parsers, methods
ONE_WORD = ("engine_version", "kv", "tool_parser", "reasoning_parser", "speculate.method")
PATHS = ("served_name", "checkpoint", "model", "speculate.draft", "runtime.python")  # a leading dash makes them a flag
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
LABEL = re.compile(r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?")  # one part of a host name, RFC 1123
SECRET = re.compile(r"(^|[-_])(api[-_]?key|hf[-_]token|token|password|passwd|secret|access[-_]key)$", re.IGNORECASE)
# Variables by which a shell, the loader or an interpreter is told to run something, or that a shell keeps for itself.
HOOKS = re.compile(
    r"BASH.*|ENV|SHELLOPTS|PS[0-4]|PROMPT_COMMAND|IFS|CDPATH|GLOBIGNORE|PATH|HOME|SHELL|(E?U|PP)ID|_|FUNCNAME|LINENO"
    r"|RANDOM|SECONDS|DIRSTACK|GROUPS|HIST.*|OPT(ARG|ERR|IND)|GCONV_PATH|HOSTALIASES|NODE_OPTIONS|PERL5.*|RUBYOPT|GIT_.*"
    r"|MOEBOX_.*|SLURM_.*"
)
LOADER = re.compile(r"LD_.*|PYTHON(PATH|HOME|STARTUP|INSPECT|BREAKPOINT|WARNINGS|USERBASE|EXECUTABLE)")
SHELLS = re.compile(r"(ba|da|z|k|mk|c|tc|fi|a)?sh|busybox|eval|exec|source|\.|sudo|su|doas|ssh|xargs|env")
ENTRY = 'e.g. "python3 -m sglang.launch_server"'
CODE = ("-c", "-e", "--eval", "--command", "-ic", "-lc")  # what an interpreter takes a program's text after
INSTALLERS = ("pip", "pip3", "uv", "apt-get", "apt", "apk", "dnf", "microdnf", "yum", "conda", "mamba", "micromamba")


def read_recipe(path: Path) -> Recipe:
    """The recipe in a file; BadInput for one that should not be used, before anything of it is copied anywhere."""
    recipe = codec.read_toml(Recipe, path)
    try:
        validate_recipe(recipe)
    except BadInput as problem:
        raise BadInput(f"{path}: {problem.message}", hint=problem.hint) from None
    return recipe


def validate_recipe(recipe: Recipe) -> None:
    """Raise BadInput naming the first text that cannot be meant, or should not."""
    refuse_if(recipe.format > FORMAT, f"format {recipe.format} is newer than this moebox, which reads up to {FORMAT}")
    _texts(codec.to_plain(recipe), "")
    _names(recipe)
    _variables(recipe)
    _secrets(recipe)
    _host(recipe)
    _runtime(recipe.runtime)
    if recipe.runtime.kind in ("docker", "podman"):
        _weights_inside(recipe.checkpoint)


def _weights_inside(checkpoint: str) -> None:
    """Weights that a container is shown."""
    relative = checkpoint.startswith(".")
    refuse_if(relative, f"checkpoint: a container needs the whole path, not {checkpoint!r}")
    if checkpoint.startswith(("/", "~")):
        weights = PurePosixPath(checkpoint)
        containers.check_host_path("checkpoint", str(weights.parent if weights.suffix == ".gguf" else weights))


def _texts(value: Any, at: str) -> None:
    """Every character of every text shows: a line break ends a line of a rendered file, and in YAML so does U+2028."""
    if isinstance(value, str):
        _printable(value, at)
    for key, item in _inner(value):
        if isinstance(key, str):
            _printable(key, _below(at, repr(key)))
        _texts(item, _below(at, str(key)))


def _below(at: str, key: str) -> str:
    """The path of a key."""
    return f"{at}.{key}" if at else key


def _printable(text: str, at: str) -> None:
    hidden = next((mark for mark in text if not mark.isprintable()), None)
    if hidden is not None:
        raise BadInput(f"{at}: holds a control character (U+{ord(hidden):04X})", hint="write it on one line")


def _inner(value: Any) -> Iterable[tuple[str | int, Any]]:
    """What stands in a table or a list, each with its key or place."""
    if isinstance(value, dict):
        return value.items()
    return enumerate(value) if isinstance(value, list | tuple) else ()


def _names(recipe: Recipe) -> None:
    text = f"name: {recipe.name!r} may hold letters, digits, dots and dashes only"
    refuse_if(not NAME.fullmatch(recipe.name), text, hint="it begins with a letter or digit")
    for path in ONE_WORD:
        word = _text(recipe, path)
        refuse_if(not WORD.fullmatch(word), f"{path}: {word!r} is no name of one")
    for path in PATHS:
        name = _text(recipe, path)
        refuse_if(name.startswith("-"), f"{path}: {name!r} would be taken for a flag")
    draft, python = _text(recipe, "speculate.draft"), recipe.runtime.python
    refuse_if(re.search(r'["\\]', draft), 'speculate.draft: a path or repository holds no " and no \\')
    refuse_if("=" in python, f"runtime.python: {python!r} is no path of an interpreter or venv")


def _text(recipe: Recipe, path: str) -> str:
    return str(get_setting(recipe, path) or "")


def _variables(recipe: Recipe) -> None:
    inside = recipe.runtime.kind in ("docker", "podman")
    for name in recipe.env:
        hint = "letters, digits and _, as a shell takes them"
        refuse_if(not VARIABLE.fullmatch(name), f"env: {name!r} is no name of a variable", hint=hint)
        decides = HOOKS.fullmatch(name) or (LOADER.fullmatch(name) and not inside)
        text = f"env.{name}: decides which programs run, so a recipe does not set it"
        refuse_if(decides, text, hint="export it yourself before you start the engine")
    key = recipe.listen.key_env
    refuse_if(key and not VARIABLE.fullmatch(key), "listen.key_env: is the name of a variable, not the key itself")


def _secrets(recipe: Recipe) -> None:
    """Secrets are named, never written down: a recipe is copied into runs, packages and reports."""
    hint = "export it, and name the variable in listen.key_env (HF_TOKEN is passed on by itself)"
    for table, names in (("flags", recipe.flags), ("env", recipe.env)):
        for name in names:
            refuse_if(SECRET.search(name.lstrip("-")), f"{table}.{name}: a recipe holds no secrets", hint=hint)
    path = _token(codec.to_plain(recipe), "")
    refuse_if(path, f"{path}: looks like a key or password, and a recipe holds no secrets", hint=hint)


def _token(value: Any, at: str) -> str:
    """The path of the first text that holds a secret; its value is never quoted."""
    if isinstance(value, str):
        return at if contains_token(value) else ""
    for key, item in _inner(value):
        if isinstance(key, str) and contains_token(key):
            return f"a key of {at or 'the recipe'}"
        path = _token(item, _below(at, str(key)))
        if path:
            return path
    return ""


def _host(recipe: Recipe) -> None:
    refuse_out_of_range("listen.port", recipe.listen.port, 0, LAST_PORT)  # 0: any that is free
    host = recipe.listen.host
    if _address(host):
        return
    labels = host.removesuffix(".").split(".")
    if len(host) > 253 or not all(map(LABEL.fullmatch, labels)):
        raise BadInput(f"listen.host: {host!r} is no address or host name", hint="e.g. 127.0.0.1, 0.0.0.0 or ::1")
    if recipe.runtime.kind in ("docker", "podman") and host != "localhost":
        raise BadInput(f"listen.host: a container's port is published on an address, not on {host!r}")


def _address(host: str) -> bool:
    try:
        return "%" not in str(ipaddress.ip_address(host))
    except ValueError:
        return False


def _runtime(runtime: Runtime) -> None:
    parse_entry(runtime.entry)
    check_setup(runtime.setup)
    if runtime.image:
        containers.check_image(runtime.image)
    if runtime.models_dir:
        containers.check_host_path("runtime.models_dir", runtime.models_dir)
    for source, target in runtime.mounts.items():
        containers.check_host_path("runtime.mounts", source)
        containers.check_container_path("runtime.mounts", target)
    containers.parse_options(runtime.options)


def parse_entry(text: str) -> tuple[str, ...]:
    """The words of `runtime.entry`: a program and its arguments, no shell and no text of a program."""
    if not text:
        return ()
    words = _split("runtime.entry", text)
    if not words:
        raise BadInput("runtime.entry: names no program", hint=ENTRY)
    program = PurePosixPath(words[0]).name
    strange = words[0].startswith("-") or "=" in words[0] or not program
    refuse_if(strange, f"runtime.entry: {words[0]!r} is no program", hint=ENTRY)
    shell = SHELLS.fullmatch(program) or not set(CODE).isdisjoint(words[1:])
    hint = "put the commands into a file of your own, and name that"
    refuse_if(shell, f"runtime.entry: {program} would run a text, not an engine", hint=hint)
    return words


def check_setup(text: str) -> None:
    """`runtime.setup` is one or more installers joined by &&, without anything that a shell would expand."""
    if not text:
        return
    if re.search(r"[$`\\#!*?~{}\[\]]", text):
        raise BadInput("runtime.setup: holds something that a shell would expand", hint=SETUP)
    for words in _commands(text):
        if not _installs(words):
            raise BadInput(f"runtime.setup: {' '.join(words)!r} installs nothing", hint=SETUP)


def _commands(text: str) -> list[list[str]]:
    """The commands that && joins, in words; BadInput for any other operator of a shell."""
    _split("runtime.setup", text)
    lexer = shlex.shlex(text, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    commands: list[list[str]] = [[]]
    for word in lexer:
        if word == "&&":
            commands.append([])
        elif set(word) <= set("();<>|&"):
            raise BadInput(f"runtime.setup: {word!r} is not taken", hint=SETUP)
        else:
            commands[-1].append(word)
    return commands


SETUP = f"installers joined by && ({', '.join(INSTALLERS[:4])}, …); for more, build an image"


def _installs(words: list[str]) -> bool:
    if not words:
        return False
    if words[0] in ("python", "python3"):
        return words[1:3] == ["-m", "pip"]
    return words[0] in INSTALLERS


def _split(path: str, text: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(text))
    except ValueError as problem:
        raise BadInput(f"{path}: {text!r} cannot be split into words: {str(problem).lower()}") from None
