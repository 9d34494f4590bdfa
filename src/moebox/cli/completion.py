"""Completion of commands, options, models, boxes, engines, recipes and runs for bash, zsh and fish.

The shell calls `moebox --complete WORDS…` with the words typed so far, the last one incomplete, and gets candidates,
one a line. Without candidates the shell offers files.
"""

import inspect
import pkgutil
from collections.abc import Callable, Iterable, Iterator
from typing import Literal, get_args

from moebox.cli import COMMANDS, GROUPS, flags, subcommands
from moebox.core import catalogue, registry
from moebox.data import FOLDER
from moebox.errors import MoeboxError

GLOBAL_OPTIONS = ("--json", "--runs", "--plain", "--debug", "--help")
Shell = Literal["bash", "zsh", "fish"]


def completion(shell: Shell = "bash") -> int:
    """Print the completion script of a shell; `eval "$(moebox completion bash)"` turns it on.

    Args:
        shell: bash, zsh or fish.
    """
    print((FOLDER / "completion" / f"moebox.{shell}").read_text(encoding="utf-8"), end="")
    return 0


def complete(words: list[str]) -> list[str]:
    *before, begun = words or [""]
    try:
        return [name for name in sorted(set(_all_candidates(before, begun))) if name.startswith(begun)]
    except (MoeboxError, OSError):  # nothing rather than an error in the user's command line
        return []


def _all_candidates(before: list[str], begun: str) -> Iterable[str]:
    """Return what may follow: a command, an option, an option's value, a subcommand, or a command's argument."""
    typed = [word for word in before if not word.startswith("-")]
    if not typed:
        return {name.partition(" ")[0] for name in COMMANDS}
    pair = " ".join(typed[:2])
    name = pair if pair in COMMANDS else typed[0]
    if begun.startswith("-"):
        return [*command_options(name), *GLOBAL_OPTIONS]
    if before[-1] in VALUES:
        return VALUES[before[-1]]()
    if len(typed) == 1 and name in GROUPS:
        return subcommands(name)
    return POSITIONAL[name]() if name in POSITIONAL else ()


def command_options(command: str) -> Iterator[str]:
    """Yield the long options of a command, from its signature; a dataclass has one for each field."""
    if command not in COMMANDS:
        return
    for parameter in inspect.signature(pkgutil.resolve_name(COMMANDS[command][0])).parameters.values():
        annotation = parameter.annotation
        if parameter.kind is not inspect.Parameter.KEYWORD_ONLY or annotation is flags.AsJson:
            continue
        extras = getattr(annotation, "__metadata__", ())
        names = [name for extra in extras for name in getattr(extra, "name", None) or () if name.startswith("--")]
        fields = getattr(getattr(annotation, "__origin__", annotation), "__dataclass_fields__", ())
        yield from map(flags.flag_name, fields) if fields else [*names, flags.flag_name(parameter.name)][:1]


def _recipe_names() -> Iterable[str]:
    from moebox.flows import recipes

    return [row.name for row in recipes.list_recipes()]


def _run_names() -> Iterable[str]:
    from moebox.store import runs_dir

    home = runs_dir()
    return ["latest", *(path.name for path in home.iterdir() if path.is_dir())] if home.is_dir() else []


def _instance_names() -> Iterable[str]:
    from moebox.serve import state

    return [instance.id for instance in state.list_instances()]


VALUES: dict[str, Callable[[], Iterable[str]]] = {
    "--box": lambda: [f"{count}x-{name}" for name in catalogue.gpus() for count in (1, 2, 4, 8)],
    "--engine": registry.engine_names,
    "--model": catalogue.models,
    "--recipe": _recipe_names,
    "--resume": _run_names,
    "--run": _run_names,
}
POSITIONAL: dict[str, Callable[[], Iterable[str]]] = {
    **dict.fromkeys(("plan", "forecast", "run", "twin", "models show"), catalogue.models),
    **dict.fromkeys(("up", "render", "rehearse", "climb", "tune", "compare"), _recipe_names),
    **dict.fromkeys(("report", "pack", "runs show", "runs rm"), _run_names),
    **dict.fromkeys(("logs", "down", "verify", "bench", "connect", "task"), _instance_names),
    "completion": lambda: get_args(Shell),
}
