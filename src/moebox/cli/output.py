"""What every command shares: the consoles, JSON on stdout, and names turned into facts."""

import functools
import sys
from typing import TYPE_CHECKING, Any

from moebox import codec, files
from moebox.errors import AnswerIsNo, BadInput
from moebox.escape import escape_invisible, escape_json
from moebox.redact import hide_known_keys

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment


def print_json(document: Any) -> None:
    """One JSON document on stdout, at once: whoever reads it from a pipe may wait for it while the command goes on."""
    sys.stdout.write(escape_json(hide_known_keys(codec.to_json(document))) + "\n")
    sys.stdout.flush()


def print_result(json: bool, document: Any, show: "Callable[[], object]") -> None:
    """What a command found: one JSON document, or as `show` puts it for people."""
    if json:
        print_json(document)
    else:
        show()


def exit_code(good: object) -> int:
    """What a command ends with when it has done its work: 0 where the answer is good, 1 where it is no."""
    return 0 if good else AnswerIsNo.exit_code


def print_lines(lines: "Iterable[object]") -> None:
    """Lines of a result, as they are: names and paths are not broken."""
    for line in lines:
        stdout_console().print(str(line), markup=False, soft_wrap=True)


def write_file(path: "Path", text: str, *, executable: bool = False) -> None:
    """A file that was asked for, whole or not at all; BadInput where it cannot be."""
    with files.report_write_errors(path, error_type=BadInput):
        files.write_atomic(path, hide_known_keys(text), mode=0o755 if executable else 0o644)


def check_writable(path: "Path | None", *, shown_as: "Path | None" = None, hint: str | None = None) -> None:
    """BadInput where a file that was asked for cannot be written, before the work whose result it is to hold.

    `of`: what is named then, where the file is one that stands for it.
    """
    if path:
        with files.report_write_errors(shown_as or path, error_type=BadInput, hint=hint):
            files.check_writable(path)


def confirm(question: str) -> bool:
    """Whether a person says yes; BadInput where nobody answers."""
    try:
        said = stdout_console().input(f"{question} [y/N] ", markup=False)
    except EOFError:
        raise BadInput(f"{question} Nobody answered", hint="`--yes` says yes beforehand") from None
    return said.strip().lower() in ("y", "yes")


@functools.cache
def stdout_console() -> "Console":
    """Where results for people go: stdout."""
    return make_console()


@functools.cache
def stderr_console() -> "Console":
    """Where progress and remarks go: stderr."""
    return make_console(stderr=True)


def make_console(*, stderr: bool = False) -> "Console":
    """A console that shows text of servers, models and files without obeying it: rich lets escape sequences through."""
    from rich.console import Console
    from rich.segment import Segment
    from rich.text import Text

    class SafeConsole(Console):
        def render(
            self, renderable: "RenderableType", options: "ConsoleOptions | None" = None
        ) -> "Iterable[Segment]":  # keys go before a text is broken into lines
            said = str(renderable) if isinstance(renderable, str | Text) else ""
            hidden = hide_known_keys(said)
            return super().render(renderable if hidden == said else Text(hidden), options)

        def _render_buffer(self, buffer: "Iterable[Segment]") -> str:
            return super()._render_buffer(map(_shown, buffer))

    def _shown(segment: "Segment") -> "Segment":
        if segment.control:  # rich's own: the cursor of a progress display
            return segment
        return Segment(escape_invisible(segment.text), segment.style)

    return SafeConsole(stderr=stderr, highlight=False, emoji=False)
