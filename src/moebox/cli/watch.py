"""`moebox watch`: live charts of an endpoint in the terminal, alerts, and a check every few minutes."""

import itertools
import time as clock
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from moebox.cli import flags
from moebox.cli import target as targets
from moebox.cli.kept_in import warn_simulation
from moebox.cli.output import exit_code, print_json, stderr_console, stdout_console
from moebox.errors import INTERRUPTED, refuse_if
from moebox.stream.limits import is_twin

if TYPE_CHECKING:
    from moebox.cli.watch_view import WatchScreen
    from moebox.flows.watch import EndpointWatcher

LAST_CHECK_S = 120.0  # a check under way may still end


def watch(
    target: str = "",
    /,
    *,
    model: str = "",
    key_env: str = "",
    every: str = "2s",
    canary: str = "5m",
    time: str = "",
    json: Annotated[bool, Parameter(negative=())] = False,
) -> int:
    """Watch an endpoint: requests, tokens, cache and latencies as it tells them, and a check now and then.

    Stays until Ctrl-C, or for --time; then the exit code is 1 when there was an alert.

    Args:
        target: A URL, a recipe, or the name of an engine that moebox started; the running one when left out.
        model: The name it is served under; may be left out where the server lists only one.
        key_env: The environment variable that holds the key.
        every: How often to read the metrics.
        canary: How often to make a check (plain, arithmetic, streaming, tools in turn); 0 never.
        time: How long to watch.
        json: Print what was seen as one JSON document at the end; needs --time.
    """
    from moebox.cli.watch_view import WatchScreen
    from moebox.flows.watch import EndpointWatcher

    pause, check_s = flags.parse_duration("--every", every), flags.parse_duration("--canary", canary)
    long_s = flags.parse_duration("--time", time or "0")
    refuse_if(not 0.1 <= pause <= 3600, f"--every {every} is out of range", hint="from 0.1s to 1h")
    endless = "--json prints at the end, and there is none without --time"
    refuse_if(json and not long_s, endless, hint="--time 1m")
    endpoint = targets.find_endpoint(target, model=model, key_env=key_env)
    warn_simulation(is_twin(endpoint))
    watcher = EndpointWatcher(endpoint)
    interrupted = False
    try:
        with WatchScreen(stderr_console() if json else stdout_console(), watcher, quiet=json) as screen:
            _look(watcher, screen, pause_s=pause, check_s=check_s, long_s=long_s)
    except KeyboardInterrupt:
        interrupted = True
    if json:
        seen = {"looks": list(watcher.looks), "alerts": watcher.alerts, "canaries": watcher.canaries}
        print_json({"url": endpoint.base_url, "model": endpoint.model, **seen})
    return INTERRUPTED if interrupted else exit_code(not watcher.alerts)


def _look(watcher: "EndpointWatcher", screen: "WatchScreen", *, pause_s: float, check_s: float, long_s: float) -> None:
    """Look again and again, with a check now and then, until time is up; for ever where `long_s` is 0."""
    from moebox.flows.watch import CANARIES

    began, checks = clock.monotonic(), itertools.cycle(CANARIES)
    next_check = began if check_s else float("inf")
    while not long_s or clock.monotonic() - began < long_s:
        looked = clock.monotonic()
        if looked >= next_check:
            next_check = looked + check_s
            watcher.start_canary(next(checks))
        watcher.look_once()
        screen.refresh()
        clock.sleep(max(pause_s - (clock.monotonic() - looked), 0.0))
    watcher.wait_for_canary(LAST_CHECK_S)
    screen.refresh()
