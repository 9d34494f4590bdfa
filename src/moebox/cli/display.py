"""Tables, live displays, time estimates and the four answers of a run, in the style that all commands share."""

import textwrap
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, Self

from moebox.cli.output import Part, View, print_lines, print_note, print_parts, stderr_console, stdout_console, to_view
from moebox.store import durations
from moebox.units import format_count, format_seconds, plural

if TYPE_CHECKING:
    from rich.console import Console, Group
    from rich.live import Live
    from rich.table import Table

    from moebox.assess.assessment import Assessment

TONE_MARKS = {"good": ("✓", "green"), "bad": ("✗", "bold red"), "warn": ("!", "yellow"), "quiet": ("·", "dim")}
CELL_INDENT = 10  # columns before the texts of cells
_MAX_WARNINGS = 4  # the assessment fits on a screen of 24 lines
VERDICT_MARKS = {"pass": ("✓", "green"), "warn": ("!", "yellow"), "fail": ("✗", "red"), "skip": ("–", "dim")}


def make_group(*parts: Part) -> "Group":
    from rich.console import Group

    return Group(*map(to_view, parts))


def make_grid(rows: Iterable[Sequence[Part]], *, gap: int = 1, whole: int = 0) -> "Table":
    """Make rows without headings; the first `whole` columns are not broken into lines."""
    from rich.table import Table

    table = Table.grid(padding=(0, gap))
    for row in rows:
        for at in range(len(table.columns), len(row)):
            table.add_column(no_wrap=at < whole, overflow="ellipsis" if at < whole else "fold")
        table.add_row(*map(to_view, row))
    return table


def make_table(
    heads: Sequence[str],
    rows: Iterable[Sequence[Part]],
    *,
    left_columns: Collection[str] = (),
    wrapped: Collection[str] = (),
    parts: Collection[str] = (),
    gap: int = 2,
    width: int | None = None,
) -> "Group":
    """Make a table with headings: figures on the right, texts on the left, `wrapped` ones in lines.

    If it is wider than `width`, usually the terminal's, and none is `wrapped`, it is cut between columns into several
    below each other: the first column is repeated, and a new one also begins with each of the columns `parts`.
    """
    from rich.cells import cell_len
    from rich.table import Table

    views = [[to_view(cell) for cell in row] for row in rows]
    widths = [max(cell_len(str(cell)) for cell in column) for column in zip(heads, *views, strict=True)]
    width = width or stdout_console().width
    groups, left, tables = [list(range(len(heads)))], width - widths[0], []
    if not wrapped and sum(widths) + gap * (len(widths) - 1) > width:
        groups = [[0]]
        for at, needed in enumerate(widths[1:], 1):
            if (needed + gap > left or heads[at] in parts) and len(groups[-1]) > 1:
                groups.append([0])
                left = width - widths[0]
            groups[-1].append(at)
            left -= needed + gap
    for group in groups:
        tables.append(table := Table(box=None, pad_edge=False, padding=(0, gap, 0, 0)))
        for at in group:
            wraps = heads[at] in wrapped
            justify: Literal["left", "right"] = "left" if wraps or heads[at] in left_columns else "right"
            table.add_column(heads[at], justify=justify, no_wrap=not wraps, overflow="fold" if wraps else "ellipsis")
        for row in views:
            table.add_row(*(row[at] for at in group))
    return make_group(*tables)


def arrange_speeds(cells: Mapping[tuple[int, int], str]) -> tuple[list[int], list[tuple[str, ...]]]:
    """Arrange texts by context and streams: return the streams, and a row for each context; "-" if there is none."""
    contexts, streams = (sorted(set(axis)) for axis in zip(*cells, strict=True))
    rows = [(format_count(each), *(cells.get((each, number), "-") for number in streams)) for each in contexts]
    return streams, rows


class LiveDisplay:
    """A view that is redrawn on a terminal while a block runs."""

    quiet = False  # draw nothing
    per_second = 8
    console: "Console | None" = None  # stderr if it is not set
    live: "Live | None" = None
    spinner: Part = ""  # turns while the block runs

    def __enter__(self) -> Self:
        console = self.console or stderr_console()
        if console.is_terminal and not self.quiet:
            from rich.live import Live
            from rich.spinner import Spinner

            self.spinner = Spinner("dots")
            self.live = Live(self, console=console, refresh_per_second=self.per_second, transient=True)
            self.live.start()
        return self

    def __rich__(self) -> View:
        return ""

    def __exit__(self, *_: object) -> None:
        if self.live:
            self.live.stop()
            self.live = None
            self.print_final()

    def print_final(self) -> None:
        """Print what stays on the screen after the live display."""


class WaitingLine(LiveDisplay):
    """A line for work without countable steps: the elapsed time, and the time left by the last duration or a limit."""

    def __init__(self, title: str, key: str, *, limit_s: float | None = None) -> None:
        self.title, self.key = title, key
        self.limit_s = limit_s  # the work never takes longer
        self.last_s = durations.last_duration(key)
        self.began = time.monotonic()

    def __enter__(self) -> Self:
        super().__enter__()
        if not self.live:
            print_note(f"{self.title}{self.duration_text()}")
        return self

    def __rich__(self) -> View:
        return to_view(f"{self.title}: {self.progress_text()}")

    def __exit__(self, *problem: object) -> None:
        super().__exit__(*problem)
        if problem[0] is None:
            durations.remember_duration(self.key, time.monotonic() - self.began)

    def progress_text(self) -> str:
        """Return a text like "41 s, about 35 s left (as last time)"."""
        elapsed = time.monotonic() - self.began
        text = format_seconds(elapsed)
        if self.last_s is not None:
            if self.last_s - elapsed >= 1:
                return f"{text}, about {format_seconds(self.last_s - elapsed)} left (as last time)"
            text += ", longer than last time"
        limit = (self.limit_s or 0.0) - elapsed
        return f"{text}, at most {format_seconds(limit)} left" if limit >= 1 else text

    def duration_text(self) -> str:
        """Return a text like ": about 3 min, as last time", for a log without live display; "" if nothing is known."""
        if self.last_s:
            return f": about {format_seconds(self.last_s)}, as last time"
        return f": at most {format_seconds(self.limit_s)}" if self.limit_s else ""


def print_assessment(assessment: "Assessment") -> None:
    """Print headline, cells (a mark, a name and a text each) and warnings. Commands are never wrapped."""
    width = max(stdout_console().width - CELL_INDENT, 20)
    indent = " " * CELL_INDENT

    def break_lines(text: str) -> list[str]:
        return textwrap.wrap(text, width, break_on_hyphens=False)

    if assessment.simulated:
        print_parts(("SIMULATION: no GPU produced these figures", "yellow"))
    elif assessment.headline:
        style = TONE_MARKS.get(assessment.tone, ("", ""))[1]
        print_parts((assessment.headline, style.removeprefix("bold ") + " bold"))
    lines: list[Part] = []
    for cell in assessment.cells:
        first, *rest = [cell.text] if cell.command else break_lines(cell.text)
        lines.append([TONE_MARKS.get(cell.tone, " "), (f" {cell.name:<{CELL_INDENT - 3}} ", "bold"), first])
        lines += [indent + line for line in rest]
        lines += [(indent + line, "dim") for line in break_lines(cell.detail)]
    for warning in assessment.warnings[:_MAX_WARNINGS]:
        first, *rest = break_lines(warning)
        lines += [[("!", "yellow"), f" warning {first}"], *(indent + line for line in rest)]
    if (more := len(assessment.warnings) - _MAX_WARNINGS) > 0:
        lines.append((f"  {plural(more, 'more warning')} in the report", "dim"))
    print_lines(lines)
