"""A command line that somebody printed, back to a recipe.

Takes what people publish: an engine's own command, with variables before it, or docker or podman around it,
also with a `bash -c "… && exec …"` inside.
"""

import re
import shlex
from collections.abc import Sequence
from typing import Any

from moebox import codec
from moebox.core import registry
from moebox.core.recipe import EngineName, Flag, Recipe
from moebox.engines import rooms
from moebox.engines.arguments import canonical, number, put, split
from moebox.engines.flags import Catalogue, Word, catalogue, is_flag
from moebox.errors import BadInput

# Options of `docker run` and `podman run` that take a value in the next word.
VALUED = {"--gpus", "--device", "-p", "--publish", "-v", "--volume", "-e", "--env", "--entrypoint", "--name", "--label"}
VALUED |= {
    "--network",
    "--net",
    "--ipc",
    "--shm-size",
    "--ulimit",
    "--cap-add",
    "--runtime",
    "--mount",
    "--security-opt",
}
VALUED |= {"--env-file", "--restart", "--user", "-u", "-w", "--workdir", "--cpuset-cpus", "--memory", "-m", "--pull"}
PYTHON = re.compile(r"python3?(\.\d+)?")


def parse_command(engine: EngineName, argv: Sequence[str] | str, *, version: str = "", name: str = "") -> Recipe:
    """The recipe that `argv` launches; flags without a field of their own land in `flags`."""
    registry.traits(engine)  # UnknownName where there is none
    words = _words(argv) if isinstance(argv, str) else list(argv)
    document: dict[str, Any] = {"engine": engine, "engine_version": version, "context": 0, "served_name": ""}
    document |= {"env": {}, "flags": {}, "listen": {"host": "127.0.0.1"}}
    while words and re.fullmatch(r"[A-Za-z_]\w*=.*", words[0], re.DOTALL):
        key, _, value = words.pop(0).partition("=")
        document["env"][key] = value
    if words and words[0] in ("docker", "podman"):
        words = _container(words, document)
    _engine(engine, words, document, catalogue(engine, version))
    document["name"] = name or re.sub(r"[^\w.-]+", "-", document["checkpoint"].rpartition("/")[2]).lower()
    document.setdefault("model", document["checkpoint"])
    return codec.decode(Recipe, document, where="command line")


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text.replace("\\\n", " "))
    except ValueError as problem:
        raise BadInput(f"not a command line: {problem}") from None


def _count(text: str, what: str) -> int:
    if not text.isdecimal():
        raise BadInput(f"{what}: {text!r} is no number")
    return int(text)


def _container(words: list[str], document: dict[str, Any]) -> list[str]:
    """Take docker's or podman's options off; what is left starts the engine."""
    runtime: dict[str, Any] = {"kind": words[0], "mounts": {}, "options": []}
    document["runtime"] = runtime
    rest = words[2:] if words[1:2] == ["run"] else words[1:]
    entrypoint = ""
    while rest and rest[0].startswith("-"):
        option = rest.pop(0)
        option, given, value = option.partition("=") if option.startswith("--") else (option, "", "")
        if not given and option in VALUED and rest:
            value = rest.pop(0)
        if option == "--entrypoint":
            entrypoint = value
        else:
            _option(option, value, bool(given), runtime, document)
    if not rest:
        raise BadInput("the command names no image")
    runtime["image"] = rest.pop(0)
    if entrypoint in ("bash", "sh") and rest[:1] == ["-c"]:
        runtime["setup"], _, inner = rest[1].partition("&& exec ")
        runtime["setup"] = runtime["setup"].strip()
        rest = _words(inner)
    elif entrypoint:
        rest.insert(0, entrypoint)
    return rest


def _option(option: str, value: str, joined: bool, runtime: dict[str, Any], document: dict[str, Any]) -> None:
    if option in ("-d", "--detach", "--rm", "-it", "-i", "-t"):
        return
    if (
        option == "--gpus"
        or (option == "--device" and value.startswith("nvidia.com/gpu"))
        or (option, value) == ("--ipc", "host")
    ):
        return
    if option in ("-v", "--volume"):
        outside, _, inside = value.partition(":")
        runtime["mounts"][outside] = inside
    elif option in ("-e", "--env") and "=" in value:
        key, _, text = value.partition("=")
        document["env"][key] = text
    elif option in ("-p", "--publish"):
        parts = value.split(":")
        host = parts[0] if len(parts) == 3 else "0.0.0.0"  # noqa: S104
        document["listen"] |= {"host": host, "port": _count(parts[-2] if len(parts) > 1 else parts[0], option)}
        document["published"] = True
    elif value:
        runtime["options"] += [f"{option}={value}"] if joined else [option, value]
    else:
        runtime["options"].append(option)


def _engine(engine: EngineName, words: list[str], document: dict[str, Any], known: Catalogue) -> None:
    """The engine's own part: its entry, then flags to fields."""
    entry: list[str] = []
    while words and (_starts(words[0]) or words[0] == "serve" or entry[-1:] == ["-m"] or _module(entry, words[0])):
        entry.append(words.pop(0))
    argv = rooms.argv(engine)
    usual = registry.traits(engine).image_entry if "runtime" in document else argv.entry(_bare(engine))
    if entry and tuple(entry) != usual:
        document.setdefault("runtime", {"kind": "native"})["entry"] = shlex.join(entry)
    fields = {canonical(flag, known): path for flag, path in argv.READS.items()}
    published = document.pop("published", False)
    split_words = split(words, known)
    for word in split_words:
        _word(argv, word, document, fields, known, published=published)
    argv.finished({canonical(word[0], known) for word in split_words if is_flag(word[0])}, document)
    if "checkpoint" not in document:
        raise BadInput("the command names no model")


def _starts(word: str) -> bool:
    """Whether a word is a program that engines are started by."""
    name = word.rpartition("/")[2]
    programs = {start for traits in registry.all_traits() for start in (*traits.program, *traits.image_entry[:1])}
    return bool(PYTHON.fullmatch(name)) or name in {program.rpartition("/")[2] for program in programs}


def _module(entry: list[str], word: str) -> bool:
    """Whether `word` goes on with `python3 -m …`."""
    return bool(entry) and entry[-1].startswith("python") and word == "-m"


def _bare(engine: EngineName) -> Recipe:
    return Recipe(name="x", engine=engine, model="x", checkpoint="x", served_name="")


def _word(
    argv: rooms.Argv,
    word: Word,
    document: dict[str, Any],
    fields: dict[str, str],
    known: Catalogue,
    *,
    published: bool,
) -> None:
    name = canonical(word[0], known) if is_flag(word[0]) else "--model"
    value = word[-1] if len(word) > 1 or name == "--model" else ""
    dotted = is_flag(word[0]) and "." in word[0]
    if name in ("--model", "--model-path", "-m") and not dotted:
        document["checkpoint"] = value
    elif name in fields:
        spec = known.find(word[0])
        if published and fields[name].startswith("listen."):
            return
        off = spec is not None and word[0] in spec.off
        put(document, fields[name], (not off) if spec and spec.takes == 0 else _typed(fields[name], value))
    elif not argv.understood(word, name, document):
        _keep(word, document["flags"], known)


def _typed(path: str, value: str) -> Flag:
    return value if path in ("served_name", "tool_parser", "reasoning_parser", "listen.host") else number(value)


def _keep(word: Word, flags: dict[str, Flag], known: Catalogue) -> None:
    """A flag without a field, under its own name."""
    key = word[0].lstrip("-") if word[0].startswith("--") or known.find(f"--{word[0].lstrip('-')}") is None else word[0]
    values: list[Flag] = [number(value) if not value.startswith("{") else value for value in word[1:]]
    value: Flag = True if not values else (values[0] if len(values) == 1 else [str(one) for one in values])
    spec = known.find(word[0])
    if spec and word[0] in spec.off:
        key, value = spec.long.lstrip("-"), False
    if key in flags:
        before = flags[key]
        value = [*(before if isinstance(before, list) else [str(before)]), str(value)]
    flags[key] = value
