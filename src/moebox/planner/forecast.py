"""Forecast rows from a speed model: decoding, prompts, one stream on CPU and GPUs, and serving by simulation.

Rows are plain dicts with the names that scripts rely on; every rate comes with the range that published rows give.
"""

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

from moebox.core.deployment import Deployment
from moebox.core.plan import Memory
from moebox.core.recipe import Recipe
from moebox.planner.kv_tiers import CacheTier, cache_tiers, tier_range, tier_setting, tier_steps
from moebox.planner.schedule import SchedulerRules
from moebox.planner.simulate import Histogram, SimulatedWorkload, SimulationResult, simulate
from moebox.planner.speed import Speed

ForecastRow = dict[str, Any]


def decode_rows(
    speed: Speed, contexts: Iterable[int], streams: Iterable[int], memory: Memory, recipe: Recipe
) -> list[ForecastRow]:
    """Rows of `streams` sequences that decode at `context`, no prompts, as decode benchmarks report.

    A row `fits` if the cache and the engine's limit of sequences admit all of them.
    """
    return [
        {"context": context, "concurrency": count}
        | _rates("decode_", "", speed.decode_tok_s(count, context), speed.step_range(count, context), 2)
        | {
            "itl_ms": round(speed.step_s(count, context) * 1e3, 3),
            "tokens_per_step": round(speed.tokens_per_step, 3),
            "fits": count <= min(memory.held_sequences(context, recipe.context), recipe.max_seqs or count),
        }
        for context, count in itertools.product(contexts, streams)
    ]


def _rates(name: str, edges: str, rate: float, factors: tuple[float, float], digits: int) -> ForecastRow:
    low, high = factors
    names = (f"{name}tok_s", f"{edges}low_tok_s", f"{edges}high_tok_s")
    return dict(zip(names, (round(rate * times, digits) for times in (1, low, high)), strict=True))


def prefill_rows(speed: Speed, prompts: Iterable[int]) -> list[ForecastRow]:
    """Rows of one cold prompt alone on the machine."""
    return [
        {"prompt_tokens": tokens, "ttft_s": round(speed.prefill_s(tokens), 4)}
        | _rates("prefill_", "", speed.prefill_tok_s(tokens), speed.prompt_range(tokens), 1)
        for tokens in prompts
    ]


def stream_rows(speed: Speed, contexts: Iterable[int], prompt: int) -> list[ForecastRow]:
    """Rows of CPU+GPU engines: token generation and prompt processing of one stream."""
    pp = _rates("pp_", "pp_", speed.prefill_tok_s(prompt), speed.prompt_range(prompt), 1)
    return [
        {"context": context, "concurrency": 1}
        | _rates("tg_", "tg_", speed.decode_tok_s(1, context), speed.step_range(1, context), 2)
        | {"prompt_tokens": prompt}
        | pp
        for context in contexts
    ]


def serving_rows(
    speed: Speed, rules: SchedulerRules, workloads: Iterable[SimulatedWorkload], tiers: Sequence[CacheTier] = ()
) -> list[ForecastRow]:
    """Rows of simulated workloads, with the field names of vLLM's serving benchmark."""
    return [serving_row(simulate(speed, rules, workload, tiers), speed) for workload in workloads]


def tier_rows(
    deployment: Deployment, memory: Memory, speed: Speed, rules: SchedulerRules, workload: SimulatedWorkload
) -> list[ForecastRow]:
    """What each tier brings for conversations: none, RAM, RAM and disk, with the range of the time to first token."""
    shared = workload.prefix if rules.shares_blocks else 0
    wanted = shared + workload.concurrency * (workload.longest - shared + rules.sequence_tokens)
    low, high = tier_range(speed)
    rows: list[ForecastRow] = []
    steps = tier_steps(deployment, memory, wanted)
    if wanted <= rules.pool_tokens:
        reason = "the GPUs hold them: a tier brings nothing here"
    elif not deployment.engine.kv_tiers:
        reason = f"{deployment.engine.title} keeps no prefixes in RAM"
    elif len(steps) > 1:
        reason = "a tier of this size brings next to nothing here"
    elif deployment.box and (deployment.box.ram or deployment.box.has_unified_memory):
        reason = "the box has no room for a tier"
    else:
        reason = "the box's RAM is not known: --ram SIZE shows what a tier brings"
    for tiers in steps:
        below = cache_tiers(deployment, tiers)
        last = [CacheTier("GPUs", rules.kv_tokens), *below][-1]
        result = simulate(speed, rules, workload, below)
        ttft = result.returning.mean * 1e3
        rows.append(
            {
                "tier": last.name,
                "gib": {"RAM": tiers.ram_gib, "disk": tiers.disk_gib}.get(last.name),
                "tokens": round(last.tokens),
                "conversations": workload.concurrency,
                "conversation_tokens": workload.longest,
                "hit_share": round(result.hit_share, 4),
                "returning_ttft_ms": round(ttft, 1),
                "low_ms": round(ttft * low, 1),
                "high_ms": round(ttft * high, 1),
                "output_throughput": round(result.output_tok_s, 2),
                "setting": tier_setting(tiers),
                "without_tier": reason,
            }
        )
    return rows


def serving_range(result: SimulationResult, speed: Speed) -> tuple[float, float]:
    """Factors on the throughput; measured speeds have the range of the largest batch at the context timed worst."""
    if not speed.measured:
        return speed.range_factors("serving")
    work, batch = result.workload, max(result.peak_batch, 1)
    ranges = [speed.step_range(batch, context) for context in (work.prefix + work.input, work.longest)]
    return max(ranges, key=lambda factors: factors[1])


def serving_row(result: SimulationResult, speed: Speed) -> ForecastRow:
    workload, seconds = result.workload, result.duration_s or 1.0
    low, high = serving_range(result, speed)
    row: ForecastRow = {
        "max_concurrency": workload.concurrency or None,
        "request_rate": workload.rate or "inf",
        "input_len": workload.input,
        "output_len": workload.output,
        "num_prompts": workload.requests,
        "completed": result.completed,
        "failed": result.rejected,
        "duration": round(result.duration_s, 3),
        "total_input_tokens": result.input_tokens,
        "total_output_tokens": result.output_tokens,
        "request_throughput": round(result.completed / seconds, 4),
        "output_throughput": round(result.output_tok_s, 2),
        "total_token_throughput": round((result.input_tokens + result.output_tokens) / seconds, 2),
        "low_tok_s": round(result.output_tok_s * low, 2),
        "high_tok_s": round(result.output_tok_s * high, 2),
    }
    for name in ("ttft", "tpot", "itl", "e2el"):
        times: Histogram = getattr(result, name)
        median, worst = times.quantile(0.5), times.quantile(0.99)
        figures = {"mean": times.mean, "median": median, "std": times.deviation, "p50": median, "p99": worst}
        row |= {f"{figure}_{name}_ms": round(seconds * 1e3, 3) for figure, seconds in figures.items()}
    return row | {
        "prefix_hit": round(result.hit_share, 4),
        "preemptions": result.preemptions,
        "peak_kv_tokens": round(result.peak_kv_tokens),
        "kv_tokens": result.kv_tokens,
    }
