"""What engines call their figures in /metrics: a table, read by whoever scrapes, charts or alerts."""

import functools
from collections.abc import Container
from dataclasses import dataclass, fields

from moebox import codec
from moebox.core import catalogue, registry
from moebox.errors import BadInput

Names = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineMetrics:
    """One engine's names, newest first; empty where it does not show that figure."""

    source: str = ""
    counts_at_end: bool = False  # tokens are counted when a reply ends: a rate of 0 says nothing meanwhile
    running: Names = ()
    waiting: Names = ()
    kv_use: Names = ()
    preemptions_total: Names = ()
    prompt_tokens_total: Names = ()
    output_tokens_total: Names = ()
    drafted_total: Names = ()
    drafts_total: Names = ()
    accepted_total: Names = ()
    accept_length: Names = ()
    cache_hit_rate: Names = ()
    prefix_queries_total: Names = ()
    prefix_hits_total: Names = ()
    finished_total: Names = ()
    ttft: Names = ()
    tpot: Names = ()
    e2e: Names = ()
    queue: Names = ()

    def name(self, figure: str) -> str:
        """The newest name of a figure; "" where there is none."""
        names: Names = getattr(self, figure)
        return names[0] if names else ""


@functools.cache
def engines() -> dict[str, EngineMetrics]:
    """Every engine whose names are known."""
    rows = catalogue.table("metrics")
    whole = {name: rows[row["as"]] if "as" in row else row for name, row in rows.items()}
    return {name: codec.decode(EngineMetrics, row, where=f"metrics.toml: {name}") for name, row in whole.items()}


def of(engine: str) -> EngineMetrics:
    """One engine's names: the table's, or those its own traits declare; BadInput where it shows nothing."""
    if engine in engines():
        return engines()[engine]
    known = {field.name for field in fields(EngineMetrics)}
    declared = registry.traits(engine).metrics
    if not declared:
        raise BadInput(f"nothing is known of {engine}'s metrics", hint=f"known: {', '.join(engines())}")
    return EngineMetrics(**{name: (metric,) for name, metric in declared.items() if name in known})  # type: ignore[arg-type]


def anywhere(figure: str) -> Names:
    """Every name a figure has, in any engine."""
    names = (name for engine in engines().values() for name in getattr(engine, figure))
    return tuple(dict.fromkeys(names))


def shown_as(figure: str, page: Container[str], *, suffix: str = "") -> str:
    """The name by which a page of metrics has a figure; "" where it has none."""
    return next((name for name in anywhere(figure) if f"{name}{suffix}" in page), "")


def counted_live(metric: str) -> bool:
    """Whether the engine that shows this counter counts tokens as they come."""
    return any(metric in engine.output_tokens_total and not engine.counts_at_end for engine in engines().values())
