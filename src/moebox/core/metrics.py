"""The names of metrics in each engine's /metrics, for scraping, charts and alerts."""

import contextlib
import functools
import re
import statistics
from collections.abc import Container
from dataclasses import dataclass, fields

from moebox import codec
from moebox.core import catalogue, registry
from moebox.errors import refuse_if

MetricNames = tuple[str, ...]
_LINE = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{[^}]*\})?\s+([-+0-9.eE]+|NaN|[+-]Inf)\s*\d*$", re.MULTILINE)
SHARES = ("kv_use", "accept_length", "cache_hit_rate")  # the other figures are counts


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineMetrics:
    """The metric names of one engine, newest first; empty if it does not have that metric."""

    source: str = ""
    counts_at_end: bool = False  # tokens are counted when a reply ends, so that a rate of 0 before that means nothing
    log: tuple[str, ...] = ()  # patterns of its log; a named group adds its number to that counter, 1 if it is empty
    running: MetricNames = ()
    waiting: MetricNames = ()
    kv_use: MetricNames = ()
    preemptions_total: MetricNames = ()
    prompt_tokens_total: MetricNames = ()
    output_tokens_total: MetricNames = ()
    output_seconds_total: MetricNames = ()
    drafted_total: MetricNames = ()
    drafts_total: MetricNames = ()
    accepted_total: MetricNames = ()
    accept_length: MetricNames = ()
    cache_hit_rate: MetricNames = ()
    prefix_queries_total: MetricNames = ()
    prefix_hits_total: MetricNames = ()
    finished_total: MetricNames = ()
    ttft: MetricNames = ()
    tpot: MetricNames = ()
    e2e: MetricNames = ()
    queue: MetricNames = ()

    def newest_name(self, figure: str) -> str:
        """The newest name of a metric, "" if there is none."""
        names: MetricNames = getattr(self, figure)
        return next(iter(names), "")


@functools.cache
def all_engine_metrics() -> dict[str, EngineMetrics]:
    rows = catalogue.load_table("metrics")
    whole = {name: rows[row["as"]] if "as" in row else row for name, row in rows.items()}
    return {name: codec.decode(EngineMetrics, row, where=f"metrics.toml: {name}") for name, row in whole.items()}


def engine_metrics(engine: str) -> EngineMetrics:
    """The names of one engine, from the table or from its traits. Raise BadInput if none are known."""
    if engine in all_engine_metrics():
        return all_engine_metrics()[engine]
    known = {field.name for field in fields(EngineMetrics)}
    declared = registry.engine_traits(engine).metrics
    refuse_if(not declared, f"the metrics of {engine} are not known", hint=f"known: {', '.join(all_engine_metrics())}")
    return EngineMetrics(**{name: (metric,) for name, metric in declared.items() if name in known})  # type: ignore[arg-type]


def all_names(figure: str) -> MetricNames:
    names = (name for engine in all_engine_metrics().values() for name in getattr(engine, figure))
    return tuple(dict.fromkeys(names))


def find_metric(figure: str, page: Container[str], *, suffix: str = "") -> str:
    """The name of a metric in a page of metrics, "" if it is not there."""
    return next((name for name in all_names(figure) if f"{name}{suffix}" in page), "")


def parse_prometheus(text: str) -> dict[str, float]:
    """Parse Prometheus text as name -> value over all labels, without what is not a number.

    Data-parallel ranks show a value each: counts are added up, shares averaged.
    """
    shares = {name for figure in SHARES for name in all_names(figure)}
    found: dict[str, list[float]] = {}
    for name, value in _LINE.findall(text):
        with contextlib.suppress(ValueError):
            number = float(value)
            if 0 <= number < float("inf"):  # none of these figures can be negative
                found.setdefault(name, []).append(number)
    return {name: statistics.fmean(values) if name in shares else sum(values) for name, values in found.items()}
