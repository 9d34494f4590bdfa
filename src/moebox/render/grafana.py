"""A Grafana dashboard and Prometheus rules for one engine, in that engine's own metric names."""

import json
from dataclasses import dataclass

from moebox import yaml_text
from moebox.core import metrics
from moebox.core.deployment import Deployment
from moebox.core.metrics import EngineMetrics
from moebox.loose import Document
from moebox.render import quoting

SCHEMA = 39  # Grafana 10.2 and newer read it; they migrate it where theirs is higher
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
SELECT = '{instance=~"$instance"}'
WIDTH, HEIGHT = 12, 8
# What is alarming unless the person knows better: interactive use, and a cache that is all but full.
TTFT_S, TPOT_S, FULL = 10.0, 0.2, 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class DashboardChart:
    """One panel: what it shows, in which unit, and the queries with their legends."""

    title: str
    unit: str
    queries: tuple[tuple[str, str], ...]
    about: str = ""


def dashboard_json(deployment: Deployment) -> str:
    """The dashboard as JSON, to be imported or provisioned."""
    recipe = deployment.recipe
    names = metrics.engine_metrics(recipe.engine)
    panels = [_panel(chart, number) for number, chart in enumerate(dashboard_charts(names, SELECT))]
    document = {
        "uid": f"moebox-{quoting.make_slug(recipe.name)}"[:40],
        "title": f"{recipe.name}: {recipe.served_name or recipe.model} on {deployment.engine.title}",
        "tags": ["moebox", recipe.engine],
        "schemaVersion": SCHEMA,
        "version": 1,
        "editable": True,
        "refresh": "15s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {"list": _variables(names)},
        "annotations": {"list": []},
        "panels": panels,
    }
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def _variables(names: EngineMetrics) -> list[Document]:
    query = f"label_values({names.newest_name('running')}, instance)"
    return [
        {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Prometheus"},
        {
            "name": "instance",
            "type": "query",
            "datasource": DATASOURCE,
            "query": {"query": query, "refId": "instance"},
            "refresh": 2,
            "multi": True,
            "includeAll": True,
            "current": {"text": ["All"], "value": ["$__all"]},
        },
    ]


def dashboard_charts(names: EngineMetrics, select: str) -> list[DashboardChart]:
    """Panels for the figures this engine shows; the others are left out."""
    prompt, output = names.newest_name("prompt_tokens_total"), names.newest_name("output_tokens_total")
    hits, queries = names.newest_name("prefix_hits_total"), names.newest_name("prefix_queries_total")
    found = [
        _gauges(
            "Requests", "short", select, running=names.newest_name("running"), waiting=names.newest_name("waiting")
        ),
        _rates("Tokens a second", select, prompt=prompt, output=output),
        _gauges("KV cache in use", "percentunit", select, used=names.newest_name("kv_use")),
        _quantiles("Time to first token", names.newest_name("ttft"), select),
        _quantiles("Time per output token", names.newest_name("tpot"), select),
        _quantiles("End to end", names.newest_name("e2e"), select),
        _quantiles("Waiting in the queue", names.newest_name("queue"), select),
        _rates("Preemptions a second", select, unit="short", preempted=names.newest_name("preemptions_total")),
        _share("Prompt tokens found in the prefix cache", hits, queries, select),
        _gauges("Prefix cache hit rate", "percentunit", select, hit=names.newest_name("cache_hit_rate")),
        _share(
            "Draft tokens accepted", names.newest_name("accepted_total"), names.newest_name("drafted_total"), select
        ),
        _gauges("Tokens accepted a step", "short", select, accepted=names.newest_name("accept_length")),
        _rates("Requests finished a second", select, unit="reqps", finished=names.newest_name("finished_total")),
    ]
    return [chart for chart in found if chart.queries]


def _gauges(title: str, unit: str, select: str, **series: str) -> DashboardChart:
    queries = tuple((f"sum by (instance) ({name}{select})", legend) for legend, name in series.items() if name)
    if unit == "percentunit":
        queries = tuple((query.replace("sum by", "avg by"), legend) for query, legend in queries)
    return DashboardChart(title=title, unit=unit, queries=queries)


def _rates(title: str, select: str, *, unit: str = "short", **series: str) -> DashboardChart:
    queries = tuple(
        (f"sum by (instance) (rate({name}{select}[$__rate_interval]))", legend)
        for legend, name in series.items()
        if name
    )
    return DashboardChart(title=title, unit=unit, queries=queries)


def _quantiles(title: str, name: str, select: str) -> DashboardChart:
    if not name:
        return DashboardChart(title=title, unit="s", queries=())
    queries = tuple(
        (
            f"histogram_quantile({share}, sum by (le) (rate({name}_bucket{select}[$__rate_interval])))",
            f"p{share * 100:.0f}",
        )
        for share in (0.5, 0.9, 0.99)
    )
    return DashboardChart(title=title, unit="s", queries=queries)


def _share(title: str, part: str, whole: str, select: str) -> DashboardChart:
    if not part or not whole:
        return DashboardChart(title=title, unit="percentunit", queries=())
    query = f"sum(rate({part}{select}[$__rate_interval])) / sum(rate({whole}{select}[$__rate_interval]))"
    return DashboardChart(title=title, unit="percentunit", queries=((query, "share"),))


def _panel(chart: DashboardChart, number: int) -> Document:
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": chart.title,
        "datasource": DATASOURCE,
        "gridPos": {"x": number % 2 * WIDTH, "y": number // 2 * HEIGHT, "w": WIDTH, "h": HEIGHT},
        "fieldConfig": {"defaults": {"unit": chart.unit, "min": 0, "custom": {"fillOpacity": 8}}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": [
            {"refId": chr(65 + place), "datasource": DATASOURCE, "expr": query, "legendFormat": _legend(query, legend)}
            for place, (query, legend) in enumerate(chart.queries)
        ],
    }


def _legend(query: str, legend: str) -> str:
    return f"{legend} {{{{instance}}}}" if "by (instance)" in query else legend


def alert_rules_yaml(deployment: Deployment) -> str:
    """Alerting rules as Prometheus reads them (`rule_files`)."""
    return _head(deployment) + yaml_text.dump_yaml({"groups": alert_groups(deployment)})


@dataclass(frozen=True, slots=True)
class AlertRule:
    """An alert on one figure: what Prometheus looks for, for how long, and what it means."""

    name: str
    query: str
    lasting: str
    about: str


SLOW = "histogram_quantile(0.9, sum by (instance, le) (rate({{metric}}_bucket[5m]))) > {limit}"
WARNINGS = {
    "waiting": AlertRule("QueueGrows", "sum by (instance) ({metric}) > 0", "10m", "requests wait"),
    "kv_use": AlertRule("CacheFull", f"max by (instance) ({{metric}}) > {FULL}", "5m", "the KV cache is full"),
    "ttft": AlertRule("TtftHigh", SLOW.format(limit=TTFT_S), "5m", f"nine of ten requests are above {TTFT_S:g} s"),
    "tpot": AlertRule("TpotHigh", SLOW.format(limit=TPOT_S), "5m", f"nine of ten requests are above {TPOT_S:g} s"),
    "preemptions_total": AlertRule(
        "Preempting",
        "sum by (instance) (rate({metric}[5m])) > 0.1",
        "5m",
        "sequences are preempted: lower concurrency, or more cache",
    ),
}


def alert_groups(deployment: Deployment) -> list[Document]:
    """The alerts on what the ladder and the bench would call a slip."""
    recipe = deployment.recipe
    names = metrics.engine_metrics(recipe.engine)
    slug = quoting.make_slug(recipe.name)
    running, tokens = names.newest_name("running"), names.newest_name("output_tokens_total")
    alerts = [
        _alert("EngineDown", f'up{{job=~".*{slug}.*"}} == 0', "2m", "critical", "the engine does not answer Prometheus")
    ]
    if running and tokens and not names.counts_at_end:
        silent = f"sum by (instance) ({running}) > 0 and sum by (instance) (rate({tokens}[3m])) == 0"
        alerts.append(_alert("EngineSilent", silent, "3m", "critical", "requests are running and no token comes out"))
    for figure, warning in WARNINGS.items():
        if metric := names.newest_name(figure):
            query = warning.query.format(metric=metric)
            alerts.append(_alert(warning.name, query, warning.lasting, "warning", warning.about))
    return [{"name": f"moebox-{slug}", "rules": alerts}]


def _alert(name: str, query: str, lasting: str, severity: str, about: str) -> Document:
    return {
        "alert": name,
        "expr": query,
        "for": lasting,
        "labels": {"severity": severity},
        "annotations": {"summary": f"{{{{ $labels.instance }}}}: {about}"},
    }


def _head(deployment: Deployment) -> str:
    source = metrics.engine_metrics(deployment.recipe.engine).source
    return f"# Alerts for {deployment.recipe.name}, in the names of {source or deployment.engine.title}.\n"
