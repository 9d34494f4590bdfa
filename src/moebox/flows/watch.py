"""`moebox watch`: an endpoint's own metrics over time, alerts, and a check now and then.

EndpointWatcher polls and judges; it draws nothing. Rates are of counters between two looks, so the first look has none.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from moebox import http
from moebox.bench.scrape import parse_prometheus, pick_metrics
from moebox.core import metrics
from moebox.core.endpoint import Endpoint
from moebox.core.verdict import CheckVerdict
from moebox.units import format_count, format_percent, format_seconds
from moebox.verify.options import VerifyOptions
from moebox.verify.runner import run_checks

KEPT = 900  # looks kept: half an hour at one every two seconds
GONE_LOOKS = 3  # looks without an answer before an endpoint counts as gone
SILENT_S = 30.0  # of running requests without a token
WAITING_S = 60.0  # of requests in the queue
FULL = 0.95
CANARIES = ("plain", "arithmetic", "streaming", "tools")  # cheap checks, in turn
TIMES = ("ttft", "tpot", "e2e", "queue")  # histograms, shown as the mean since the last look
GAUGES = ("running", "waiting", "kv_use", "accept_length", "cache_hit_rate")
RATES = ("prompt_tokens_total", "output_tokens_total", "preemptions_total", "finished_total")

# Shown figures: name, title, format.
SHOWN: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("running", "running", lambda value: f"{value:.0f}"),
    ("waiting", "waiting", lambda value: f"{value:.0f}"),
    ("output_tokens_s", "output tok/s", lambda value: format_count(round(value))),
    ("prompt_tokens_s", "prompt tok/s", lambda value: format_count(round(value))),
    ("kv_use", "KV cache", format_percent),
    ("ttft", "TTFT, mean", format_seconds),
    ("tpot", "TPOT, mean", format_seconds),
    ("queue", "queue, mean", format_seconds),
    ("accept_length", "accepted a step", lambda value: f"{value:.2f}"),
    ("cache_hit_rate", "prefix hits", format_percent),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsLook:
    """One look at /metrics under moebox's names; figures that the engine does not have are missing."""

    at: float
    answered: bool
    figures: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """A problem that needs attention."""

    at: float
    name: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Canary:
    """The result of one check."""

    at: float
    check: str
    verdict: str
    reason: str
    seconds: float


class EndpointWatcher:
    """Polls one endpoint and keeps the results."""

    def __init__(self, endpoint: Endpoint, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.endpoint, self.clock = endpoint, clock
        self.looks: deque[MetricsLook] = deque(maxlen=KEPT)
        self.alerts: list[Alert] = []
        self.canaries: list[Canary] = []
        self._counters: dict[str, float] = {}
        self._at = 0.0
        self._raised: set[str] = set()
        self._since: dict[str, float] = {}
        self._canary_thread: threading.Thread | None = None

    def look_once(self) -> MetricsLook:
        """Poll once, store the figures, and update the alerts."""
        reply = http.get(f"{self.endpoint.server_url}/metrics", headers=self.endpoint.headers, timeout_s=5.0)
        if not reply.ok:  # an endpoint without /metrics: check that it answers
            alive = http.get(f"{self.endpoint.base_url}/models", headers=self.endpoint.headers, timeout_s=5.0).ok
            look = MetricsLook(at=self.clock(), answered=alive)
        else:
            look = MetricsLook(
                at=self.clock(), answered=True, figures=self.derive_figures(parse_prometheus(reply.text))
            )
        self.looks.append(look)
        self.update_alerts(look)
        return look

    def derive_figures(self, shown: dict[str, float]) -> dict[str, float]:
        """Gauges, rates of counters, and means of histograms since the last look."""
        now = self.clock()
        passed = now - self._at if self._at else 0.0
        self._at = now
        figures = {figure: value for figure, value in pick_metrics(shown).items() if figure in GAUGES}
        for name in RATES:
            growth = self._counter_growth(shown, metrics.find_metric(name, shown), passed)
            if growth is not None:
                figures[name.removesuffix("_total") + "_s"] = growth / passed
        for name in TIMES:
            metric = metrics.find_metric(name, shown, suffix="_count")
            total, count = (self._counter_growth(shown, f"{metric}{end}", passed) for end in ("_sum", "_count"))
            if total is not None and count:
                figures[name] = total / count
        return figures

    def _counter_growth(self, shown: dict[str, float], metric: str, passed: float) -> float | None:
        """The growth of a counter, or None on the first look and after the engine restarted."""
        if metric not in shown:
            return None
        before, self._counters[metric] = self._counters.get(metric), shown[metric]
        return shown[metric] - before if before is not None and passed > 0 and shown[metric] >= before else None

    def update_alerts(self, look: MetricsLook) -> None:
        """Raise an alert once when a problem begins, and again only after it was over."""
        figures = look.figures
        recent = list(self.looks)[-GONE_LOOKS:]
        gone = len(recent) == GONE_LOOKS and not any(each.answered for each in recent)
        self._update_alert("gone", gone, f"{self.endpoint.server_url} does not answer")
        running, tokens = figures.get("running", 0.0), figures.get("output_tokens_s")
        # Some engines count tokens only when a request ends.
        counts_live = any(map(metrics.counts_live, self._counters))
        silent = counts_live and running > 0 and tokens is not None and tokens <= 0
        self._update_after("silent", silent, SILENT_S, f"{running:.0f} requests are running and no token comes out")
        waiting = figures.get("waiting", 0.0)
        self._update_after("queue", waiting > 0, WAITING_S, f"{waiting:.0f} requests wait")
        used = figures.get("kv_use", 0.0)
        self._update_alert("cache", used > FULL, f"the KV cache is {used:.0%} full")
        preempted = figures.get("preemptions_s", 0.0)
        self._update_alert(
            "preempting", preempted > 0, "sequences are preempted and recomputed: the cache is too small"
        )

    def _update_after(self, name: str, wrong: bool, seconds: float, text: str) -> None:
        if not wrong:
            self._since.pop(name, None)
            self._update_alert(name, False, text)
            return
        since = self._since.setdefault(name, self.clock())
        self._update_alert(name, self.clock() - since >= seconds, text)

    def _update_alert(self, name: str, wrong: bool, text: str) -> None:
        if wrong and name not in self._raised:
            self._raised.add(name)
            self.alerts.append(Alert(at=self.clock(), name=name, text=text))
        elif not wrong:
            self._raised.discard(name)

    @property
    def active_alerts(self) -> set[str]:
        return set(self._raised)

    def start_canary(self, check: str) -> None:
        """Run one check in a thread, unless another one is running."""
        if self._canary_thread is not None and self._canary_thread.is_alive():
            return
        self._canary_thread = threading.Thread(target=self._run_check, args=(check,), daemon=True)
        self._canary_thread.start()

    def _run_check(self, check: str) -> None:
        began = time.monotonic()
        options = VerifyOptions(trials=2, patience=1, deadline_s=120.0, time_s=240.0)
        self.add_canary(run_checks(self.endpoint, options, only=[check]).rungs[0], time.monotonic() - began)

    def add_canary(self, verdict: CheckVerdict, seconds: float) -> None:
        """Store the result of a check; a failed one is an alert."""
        canary = Canary(
            at=self.clock(), check=verdict.name, verdict=verdict.verdict, reason=verdict.reason, seconds=seconds
        )
        self.canaries.append(canary)
        self._update_alert(f"canary {verdict.name}", verdict.verdict == "fail", f"{verdict.name}: {verdict.reason}")

    def wait_for_canary(self, patience_s: float) -> None:
        """Wait for a running check."""
        if self._canary_thread is not None:
            self._canary_thread.join(patience_s)
