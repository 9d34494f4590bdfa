"""`moebox watch`: live charts of an endpoint in the terminal, alerts, and a check every few minutes."""

import itertools
import os
import time as clock
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Self

from rich.live import Live

from moebox.cli import flags
from moebox.cli.bench_results import sparkline
from moebox.cli.display import LiveDisplay, make_grid, make_group
from moebox.cli.flags import AsJson, KeyEnv, ServedModel
from moebox.cli.output import Part, View, exit_code, print_json, print_note, print_parts, stdout_console
from moebox.cli.target import create_run, find_endpoint, warn_simulation
from moebox.errors import INTERRUPTED, refuse_if
from moebox.escape import clip_text
from moebox.flows.watch import CANARIES, SHOWN, EndpointWatcher, MetricsLook, WatchHistory, send_alert
from moebox.serve.state import list_instances
from moebox.stream.limits import served_limits
from moebox.units import format_seconds

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
    pause, check_s = flags.parse_duration("--every", every), flags.parse_duration("--canary", canary)
    long_s = flags.parse_duration("--time", time or "0")
    refuse_if(not 0.1 <= pause <= 3600, f"--every {every} is out of range", hint="from 0.1s to 1h")
    refuse_if(json and not long_s, "--json prints at the end and needs --time", hint="--time 1m")
    names = dict.fromkeys(targets or [each.id for each in list_instances() if each.is_alive] or [""])
    refuse_if(model and len(names) > 1, "--model is for one endpoint", hint="leave it out, or give one target")
    endpoints = [find_endpoint(name, model=model, key_env=key_env) for name in names]
    watchers = list(map(EndpointWatcher, endpoints))
    warn_simulation(max(served_limits(endpoint).simulation if endpoint.log else "" for endpoint in endpoints))
    folders = [Path(each.log).parent if each.log else create_run("watch", each).path for each in endpoints]
    histories = list(map(WatchHistory, folders))
    receiver = os.environ.get("MOEBOX_ALERT", "")
    screen = WatchScreen(watchers, quiet=json)

    def keep_news() -> None:
        for watcher, history in zip(watchers, histories, strict=True):
            for alert in history.add(watcher.looks[-1], watcher.alerts):
                if receiver and (problem := send_alert(receiver, alert, watcher.endpoint)):
                    print_note(f"the alert was not delivered: {problem}")
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
        seen = []
        for each in watchers:
            about = {"url": each.endpoint.base_url, "model": each.endpoint.model, "looks": list(each.looks)}
            seen.append(about | {"alerts": each.alerts, "canaries": each.canaries})
        print_json(seen[0] if len(seen) == 1 else {"endpoints": seen})
    return INTERRUPTED if interrupted else exit_code(not any(watcher.alerts for watcher in watchers))


class WatchScreen(LiveDisplay):
    """Redraws itself on a terminal, and prints a line every few seconds elsewhere."""

    def __init__(self, watchers: list[EndpointWatcher], *, quiet: bool = False) -> None:
        self.watchers, self.quiet = watchers, quiet
        self.last_line = 0.0
        self.printed = [(0, 0)] * len(watchers)  # alerts and checks

    def __enter__(self) -> Self:
        if stdout_console().is_terminal and not self.quiet:  # redrawn by `refresh`, as other threads look
            self.live = Live(console=stdout_console(), auto_refresh=False)
            self.live.start()
        return self

    def refresh(self) -> None:
        if self.live:
            pages = [watch_page(watcher, compact=len(self.watchers) > 1) for watcher in self.watchers]
            self.live.update(make_group(*pages), refresh=True)
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
            print_parts(*(f"{name}{line}" for line in lines))


def look_line(look: MetricsLook) -> str:
    if not look.answered:
        return "no answer"
    shown = [f"{title} {word(look.figures[name])}" for name, title, word in SHOWN if name in look.figures]
    return ", ".join(shown) or "it answers, and has no metrics"


def watch_page(watcher: EndpointWatcher, *, compact: bool = False) -> View:
    """Return the whole screen: alerts, a chart for each metric, then checks; 24 lines if all of it is known.

    Compact, for one of several endpoints: alerts and one line of figures.
    """
    looks = list(watcher.looks)[-LOOKS:]
    if compact:
        alerts = (f"! {alert.text}" for alert in watcher.alerts[-2:])
        return make_group(f"{watcher.label}: {look_line(looks[-1])}", *alerts)
    state = ("answers", "green") if looks[-1].answered else ("no answer", "bold red")
    parts: list[Part] = [[f"{watcher.endpoint.model} at {watcher.endpoint.base_url}  ", state]]
    parts += [(f"! {alert.text}", "bold yellow") for alert in watcher.alerts[-3:]]
    rows = []
    for name, title, word in SHOWN:
        values = [look.figures.get(name) for look in looks]
        if known := [value for value in values if value is not None]:
            rows.append((title, word(known[-1]), sparkline([value or 0.0 for value in values], LOOKS)))
    parts += ["", make_grid(rows, gap=2, whole=3)]
    if not rows:
        parts.append(("no metrics: only its answers are watched", "dim"))
    if "gpu_clock" not in looks[-1].figures:
        parts.append(("no GPU clocks: another machine's, or no driver here that NVML can ask", "dim"))
    for canary in watcher.canaries[-2:]:
        text = f"{canary.check}: {canary.verdict} in {format_seconds(canary.seconds)}  {canary.reason}"
        parts.append((clip_text(text, stdout_console().width), "dim"))
    return make_group(*parts)
