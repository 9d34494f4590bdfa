"""Build the command tree from the table of commands, and call the command that the words name."""

from collections.abc import Sequence
from importlib import import_module
from typing import Any, Literal, get_args, get_origin

from cyclopts import App, CoercionError, CycloptsError, MissingArgumentError, Parameter, UnusedCliTokensError
from cyclopts.argument import Argument

from moebox import __version__
from moebox.cli import COMMANDS, GROUPS, subcommands
from moebox.cli.signals import signals_as_interrupt
from moebox.errors import BadInput, UnknownName

HELP = """From the box you have and a frontier mixture-of-experts model to an endpoint that is planned, launched,
verified, tuned, benchmarked and reported.

Exit codes: 0 good, 1 the answer is no, 2 bad input, 3 something outside is missing or failed, 130 interrupted.
Every command takes `--debug` to show a traceback, `--plain` for no colour and live views, and `--runs FOLDER` for
another folder of runs; all that print results take `--json` for one JSON document.
"""
NUMBER_KINDS: dict[object, str] = {int: "a whole number", float: "a number"}


def call_command(words: list[str]) -> int:
    """Run the command that the words name and return its exit code; BadInput if they do not make a command."""
    first, second = (*words, "", "")[:2]
    known = {name.partition(" ")[0] for name in COMMANDS}
    if not first.startswith("-") and first not in known:
        raise UnknownName("command", first, known)
    bare = first in COMMANDS or second.startswith("-")
    if first in GROUPS and not bare and second not in ("", *subcommands(first)):
        raise UnknownName(f"{first} command", second, subcommands(first))
    app = build_app([word for word in words if not word.startswith("-")])
    try:
        own = [word for word in words if word != "--json"]
        command, bound, others = app.parse_args(own, exit_on_error=False, print_error=False)
        more = {"json": own != words} if "json" in others else {}
        if own != words and not more:  # refused if the command has no such flag
            command, bound, _ = app.parse_args(words, exit_on_error=False, print_error=False)
        with signals_as_interrupt(words):
            code = command(*bound.args, **bound.kwargs, **more)
    except CycloptsError as problem:
        refuse_removed_flags(words)
        hint = "`--help` after the command lists its arguments and flags"
        raise BadInput(usage_error(problem), hint=hint) from None
    return code if isinstance(code, int) else 0


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
    names = (" ".join(called[:2]), " ".join(called[:1]))
    own = next((name for name in names if name in COMMANDS), "")
    shown = Parameter(show_default=default_text)
    app = App(
        name="moebox", help=HELP, version=f"moebox {__version__}", help_format="markdown", default_parameter=shown
    )
    app.suppress_keyboard_interrupt = False  # cyclopts would exit without a message
    groups: dict[str, App] = {}
    for name, about in GROUPS.items():
        group = groups[name] = App(name=name, help=None if name == own else about, default_parameter=shown)
        group.suppress_keyboard_interrupt = False
        app.command(group)
    for name, (target, about) in COMMANDS.items():
        head, _, tail = name.partition(" ")
        command, text = (load_function(target), None) if name == own else (target, about)
        if head not in groups:
            app.command(command, name=name, help=text)
        elif tail:
            groups[head].command(command, name=tail, help=text)
        elif name == own:
            groups[head].default(load_function(target))
    return app


def default_text(value: object) -> str | None:
    """Return the text of a default in the help; None if it is "off" or "not given"."""
    return None if value in ("", False, None, (), []) else str(value)


def load_function(target: str) -> Any:
    """Import the function named "module:function"."""
    module, _, name = target.partition(":")
    return getattr(import_module(module), name)


def usage_error(problem: CycloptsError) -> str:
    """Return one line for words that do not make a command."""
    argument = problem.argument
    if isinstance(problem, UnusedCliTokensError) and problem.unused_tokens:
        return f"unexpected argument {' '.join(problem.unused_tokens)!r}"
    if isinstance(problem, MissingArgumentError) and argument:
        return f"{problem.keyword} needs a value" if problem.keyword else f"{_argument_name(argument)} is missing"
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
