"""Build the command tree from the table of commands, and call the command that the words name."""

import pkgutil
from collections.abc import Sequence
from typing import Any, Literal, get_args, get_origin

from cyclopts import App, CoercionError, CycloptsError, Parameter
from cyclopts.argument import Argument
from cyclopts.exceptions import MissingArgumentError, UnusedCliTokensError

from moebox import __version__
from moebox.cli import ABOUT, COMMANDS, GROUPS, subcommands
from moebox.cli.signals import signals_as_interrupt
from moebox.errors import BadInput, UnknownName, refuse_if, suggest_names

NUMBER_KINDS: dict[object, str] = {int: "a whole number", float: "a number"}


def call_command(words: list[str]) -> int:
    """Run the command that the words name and return its exit code; BadInput if they do not make a command."""
    own = [word for word in words if word != "--json"]
    first, second = (*own, "", "")[:2]
    known = {name.partition(" ")[0] for name in COMMANDS}
    hint = "`moebox --help` lists them; --runs needs a folder, then a command"
    refuse_if(first in ("", "--runs"), "no command is named", hint=hint)
    if first not in known and first not in ("--version", "--help", "-h"):
        near = suggest_names(first, sorted(known))
        raise UnknownName("command", first, known, hint=near if "?" in near else "`moebox --help` lists the commands")
    bare = first in COMMANDS or second.startswith("-")
    if first in GROUPS and not bare and second not in ("", *subcommands(first)):
        raise unknown_subcommand(first, second)
    app = build_app([word for word in words if not word.startswith("-")])
    try:
        command, bound, others = app.parse_args(own, exit_on_error=False, print_error=False)
        more = {"json": own != words} if "json" in others else {}
        if own != words and not more:  # refused if the command has no such flag
            command, bound, _ = app.parse_args(words, exit_on_error=False, print_error=False)
        with signals_as_interrupt(own):
            code = command(*bound.args, **bound.kwargs, **more)
    except CycloptsError as problem:
        refuse_removed_flags(words)
        hint = "`--help` after the command lists its arguments and flags"
        unused = problem.unused_tokens if isinstance(problem, UnusedCliTokensError) else None
        if first in GROUPS and unused and unused[0] == second:  # not an argument but the name of a subcommand
            raise unknown_subcommand(first, second) from None
        raise BadInput(usage_error(problem, words), hint=hint) from None
    return code if isinstance(code, int) else 0


def unknown_subcommand(group: str, name: str) -> UnknownName:
    meant = {"delete": "rm", "remove": "rm", "rm": "remove"}.get(name, name)
    return UnknownName(f"{group} command", name, (), hint=suggest_names(meant, sorted(subcommands(group))))


def refuse_removed_flags(words: Sequence[str]) -> None:
    """Raise BadInput for the first flag that this release removed; it names what to write instead."""
    from moebox.core import catalogue

    called = [word for word in words if not word.startswith("-")]
    name = " ".join(called[:2]) if " ".join(called[:2]) in COMMANDS else "".join(called[:1])
    removed = catalogue.load_table("removed_flags").get(name, {})
    for place, word in enumerate(words):
        flag, equals, value = word.partition("=")
        if flag.startswith("--") and flag[2:] in removed:
            value = value if equals else (*words, "")[place + 1]
            raise BadInput(f"{flag} was removed in 0.2", hint=f"write {removed[flag[2:]][0].replace('{}', value)}")


def build_app(called: Sequence[str] = ()) -> App:
    """Build the whole command line; only the command that the words `called` name is imported.

    The help page of that command shows its docstring, lists of commands show the sentence of the table.
    """
    own = next((name for name in (" ".join(called[:2]), " ".join(called[:1])) if name in COMMANDS), "")
    # A default that means "off" or "not given" is not shown.
    shown = Parameter(show_default=lambda value: None if value in ("", False, None, (), []) else str(value))
    app = App(
        name="moebox", help=ABOUT, version=f"moebox {__version__}", help_format="markdown", default_parameter=shown
    )
    groups = {name: App(name=name, help=None if name == own else about) for name, about in GROUPS.items()}
    for group in groups.values():
        app.command(group)
    for name, (target, about) in COMMANDS.items():
        head, _, tail = name.partition(" ")
        command: Any = pkgutil.resolve_name(target) if name == own else target
        text = None if name == own else about
        if name not in groups:
            groups.get(head, app).command(command, name=tail or name, help=text)
        elif name == own:
            groups[name].default(command)
    return app


def usage_error(problem: CycloptsError, words: Sequence[str]) -> str:
    """Return one line for words that do not make a command."""
    argument = problem.argument
    if isinstance(problem, UnusedCliTokensError) and problem.unused_tokens:
        return f"unexpected argument {' '.join(problem.unused_tokens)!r}"
    if isinstance(problem, MissingArgumentError) and argument:
        if not problem.keyword:
            return f"{_argument_name(argument)} is missing"
        after = [*words, "", problem.keyword, ""]
        value = after[after.index(problem.keyword) + 1]
        negative = value[:1] == "-" and value[1:2].isdigit()
        return f"{problem.keyword} {value}: must not be negative" if negative else f"{problem.keyword} needs a value"
    if not isinstance(problem, CoercionError) or not problem.token or not argument:
        return " ".join(str(problem).split())
    flag, value = problem.token.keyword or _argument_name(argument), problem.token.value
    kinds = [argument.hint, *get_args(argument.hint)]
    choices = [str(choice) for kind in kinds if get_origin(kind) is Literal for choice in get_args(kind)]
    if choices:
        return f"{flag} {value!r}: choose {', '.join(choices[:-1])} or {choices[-1]}"
    wanted = next((text for kind, text in NUMBER_KINDS.items() if kind in kinds), "a value of another kind")
    return f"{flag} {value!r}: must be {wanted}"


def _argument_name(argument: Argument) -> str:
    """Return MODEL for a positional argument, --box for an option."""
    field = argument.field_info
    return field.name.upper() if field.is_positional else argument.name
