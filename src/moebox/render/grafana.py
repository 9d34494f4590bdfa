"""A Grafana dashboard and Prometheus alert rules for one engine, in that engine's own metric names."""

import json
from dataclasses import dataclass

from moebox import yaml_text
from moebox.core import metrics
from moebox.core.deployment import Deployment
from moebox.core.metrics import EngineMetrics
from moebox.loose import Document
from moebox.render import quoting

SCHEMA = 39  # Grafana 10.2 and newer read it; newer versions migrate it
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
SELECT = '{instance=~"$instance"}'
WIDTH, HEIGHT = 12, 8
# Alert limits for interactive use, and for a cache that is almost full; users adjust them in the file.
TTFT_S, TPOT_S, FULL = 10.0, 0.2, 0.95


@dataclass(frozen=True, slots=True)
class DashboardChart:
    """A panel: its title, its unit, and its queries with their legends."""

    title: str
    unit: str
    queries: tuple[tuple[str, str], ...]


def dashboard_json(deployment: Deployment) -> str:
    recipe = deployment.recipe
    names = metrics.engine_metrics(recipe.engine)
    instances = f"label_values({names.newest_name('running')}, instance)"
    document = {
        "uid": f"moebox-{quoting.make_slug(recipe.name)}"[:40],
        "title": f"{recipe.name}: {recipe.served_name or recipe.model} on {deployment.engine.title}",
        "tags": ["moebox", recipe.engine],
        "schemaVersion": SCHEMA,
        "version": 1,
        "editable": True,
        "refresh": "15s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {
            "list": [
                {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Prometheus"},
                {
                    "name": "instance",
                    "type": "query",
                    "datasource": DATASOURCE,
                    "query": {"query": instances, "refId": "instance"},
                    "refresh": 2,
                    "multi": True,
                    "includeAll": True,
                    "current": {"text": ["All"], "value": ["$__all"]},
                },
            ]
        },
        "annotations": {"list": []},
        "panels": [_panel(chart, number) for number, chart in enumerate(dashboard_charts(names))],
    }
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def dashboard_charts(names: EngineMetrics) -> list[DashboardChart]:
    """Return charts of the metrics that this engine exposes."""
    found: list[DashboardChart] = []

    def add_gauges(title: str, unit: str, **series: str) -> None:
        function = "avg" if unit == "percentunit" else "sum"
        named = {legend: names.newest_name(metric) for legend, metric in series.items()}
        queries = ((f"{function} by (instance) ({name}{SELECT})", legend) for legend, name in named.items() if name)
        found.append(DashboardChart(title, unit, tuple(queries)))

    def add_rates(title: str, unit: str, **series: str) -> None:
        named = {legend: names.newest_name(metric) for legend, metric in series.items()}
        queries = ((f"sum by (instance) ({_rate(name)})", legend) for legend, name in named.items() if name)
        found.append(DashboardChart(title, unit, tuple(queries)))

    def add_quantiles(title: str, metric: str) -> None:
        name = names.newest_name(metric)
        buckets = f"sum by (le) ({_rate(f'{name}_bucket')})"
        queries = ((f"histogram_quantile({share}, {buckets})", f"p{share * 100:.0f}") for share in (0.5, 0.9, 0.99))
        found.append(DashboardChart(title, "s", tuple(queries) if name else ()))

    def add_share(title: str, metric: str, of: str) -> None:
        part, whole = names.newest_name(metric), names.newest_name(of)
        query = f"sum({_rate(part)}) / sum({_rate(whole)})"
        found.append(DashboardChart(title, "percentunit", ((query, "share"),) if part and whole else ()))

    add_gauges("Requests", "short", running="running", waiting="waiting")
    add_rates("Tokens a second", "short", prompt="prompt_tokens_total", output="output_tokens_total")
    add_gauges("KV cache in use", "percentunit", used="kv_use")
    add_quantiles("Time to first token", "ttft")
    add_quantiles("Time per output token", "tpot")
    add_quantiles("End to end", "e2e")
    add_quantiles("Waiting in the queue", "queue")
    add_rates("Preemptions a second", "short", preempted="preemptions_total")
    add_share("Prompt tokens found in the prefix cache", "prefix_hits_total", of="prefix_queries_total")
    add_gauges("Prefix cache hit rate", "percentunit", hit="cache_hit_rate")
    add_share("Draft tokens accepted", "accepted_total", of="drafted_total")
    add_gauges("Tokens accepted a step", "short", accepted="accept_length")
    add_rates("Requests finished a second", "reqps", finished="finished_total")
    return [chart for chart in found if chart.queries]


def _rate(name: str) -> str:
    return f"rate({name}{SELECT}[$__rate_interval])"


def _panel(chart: DashboardChart, number: int) -> Document:
    targets = []
    for place, (query, legend) in enumerate(chart.queries):
        label = f"{legend} {{{{instance}}}}" if "by (instance)" in query else legend
        targets.append({"refId": chr(65 + place), "datasource": DATASOURCE, "expr": query, "legendFormat": label})
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": chart.title,
        "datasource": DATASOURCE,
        "gridPos": {"x": number % 2 * WIDTH, "y": number // 2 * HEIGHT, "w": WIDTH, "h": HEIGHT},
        "fieldConfig": {"defaults": {"unit": chart.unit, "min": 0, "custom": {"fillOpacity": 8}}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": targets,
    }


@dataclass(frozen=True, slots=True)
class AlertRule:
    """An alert on one metric: the query, how long it must hold, and what it means."""

    name: str
    query: str
    lasting: str
    about: str


SLOW = "histogram_quantile(0.9, sum by (instance, le) (rate({{metric}}_bucket[5m]))) > {limit}"
WARNINGS = {
    "waiting": AlertRule("QueueGrows", "sum by (instance) ({metric}) > 0", "10m", "requests wait"),
    "kv_use": AlertRule("CacheFull", f"max by (instance) ({{metric}}) > {FULL}", "5m", "the KV cache is full"),
    "ttft": AlertRule("TtftHigh", SLOW.format(limit=TTFT_S), "5m", f"one request in ten takes over {TTFT_S:g} s"),
    "tpot": AlertRule("TpotHigh", SLOW.format(limit=TPOT_S), "5m", f"one request in ten takes over {TPOT_S:g} s"),
    "preemptions_total": AlertRule(
        "Preempting",
        "sum by (instance) (rate({metric}[5m])) > 0.1",
        "5m",
        "sequences are preempted: lower the concurrency or enlarge the cache",
    ),
}


def alert_rules_yaml(deployment: Deployment) -> str:
    """Return alert rules as Prometheus reads them (`rule_files`)."""
    source = metrics.engine_metrics(deployment.recipe.engine).source or deployment.engine.title
    head = f"# Alerts for {deployment.recipe.name}, with the metric names of {source}.\n"
    return head + yaml_text.dump_yaml({"groups": alert_groups(deployment)})


def alert_groups(deployment: Deployment) -> list[Document]:
    """Return the alerts on what the checks and the benchmark would report as a failure."""
    names, slug = metrics.engine_metrics(deployment.recipe.engine), quoting.make_slug(deployment.recipe.name)
    alerts: list[Document] = []

    def add_alert(rule: AlertRule, severity: str) -> None:
        summary = f"{{{{ $labels.instance }}}}: {rule.about}"
        alert: Document = {"alert": rule.name, "expr": rule.query, "for": rule.lasting}
        alerts.append(alert | {"labels": {"severity": severity}, "annotations": {"summary": summary}})

    down = f'up{{job=~".*{slug}.*"}} == 0'
    add_alert(AlertRule("EngineDown", down, "2m", "the engine does not answer Prometheus"), "critical")
    running, tokens = names.newest_name("running"), names.newest_name("output_tokens_total")
    if running and tokens and not names.counts_at_end:
        silent = f"sum by (instance) ({running}) > 0 and sum by (instance) (rate({tokens}[3m])) == 0"
        add_alert(AlertRule("EngineSilent", silent, "3m", "requests are running and no token comes out"), "critical")
    for metric, rule in WARNINGS.items():
        if name := names.newest_name(metric):
            add_alert(AlertRule(rule.name, rule.query.format(metric=name), rule.lasting, rule.about), "warning")
    return [{"name": f"moebox-{slug}", "rules": alerts}]
