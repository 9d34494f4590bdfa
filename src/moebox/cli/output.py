"""What every command uses to print: the consoles, JSON on stdout, and files that were asked for."""

import functools
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from moebox import codec, files
from moebox.errors import AnswerIsNo, BadInput
from moebox.escape import escape_invisible, escape_json
from moebox.redact import hide_known_keys

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment

View: TypeAlias = "RenderableType"  # what rich can draw
# A text as it is, without markup; with a style; a line of such texts; or a view.
Part: TypeAlias = "str | tuple[str, str] | list[str | tuple[str, str]] | RenderableType"


def print_json(document: Any) -> None:
    """Print one JSON document on stdout and flush it: a reader may wait for it while the command goes on."""
    sys.stdout.write(escape_json(hide_known_keys(codec.to_json(document))) + "\n")
    sys.stdout.flush()


def print_result(json: bool, document: Any, show: Callable[[], object], *, good: object = True) -> int:
    """Print a command's result, one JSON document or what `show` prints for users, and return its exit code."""
    if json:
        print_json(document)
    else:
        show()
    return exit_code(good)


def exit_code(good: object) -> int:
    """Return the exit code of a command that has done its work: 0 if the answer is good, 1 if it is no."""
    return 0 if good else AnswerIsNo.exit_code


def to_view(part: Part) -> View:
    """Return what rich draws of a part."""
    from rich.text import Text

    if isinstance(part, str | tuple | list):
        return Text.assemble(*(part if isinstance(part, list) else [part]))
    return part


def print_parts(*parts: Part, stderr: bool = False) -> None:
    """Print parts below each other, broken at the width of the terminal."""
    for part in parts:
        (stderr_console() if stderr else stdout_console()).print(to_view(part))


def print_lines(lines: "Iterable[Part | Path]", *, stderr: bool = False) -> None:
    """Print lines without breaking names and paths."""
    for line in lines:
        console = stderr_console() if stderr else stdout_console()
        console.print(to_view(str(line) if isinstance(line, os.PathLike) else line), soft_wrap=True)


def print_note(line: Part) -> None:
    print_lines([line], stderr=True)


def write_file(path: Path, text: str, *, executable: bool = False) -> None:
    """Write a file that was asked for, completely or not at all; BadInput if it cannot be written."""
    with files.report_write_errors(path, error_type=BadInput):
        files.write_atomic(path, hide_known_keys(text), mode=0o755 if executable else 0o644)


def check_writable(path: Path | None, *, shown_as: Path | None = None, hint: str | None = None) -> None:
    """Raise BadInput if a file cannot be written, before the work whose result it is for.

    `shown_as`: the path to name in the error, if the file only stands for it.
    """
    if path:
        with files.report_write_errors(shown_as or path, error_type=BadInput, hint=hint):
            files.check_writable(path)


def confirm(question: str) -> bool:
    """Ask the user a yes-or-no question; BadInput if standard input is closed."""
    try:
        reply = stderr_console().input(f"{question} [y/N] ", markup=False)
    except EOFError:
        raise BadInput(f"{question} No answer", hint="`--yes` confirms in advance") from None
    return reply.strip().lower() in ("y", "yes")


@functools.cache
def stdout_console() -> "Console":
    return make_console()


@functools.cache
def stderr_console() -> "Console":
    return make_console(stderr=True)


def make_console(*, stderr: bool = False) -> "Console":
    """Make a console that shows escape sequences in foreign text instead of obeying them; rich lets them through."""
    from rich.console import Console
    from rich.segment import Segment
    from rich.text import Text

    class SafeConsole(Console):
        def render(
            self, renderable: "RenderableType", options: "ConsoleOptions | None" = None
        ) -> "Iterable[Segment]":  # keys are hidden before a text is broken into lines
            text = str(renderable) if isinstance(renderable, str | Text) else ""
            hidden = hide_known_keys(text)
            return super().render(renderable if hidden == text else Text(hidden), options)

        def _render_buffer(self, buffer: "Iterable[Segment]") -> str:
            # control segments are rich's own: the cursor of a progress display
            escaped = (
                segment if segment.control else Segment(escape_invisible(segment.text), segment.style)
                for segment in buffer
            )
            return super()._render_buffer(escaped)

    return SafeConsole(stderr=stderr, highlight=False, emoji=False)
