"""`moebox watch`: an endpoint's own figures over time, alerts on what would be called a slip, and a rung now and then.

`Watcher` asks and judges; it draws nothing. Rates are of counters between two looks, so the first look has none.
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
GONE_LOOKS = 3  # looks without an answer before it counts as gone
SILENT_S = 30.0  # of running requests without a token
WAITING_S = 60.0  # of requests in the queue
FULL = 0.95
CANARIES = ("plain", "arithmetic", "streaming", "tools")  # cheap rungs, in turn
TIMES = ("ttft", "tpot", "e2e", "queue")  # histograms, shown as the mean since the last look
GAUGES = ("running", "waiting", "kv_use", "accept_length", "cache_hit_rate")
RATES = ("prompt_tokens_total", "output_tokens_total", "preemptions_total", "finished_total")

# What people see of them: figure, title, how it is written.
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
    """One look at /metrics, in our words; a figure the engine does not show is missing."""

    at: float
    answered: bool
    figures: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """Something that a person should look at."""

    at: float
    name: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Canary:
    """One rung, climbed in passing."""

    at: float
    rung: str
    verdict: str
    reason: str
    seconds: float


class EndpointWatcher:
    """Looks at one endpoint and remembers."""

    def __init__(self, endpoint: Endpoint, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.endpoint, self.clock = endpoint, clock
        self.looks: deque[MetricsLook] = deque(maxlen=KEPT)
        self.alerts: list[Alert] = []
        self.canaries: list[Canary] = []
        self._counters: dict[str, float] = {}
        self._at = 0.0
        self._raised: set[str] = set()
        self._since: dict[str, float] = {}
        self._climbing: threading.Thread | None = None

    def look_once(self) -> MetricsLook:
        """Ask once, remember, and judge."""
        reply = http.get(f"{self.endpoint.server_url}/metrics", headers=self.endpoint.headers, timeout_s=5.0)
        if not reply.ok:  # an endpoint without /metrics is still watched: does it answer at all?
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
        """Gauges as they are, counters as rates, histograms as means, since the last look."""
        now = self.clock()
        passed = now - self._at if self._at else 0.0
        self._at = now
        return _gauges(shown) | self._rates(shown, passed) | self._means(shown, passed)

    def _rates(self, shown: dict[str, float], passed: float) -> dict[str, float]:
        rates = {}
        for name in RATES:
            grown = self._grown(shown, metrics.find_metric(name, shown), passed)
            if grown is not None:
                rates[name.removesuffix("_total") + "_s"] = grown / passed
        return rates

    def _means(self, shown: dict[str, float], passed: float) -> dict[str, float]:
        means = {}
        for name in TIMES:
            metric = metrics.find_metric(name, shown, suffix="_count")
            total, count = (self._grown(shown, f"{metric}{end}", passed) for end in ("_sum", "_count"))
            if total is not None and count:
                means[name] = total / count
        return means

    def _grown(self, shown: dict[str, float], metric: str, passed: float) -> float | None:
        """How much a counter grew; None on the first look, and after an engine began anew."""
        if metric not in shown:
            return None
        before, self._counters[metric] = self._counters.get(metric), shown[metric]
        return shown[metric] - before if before is not None and passed > 0 and shown[metric] >= before else None

    # -- alerts

    def update_alerts(self, look: MetricsLook) -> None:
        """Raise an alert when something begins to be wrong, once; and again only after it was well."""
        figures = look.figures
        recent = list(self.looks)[-GONE_LOOKS:]
        gone = len(recent) == GONE_LOOKS and not any(each.answered for each in recent)
        self._alert("gone", gone, f"{self.endpoint.server_url} does not answer")
        running, tokens = figures.get("running", 0.0), figures.get("output_tokens_s")
        silent = self._counted_live and running > 0 and tokens is not None and tokens <= 0
        self._alert_after("silent", silent, SILENT_S, f"{running:.0f} requests are running and no token comes out")
        waiting = figures.get("waiting", 0.0)
        self._alert_after("queue", waiting > 0, WAITING_S, f"{waiting:.0f} requests wait")
        used = figures.get("kv_use", 0.0)
        self._alert("cache", used > FULL, f"the KV cache is {used:.0%} full")
        put_back = figures.get("preemptions_s", 0.0)
        self._alert("preempting", put_back > 0, "sequences are put back and read again: the cache is too small")

    @property
    def _counted_live(self) -> bool:
        """Whether the engine counts tokens as they come, and not only when a request ends."""
        return any(map(metrics.counts_live, self._counters))

    def _alert_after(self, name: str, wrong: bool, seconds: float, text: str) -> None:
        if not wrong:
            self._since.pop(name, None)
            self._alert(name, False, text)
            return
        since = self._since.setdefault(name, self.clock())
        self._alert(name, self.clock() - since >= seconds, text)

    def _alert(self, name: str, wrong: bool, text: str) -> None:
        if wrong and name not in self._raised:
            self._raised.add(name)
            self.alerts.append(Alert(at=self.clock(), name=name, text=text))
        elif not wrong:
            self._raised.discard(name)

    @property
    def active_alerts(self) -> set[str]:
        """Alerts that hold now."""
        return set(self._raised)

    # -- canaries

    def start_canary(self, rung: str) -> None:
        """One rung beside the looking; a second one waits for the first."""
        if self._climbing is not None and self._climbing.is_alive():
            return
        self._climbing = threading.Thread(target=self._climb, args=(rung,), daemon=True)
        self._climbing.start()

    def _climb(self, rung: str) -> None:
        began = time.monotonic()
        ladder = run_checks(
            self.endpoint, VerifyOptions(trials=2, patience=1, deadline_s=120.0, time_s=240.0), only=[rung]
        )
        self.add_canary(ladder.rungs[0], time.monotonic() - began)

    def add_canary(self, verdict: CheckVerdict, seconds: float) -> None:
        """Remember a rung; one that failed is an alert."""
        canary = Canary(
            at=self.clock(), rung=verdict.name, verdict=verdict.verdict, reason=verdict.reason, seconds=seconds
        )
        self.canaries.append(canary)
        self._alert(f"canary {verdict.name}", verdict.verdict == "fail", f"{verdict.name}: {verdict.reason}")

    def wait_for_canary(self, patience_s: float) -> None:
        """Wait for a rung that is being climbed."""
        if self._climbing is not None:
            self._climbing.join(patience_s)


def _gauges(shown: dict[str, float]) -> dict[str, float]:
    return {figure: value for figure, value in pick_metrics(shown).items() if figure in GAUGES}
