"""Parse a published command line back to a recipe: the other direction of every engine's `arguments`.

Takes an engine's own command, with variables before it, or docker or podman around it, also with a
`bash -c "… && exec …"` inside. Each engine has a module here with FIELDS, `parse_flag` and `finish`.
"""

import importlib
import itertools
import re
import shlex
from collections.abc import Sequence

from moebox import codec
from moebox.core import registry
from moebox.core.recipe import EngineName, Flag, Recipe
from moebox.engines.arguments import canonical_name
from moebox.engines.engine import load_engine
from moebox.engines.flags import Argument, FlagCatalogue, flag_catalogue, is_flag
from moebox.errors import BadInput
from tests.chain.parse_back.reading import Reading, Setting

# Options of `docker run` and `podman run` that take a value in the next word.
VALUED = {"--gpus", "--device", "-p", "--publish", "-v", "--volume", "-e", "--env", "--env-file", "--entrypoint"}
VALUED |= {"--name", "--label", "--network", "--net", "--ipc", "--shm-size", "--ulimit", "--cap-add", "--runtime"}
VALUED |= {"--mount", "--security-opt", "--restart", "--user", "-u", "-w", "--workdir", "--cpuset-cpus", "--memory"}
VALUED |= {"-m", "--pull"}
ADDED = {"-d", "--detach", "--rm", "-it", "-i", "-t", "--gpus"}  # moebox adds them by itself
VARIABLE = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)
PYTHON = re.compile(r"python3?(\.\d+)?")
TEXT_FIELDS = ("served_name", "tool_parser", "reasoning_parser", "listen.host")


def parse_command(engine: EngineName, argv: Sequence[str] | str, *, version: str = "", name: str = "") -> Recipe:
    """Return the recipe that `argv` launches; flags without a field of their own are in `flags`."""
    registry.engine_traits(engine)  # raises UnknownName
    words = _split_shell(argv) if isinstance(argv, str) else list(argv)
    defaults: dict[str, Setting] = {"context": 0, "served_name": "", "listen.host": "127.0.0.1"}
    reading = Reading(settings={"engine": engine, "engine_version": version, **defaults})
    assigned = list(itertools.takewhile(VARIABLE.fullmatch, words))
    reading.env |= {key: value for key, _, value in (word.partition("=") for word in assigned)}
    words = words[len(assigned) :]
    if words and words[0] in ("docker", "podman"):
        words = _parse_container(words, reading)
    _parse_engine(engine, words, reading, flag_catalogue(engine, version))
    checkpoint = reading.text("checkpoint")
    reading.put("name", name or re.sub(r"[^\w.-]+", "-", checkpoint.rpartition("/")[2]).lower())
    reading.settings.setdefault("model", checkpoint)
    return codec.decode(Recipe, reading.document(), where="command line")


def split_argv(argv: Sequence[str], known: FlagCatalogue) -> list[Argument]:
    """Return an argv as arguments, by how many values each flag takes; an unknown flag takes what is not a flag."""
    arguments: list[Argument] = []
    rest = list(argv)
    while rest:
        head = rest.pop(0)
        if not is_flag(head):
            arguments.append((head,))
        elif re.fullmatch(r"-O\d", head) and "--optimization-level" in known.specs:  # vLLM's short spelling
            arguments.append(("--optimization-level", head[2:]))
        elif head.startswith("--") and "=" in head:
            arguments.append((head.partition("=")[0], head.partition("=")[2]))
        else:
            spec = known.find_spec(head)
            takes: int | str = 1 if "." in head else "?"
            if spec is not None:
                takes = 1 if spec.dotted_key(head) else 0 if head in spec.off else spec.takes
            values = rest[: takes if isinstance(takes, int) else {"?": 1}.get(takes, len(rest))]
            if not isinstance(takes, int):
                values = list(itertools.takewhile(lambda word: not is_flag(word), values))
            del rest[: len(values)]
            arguments.append((head, *values))
    return arguments


def parse_number(text: str) -> Flag:
    """Return `text` as the number it is, or as text."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _split_shell(text: str) -> list[str]:
    try:
        return shlex.split(text.replace("\\\n", " "))
    except ValueError as problem:
        raise BadInput(f"not a command line: {problem}") from None


def _parse_container(words: list[str], reading: Reading) -> list[str]:
    """Parse docker's or podman's options; return what starts the engine inside."""
    reading.in_container = True
    reading.put("runtime.kind", words[0])
    rest = words[2:] if words[1:2] == ["run"] else words[1:]
    entrypoint = ""
    while rest and rest[0].startswith("-"):
        option, equals, value = rest.pop(0), "", ""
        if option.startswith("--") and "=" in option:
            option, equals, value = option.partition("=")
        elif option in VALUED and rest:
            value = rest.pop(0)
        if option == "--entrypoint":
            entrypoint = value
        elif not _parse_option(option, value, reading):
            reading.options += [f"{option}={value}"] if equals and value else [option, value] if value else [option]
    if not rest:
        raise BadInput("the command names no image")
    reading.put("runtime.image", rest.pop(0))
    if entrypoint in ("bash", "sh") and rest[:1] == ["-c"]:
        setup, _, inner = rest[1].partition("&& exec ")
        reading.put("runtime.setup", setup.strip())
        return _split_shell(inner)
    return [entrypoint, *rest] if entrypoint else rest


def _parse_option(option: str, value: str, reading: Reading) -> bool:
    """Parse an option that is a recipe field or that moebox adds by itself; False if it stays an option."""
    if option == "--device" and value.startswith("nvidia.com/gpu"):
        return True
    if option in ADDED or (option, value) == ("--ipc", "host"):
        return True
    if option in ("-v", "--volume"):
        outside, _, inside = value.partition(":")
        reading.mounts[outside] = inside
        return True
    if option in ("-e", "--env") and "=" in value:  # a name alone passes on the caller's value: it stays an option
        key, _, text = value.partition("=")
        reading.env[key] = text
        return True
    if option in ("-p", "--publish"):  # [HOST:]PORT:PORT
        parts = value.split(":")
        port = parts[-2] if len(parts) > 1 else parts[0]
        if not port.isdecimal():
            raise BadInput(f"{option}: {port!r} is not a number")
        reading.put("listen.host", parts[0] if len(parts) == 3 else "0.0.0.0")
        reading.put("listen.port", int(port))
        reading.published = True
        return True
    return False


def _parse_engine(engine: EngineName, words: list[str], reading: Reading, known: FlagCatalogue) -> None:
    """Parse the engine's own part: its entry, then flags to fields."""
    parser = importlib.import_module(
        f"tests.chain.parse_back.{registry.find_engine(engine).package.rpartition('.')[2]}"
    )
    entry, words = _split_entry(words)
    bare = Recipe(name="x", engine=engine, model="x", checkpoint="x", served_name="")
    usual = load_engine(engine).entry_command(bare)
    if reading.in_container:
        usual = registry.engine_traits(engine).image_entry
    if entry and tuple(entry) != usual:
        reading.settings.setdefault("runtime.kind", "native")
        reading.put("runtime.entry", shlex.join(entry))
    fields = {canonical_name(flag, known): path for flag, path in parser.FIELDS.items()}
    arguments = split_argv(words, known)
    for argument in arguments:
        name = canonical_name(argument[0], known) if is_flag(argument[0]) else "--model"
        dotted = is_flag(argument[0]) and "." in argument[0]
        if name in ("--model", "--model-path", "-m") and not dotted:
            reading.put("checkpoint", argument[-1])
        elif name in fields:
            _parse_field(argument, fields[name], reading, known)
        elif not parser.parse_flag(argument, name, reading):
            _keep_flag(argument, reading.flags, known)
    parser.finish({canonical_name(each[0], known) for each in arguments if is_flag(each[0])}, reading)
    if "checkpoint" not in reading.settings:
        raise BadInput("the command names no model")


def _split_entry(words: list[str]) -> tuple[list[str], list[str]]:
    """Return the words that start a program, and those after them."""
    starts = {start for traits in registry.all_traits() for start in (*traits.program, *traits.image_entry[:1])}
    programs = {start.rpartition("/")[2] for start in starts}
    entry: list[str] = []
    for word in words:
        name, before = word.rpartition("/")[2], entry[-1] if entry else ""
        continues = word == "serve" or before == "-m" or (before.startswith("python") and word == "-m")
        if not continues and not PYTHON.fullmatch(name) and name not in programs:
            break
        entry.append(word)
    return entry, words[len(entry) :]


def _parse_field(argument: Argument, path: str, reading: Reading, known: FlagCatalogue) -> None:
    """Parse a flag that is one field of the recipe."""
    if reading.published and path.startswith("listen."):
        return
    spec = known.find_spec(argument[0])
    if spec and spec.takes == 0:
        reading.put(path, argument[0] not in spec.off)
    else:
        value = argument[-1] if len(argument) > 1 else ""
        reading.put(path, value if path in TEXT_FIELDS else parse_number(value))


def _keep_flag(argument: Argument, flags: dict[str, Flag], known: FlagCatalogue) -> None:
    """Keep a flag without a field, under its own name: no value is true, several are a list."""
    flag, values = argument[0], [each if each.startswith("{") else parse_number(each) for each in argument[1:]]
    key = flag.lstrip("-")
    if not flag.startswith("--") and known.find_spec(f"--{key}") is not None:
        key = flag  # a short flag keeps its dash if a long one has the same name
    value: Flag = values[0] if len(values) == 1 else [str(each) for each in values] if values else True
    spec = known.find_spec(flag)
    if spec and flag in spec.off:
        key, value = next((name for name in spec.names if name.startswith("--")), spec.name).lstrip("-"), False
    before = flags.get(key)
    if before is None:
        flags[key] = value
    else:
        flags[key] = [*(before if isinstance(before, list) else [str(before)]), str(value)]
