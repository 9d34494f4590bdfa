"""What `moebox watch` draws: a line of small bars a figure, then alerts and rungs; plain lines where it cannot."""

import time
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from moebox.cli.drawn import LiveDisplay
from moebox.flows.watch import SHOWN, EndpointWatcher, MetricsLook
from moebox.units import format_seconds

BARS = " ▁▂▃▄▅▆▇█"
WIDE = 40  # looks shown
PLAIN_EVERY_S = 10.0  # between lines where nothing can be drawn over


class WatchScreen(LiveDisplay):
    """Redraws itself in a terminal, prints a line now and then elsewhere."""

    def __init__(self, console: Console, watcher: EndpointWatcher, *, quiet: bool = False) -> None:
        self.console, self.watcher, self.quiet = console, watcher, quiet
        self.live = Live(console=console, auto_refresh=False) if console.is_terminal and not quiet else None
        self.told = 0.0
        self.alerts = self.canaries = 0

    def __enter__(self) -> Self:
        if self.live:
            self.live.__enter__()
        return self

    def refresh(self) -> None:
        """The newest look."""
        if self.live:
            self.live.update(watch_page(self.watcher), refresh=True)
        elif not self.quiet:
            self._print_lines()

    def _print_lines(self) -> None:
        watcher = self.watcher
        for alert in watcher.alerts[self.alerts :]:
            self.console.print(f"alert: {alert.text}", markup=False)
        for canary in watcher.canaries[self.canaries :]:
            reason = f": {canary.reason}" if canary.reason else ""
            self.console.print(
                f"{canary.rung} {canary.verdict} in {format_seconds(canary.seconds)}{reason}", markup=False
            )
        self.alerts, self.canaries = len(watcher.alerts), len(watcher.canaries)
        if time.monotonic() - self.told >= PLAIN_EVERY_S:
            self.told = time.monotonic()
            self.console.print(look_line(watcher.looks[-1]), markup=False)


def look_line(look: MetricsLook) -> str:
    """One look as a line."""
    if not look.answered:
        return "no answer"
    shown = [f"{title} {word(look.figures[name])}" for name, title, word in SHOWN if name in look.figures]
    return ", ".join(shown) or "it answers, and shows no metrics"


def watch_page(watcher: EndpointWatcher) -> RenderableType:
    """The whole screen."""
    looks = list(watcher.looks)[-WIDE:]
    state = Text("answers", style="green") if looks[-1].answered else Text("no answer", style="bold red")
    head = Text.assemble(f"{watcher.endpoint.model} at {watcher.endpoint.base_url}  ", state)
    table = figure_table(looks)
    parts: list[RenderableType] = [head, Text(), table]
    if not table.row_count:
        parts.append(Text("it shows no metrics: only its answers are watched", style="dim"))
    parts += [Text(f"! {alert.text}", style="bold yellow") for alert in watcher.alerts[-5:]]
    parts += [
        Text(f"{canary.rung}: {canary.verdict} in {format_seconds(canary.seconds)}  {canary.reason}", style="dim")
        for canary in watcher.canaries[-4:]
    ]
    return Group(*parts)


def figure_table(looks: list[MetricsLook]) -> Table:
    """A row for each figure that the engine shows: its name, its newest value, and how it went."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    for _ in range(3):
        table.add_column(no_wrap=True)
    for name, title, word in SHOWN:
        values = [look.figures.get(name) for look in looks]
        known = [value for value in values if value is not None]
        if known:
            table.add_row(title, word(known[-1]), bar_chart(values))
    return table


def bar_chart(values: list[float | None]) -> str:
    """A chart one line high; the highest value fills it."""
    most = max((value for value in values if value is not None), default=0.0) or 1.0
    return "".join(" " if value is None else BARS[min(round(value / most * 8), 8)] for value in values)
