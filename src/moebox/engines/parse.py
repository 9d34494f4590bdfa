"""A command line that somebody printed, back to a recipe.

Takes what people publish: an engine's own command, with variables before it, or docker or podman around it,
also with a `bash -c "… && exec …"` inside.
"""

import itertools
import re
import shlex
from collections.abc import Callable, Mapping, Sequence

from moebox import codec
from moebox.core import registry
from moebox.core.recipe import EngineName, Flag, Recipe
from moebox.engines import modules
from moebox.engines.arguments import canonical_name, parse_number, split_argv
from moebox.engines.flags import Argument, FlagCatalogue, flag_catalogue, is_flag
from moebox.engines.reading import Reading, Setting
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
UNSAID = {"-d", "--detach", "--rm", "-it", "-i", "-t", "--gpus"}  # moebox adds them by itself
VARIABLE = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)
PYTHON = re.compile(r"python3?(\.\d+)?")


def parse_command(engine: EngineName, argv: Sequence[str] | str, *, version: str = "", name: str = "") -> Recipe:
    """The recipe that `argv` launches; flags without a field of their own land in `flags`."""
    registry.engine_traits(engine)  # UnknownName where there is none
    words = _words(argv) if isinstance(argv, str) else list(argv)
    usual: dict[str, Setting] = {"context": 0, "served_name": "", "listen.host": "127.0.0.1"}
    reading = Reading(settings={"engine": engine, "engine_version": version, **usual})
    words = _variables(words, reading)
    if words and words[0] in ("docker", "podman"):
        words = _container(words, reading)
    _engine(engine, words, reading, flag_catalogue(engine, version))
    checkpoint = reading.text("checkpoint")
    reading.put("name", name or re.sub(r"[^\w.-]+", "-", checkpoint.rpartition("/")[2]).lower())
    reading.settings.setdefault("model", checkpoint)
    return codec.decode(Recipe, reading.document, where="command line")


def _variables(words: list[str], reading: Reading) -> list[str]:
    """Take variables off that stand before the command."""
    assigned = list(itertools.takewhile(VARIABLE.fullmatch, words))
    reading.env |= {key: value for key, _, value in (word.partition("=") for word in assigned)}
    return words[len(assigned) :]


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text.replace("\\\n", " "))
    except ValueError as problem:
        raise BadInput(f"not a command line: {problem}") from None


def _count(text: str, what: str) -> int:
    if not text.isdecimal():
        raise BadInput(f"{what}: {text!r} is no number")
    return int(text)


def _container(words: list[str], reading: Reading) -> list[str]:
    """Take docker's or podman's options off; what is left starts the engine."""
    reading.contained = True
    reading.put("runtime.kind", words[0])
    rest = words[2:] if words[1:2] == ["run"] else words[1:]
    entrypoint = ""
    while rest and rest[0].startswith("-"):
        option, joined, value = _option_word(rest)
        if option == "--entrypoint":
            entrypoint = value
        else:
            _option(option, value, joined, reading)
    if not rest:
        raise BadInput("the command names no image")
    reading.put("runtime.image", rest.pop(0))
    return _inside(entrypoint, rest, reading)


def _inside(entrypoint: str, rest: list[str], reading: Reading) -> list[str]:
    """The command inside the container; what a shell runs before it is its setup."""
    if entrypoint in ("bash", "sh") and rest[:1] == ["-c"]:
        setup, _, inner = rest[1].partition("&& exec ")
        reading.put("runtime.setup", setup.strip())
        return _words(inner)
    return [entrypoint, *rest] if entrypoint else rest


def _option_word(rest: list[str]) -> tuple[str, bool, str]:
    """The next option of docker or podman off `rest`, whether its value is joined by "=", and the value."""
    option = rest.pop(0)
    if option.startswith("--") and "=" in option:
        option, _, value = option.partition("=")
        return option, True, value
    return option, False, rest.pop(0) if option in VALUED and rest else ""


def _option(option: str, value: str, joined: bool, reading: Reading) -> None:
    """One option of docker or podman: the recipe's own, one that moebox adds by itself, or kept as it is."""
    if _added(option, value):
        return
    if option in OWN and OWN[option](option, value, reading):
        return
    if joined and value:
        reading.options.append(f"{option}={value}")
    else:
        reading.options += [option, value] if value else [option]


def _added(option: str, value: str) -> bool:
    """Whether moebox adds the option by itself."""
    if option == "--device":
        return value.startswith("nvidia.com/gpu")
    return option in UNSAID or (option, value) == ("--ipc", "host")


def _mount(option: str, value: str, reading: Reading) -> bool:
    """OUTSIDE:INSIDE"""
    outside, _, inside = value.partition(":")
    reading.mounts[outside] = inside
    return True


def _variable(option: str, value: str, reading: Reading) -> bool:
    """NAME=VALUE; a name alone passes on what the caller has, and stays an option."""
    key, given, text = value.partition("=")
    if given:
        reading.env[key] = text
    return bool(given)


def _publish(option: str, value: str, reading: Reading) -> bool:
    """[HOST:]PORT:PORT"""
    parts = value.split(":")
    reading.put("listen.host", parts[0] if len(parts) == 3 else "0.0.0.0")  # noqa: S104
    reading.put("listen.port", _count(parts[-2] if len(parts) > 1 else parts[0], option))
    reading.published = True
    return True


# Options that are a field of the recipe; False where one stays an option after all.
OWN: dict[str, Callable[[str, str, Reading], bool]] = {
    **dict.fromkeys(("-v", "--volume"), _mount),
    **dict.fromkeys(("-e", "--env"), _variable),
    **dict.fromkeys(("-p", "--publish"), _publish),
}


def _engine(engine: EngineName, words: list[str], reading: Reading, known: FlagCatalogue) -> None:
    """The engine's own part: its entry, then flags to fields."""
    argv = modules.argv_module(engine)
    entry, words = _entry(words)
    usual = registry.engine_traits(engine).image_entry if reading.contained else argv.entry_command(_bare(engine))
    if entry and tuple(entry) != usual:
        reading.settings.setdefault("runtime.kind", "native")
        reading.put("runtime.entry", shlex.join(entry))
    fields = {canonical_name(flag, known): path for flag, path in argv.READS.items()}
    split_words = split_argv(words, known)
    for word in split_words:
        _word(argv, word, reading, fields, known)
    argv.finished({canonical_name(word[0], known) for word in split_words if is_flag(word[0])}, reading)
    if "checkpoint" not in reading.settings:
        raise BadInput("the command names no model")


def _entry(words: list[str]) -> tuple[list[str], list[str]]:
    """The words that start a program, and those after them."""
    entry: list[str] = []
    for word in words:
        goes_on = word == "serve" or entry[-1:] == ["-m"] or _module(entry, word)
        if not goes_on and not _starts(word):
            break
        entry.append(word)
    return entry, words[len(entry) :]


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
    argv: modules.ArgvModule, word: Argument, reading: Reading, fields: Mapping[str, str], known: FlagCatalogue
) -> None:
    """One flag with its values, or the model where it stands alone."""
    name = canonical_name(word[0], known) if is_flag(word[0]) else "--model"
    dotted = is_flag(word[0]) and "." in word[0]
    if name in ("--model", "--model-path", "-m") and not dotted:
        reading.put("checkpoint", word[-1])
    elif name in fields:
        _field(word, fields[name], reading, known)
    elif not argv.understood(word, name, reading):
        _keep(word, reading.flags, known)


def _field(word: Argument, path: str, reading: Reading, known: FlagCatalogue) -> None:
    """A flag that is one field of the recipe."""
    if reading.published and path.startswith("listen."):
        return
    spec = known.find_spec(word[0])
    if spec and spec.takes == 0:
        reading.put(path, word[0] not in spec.off)
    else:
        reading.put(path, _typed(path, word[-1] if len(word) > 1 else ""))


def _typed(path: str, value: str) -> Flag:
    return value if path in ("served_name", "tool_parser", "reasoning_parser", "listen.host") else parse_number(value)


def _keep(word: Argument, flags: dict[str, Flag], known: FlagCatalogue) -> None:
    """A flag without a field, under its own name."""
    spec = known.find_spec(word[0])
    key, value = _key(word[0], known), _value(word[1:])
    if spec and word[0] in spec.off:
        key, value = spec.long_name.lstrip("-"), False
    before = flags.get(key)
    if before is None:
        flags[key] = value
    else:
        earlier = before if isinstance(before, list) else [str(before)]
        flags[key] = [*earlier, str(value)]


def _key(flag: str, known: FlagCatalogue) -> str:
    """A flag without its dashes; a short one keeps its own where a long one is called the same."""
    bare = flag.lstrip("-")
    mistaken = not flag.startswith("--") and known.find_spec(f"--{bare}") is not None
    return flag if mistaken else bare


def _value(values: Sequence[str]) -> Flag:
    """No value is true, one is itself, several are a list."""
    if not values:
        return True
    if len(values) > 1:
        return [str(_number(value)) for value in values]
    return _number(values[0])


def _number(value: str) -> Flag:
    return value if value.startswith("{") else parse_number(value)
