"""The server's own view during a run: its /metrics and the GPUs' power, on the client's clock."""

import itertools
import ssl
import threading
import time
from dataclasses import fields
from typing import Self

from moebox import http
from moebox.core.endpoint import Endpoint
from moebox.core.metrics import EngineMetrics, find_metric, parse_prometheus
from moebox.core.result import Power, ServerView

SCRAPE_INTERVAL_S = 1.0
SCRAPE_TIMEOUT_S = 3.0  # for one reply

# Gauges are kept as they are, counters (those that end in _total) by their growth since the run began.
_NOT_SCRAPED = {"source", "counts_at_end", "log", "output_seconds_total", "finished_total"}
_NOT_SCRAPED |= {"ttft", "tpot", "e2e", "queue"}
SCRAPED_METRICS = tuple(field.name for field in fields(EngineMetrics) if field.name not in _NOT_SCRAPED)
MetricsRow = tuple[int, dict[str, float]]  # CLOCK_MONOTONIC ns, and the figures


def pick_metrics(metrics: dict[str, float]) -> dict[str, float]:
    """Return the known figures under moebox's names."""
    names = {metric: find_metric(metric, metrics) for metric in SCRAPED_METRICS}
    return {metric: metrics[name] for metric, name in names.items() if name}


class Scraper:
    """Reads /metrics and the GPUs once a second, in threads of a process that sends no load."""

    def __init__(self, endpoint: Endpoint, *, enabled: bool, tls: ssl.SSLContext | None) -> None:
        self._endpoint = endpoint
        self._tls = tls
        self._stop = threading.Event()
        self.rows: list[MetricsRow] = []
        self._power_rows: list[tuple[int, float, float]] = []  # ns, watts, bytes in use
        targets = (self._poll_metrics, self._poll_gpus) if enabled else ()
        self._threads = [threading.Thread(target=target, daemon=True) for target in targets]

    def __enter__(self) -> Self:
        if self._threads:
            self._scrape_once()  # counters before the first request
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(5)
        if self.rows:
            self._scrape_once()  # and after the last

    def power_use(self, zero: int, duration_s: float, output_tokens: int) -> Power | None:
        """Return the energy by the trapezoid rule over this machine's GPUs; the server is assumed to run here."""
        rows = [row for row in self._power_rows if row[0] >= zero]
        if len(rows) < 2:
            return None
        at, watts, used = zip(*rows, strict=True)
        measured = sum((b[1] + a[1]) / 2 * (b[0] - a[0]) / 1e9 for a, b in itertools.pairwise(rows))
        mean = measured / ((at[-1] - at[0]) / 1e9)
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
        """Add a row. Return False if /metrics has no known figure."""
        url, headers = f"{self._endpoint.server_url}/metrics", self._endpoint.headers
        # A new connection each time: a kept one would hold a thread of the server that is measured.
        reply = http.get(url, headers=headers, timeout_s=SCRAPE_TIMEOUT_S, tls=self._tls)
        row = pick_metrics(parse_prometheus(reply.text)) if reply.ok else {}
        if row:
            self.rows.append((time.monotonic_ns(), row))
        return bool(row)

    def _poll_gpus(self) -> None:
        import pynvml

        try:
            pynvml.nvmlInit()
            handles = list(map(pynvml.nvmlDeviceGetHandleByIndex, range(pynvml.nvmlDeviceGetCount())))
            while handles:
                watts = sum(map(pynvml.nvmlDeviceGetPowerUsage, handles)) / 1e3
                used = sum(pynvml.nvmlDeviceGetMemoryInfo(handle).used for handle in handles)
                self._power_rows.append((time.monotonic_ns(), watts, used))
                if self._stop.wait(SCRAPE_INTERVAL_S):
                    return
        except pynvml.NVMLError:  # no driver, or a GPU that does not report its power
            return


def summarize_scrapes(rows: list[MetricsRow], zero: int) -> ServerView | None:
    """Return columns over the time since `zero`, peaks and means of gauges, and the growth of counters.

    The first row may be older than `zero`: counters are compared with it.
    """
    if not rows:
        return None
    during = [row for row in rows if row[0] >= zero] or rows[-1:]
    first, last = rows[0][1], rows[-1][1]
    series: dict[str, tuple[float | None, ...]] = {
        "time_s": tuple(max(0.0, round((at - zero) / 1e9, 3)) for at, _ in during)
    }
    totals: dict[str, float] = {}
    for name in SCRAPED_METRICS:
        values = tuple(row.get(name) for _, row in during)
        known = [value for value in values if value is not None]
        if not known:
            continue
        series[name] = values
        if name.endswith("_total"):
            # A counter that fell started again: the server was restarted.
            totals[name.removesuffix("_total")] = max(0.0, last.get(name, 0.0) - first.get(name, 0.0))
        else:
            totals[f"peak_{name}"] = max(known)
            totals[f"mean_{name}"] = sum(known) / len(known)
    accepted = totals.get("accepted", 0.0)
    if totals.get("drafted"):
        totals["acceptance"] = accepted / totals["drafted"]
    if totals.get("drafts"):
        totals["accepted_per_step"] = 1 + accepted / totals["drafts"]  # the step's own token besides
    elif "mean_accept_length" in totals:
        totals["accepted_per_step"] = totals["mean_accept_length"]
    if totals.get("prefix_queries"):
        totals["prefix_hit_rate"] = min(1.0, totals.get("prefix_hits", 0.0) / totals["prefix_queries"])
    return ServerView(figures=totals, series=series)
