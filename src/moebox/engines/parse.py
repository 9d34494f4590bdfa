"""A command line that somebody printed, back to a recipe.

Takes what people publish: an engine's own command, with variables before it, or docker or podman around it,
also with a `bash -c "… && exec …"` inside.
"""

import json
import re
import shlex
from collections.abc import Sequence
from typing import Any

from moebox import codec
from moebox.core.recipe import ENGINES as NAMES
from moebox.core.recipe import EngineName, Flag, Recipe
from moebox.engines import ggml
from moebox.engines.flags import Catalogue, Word, catalogue, is_flag
from moebox.engines.words import canonical, number, put, split
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
SERVER = re.compile(r"(^|/)(vllm|sglang|llama-server|python3?)$")


def parse_command(engine: EngineName, argv: Sequence[str] | str, *, version: str = "", name: str = "") -> Recipe:
    """The recipe that `argv` launches; flags without a field of their own land in `flags`."""
    if engine not in NAMES:
        raise BadInput(f"unknown engine {engine!r}", hint=f"known: {', '.join(NAMES)}")
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
    from moebox.engines import ENGINES

    entry: list[str] = []
    while words and (
        SERVER.search(words[0]) or words[0] == "serve" or entry[-1:] == ["-m"] or _module(entry, words[0])
    ):
        entry.append(words.pop(0))
    adapter = ENGINES[engine]
    usual = adapter.IMAGE_ENTRY if "runtime" in document else adapter.entry(_bare(engine))
    if entry and tuple(entry) != usual:
        document.setdefault("runtime", {"kind": "native"})["entry"] = shlex.join(entry)
    fields = {canonical(flag, known): path for flag, path in _fields(engine).items()}
    published = document.pop("published", False)
    for word in split(words, known):
        _word(engine, word, document, fields, known, published=published)
    if "checkpoint" not in document:
        raise BadInput("the command names no model")
    if engine in ("llama.cpp", "ik_llama.cpp"):
        if not any(canonical(word[0], known) == "--jinja" for word in split(words, known) if is_flag(word[0])):
            document["flags"]["jinja"] = False
        slots = document.get("max_seqs") or 1
        document["context"] //= slots if isinstance(slots, int) else 1
    else:
        document["vision"] = document.get("vision", True)


def _module(entry: list[str], word: str) -> bool:
    """Whether `word` goes on with `python3 -m …`."""
    return bool(entry) and entry[-1].startswith("python") and word == "-m"


def _bare(engine: EngineName) -> Recipe:
    return Recipe(name="x", engine=engine, model="x", checkpoint="x", served_name="")


def _fields(engine: EngineName) -> dict[str, str]:
    from moebox.engines import ENGINES

    return ENGINES[engine].FIELDS | (ggml.HYBRID if engine in ("llama.cpp", "ik_llama.cpp") else {})


def _word(
    engine: EngineName,
    word: Word,
    document: dict[str, Any],
    fields: dict[str, str],
    known: Catalogue,
    *,
    published: bool,
) -> None:
    name = canonical(word[0], known) if is_flag(word[0]) else "--model"
    value = word[-1] if len(word) > 1 or name == "--model" else ""
    if name in ("--model", "--model-path", "-m") and "." not in word[0]:
        document["checkpoint"] = value
    elif name in fields:
        spec = known.find(word[0])
        if published and fields[name].startswith("listen."):
            return
        off = spec is not None and word[0] in spec.off
        put(document, fields[name], (not off) if spec and spec.takes == 0 else _typed(fields[name], value))
    elif not _special(engine, name, value, document):
        _keep(word, document["flags"], known)


def _typed(path: str, value: str) -> Flag:
    return value if path in ("served_name", "tool_parser", "reasoning_parser", "listen.host") else number(value)


def _special(engine: EngineName, name: str, value: str, document: dict[str, Any]) -> bool:
    """Words that are more than one field, or a field said otherwise."""
    llama = engine in ("llama.cpp", "ik_llama.cpp")
    if name == "--kv-cache-dtype" or (llama and name == "-ctk"):
        document["kv"] = {
            "bfloat16": "bf16",
            "float16": "f16",
            "fp8_e4m3": "fp8" if engine == "sglang" else "fp8_e4m3",
        }.get(value, value)
    elif name == "--enable-auto-tool-choice" or name == "--jinja" or (engine == "llama.cpp" and name == "-ctv"):
        pass
    elif name == "--language-model-only":
        document["vision"] = False
    elif name in ("--default-chat-template-kwargs", "--chat-template-kwargs") and _says(value) == {"thinking": False}:
        document["thinking"] = False
    elif llama and name == "-c":
        document["context"] = _count(value, "-c")
    elif llama and name == "-ot":
        document.setdefault("hybrid", {}).setdefault("ranges", []).append(value)
    elif name == "--speculative-config" and set(_says(value)) <= {"method", "model", "num_speculative_tokens"}:
        says = _says(value)
        document["speculate"] = {
            "method": says.get("method", "draft_model"),
            "draft": says.get("model", ""),
            "tokens": says.get("num_speculative_tokens", 3),
        }
    elif name == "--disable-radix-cache":
        document["prefix_caching"] = False
    else:
        return False
    return True


def _says(text: str) -> dict[str, Any]:
    try:
        document = json.loads(text)
    except json.JSONDecodeError:
        return {"": text}
    return document if isinstance(document, dict) else {"": text}


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
