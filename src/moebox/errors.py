"""Every failure a person may see, with its exit code.

    MoeboxError
    ├── AnswerIsNo        1   done, and the answer is no
    │   └── DoesNotFit    1   no placement holds the model on this box
    ├── BadInput          2   a flag, file or name that cannot be meant
    │   ├── UnknownName   2   a box, model, engine or flag nobody has heard of; suggests the nearest
    │   └── Unsupported   2   understood, but not something moebox can handle
    └── Outside           3   something outside is missing or failed (engine, port, driver, network)
        └── NotInstalled  3   the program to be started is not on this machine

What a person can fix is raised from here: one line saying what, where and how. Everything else is a
bug and keeps its traceback.
"""

import difflib
from collections.abc import Iterable, Mapping

INTERRUPTED = 130  # the shell's code for SIGINT


class MoeboxError(Exception):
    """A failure with one line for people, an optional hint and an exit code."""

    exit_code = 3

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class AnswerIsNo(MoeboxError):
    """The work was done and its answer is no."""

    exit_code = 1


class DoesNotFit(AnswerIsNo):
    """Nothing that was tried holds the model on the box; `shortfall` is in bytes."""

    def __init__(self, message: str, *, shortfall: int = 0, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.shortfall = shortfall


class BadInput(MoeboxError):
    """What was given cannot be meant: a flag, a file, a field."""

    exit_code = 2


def refuse_if(wrong: object, message: str, *, hint: str | None = None) -> None:
    """BadInput where something is `wrong`: one rule a line, for what checks many."""
    if wrong:
        raise BadInput(message, hint=hint)


def exception_text(problem: BaseException) -> str:
    """An exception in its own words; by its name where it has none."""
    return str(problem) or type(problem).__name__


class UnknownName(BadInput):
    """A name that is in no table; the nearest ones are the hint."""

    def __init__(self, kind: str, name: str, known: Iterable[str], *, hint: str | None = None) -> None:
        names = sorted(known)
        super().__init__(f"unknown {kind} {name!r}", hint=hint or suggest_names(name, names))
        self.name = name


class Unsupported(BadInput):
    """Understood, but outside what moebox can handle."""


class ExternalError(MoeboxError):
    """Something outside moebox is missing or failed."""

    exit_code = 3


class NotInstalled(ExternalError):
    """The engine or container program is not on this machine: no setting of a recipe changes that."""


def suggest_names(name: str, known: Iterable[str]) -> str:
    """The sentence that names the nearest known names, or all of them when few."""
    names = list(known)
    near = difflib.get_close_matches(name.lower(), names, n=3, cutoff=0.55)
    if near:
        return f"did you mean {' or '.join(near)}?"
    if len(names) <= 12:
        return f"known: {', '.join(names)}"
    return f"known: {', '.join(names[:10])}, … ({len(names)} in all)"


def refuse_out_of_range(flag: str, value: int | None, least: int, most: int) -> None:
    """BadInput for a value that was given and does not lie between two others."""
    if value is not None and not least <= value <= most:
        raise BadInput(f"{flag} {value} is out of range", hint=f"from {least:,} to {most:,}")


def require_all(where: str, rules: Mapping[str, bool]) -> None:
    """BadInput with the first sentence that does not hold; `where` names the file or the table it is about."""
    broken = next((rule for rule, holds in rules.items() if not holds), "")
    if broken:
        raise BadInput(f"{where}: {broken}" if where else broken)
