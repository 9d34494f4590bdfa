"""A Grafana dashboard and Prometheus alert rules for one engine, in that engine's own metric names."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from moebox.core import catalogue, metrics
from moebox.core.deployment import Deployment
from moebox.loose import drop_empty
from moebox.render import quoting
from moebox.render.pieces import Context

METRIC = re.compile(r"<(\w+)>")


@dataclass(frozen=True, slots=True, kw_only=True)
class DashboardChart:
    """A panel: its title, its unit, and its queries by their legends."""

    title: str
    unit: str
    queries: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertRule:
    """An alert: the query, how long it must hold, and what it means."""

    name: str
    query: str
    lasting: str
    about: str
    severity: str
    live_counts: bool = False  # only of engines that count tokens as they come


def dashboard_context(deployment: Deployment) -> Context:
    """Fill the template of a dashboard with charts of the metrics that this engine exposes."""
    charts = []
    for chart in catalogue.table_rows(DashboardChart, "monitoring", "chart"):
        queries = {legend: _fill_names(deployment, query) for legend, query in chart.queries.items()}
        charts.append(replace(chart, queries=drop_empty(queries)))
    return {
        "template": "dashboard.json.j2",
        "recipe": deployment.recipe,
        "engine": deployment.engine.title,
        "running": _fill_names(deployment, "<running>"),
        "charts": [chart for chart in charts if chart.queries],
    }


def alerts_context(deployment: Deployment) -> Context:
    """Fill the template of alert rules as Prometheus reads them (`rule_files`)."""
    return {
        "template": "alerts.yaml.j2",
        "recipe": deployment.recipe,
        "source": metrics.engine_metrics(deployment.recipe.engine).source or deployment.engine.title,
        "alerts": list(find_alerts(deployment)),
    }


def find_alerts(deployment: Deployment) -> Iterator[AlertRule]:
    """Yield the alerts on what the checks and the benchmark would report as a failure."""
    late = metrics.engine_metrics(deployment.recipe.engine).counts_at_end
    for rule in catalogue.table_rows(AlertRule, "monitoring", "alert"):
        query = _fill_names(deployment, rule.query)
        if query and not (rule.live_counts and late):
            yield replace(rule, query=query)


def _fill_names(deployment: Deployment, query: str) -> str:
    """Put the engine's own names into a query; "" if it does not have one of the metrics."""
    names = metrics.engine_metrics(deployment.recipe.engine)
    slug = quoting.make_slug(deployment.recipe.name)
    known = {each: slug if each == "slug" else names.newest_name(each) for each in METRIC.findall(query)}
    return METRIC.sub(lambda found: known[found[1]], query) if all(known.values()) else ""
