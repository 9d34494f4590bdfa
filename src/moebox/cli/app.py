"""Builds the command tree from the table of commands; nothing is imported before it is called."""

from importlib import import_module
from typing import Any

from cyclopts import App, Parameter

from moebox import __version__
from moebox.cli import COMMANDS, GROUPS

HELP = """From the box you have and a frontier mixture-of-experts model to an endpoint that is planned, launched,
verified, climbed, benchmarked and reported.

Exit codes: 0 good, 1 the answer is no, 2 bad input, 3 something outside is missing or failed, 130 interrupted.
Every command takes `--debug` to show a traceback; most take `--json`.
"""


def build_app(called: tuple[str, ...] = ()) -> App:
    """The whole command line; the command that is `called` is loaded, the others are only named.

    A command's page shows its whole docstring, lists of commands the one sentence of the table.
    """
    shown = Parameter(show_default=default_text)
    version = f"moebox {__version__}"
    app = App(name="moebox", help=HELP, version=version, help_format="markdown", default_parameter=shown)
    own = find_command(called)
    groups = {
        name: App(name=name, help=_help(name, about, own), default_parameter=shown) for name, about in GROUPS.items()
    }
    for part in (app, *groups.values()):
        part.suppress_keyboard_interrupt = False  # it would exit without a word; `cli` says what was interrupted
    for group in groups.values():
        app.command(group)
    for name in COMMANDS:
        _add(name, app, groups, own)
    return app


def _add(name: str, app: App, groups: dict[str, App], own: str) -> None:
    """A command at its place; a group's own only where it is called."""
    target, about = COMMANDS[name]
    head, _, tail = name.partition(" ")
    command = load_function(target) if name == own else target
    if head not in groups:
        app.command(command, name=name, help=_help(name, about, own))
    elif tail:
        groups[head].command(command, name=tail, help=_help(name, about, own))
    elif name == own:
        groups[head].default(load_function(target))


def find_command(words: tuple[str, ...]) -> str:
    """The command that these words call; "" where there is none such."""
    names = (" ".join(words[:2]), " ".join(words[:1]))
    return next((name for name in names if name in COMMANDS), "")


def _help(name: str, about: str, own: str) -> str | None:
    """The table's sentence; None leaves the page of the command that is called to its docstring."""
    return None if name == own else about


def default_text(value: object) -> str | None:
    """A default worth printing; "off" and "not given" go without saying."""
    return None if value in ("", False, None, (), []) else str(value)


def load_function(target: str) -> Any:
    """The function named "module:function"."""
    module, _, name = target.partition(":")
    return getattr(import_module(module), name)
