"""Errors shown to users, with their exit codes.

    MoeboxError
    ├── AnswerIsNo        1   the work was done and the answer is no
    │   └── DoesNotFit    1   no placement holds the model on this box
    ├── BadInput          2   invalid user input: a flag, file or name
    │   ├── UnknownName   2   an unknown box, model, engine or flag; suggests the nearest names
    │   └── Unsupported   2   valid, but outside what moebox can handle
    └── ExternalError     3   something outside is missing or failed (engine, port, driver, network)
        └── NotInstalled  3   the program to be started is not on this machine

Raise one of these for what a user can fix: one line with what, where and how. Everything else is a bug and keeps
its traceback.
"""

import contextlib
import difflib
import errno
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path

INTERRUPTED = 130  # the shell's code for SIGINT
# Errors that importing another package's module may raise.
IMPORT_ERRORS = (
    *(ImportError, SyntaxError, NameError, AttributeError, TypeError, ValueError),
    *(LookupError, RuntimeError, AssertionError, ArithmeticError, OSError, SystemExit),
)


class MoeboxError(Exception):
    """A failure with a one-line message, an optional hint and an exit code."""

    exit_code = 3

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        pasted, short = r"(\S{60})\S{940,}", r"\1…"  # a long text given as a name
        self.message = re.sub(pasted, short, message)
        self.hint = hint and re.sub(pasted, short, hint)


class AnswerIsNo(MoeboxError):
    exit_code = 1


class DoesNotFit(AnswerIsNo):
    """No candidate holds the model on the box; `shortfall` is in bytes."""

    def __init__(self, message: str, *, shortfall: int = 0, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.shortfall = shortfall


class BadInput(MoeboxError):
    exit_code = 2


class UnknownName(BadInput):
    """A name that is in no table; the hint suggests the nearest ones."""

    def __init__(self, kind: str, name: str, known: Iterable[str], *, hint: str | None = None) -> None:
        super().__init__(f"unknown {kind} {name!r}", hint=hint or suggest_names(name, sorted(set(known))))
        self.name = name


class Unsupported(BadInput):
    """Valid input that moebox cannot handle."""


class ExternalError(MoeboxError):
    exit_code = 3


class NotInstalled(ExternalError):
    """The engine or container program is not on this machine, so that changing the recipe does not help."""


def exception_text(problem: BaseException) -> str:
    """Return an exception's message, or its class name if it has none."""
    return str(problem) or type(problem).__name__


def is_interrupt(problem: BaseException) -> bool:
    """Return True for Ctrl-C, also where Python before 3.12 made it a RuntimeError: in the definition of a class."""
    return isinstance(problem, KeyboardInterrupt) or isinstance(problem.__cause__, KeyboardInterrupt)


def exhausted_limit(problem: BaseException) -> str:
    """Return which limit of this machine caused an error, such as "open files (ulimit -n) 24"; "" if none did."""
    import resource

    number = problem.errno if isinstance(problem, OSError) else None
    if number in (errno.EMFILE, errno.ENFILE):
        return f"open files (ulimit -n) {resource.getrlimit(resource.RLIMIT_NOFILE)[0]}"
    if number == errno.ENOMEM or isinstance(problem, MemoryError):
        size = resource.getrlimit(resource.RLIMIT_AS)[0]
        return "memory" if size == resource.RLIM_INFINITY else f"address space (ulimit -v) {size // 1024} KiB"
    return ""


def suggest_names(name: str, known: Iterable[str]) -> str:
    """Suggest the nearest known names, or list the known ones if none is near."""
    names = list(known)
    near = difflib.get_close_matches(name.lower(), names, n=3, cutoff=0.55)
    if near:
        return f"did you mean {' or '.join(near)}?"
    if not names:
        return "there are none"
    if len(names) <= 24:
        return f"known: {', '.join(names)}"
    return f"known: {', '.join(names[:10])}, … ({len(names)} in all)"


def suggest_path(name: Path | str) -> str | None:
    """Suggest the nearest names in the folder in which a path ends, or None if none is near."""
    path = Path(name).expanduser()
    while not path.parent.is_dir():
        path = path.parent
    try:
        near = difflib.get_close_matches(path.name, os.listdir(path.parent), n=2, cutoff=0.8)
    except OSError:
        return None
    return f"did you mean {' or '.join(str(path.parent / each) for each in near)}?" if near else None


def refuse_if(wrong: object, message: str, *, hint: str | None = None) -> None:
    """Raise BadInput if `wrong` is true: one rule per line where many are checked."""
    if wrong:
        raise BadInput(message, hint=hint)


@contextlib.contextmanager
def prefix_errors(where: str, error_type: type[BadInput] = BadInput) -> Iterator[None]:
    """Begin the message of a BadInput from the block with `where`."""
    try:
        yield
    except BadInput as problem:
        raise error_type(f"{where}: {problem.message}", hint=problem.hint) from None


def require_known(kind: str, name: str, known: Collection[str]) -> None:
    """Raise UnknownName if a name is not one of the known ones."""
    if name not in known:
        raise UnknownName(kind, name, known)


def refuse_out_of_range(flag: str, value: int | None, least: int, most: int) -> None:
    """Raise BadInput if a value is given and does not lie in the range."""
    if value is not None and not least <= value <= most:
        raise BadInput(f"{flag} {value} is out of range", hint=f"from {least:,} to {most:,}")


def require_all(where: str, rules: Mapping[str, bool]) -> None:
    """Raise BadInput with the first rule that does not hold; `where` names the file or table."""
    broken = next((rule for rule, holds in rules.items() if not holds), "")
    if broken:
        raise BadInput(f"{where}: {broken}" if where else broken)
