"""`moebox watch`: an endpoint's own metrics over time, alerts, and a check now and then.

EndpointWatcher polls and judges; it draws nothing. Rates are of counters between two looks, so the first look has none.
`diagnose` names the cause of what the samples show, by the rules in data/diagnoses.toml.
"""

import bisect
import contextlib
import itertools
import json
import math
import operator
import os
import re
import shlex
import statistics
import subprocess
import threading
import time
import urllib.parse
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from moebox import http
from moebox.bench.scrape import pick_metrics
from moebox.core import catalogue, metrics
from moebox.core.endpoint import Endpoint
from moebox.core.metrics import parse_prometheus
from moebox.core.verdict import CheckVerdict
from moebox.data import load_table
from moebox.detect import conditions
from moebox.escape import one_line
from moebox.serve.tail import LogTail
from moebox.units import format_percent, format_seconds
from moebox.verify.options import VerifyOptions
from moebox.verify.runner import run_checks

HOLDS_SHARE = 0.8  # of the samples of a window that have the figure
KNOWN_SHARE = 0.4  # of all samples of a window
MIN_KNOWN, MAX_WINDOWS = 6, 5  # samples with the figure, from so many windows, if fewer of one have it
ABSENT = "absent"
MIN_USUAL = 10  # samples before the window, without which nothing is usual
COMPARISONS = {">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le}


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsLook:
    """One sample of an endpoint under moebox's names; figures that the engine does not have are missing."""

    at: float
    answered: bool
    figures: dict[str, float] = field(default_factory=dict)
    about: dict[str, str] = field(default_factory=dict)  # the client, user or program that a figure is about


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A cause, and the conditions that show it."""

    name: str
    for_s: float
    when: tuple[tuple[str, str, float], ...]  # figure, comparison, value
    cause: str
    change: str  # the setting
    command: str


def diagnose(looks: Sequence[MetricsLook]) -> dict[str, str]:
    """Return the causes that the newest samples show: name of the rule, and cause, evidence and setting."""
    looks, found = list(looks), {}
    for rule in catalogue.table_rows(Rule, "diagnoses", "rule"):
        begin = looks[-1].at - rule.for_s
        if looks[0].at > begin:
            continue  # not watched for so long yet
        size = max(1, len(looks) - bisect.bisect_right(looks, begin, key=operator.attrgetter("at")))
        judged = (judge_condition(condition, looks, size) for condition in rule.when)
        evidence = list(itertools.takewhile(bool, judged))
        if len(evidence) == len(rule.when):
            evidence += [looks[-1].about.get(name, ABSENT) for name, _, _ in rule.when]
            shown = ", ".join(each for each in evidence if each != ABSENT)
            found[rule.name] = f"{rule.cause} ({shown}); change: {rule.change}; `{rule.command}`"
    return found


def judge_condition(condition: tuple[str, str, float], looks: Sequence[MetricsLook], size: int) -> str:
    """Return the evidence of a condition that holds in the window of the newest `size` samples, or ""."""
    name, comparison, value = condition
    values = [look.figures[name] for look in looks[-size:] if name in look.figures]
    if comparison == ABSENT:
        return "" if values else ABSENT
    if 0 < len(values) < KNOWN_SHARE * size:  # few replies end in a window: those of some windows before it count too
        values = [look.figures[name] for look in looks[-MAX_WINDOWS * size :] if name in look.figures][-MIN_KNOWN:]
    if len(values) < min(MIN_KNOWN, KNOWN_SHARE * size) or not values:
        return ""
    usual, used = "", len(values)
    middle: Callable[[list[float]], float] = statistics.median
    if comparison.startswith("mean "):
        comparison, values, middle = comparison.removeprefix("mean "), [statistics.fmean(values)], statistics.fmean
    if comparison.startswith("x"):
        earlier = [look.figures[name] for look in looks if name in look.figures][:-used]
        if len(earlier) < MIN_USUAL:
            return ""
        before = middle(earlier)
        value, usual = value * before, f", usually {before:.3g}"
    holds = COMPARISONS[comparison.removeprefix("x")]
    if sum(holds(each, value) for each in values) < HOLDS_SHARE * len(values):
        return ""
    return f"{name.replace('_', ' ')} {statistics.fmean(values):.3g}{usual}"


KEPT = 900  # looks kept: half an hour at one every two seconds
DELIVERY_S = 10.0  # for a webhook or a command
HISTORY_S = 10.0  # between two samples that are kept in the run folder
CANARY = "canary "  # begins the names of alerts about checks
FEW, LEAST_CPU = 3, 0.05  # connections, and cores: an engine with more of both is busy, not hung
GONE_LOOKS = 3  # looks without an answer before an endpoint counts as gone
CANARIES = ("plain", "arithmetic", "streaming", "tools")  # cheap checks, in turn
FIGURES = load_table("watch")
RATES, SHARES = FIGURES["rates"], FIGURES["shares"]
WORDS: dict[str, Callable[[float], str]] = {"percent": format_percent, "seconds": format_seconds}
SHOWN = [(name, title, WORDS.get(form, form.format)) for name, title, form in FIGURES["shown"]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    at: float
    name: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Canary:
    at: float
    check: str
    verdict: str
    reason: str
    seconds: float


class EndpointWatcher:
    """Polls one endpoint and keeps the results."""

    def __init__(self, endpoint: Endpoint, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.endpoint, self.clock = endpoint, clock
        self.label = f"{endpoint.model} at {endpoint.server_url.partition('://')[2]}"
        self.looks: deque[MetricsLook] = deque(maxlen=KEPT)
        self.alerts: list[Alert] = []
        self.canaries: list[Canary] = []
        self.active_alerts: set[str] = set()
        self._seen: dict[str, float] = {}  # the newest value of each metric
        self._at = 0.0
        self._processes: frozenset[int] | None = None
        self._host: conditions.HostSample | None = None
        engine, log = metrics.all_engine_metrics().get(endpoint.engine), Path(endpoint.log)
        self._log_patterns = engine.log if engine and endpoint.log else ()
        self._log, self._log_text = LogTail(log, start=log.stat().st_size if log.is_file() else 0), ""
        self._canary_thread: threading.Thread | None = None

    def look_once(self) -> MetricsLook:
        reply = http.get(f"{self.endpoint.server_url}/metrics", headers=self.endpoint.headers, timeout_s=5.0)
        answered, about = True, dict[str, str]()
        if not reply.ok:  # an endpoint without /metrics: check that it answers
            other = http.get(f"{self.endpoint.base_url}/models", headers=self.endpoint.headers, timeout_s=5.0)
            figures = {**self.derive_figures({}), "mute": float(not other.status and "[Errno" not in other.text)}
            if other.ok and not reply.status and self._seen:  # engines that answer /metrics between two steps
                figures["stalled_requests"] = 1.0
            answered = other.ok
        else:
            figures, (users, user) = self.derive_figures(parse_prometheus(reply.text)), user_figures(reply.text)
            about, figures = {"top_user_share": f"user {user}"}, {"stalled_requests": 0.0, **figures, **users}
        at = self.clock()
        if self._processes is None or not answered:  # of this machine, if its connections and GPUs can be seen
            self._processes = conditions.server_processes(self.endpoint.server_url) or frozenset()
        if self._processes:
            clients, client = conditions.sample_connections(urllib.parse.urlsplit(self.endpoint.server_url).port or 80)
            before, self._host = self._host, conditions.read_host(self._processes)
            others, program = conditions.compare_hosts(before, self._host) if before else ({}, "")
            figures = {**figures, **clients, **conditions.sample_throttling(), **others}
            about |= dict.fromkeys(("unread_bytes", "top_client_share"), f"client {client}")
            about["other_cpu"] = f"most of it {program}"
        look = MetricsLook(at=at, answered=answered, figures=figures, about=about)
        self.add_look(look)
        return look

    def add_look(self, look: MetricsLook) -> None:
        self.looks.append(look)
        recent = list(self.looks)[-GONE_LOOKS:]
        found = {}
        if len(recent) == GONE_LOOKS and not any(each.answered for each in recent):
            name, why = "gone", "at all: the engine has ended"
            change = "a service restarts it: `moebox up RECIPE --service`"
            if all(each.figures.get("mute") for each in recent):
                name, why = "hung", "in time: the engine hangs, or its process is stopped"
                counts = [each.figures.get("connections", 0.0) for each in recent]
                if min(counts) > FEW and all(each.figures.get("engine_cpu", 0.0) > LEAST_CPU for each in recent):
                    name, why = "queue", f"in time and computes: {counts[-1]:.0f} connections hold all its threads"
                    change = "change: fewer clients at once, or max_seqs; `moebox up RECIPE --set max_seqs=N`"
            found[name] = f"{self.endpoint.server_url} does not answer {why}; {change}"
        if "gone" not in found:  # old samples explain no ended engine
            found = diagnose(self.looks) | found
        self._update_alerts(found, {name for name in self.active_alerts if not name.startswith(CANARY)})

    def derive_figures(self, shown: dict[str, float]) -> dict[str, float]:
        """Gauges, rates of counters, and means of histograms since the last look."""
        now = self.clock()
        passed = now - self._at if self._at else 0.0
        self._at = now if shown else self._at
        figures = {figure: value for figure, value in pick_metrics(shown).items() if figure in FIGURES["gauges"]}
        before, self._seen = self._seen if passed > 0 else {}, {**self._seen, **shown}
        # What is less than before is of an engine that was started again.
        grown = {name: value - before[name] for name, value in shown.items() if value >= before.get(name, math.inf)}
        counters = {*RATES, *itertools.chain.from_iterable(SHARES.values())}
        growths = {name: grown[metric] for name in counters if (metric := metrics.find_metric(name, shown)) in grown}
        figures |= {f"{name.removesuffix('_total')}_s": growths[name] / passed for name in RATES if name in growths}
        if self._log_patterns:  # the log adds to counters that the metrics do not have
            while data := self._log.read_new():
                self._log_text += data.decode("utf-8", "replace")
            text, _, self._log_text = self._log_text.rpartition("\n")
            logged: Counter[str] = Counter()
            for match in (match for pattern in self._log_patterns for match in re.finditer(pattern, text)):
                logged.update({name: float(number or 1) for name, number in match.groupdict().items()})
            growths |= logged
            figures["context_full"] = float(logged["context_full"])
        for name, (part, whole) in SHARES.items():
            if name not in figures and part in growths and growths.get(whole):
                figures[name] = growths[part] / growths[whole] + (name == "accept_length")  # the engine's own token too
        live = (each.output_tokens_total for each in metrics.all_engine_metrics().values() if not each.counts_at_end)
        if "output_tokens_s" in figures and any(not self._seen.keys().isdisjoint(names) for names in live):
            # Some engines count tokens only when a request ends; nothing is known of theirs.
            figures["stalled_requests"] = figures.get("running", 0.0) if figures["output_tokens_s"] <= 0 else 0.0
        for name in FIGURES["times"]:
            metric = metrics.find_metric(name, shown, suffix="_count")
            total, count = (grown.get(f"{metric}{end}") for end in ("_sum", "_count"))
            if total is not None and count:
                figures[name] = total / count
        return figures

    def _update_alerts(self, found: Mapping[str, str], judged: set[str]) -> None:
        """Add an alert for what is new in `found`; those of `judged` that are not found are over."""
        self.active_alerts -= judged - found.keys()
        for name, text in found.items():
            if name not in self.active_alerts:
                self.active_alerts.add(name)
                self.alerts.append(Alert(at=self.clock(), name=name, text=text))

    def start_canary(self, check: str) -> None:
        """Run one check in a thread, unless another one is running."""

        def run_check() -> None:
            began, options = time.monotonic(), VerifyOptions(trials=2, patience=1, deadline_s=120.0, time_s=240.0)
            self.add_canary(run_checks(self.endpoint, options, only=[check]).rungs[0], time.monotonic() - began)

        if self._canary_thread is None or not self._canary_thread.is_alive():
            self._canary_thread = threading.Thread(target=run_check, daemon=True)
            self._canary_thread.start()

    def add_canary(self, verdict: CheckVerdict, seconds: float) -> None:
        """Store the result of a check; a failed one is an alert."""
        check, mark, reason = verdict.name, verdict.verdict, verdict.reason
        self.canaries.append(Canary(at=self.clock(), check=check, verdict=mark, reason=reason, seconds=seconds))
        name = f"{CANARY}{check}"
        self._update_alerts({name: f"{check}: {reason}"} if mark == "fail" else {}, {name})

    def wait_for_canary(self, patience_s: float) -> None:
        if self._canary_thread is not None:
            self._canary_thread.join(patience_s)


def user_figures(text: str) -> tuple[dict[str, float], str]:
    """Figures of the users of `moebox switch`, and the one with the most tokens of the last minute."""
    rows = re.findall(r'^moebox:recent_tokens{user="(.*)"} (\d+)$', text, re.MULTILINE)
    tokens = {one_line(name): float(count) for name, count in rows}
    if not any(tokens.values()):
        return {}, ""
    shown, top = parse_prometheus(text), max(tokens, key=tokens.__getitem__)
    figures = {"users": sum(count > 0 for count in tokens.values()), "running": shown.get("moebox:open_requests", 0.0)}
    first = shown.get("moebox:first_byte_seconds", 0.0)
    return {**figures, "first_byte": first, "top_user_share": tokens[top] / sum(tokens.values())}, top


def send_alert(receiver: str, alert: Alert, endpoint: Endpoint) -> str:
    """Send an alert to a webhook (a URL, JSON by POST) or a command (JSON on its standard input).

    Return why it was not delivered, or "".
    """
    document = {"name": alert.name, "text": alert.text, "model": endpoint.model, "url": endpoint.base_url}
    if receiver.startswith(("http://", "https://")):
        reply = http.post_json(receiver, document, timeout_s=DELIVERY_S)
        return "" if reply.ok else reply.error
    try:
        argv, text = shlex.split(receiver), json.dumps(document)
        subprocess.run(argv, input=text, text=True, timeout=DELIVERY_S, check=True, capture_output=True)
    except (OSError, ValueError, subprocess.SubprocessError) as failure:
        return one_line(str(failure))
    return ""


class WatchHistory:
    """Samples and alerts of a watch as JSON lines in a run folder; the file is replaced once it is too large."""

    def __init__(self, folder: Path, *, limit: int = 32 * 2**20) -> None:
        self.path, self.limit = folder / "watch.jsonl", limit
        self.next_at, self.alerts = 0.0, 0

    def add(self, look: MetricsLook, alerts: Sequence[Alert]) -> Sequence[Alert]:
        """Append new alerts, and a sample every ten seconds. A full disk loses them and stops nothing.

        Return the alerts that are new.
        """
        new, self.alerts = alerts[self.alerts :], max(self.alerts, len(alerts))
        rows: list[dict[str, object]] = []
        if look.at >= self.next_at:
            self.next_at = look.at + HISTORY_S
            rows = [{"answered": look.answered, **{name: round(value, 4) for name, value in look.figures.items()}}]
        rows += [{"alert": alert.name, "text": alert.text} for alert in new]
        with contextlib.suppress(OSError):
            if self.path.exists() and self.path.stat().st_size > self.limit:
                self.path.replace(f"{self.path}.1")
            with open(self.path, "a", encoding="utf-8", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
                file.writelines(json.dumps({"time": round(time.time(), 1), **row}) + "\n" for row in rows)
        return new
