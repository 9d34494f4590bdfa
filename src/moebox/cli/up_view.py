"""How `moebox up` shows a start: live bars on a terminal, plain lines elsewhere; then the engine beside its plan."""

import time
from types import TracebackType
from typing import Any

from moebox.cli.eta import TimeEstimate
from moebox.cli.output import stderr_console, stdout_console
from moebox.core.engine_event import PlanRealityRow
from moebox.core.symptom import Finding
from moebox.engines.events import LogEvent
from moebox.units import format_count, format_gib, format_percent, format_seconds


class StartupPhases:
    """Listens to a starting engine and shows its phases as they happen, on stderr, with the time left by last time."""

    def __init__(self, key: str) -> None:
        self.estimate = TimeEstimate(key)
        self.phase = ""
        self.began = self.started = time.monotonic()
        self.shown = 0
        self._bars: Any = None
        self._task: Any = None

    def __enter__(self) -> "StartupPhases":
        if stderr_console().is_terminal:
            from rich.progress import (
                BarColumn,
                MofNCompleteColumn,
                Progress,
                ProgressColumn,
                SpinnerColumn,
                Task,
                TextColumn,
            )
            from rich.text import Text

            estimate = self.estimate

            class TimeLeft(ProgressColumn):
                def render(self, task: Task) -> Text:
                    return Text(estimate.progress_text(), style="dim")

            columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(bar_width=12), MofNCompleteColumn())
            self._bars = Progress(*columns, TimeLeft(), console=stderr_console(), transient=True)
            self._bars.start()
        elif self.estimate.last_s:
            self._say(f"about {format_seconds(self.estimate.last_s)}, as last time")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bars:
            self._bars.stop()
        if value is None:
            self.estimate.remember()

    def __call__(self, news: LogEvent | Finding) -> None:
        if isinstance(news, Finding):
            if news.severity == "warning":  # a fatal one is told when the engine has ended of it
                self._say(f"{news.severity}: {news.cause} ({news.remedy})")
        elif news.phase and news.kind in ("phase", "progress", "ready") and news.phase != self.phase:
            self._next(str(news.phase))
            self._advance(news)
        elif news.kind == "progress":
            self._advance(news)

    def _next(self, phase: str) -> None:
        now = time.monotonic()
        if self.phase and self.phase != "ready":
            self._say(f"{self.phase}: {format_seconds(now - self.began)}")
        self.phase, self.began, self.shown = phase, now, 0
        if self._bars:
            if self._task is not None:
                self._bars.remove_task(self._task)
            self._task = self._bars.add_task("asking for a first answer" if phase == "ready" else phase, total=None)

    def _advance(self, news: LogEvent) -> None:
        if not news.total:
            return
        if self._bars and self._task is not None:
            self._bars.update(self._task, completed=news.done, total=news.total)
        elif (tenth := 10 * (news.done or 0) // news.total) > self.shown:  # a line for every tenth is enough of a log
            self.shown = tenth
            self._say(f"{self.phase}: {news.done} of {news.total}")

    def _say(self, text: str) -> None:
        stderr_console().print(text, markup=False, soft_wrap=True)


def print_ready(document: dict[str, Any], rows: list[PlanRealityRow], *, detached: bool) -> None:
    """The endpoint, what the engine reports beside the plan, and what to do next."""
    from rich.table import Table

    out = stdout_console()
    out.print(
        f"ready after {format_seconds(document['startup_s'])}: {document['base_url']}  model {document['model']}",
        markup=False,
    )
    if rows:
        table = Table("", "planned", "real", "off", box=None, pad_edge=False)
        for row in rows:
            off = (
                f"{'+' if row.relative_error >= 0 else ''}{format_percent(row.relative_error)}"
                if row.relative_error is not None
                else ""
            )
            name = f"{row.what} {row.device}".strip()
            table.add_row(
                name, figure_text(row.planned, row.unit) if row.planned else "–", figure_text(row.real, row.unit), off
            )
        out.print(table)
    out.print(f"run {document['run']}", markup=False)
    out.print(f"`moebox down {document['id']}` stops it" if detached else "Ctrl-C stops it", markup=False)


def figure_text(value: float, unit: str) -> str:
    """A figure with its unit."""
    return f"{format_count(value)} tokens" if unit == "tokens" else format_gib(value)
