"""Completion of commands, options, models, boxes, engines, recipes and runs for bash, zsh and fish.

The shell asks `moebox --complete WORDS…` with the words typed so far, the last one unfinished; one candidate a line
comes back. No candidates means the shell offers files.
"""

import inspect
from collections.abc import Callable, Iterable, Iterator
from typing import Literal

from moebox.cli import COMMANDS, GROUPS, flags, subcommands
from moebox.errors import MoeboxError

Shell = Literal["bash", "zsh", "fish"]
SCRIPTS: dict[Shell, str] = {
    "bash": """_moebox() {
    local IFS=$'\\n'
    COMPREPLY=($(moebox --complete "${COMP_WORDS[@]:1:$COMP_CWORD}" 2>/dev/null))
}
complete -o default -o nosort -F _moebox moebox""",
    "zsh": """#compdef moebox
_moebox() {
    local -a found
    found=("${(@f)$(moebox --complete "${(@)words[2,$CURRENT]}" 2>/dev/null)}")
    if [[ -n "${found[1]}" ]]; then compadd -a found; else _files; fi
}
compdef _moebox moebox""",
    "fish": """complete -c moebox -f -a '(moebox --complete (commandline -opc)[2..] (commandline -ct) 2>/dev/null)'""",
}


def completion(shell: Shell = "bash") -> int:
    """Print the completion script of a shell; `eval "$(moebox completion bash)"` turns it on.

    Args:
        shell: bash, zsh or fish.
    """
    print(SCRIPTS[shell])
    return 0


def complete(words: list[str]) -> list[str]:
    """What may stand in place of the last word."""
    *before, begun = words or [""]
    return [name for name in sorted(set(_all(before, begun))) if name.startswith(begun)]


def _all(before: list[str], begun: str) -> Iterable[str]:
    """What may stand there: a command, an option, the value of one, a subcommand, or what the command takes."""
    typed = [word for word in before if not word.startswith("-")]
    if not typed:
        return {name.partition(" ")[0] for name in COMMANDS}
    pair = " ".join(typed[:2])
    name = pair if pair in COMMANDS else typed[0]
    if begun.startswith("-"):
        return command_options(name)
    if before[-1] in VALUES:
        return _quietly(VALUES[before[-1]])
    return _arguments(name, first=len(typed) == 1)


def _arguments(name: str, *, first: bool) -> Iterable[str]:
    """What stands behind a command: one of its own commands, or what it takes."""
    if first and name in GROUPS:
        return subcommands(name)
    return _quietly(POSITIONAL[name]) if name in POSITIONAL else ()


def _quietly(source: Callable[[], Iterable[str]]) -> Iterable[str]:
    """Nothing is completed rather than an error printed into somebody's command line."""
    try:
        return list(source())
    except (MoeboxError, OSError):
        return ()


def command_options(command: str) -> Iterator[str]:
    """The long options of a command, from its signature."""
    from moebox.cli.app import load_function

    if command not in COMMANDS:
        return
    for parameter in inspect.signature(load_function(COMMANDS[command][0])).parameters.values():
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY:
            yield from _fields(parameter.annotation) or [_option(parameter)]


def _option(parameter: inspect.Parameter) -> str:
    names = [
        name
        for extra in getattr(parameter.annotation, "__metadata__", ())
        for name in getattr(extra, "name", None) or ()
    ]
    return next((name for name in names if name.startswith("--")), flags.flag_name(parameter.name))


def _fields(annotation: object) -> list[str]:
    """The options that the fields of a dataclass are; none for anything else."""
    fields = getattr(getattr(annotation, "__origin__", annotation), "__dataclass_fields__", ())
    return [flags.flag_name(field) for field in fields]


def _models() -> Iterable[str]:
    from moebox.core import catalogue

    return catalogue.models()


def _boxes() -> Iterable[str]:
    from moebox.core import catalogue

    return [f"{count}x-{name}" for name in catalogue.gpus() for count in (1, 2, 4, 8)]


def _engines() -> Iterable[str]:
    from moebox.core import registry

    return registry.engine_names()


def _recipes() -> Iterable[str]:
    from moebox.serve import recipes

    return [*recipes.shipped_recipes(), *recipes.saved_recipes()]


def _runs() -> Iterable[str]:
    from moebox.store import runs_dir

    home = runs_dir()
    return ["latest", *(path.name for path in home.iterdir() if path.is_dir())] if home.is_dir() else []


def _live() -> Iterable[str]:
    from moebox.serve import state

    return [instance.id for instance in state.list_instances()]


VALUES: dict[str, Callable[[], Iterable[str]]] = {
    "--box": _boxes,
    "--engine": _engines,
    "--model": _models,
    "--recipe": _recipes,
    "--resume": _runs,
    "--run": _runs,
}
POSITIONAL: dict[str, Callable[[], Iterable[str]]] = {
    **dict.fromkeys(("plan", "forecast", "run", "twin", "models show"), _models),
    **dict.fromkeys(("up", "render", "rehearse", "climb", "compare"), _recipes),
    **dict.fromkeys(("report", "pack", "runs show", "runs rm"), _runs),
    **dict.fromkeys(("logs", "down", "verify", "bench", "connect", "task"), _live),
    "completion": lambda: SCRIPTS,
}
