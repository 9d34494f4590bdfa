"""`moebox` without a command: what there is, by what a person wants, without loading anything heavy."""

import shutil
import textwrap
from collections.abc import Iterator

SECTIONS: dict[str, tuple[str, ...]] = {
    "Start here": ("run", "ui"),
    "Plan": ("plan", "forecast", "box", "models", "twin", "rehearse", "calibrations"),
    "Serve": ("doctor", "up", "ps", "logs", "down", "render", "connect", "watch", "fleet"),
    "Prove": ("verify", "climb", "compare", "bench", "task"),
    "Show": ("runs", "report", "pack"),
}
MAX_WIDTH = 100
COLUMN = 16


def section_of(command: str) -> str:
    """Where a command stands; "More" for one that no section names."""
    return next((title for title, names in SECTIONS.items() if command in names), "More")


def overview_text(about: dict[str, str], version: str, width: int = 0) -> str:
    """Every command with its sentence, section by section."""
    width = min(width or shutil.get_terminal_size((80, 24)).columns, MAX_WIDTH)
    return "\n".join(
        [f"moebox {version}: from your box and a model to a checked, measured endpoint", *_lines(about, width)]
    )


def _lines(about: dict[str, str], width: int) -> Iterator[str]:
    rest = tuple(name for name in about if section_of(name) == "More")
    for title, names in {**SECTIONS, "More": rest}.items():
        yield from ("", title)
        for name in names:
            yield from _entry(name, about[name], width)
    yield ""
    yield "`moebox COMMAND --help` explains one. --json prints one document for scripts,"
    yield "--plain no colour and no live view, --debug a traceback. Exit codes: 0 good,"
    yield "1 the answer is no, 2 bad input, 3 something outside failed, 130 interrupted."


def _entry(name: str, sentence: str, width: int) -> Iterator[str]:
    """A command and its sentence, which wraps in its own column."""
    first, *rest = textwrap.wrap(sentence, width - COLUMN) or [""]
    yield f"  {name:<{COLUMN - 2}}{first}"
    yield from (" " * COLUMN + line for line in rest)
