"""Forecast rows from a speed model: decoding, prompts, one stream on CPU and GPUs, and serving by simulation.

Rows are plain dicts under the names that scripts rely on; every rate comes with the band that the published rows give.
"""

from collections.abc import Iterable
from typing import Any

from moebox.planner.schedule import SchedulerRules
from moebox.planner.simulate import Histogram, SimulatedWorkload, SimulationResult, simulate
from moebox.planner.speed import Speed

ForecastRow = dict[str, Any]


def decode_rows(
    speed: Speed, contexts: Iterable[int], streams: Iterable[int], kv_tokens: int, max_seqs: int | None = None
) -> list[ForecastRow]:
    """`streams` sequences that decode at `context`, no prompts: as decode benchmarks report it.

    A row `fits` where the cache and the engine's limit of sequences admit all of them.
    """
    streams = tuple(streams)
    rows = [_decode(speed, context, count, kv_tokens) for context in contexts for count in streams]
    return [{**row, "fits": row["fits"] and row["concurrency"] <= (max_seqs or row["concurrency"])} for row in rows]


def prefill_rows(speed: Speed, prompts: Iterable[int]) -> list[ForecastRow]:
    """One cold prompt alone on the machine."""
    rows = []
    for tokens in prompts:
        low, high = speed.prompt_range(tokens)
        seconds = speed.prefill_s(tokens)
        rate = tokens / seconds
        rows.append(
            {
                "prompt_tokens": tokens,
                "prefill_tok_s": round(rate, 1),
                "ttft_s": round(seconds, 4),
                "low_tok_s": round(rate * low, 1),
                "high_tok_s": round(rate * high, 1),
            }
        )
    return rows


def stream_rows(speed: Speed, contexts: Iterable[int], prompt: int) -> list[ForecastRow]:
    """CPU+GPU engines: one stream's token generation and prompt processing."""
    low, high = speed.decode_range
    slow, fast = speed.prompt_range(prompt)
    pp = speed.prefill_tok_s(prompt)
    rows = []
    for context in contexts:
        tg = speed.decode_tok_s(1, context)
        rows.append(
            {
                "context": context,
                "concurrency": 1,
                "tg_tok_s": round(tg, 2),
                "tg_low_tok_s": round(tg * low, 2),
                "tg_high_tok_s": round(tg * high, 2),
                "prompt_tokens": prompt,
                "pp_tok_s": round(pp, 1),
                "pp_low_tok_s": round(pp * slow, 1),
                "pp_high_tok_s": round(pp * fast, 1),
            }
        )
    return rows


def serving_rows(speed: Speed, rules: SchedulerRules, workloads: Iterable[SimulatedWorkload]) -> list[ForecastRow]:
    """Each workload simulated, under the field names of vLLM's serving benchmark."""
    return [serving_row(simulate(speed, rules, workload), speed) for workload in workloads]


def serving_row(outcome: SimulationResult, speed: Speed) -> ForecastRow:
    """One simulated run."""
    low, high = speed.decode_range
    work = outcome.workload
    seconds = outcome.duration_s or 1.0
    row: ForecastRow = {
        "max_concurrency": work.concurrency or None,
        "request_rate": work.rate or "inf",
        "input_len": work.input,
        "output_len": work.output,
        "num_prompts": work.requests,
        "completed": outcome.completed,
        "failed": outcome.rejected,
        "duration": round(outcome.duration_s, 3),
        "total_input_tokens": outcome.input_tokens,
        "total_output_tokens": outcome.output_tokens,
        "request_throughput": round(outcome.completed / seconds, 4),
        "output_throughput": round(outcome.output_tok_s, 2),
        "total_token_throughput": round(outcome.total_tok_s, 2),
        "low_tok_s": round(outcome.output_tok_s * low, 2),
        "high_tok_s": round(outcome.output_tok_s * high, 2),
    }
    for name in ("ttft", "tpot", "itl", "e2el"):
        row |= _times(name, getattr(outcome, name))
    row |= {
        "preemptions": outcome.preemptions,
        "peak_kv_tokens": round(outcome.peak_kv_tokens),
        "kv_tokens": outcome.kv_tokens,
    }
    return row


def _decode(speed: Speed, context: int, streams: int, kv_tokens: int) -> ForecastRow:
    low, high = speed.decode_range
    rate = speed.decode_tok_s(streams, context)
    return {
        "context": context,
        "concurrency": streams,
        "decode_tok_s": round(rate, 2),
        "low_tok_s": round(rate * low, 2),
        "high_tok_s": round(rate * high, 2),
        "itl_ms": round(speed.step_s(streams, context) * 1e3, 3),
        "tokens_per_step": round(speed.tokens_per_step, 3),
        "fits": context * streams <= kv_tokens,
    }


def _times(name: str, times: Histogram) -> ForecastRow:
    return {
        f"mean_{name}_ms": round(times.mean * 1e3, 3),
        f"median_{name}_ms": round(times.quantile(0.5) * 1e3, 3),
        f"std_{name}_ms": round(times.deviation * 1e3, 3),
        f"p50_{name}_ms": round(times.quantile(0.5) * 1e3, 3),
        f"p99_{name}_ms": round(times.quantile(0.99) * 1e3, 3),
    }
