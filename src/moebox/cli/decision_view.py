"""The four answers in a terminal: one row each, commands on a line that can be pasted."""

import textwrap

from rich.text import Text

from moebox.cli.output import stdout_console
from moebox.report.decision import Decision, DecisionCell

_MARKS = {"good": ("✓", "green"), "bad": ("✗", "bold red"), "warn": ("!", "yellow"), "quiet": ("·", "dim")}
_INDENT = 10


def print_decision(decision: Decision) -> None:
    """Print them on stdout."""
    if decision.simulated:
        stdout_console().print("SIMULATION: no GPU produced these figures", style="yellow")
    for answer in decision.answers:
        _row(answer)


def _row(answer: DecisionCell) -> None:
    """A mark, the name, the text; a command is never wrapped, for half a path is no path."""
    mark, style = _MARKS.get(answer.tone, (" ", ""))
    first, *rest = [answer.text] if answer.command else _wrapped(answer.text)
    line = Text.assemble((mark, style), (f" {answer.name:<{_INDENT - 3}} ", "bold"), first)
    stdout_console().print(line, soft_wrap=True)
    for text in rest:
        stdout_console().print(" " * _INDENT + text, soft_wrap=True, markup=False)
    for text in _wrapped(answer.detail):
        stdout_console().print(Text(" " * _INDENT + text, style="dim"), soft_wrap=True)


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, max(stdout_console().width - _INDENT, 20), break_on_hyphens=False)
