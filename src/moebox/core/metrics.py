"""What engines call their figures in /metrics: a table, read by whoever scrapes, charts or alerts."""

import functools
from collections.abc import Container
from dataclasses import dataclass, fields

from moebox import codec
from moebox.core import catalogue, registry
from moebox.errors import BadInput

MetricNames = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineMetrics:
    """One engine's names, newest first; empty where it does not show that figure."""

    source: str = ""
    counts_at_end: bool = False  # tokens are counted when a reply ends: a rate of 0 says nothing meanwhile
    running: MetricNames = ()
    waiting: MetricNames = ()
    kv_use: MetricNames = ()
    preemptions_total: MetricNames = ()
    prompt_tokens_total: MetricNames = ()
    output_tokens_total: MetricNames = ()
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
        """The newest name of a figure; "" where there is none."""
        names: MetricNames = getattr(self, figure)
        return names[0] if names else ""


@functools.cache
def all_engine_metrics() -> dict[str, EngineMetrics]:
    """Every engine whose names are known."""
    rows = catalogue.load_table("metrics")
    whole = {name: rows[row["as"]] if "as" in row else row for name, row in rows.items()}
    return {name: codec.decode(EngineMetrics, row, where=f"metrics.toml: {name}") for name, row in whole.items()}


def engine_metrics(engine: str) -> EngineMetrics:
    """One engine's names: the table's, or those its own traits declare; BadInput where it shows nothing."""
    if engine in all_engine_metrics():
        return all_engine_metrics()[engine]
    known = {field.name for field in fields(EngineMetrics)}
    declared = registry.engine_traits(engine).metrics
    if not declared:
        raise BadInput(f"nothing is known of {engine}'s metrics", hint=f"known: {', '.join(all_engine_metrics())}")
    return EngineMetrics(**{name: (metric,) for name, metric in declared.items() if name in known})  # type: ignore[arg-type]


def all_names(figure: str) -> MetricNames:
    """Every name a figure has, in any engine."""
    names = (name for engine in all_engine_metrics().values() for name in getattr(engine, figure))
    return tuple(dict.fromkeys(names))


def find_metric(figure: str, page: Container[str], *, suffix: str = "") -> str:
    """The name by which a page of metrics has a figure; "" where it has none."""
    return next((name for name in all_names(figure) if f"{name}{suffix}" in page), "")


def counts_live(metric: str) -> bool:
    """Whether the engine that shows this counter counts tokens as they come."""
    return any(
        metric in engine.output_tokens_total and not engine.counts_at_end for engine in all_engine_metrics().values()
    )
