"""The server's own view during a run: its /metrics and the GPUs' power, lined up with the client's clock."""

import contextlib
import itertools
import re
import statistics
import threading
import time
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from moebox import http
from moebox.core.endpoint import Endpoint
from moebox.core.metrics import all_names, find_metric
from moebox.core.result import Power, ServerView

if TYPE_CHECKING:
    import ssl

SCRAPE_INTERVAL_S = 1.0
SCRAPE_TIMEOUT_S = 3.0  # for one answer

# Gauges are taken as they are, counters (those that end in _total) as they grew since the run began.
SCRAPED_METRICS = (
    "running",
    "waiting",
    "kv_use",
    "preemptions_total",
    "prompt_tokens_total",
    "output_tokens_total",
    "drafted_total",
    "drafts_total",
    "accepted_total",
    "accept_length",
    "cache_hit_rate",
    "prefix_queries_total",
    "prefix_hits_total",
)
SHARE_METRICS = {name for figure in ("kv_use", "accept_length", "cache_hit_rate") for name in all_names(figure)}
_LINE = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{[^}]*\})?\s+([-+0-9.eE]+|NaN|[+-]Inf)\s*\d*$", re.MULTILINE)


def parse_prometheus(text: str) -> dict[str, float]:
    """Prometheus text as name -> value over all labels; what is not a number is left out.

    Data-parallel ranks show a value each: what they count adds up, a share of each is the whole's on average.
    """
    found: dict[str, list[float]] = {}
    for name, value in _LINE.findall(text):
        with contextlib.suppress(ValueError):
            number = float(value)
            if 0 <= number < float("inf"):  # none of what we read can be below zero
                found.setdefault(name, []).append(number)
    return {name: statistics.fmean(values) if name in SHARE_METRICS else sum(values) for name, values in found.items()}


def pick_metrics(metrics: dict[str, float]) -> dict[str, float]:
    """The figures we know, under our names."""
    names = {figure: find_metric(figure, metrics) for figure in SCRAPED_METRICS}
    return {figure: metrics[name] for figure, name in names.items() if name}


class Scraper:
    """Asks once a second, in a thread of the process that drives no load."""

    def __init__(self, endpoint: Endpoint, *, enabled: bool, tls: "ssl.SSLContext | None") -> None:
        self._endpoint = endpoint
        self._tls = tls
        self._stop = threading.Event()
        self._rows: list[tuple[int, dict[str, float]]] = []
        self._power_rows: list[tuple[int, float, float]] = []  # when, watts, bytes in use
        asking = (self._poll_metrics, self._poll_gpus) if enabled else ()
        self._threads = [threading.Thread(target=target, daemon=True) for target in asking]

    def __enter__(self) -> Self:
        if self._threads:
            self._scrape_once()  # counters as they are before the first request
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(5)
        if self._rows:
            self._scrape_once()  # and after the last

    def server_view(self, zero: int) -> ServerView | None:
        """What /metrics said; None where there was nothing to ask."""
        return summarize_scrapes(self._rows, zero)

    def power_use(self, zero: int, duration_s: float, output_tokens: int) -> Power | None:
        """Joules by the trapezoid rule over this machine's GPUs; the server is taken to run here."""
        rows = [row for row in self._power_rows if row[0] >= zero]
        if len(rows) < 2:
            return None
        at, watts, used = zip(*rows, strict=True)
        mean = _mean_watts(rows)
        joules = mean * duration_s
        return Power(
            mean_watts=mean,
            joules=joules,
            output_tokens_per_joule=output_tokens / joules if joules else None,
            peak_memory_bytes=int(max(used)),
            time_s=tuple(round((moment - zero) / 1e9, 3) for moment in at),
            watts=tuple(round(value, 1) for value in watts),
        )

    def _poll_metrics(self) -> None:
        misses = 0
        while misses < 3:  # llama.cpp answers 501 unless started with --metrics
            if self._stop.wait(SCRAPE_INTERVAL_S):
                return
            misses = 0 if self._scrape_once() else misses + 1

    def _scrape_once(self) -> bool:
        """One more row; False where /metrics has nothing for us."""
        url, headers = f"{self._endpoint.server_url}/metrics", self._endpoint.headers
        # A connection of its own each time: one that is kept would hold a thread of the server that is measured.
        reply = http.get(url, headers=headers, timeout_s=SCRAPE_TIMEOUT_S, tls=self._tls)
        row = pick_metrics(parse_prometheus(reply.text)) if reply.ok else {}
        if row:
            self._rows.append((time.monotonic_ns(), row))
        return bool(row)

    def _poll_gpus(self) -> None:
        import pynvml

        handles = _handles()
        while handles:
            try:
                watts = sum(map(pynvml.nvmlDeviceGetPowerUsage, handles)) / 1e3
                used = sum(pynvml.nvmlDeviceGetMemoryInfo(handle).used for handle in handles)
            except pynvml.NVMLError:
                return
            self._power_rows.append((time.monotonic_ns(), watts, used))
            if self._stop.wait(SCRAPE_INTERVAL_S):
                return


def _handles() -> list[Any]:
    """NVML's of this machine's GPUs; none where there is no driver."""
    import pynvml

    try:
        pynvml.nvmlInit()
        return [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
    except pynvml.NVMLError:
        return []


def _mean_watts(rows: Sequence[tuple[int, float, float]]) -> float:
    joules = sum((b[1] + a[1]) / 2 * (b[0] - a[0]) / 1e9 for a, b in itertools.pairwise(rows))
    return joules / ((rows[-1][0] - rows[0][0]) / 1e9)


def summarize_scrapes(rows: list[tuple[int, dict[str, float]]], zero: int) -> ServerView | None:
    """Columns over the time since `zero`, and what the run comes to.

    The first row may be older: counters are taken as they grew since then.
    """
    if not rows:
        return None
    during = [row for row in rows if row[0] >= zero] or rows[-1:]
    columns = _columns(during, zero)
    totals = _totals(rows[0][1], rows[-1][1], columns)
    return ServerView(**totals, **_draft_and_cache_shares(totals), series=columns)


def _columns(rows: list[tuple[int, dict[str, float]]], zero: int) -> dict[str, tuple[float | None, ...]]:
    """The rows' time and each of their figures, under its name."""
    present = set().union(*(row for _, row in rows))
    columns = {name: tuple(row.get(name) for _, row in rows) for name in SCRAPED_METRICS if name in present}
    return {"time_s": tuple(max(0.0, round((at - zero) / 1e9, 3)) for at, _ in rows), **columns}


def _draft_and_cache_shares(totals: dict[str, float]) -> dict[str, float]:
    """What the counters say of drafts and of the prefix cache."""
    accepted, shares = totals.get("accepted", 0.0), {}
    if totals.get("drafted"):
        shares["acceptance"] = accepted / totals["drafted"]
    if totals.get("drafts"):
        shares["accepted_per_step"] = 1 + accepted / totals["drafts"]  # the step's own token besides
    elif "mean_accept_length" in totals:
        shares["accepted_per_step"] = totals["mean_accept_length"]
    if totals.get("prefix_queries"):
        shares["prefix_hit_rate"] = min(1.0, totals.get("prefix_hits", 0.0) / totals["prefix_queries"])
    return shares


def _totals(
    first: dict[str, float], last: dict[str, float], columns: dict[str, tuple[float | None, ...]]
) -> dict[str, float]:
    """Peak and mean of gauges; by how much counters grew."""
    totals: dict[str, float] = {}
    for name, values in columns.items():
        if name == "time_s":
            continue
        if name.endswith("_total"):
            # A counter that fell was begun anew: the server was restarted.
            totals[name.removesuffix("_total")] = max(0.0, last.get(name, 0.0) - first.get(name, 0.0))
            continue
        known = [value for value in values if value is not None]
        totals[f"peak_{name}"] = max(known)
        totals[f"mean_{name}"] = sum(known) / len(known)
    return totals
