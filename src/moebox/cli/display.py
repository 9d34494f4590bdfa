"""Tables, live displays, time estimates and the four answers of a run, in the style that all commands share."""

import textwrap
import time
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Self

from moebox.cli.output import stderr_console, stdout_console
from moebox.store import durations
from moebox.units import format_seconds, plural

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live
    from rich.table import Table

    from moebox.assess.assessment import Assessment

_TONES = {"good": ("✓", "green"), "bad": ("✗", "bold red"), "warn": ("!", "yellow"), "quiet": ("·", "dim")}
CELL_INDENT = 10  # columns before the texts of cells
_MAX_WARNINGS = 4  # the assessment fits on a screen of 24 lines
VERDICT_MARKS = {"pass": "[green]✓[/]", "warn": "[yellow]![/]", "fail": "[red]✗[/]", "skip": "[dim]–[/]"}


def make_grid(rows: "Iterable[Sequence[RenderableType]]", *, gap: int = 1) -> "Table":
    from rich.table import Table

    table = Table.grid(padding=(0, gap))
    for row in rows:
        table.add_row(*row)
    return table


def make_table(
    heads: Sequence[str],
    rows: "Iterable[Sequence[RenderableType]]",
    *,
    left_columns: Collection[str] = (),
    gap: int = 2,
) -> "Table":
    """Make a table with headings; figures are on the right and never cut, the columns `left_columns` on the left."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, gap, 0, 0))
    for head in heads:
        table.add_column(head, justify="left" if head in left_columns else "right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    return table


class LiveDisplay:
    """A view that is redrawn on a terminal while a block runs."""

    live: "Live | None" = None

    def start_live(self, console: "Console", *, per_second: int) -> None:
        """Start redrawing if the console is a terminal."""
        from rich.live import Live

        if console.is_terminal:
            self.live = Live(self, console=console, refresh_per_second=per_second, transient=True)
            self.live.start()

    def __rich__(self) -> "RenderableType":
        return ""

    def __exit__(self, *_: object) -> None:
        if self.live:
            self.live.stop()
            self.live = None
            self.print_final()

    def print_final(self) -> None:
        """Print what stays on the screen after the live display."""


class TimeEstimate:
    """The time left of work without countable steps, by its last duration or a limit."""

    def __init__(self, key: str, *, limit_s: float | None = None) -> None:
        self.key = key
        self.limit_s = limit_s  # the work never takes longer
        self.last_s = durations.last_duration(key)
        self.began = time.monotonic()

    @property
    def elapsed_s(self) -> float:
        """Seconds since the work began."""
        return time.monotonic() - self.began

    def progress_text(self) -> str:
        """Return a text like "41 s, about 35 s left (as last time)"."""
        elapsed = self.elapsed_s
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

    def remember(self) -> None:
        """Store the duration of work that ended well."""
        durations.remember_duration(self.key, self.elapsed_s)


class WaitingLine(LiveDisplay):
    """A line with elapsed and remaining time, for work that prints nothing itself."""

    def __init__(self, title: str, key: str, *, limit_s: float | None = None) -> None:
        self.title = title
        self.estimate = TimeEstimate(key, limit_s=limit_s)

    def __enter__(self) -> Self:
        self.start_live(stderr_console(), per_second=2)
        if not self.live:
            stderr_console().print(f"{self.title}{self.estimate.duration_text()}", markup=False)
        return self

    def __rich__(self) -> "RenderableType":
        from rich.text import Text

        return Text(f"{self.title}: {self.estimate.progress_text()}")

    def __exit__(self, *problem: object) -> None:
        super().__exit__(*problem)
        if problem[0] is None:
            self.estimate.remember()


def print_assessment(assessment: "Assessment") -> None:
    """Print headline, cells (a mark, a name and a text each) and warnings. Commands are never wrapped."""
    from rich.text import Text

    out = stdout_console()
    width = max(out.width - CELL_INDENT, 20)
    if assessment.simulated:
        out.print("SIMULATION: no GPU produced these figures", style="yellow")
    elif assessment.headline:
        style = _TONES.get(assessment.tone, ("", ""))[1]
        out.print(Text(assessment.headline, style=style.removeprefix("bold ") + " bold"))
    for cell in assessment.cells:
        mark, style = _TONES.get(cell.tone, (" ", ""))
        first, *rest = [cell.text] if cell.command else textwrap.wrap(cell.text, width, break_on_hyphens=False)
        out.print(Text.assemble((mark, style), (f" {cell.name:<{CELL_INDENT - 3}} ", "bold"), first), soft_wrap=True)
        for line in rest:
            out.print(" " * CELL_INDENT + line, soft_wrap=True, markup=False)
        for line in textwrap.wrap(cell.detail, width, break_on_hyphens=False):
            out.print(Text(" " * CELL_INDENT + line, style="dim"), soft_wrap=True)
    for warning in assessment.warnings[:_MAX_WARNINGS]:
        first, *rest = textwrap.wrap(warning, width, break_on_hyphens=False)
        out.print(Text.assemble(("!", "yellow"), " warning ", first), soft_wrap=True)
        for line in rest:
            out.print(" " * CELL_INDENT + line, soft_wrap=True, markup=False)
    if len(assessment.warnings) > _MAX_WARNINGS:
        more = plural(len(assessment.warnings) - _MAX_WARNINGS, "more warning")
        out.print(f"  {more} in the report", style="dim")
