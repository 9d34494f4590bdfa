"""`moebox watch`: live charts of an endpoint in the terminal, alerts, and a check every few minutes."""

import itertools
import os
import time as clock
from pathlib import Path
from typing import TYPE_CHECKING, Self

from moebox.cli import flags
from moebox.cli.bench.results import sparkline
from moebox.cli.display import LiveDisplay
from moebox.cli.flags import AsJson, KeyEnv, ServedModel
from moebox.cli.output import exit_code, print_json, stderr_console, stdout_console
from moebox.cli.target import create_run, find_endpoint, warn_simulation
from moebox.errors import INTERRUPTED, refuse_if
from moebox.stream.limits import is_twin
from moebox.units import format_seconds

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from moebox.flows.watch import EndpointWatcher, MetricsLook

LAST_CHECK_S = 120.0  # for a check that is still running at the end
LOOKS = 40  # shown in a chart
LINE_S = 10.0  # between lines without a terminal


def watch(
    *targets: str,
    model: ServedModel = "",
    key_env: KeyEnv = "",
    every: str = "2s",
    canary: str = "5m",
    time: str = "",
    json: AsJson = False,
) -> int:
    """Watch endpoints: requests, tokens, cache and latencies from their metrics, and a check every few minutes.

    Alerts name cause, evidence and setting (docs/living.md). Samples and alerts are kept in watch.jsonl of the run
    folder. The variable MOEBOX_ALERT may hold a URL that gets each alert as JSON, or a command that gets it on its
    standard input. Stays until Ctrl-C, or for --time; then the exit code is 1 if there was an alert.

    Args:
        targets: URLs, recipes, or names of engines that moebox started. Default: all that are running.
        every: How often to read the metrics.
        canary: How often to run a check (plain, arithmetic, streaming, tools in turn); 0 never.
        time: How long to watch.
        json: Print what was seen as one JSON document at the end; needs --time.
    """
    from concurrent.futures import ThreadPoolExecutor

    from moebox.flows.watch import CANARIES, AlertSender, EndpointWatcher, WatchHistory
    from moebox.serve.state import list_instances

    pause, check_s = flags.parse_duration("--every", every), flags.parse_duration("--canary", canary)
    long_s = flags.parse_duration("--time", time or "0")
    refuse_if(not 0.1 <= pause <= 3600, f"--every {every} is out of range", hint="from 0.1s to 1h")
    refuse_if(json and not long_s, "--json prints at the end and needs --time", hint="--time 1m")
    names = dict.fromkeys(targets or [each.id for each in list_instances() if each.is_alive] or [""])
    refuse_if(model and len(names) > 1, "--model is for one endpoint", hint="leave it out, or give one target")
    endpoints = [find_endpoint(name, model=model, key_env=key_env) for name in names]
    watchers = list(map(EndpointWatcher, endpoints))
    warn_simulation(any(endpoint.log and is_twin(endpoint) for endpoint in endpoints))
    folders = [Path(each.log).parent if each.log else create_run("watch", each).path for each in endpoints]
    histories = list(map(WatchHistory, folders))
    sender = AlertSender(os.environ.get("MOEBOX_ALERT", ""), lambda line: stderr_console().print(line, markup=False))
    screen = WatchScreen(stderr_console() if json else stdout_console(), watchers, quiet=json)

    def keep_news() -> None:
        for watcher, history in zip(watchers, histories, strict=True):
            for alert in history.add(watcher.looks[-1], watcher.alerts):
                sender.send(alert, watcher.endpoint)
        screen.refresh()

    interrupted = False
    began, checks = clock.monotonic(), itertools.cycle(CANARIES)
    next_check = began if check_s else float("inf")
    try:
        with screen, ThreadPoolExecutor(len(watchers)) as pool:
            while not long_s or clock.monotonic() - began < long_s:
                looked = clock.monotonic()
                if looked >= next_check:
                    next_check, check = looked + check_s, next(checks)
                    for watcher in watchers:
                        watcher.start_canary(check)
                list(pool.map(EndpointWatcher.look_once, watchers))
                keep_news()
                clock.sleep(max(pause - (clock.monotonic() - looked), 0.0))
            for watcher in watchers:
                watcher.wait_for_canary(LAST_CHECK_S)
            keep_news()
    except KeyboardInterrupt:
        interrupted = True
    if json:
        seen = list[dict[str, object]]()
        for each in watchers:
            about = {"url": each.endpoint.base_url, "model": each.endpoint.model, "looks": list(each.looks)}
            seen.append({**about, "alerts": each.alerts, "canaries": each.canaries})
        print_json(seen[0] if len(seen) == 1 else {"endpoints": seen})
    return INTERRUPTED if interrupted else exit_code(not any(watcher.alerts for watcher in watchers))


class WatchScreen(LiveDisplay):
    """Redraws itself on a terminal, and prints a line every few seconds elsewhere."""

    def __init__(self, console: "Console", watchers: "list[EndpointWatcher]", *, quiet: bool = False) -> None:
        from rich.live import Live

        self.console, self.watchers, self.quiet = console, watchers, quiet
        self.live = Live(console=console, auto_refresh=False) if console.is_terminal and not quiet else None
        self.last_line = 0.0
        self.printed = [(0, 0)] * len(watchers)  # alerts and checks

    def __enter__(self) -> Self:
        if self.live:
            self.live.start()
        return self

    def refresh(self) -> None:
        if self.live:
            from rich.console import Group

            pages = [watch_page(watcher, compact=len(self.watchers) > 1) for watcher in self.watchers]
            self.live.update(Group(*pages), refresh=True)
        if self.live or self.quiet:
            return
        shows_looks = clock.monotonic() - self.last_line >= LINE_S
        self.last_line = clock.monotonic() if shows_looks else self.last_line
        for number, watcher in enumerate(self.watchers):
            alerts, canaries = self.printed[number]
            self.printed[number] = len(watcher.alerts), len(watcher.canaries)
            lines = [f"alert: {alert.text}" for alert in watcher.alerts[alerts:]]
            for canary in watcher.canaries[canaries:]:
                reason = f": {canary.reason}".rstrip(": ")
                lines.append(f"{canary.check} {canary.verdict} in {format_seconds(canary.seconds)}{reason}")
            lines += [look_line(watcher.looks[-1])] * shows_looks
            name = f"{watcher.label}: " * (len(self.watchers) > 1)
            for line in lines:
                self.console.print(f"{name}{line}", markup=False)


def look_line(look: "MetricsLook") -> str:
    from moebox.flows.watch import SHOWN

    if not look.answered:
        return "no answer"
    shown = [f"{title} {word(look.figures[name])}" for name, title, word in SHOWN if name in look.figures]
    return ", ".join(shown) or "it answers, and has no metrics"


def watch_page(watcher: "EndpointWatcher", *, compact: bool = False) -> "RenderableType":
    """Return the whole screen: alerts, a chart for each metric, then checks; 24 lines if all of it is known.

    Compact, for one of several endpoints: alerts and one line of figures.
    """
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    from moebox.flows.watch import SHOWN

    looks = list(watcher.looks)[-LOOKS:]
    if compact:
        rows = [f"{watcher.label}: {look_line(looks[-1])}", *(f"! {alert.text}" for alert in watcher.alerts[-2:])]
        return Text("\n".join(rows))
    state = Text("answers", style="green") if looks[-1].answered else Text("no answer", style="bold red")
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    for _ in range(3):
        table.add_column(no_wrap=True)
    for name, title, word in SHOWN:
        values = [look.figures.get(name) for look in looks]
        known = [value for value in values if value is not None]
        if known:
            table.add_row(title, word(known[-1]), sparkline([value or 0.0 for value in values], LOOKS))
    head = Text.assemble(f"{watcher.endpoint.model} at {watcher.endpoint.base_url}  ", state)
    parts: list[RenderableType] = [head]
    parts += [Text(f"! {alert.text}", style="bold yellow") for alert in watcher.alerts[-3:]]
    parts += [Text(), table]
    if not table.row_count:
        parts.append(Text("no metrics: only its answers are watched", style="dim"))
    if "gpu_clock" not in looks[-1].figures:
        parts.append(Text("no GPU clocks: another machine's, or no driver here that NVML can ask", style="dim"))
    for canary in watcher.canaries[-2:]:
        took = f"{canary.verdict} in {format_seconds(canary.seconds)}"
        parts.append(Text(f"{canary.check}: {took}  {canary.reason}", style="dim", no_wrap=True, overflow="ellipsis"))
    return Group(*parts)
