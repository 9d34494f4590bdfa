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


def build(called: str = "") -> App:
    """The whole command line; `called` is the first word, whose group's own function may be loaded."""
    shown = Parameter(show_default=default_text)
    app = App(
        name="moebox", help=HELP, version=f"moebox {__version__}", help_format="markdown", default_parameter=shown
    )
    groups: dict[str, App] = {}
    for name, about in GROUPS.items():
        groups[name] = App(name=name, help=about, default_parameter=shown)
        app.command(groups[name])
    for name, (target, about) in COMMANDS.items():
        head, _, tail = name.partition(" ")
        if head in groups:
            parent = groups[head]
            if tail:
                parent.command(target, name=tail, help=about)
            elif head == called:
                parent.default(load(target))
        else:
            app.command(target, name=name, help=about)
    return app


def default_text(value: object) -> str | None:
    """A default worth printing; "off" and "not given" go without saying."""
    return None if value in ("", False, None, (), []) else str(value)


def load(target: str) -> Any:
    """The function named "module:function"."""
    module, _, name = target.partition(":")
    return getattr(import_module(module), name)
