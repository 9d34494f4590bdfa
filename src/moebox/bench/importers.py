"""Results of other tools, in the same field names: vllm bench serve, sglang.bench_serving, guidellm, aiperf,
llama-bench.

What a tool does not say is left out; nothing is guessed. Each result says which `tool` it came from.
"""

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from moebox.errors import BadInput

LARGEST = 2**30  # bytes; guidellm keeps every request in its file
Result = dict[str, Any]
_FIGURES = ("ttft", "tpot", "itl", "e2el")


def load(path: Path) -> list[Result]:
    """Every result in a file, whichever tool wrote it; BadInput where none of them did."""
    results = []
    for value in _values(path):
        found = next((read(value) for recognise, read in _READERS if recognise(value)), None)
        if found is None:
            raise BadInput(
                f"{path}: not a result that can be read",
                hint="vllm bench serve, sglang.bench_serving, guidellm, aiperf and llama-bench (-o json or jsonl) are",
            )
        results += found
    return [{"format": 1, **_tidy(result), "source": path.name} for result in results]


def _values(path: Path) -> Iterator[Any]:
    """The JSON documents of a file: one, or one a line."""
    try:
        if path.stat().st_size > LARGEST:
            raise BadInput(f"{path}: more than {LARGEST:,} bytes")
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise BadInput(f"{path}: no such file") from None
    except IsADirectoryError:
        raise BadInput(f"{path}: is a folder, not a file") from None
    except (OSError, UnicodeDecodeError) as problem:
        raise BadInput(f"{path}: cannot be read: {problem}") from None
    try:
        yield json.loads(text)
        return
    except (json.JSONDecodeError, RecursionError):
        pass
    table = text[text.find("[") : text.rfind("]") + 1]  # ik_llama.cpp's llama-bench logs before and after its table
    with contextlib.suppress(json.JSONDecodeError, RecursionError):
        yield json.loads(table)
        return
    lines = [line for line in text.splitlines() if line.strip()]
    for number, line in enumerate(lines, 1):
        try:
            yield json.loads(line)
        except (json.JSONDecodeError, RecursionError) as problem:
            raise BadInput(f"{path}:{number}: not valid JSON: {problem}") from None
    if not lines:
        raise BadInput(f"{path}: empty")


def _has(value: Any, *keys: str) -> bool:
    return isinstance(value, dict) and all(key in value for key in keys)


def _ours(value: Result) -> list[Result]:
    return list(value["results"]) if "results" in value else [value]


def _vllm(value: Result) -> list[Result]:
    keep = {key: inner for key, inner in value.items() if not isinstance(inner, list)}
    return [{"kind": "serving", "tool": "vllm bench serve", **keep}]


def _sglang(value: Result) -> list[Result]:
    """The same names but for end-to-end latency; its dataset settings are top-level keys."""
    keep = {key: inner for key, inner in value.items() if not isinstance(inner, list | dict)}
    for kind in ("mean", "median", "std", "p90", "p99"):
        if f"{kind}_e2e_latency_ms" in keep:
            keep[f"{kind}_e2el_ms"] = keep.pop(f"{kind}_e2e_latency_ms")
    total = keep.pop("total_throughput", None)
    if total is None and "input_throughput" in keep:
        total = keep["input_throughput"] + keep.get("output_throughput", 0.0)
    return [{"kind": "serving", "tool": "sglang.bench_serving", **keep, "total_token_throughput": total}]


# Its time per output token has the first token's in it; its inter-token latency is a request's mean (last token less
# first over the tokens between), which others call TPOT (guidellm 0.8.1, benchmark/schemas/metrics.py and a run).
_GUIDELLM = {
    "ttft": "time_to_first_token_ms",
    "tpot": "inter_token_latency_ms",
    "e2el": "request_latency",  # seconds
}


def _guidellm(value: Result) -> list[Result]:
    return [_guidellm_level(level) for level in value["benchmarks"] if isinstance(level, dict)]


def _guidellm_level(level: Result) -> Result:
    metrics = level.get("metrics") or {}

    def stats(name: str) -> Result:
        metric = metrics.get(name) or {}
        return metric.get("successful") or metric.get("total") or {}

    totals = metrics.get("request_totals") or level.get("request_totals") or {}
    config = level.get("config") or level.get("args") or {}
    strategy = config.get("strategy") or {}
    result: Result = {
        "kind": "serving",
        "tool": "guidellm",
        "model_id": (config.get("backend") or {}).get("model"),
        "max_concurrency": strategy.get("streams") or strategy.get("max_concurrency"),
        "request_rate": strategy.get("rate") or "inf",
        "duration": level.get("duration"),
        "completed": totals.get("successful"),
        "failed": totals.get("errored"),
        "cancelled": totals.get("incomplete"),
        "request_throughput": stats("requests_per_second").get("mean"),
        "output_throughput": stats("output_tokens_per_second").get("mean"),
        "total_token_throughput": stats("tokens_per_second").get("mean"),
        "total_input_tokens": _whole(stats("prompt_token_count").get("total_sum")),
        "total_output_tokens": _whole(stats("output_token_count").get("total_sum")),
    }
    for name, theirs in _GUIDELLM.items():
        found = stats(theirs)
        scale = 1e3 if name == "e2el" else 1.0
        pairs = {"mean": found.get("mean"), "median": found.get("median"), "std": found.get("std_dev")}
        pairs |= {p: (found.get("percentiles") or {}).get(p) for p in ("p50", "p90", "p95", "p99")}
        result |= {f"{kind}_{name}_ms": v * scale for kind, v in pairs.items() if isinstance(v, int | float)}
    return result


def _whole(value: Any) -> Any:
    """A count as a whole number, where it is one."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


# Its inter-token latency is (latency - TTFT) / (tokens - 1) of a request: what others call TPOT.
_AIPERF = {
    "ttft": "time_to_first_token",
    "tpot": "inter_token_latency",
    "chunk_gap": "inter_chunk_latency",
    "e2el": "request_latency",
}
_UNITS = {"ms": 1.0, "milliseconds": 1.0, "sec": 1e3, "s": 1e3, "seconds": 1e3, "us": 1e-3, "ns": 1e-6}


def _aiperf(value: Result) -> list[Result]:
    def figure(name: str) -> Any:
        return _whole((value.get(name) or {}).get("avg"))

    config = value.get("input_config") or {}
    loadgen, model = _aiperf_load(config)
    result: Result = {
        "kind": "serving",
        "tool": "aiperf",
        "model_id": model,
        "max_concurrency": loadgen.get("concurrency"),
        "request_rate": loadgen.get("request_rate") or "inf",
        "duration": figure("benchmark_duration"),
        "completed": figure("request_count"),
        "failed": figure("error_request_count") or 0,
        "request_throughput": figure("request_throughput"),
        "output_throughput": figure("output_token_throughput"),
        "total_token_throughput": figure("total_token_throughput"),
        "total_output_tokens": figure("total_output_tokens") or figure("total_osl"),
        "total_input_tokens": figure("total_isl"),
        "token_counts": "tokenizer",
    }
    for name, theirs in _AIPERF.items():
        found = value.get(theirs) or {}
        scale = _UNITS.get(found.get("unit", "ms"), 1.0)
        pairs = {"mean": found.get("avg"), "median": found.get("p50"), "std": found.get("std")}
        pairs |= {p: found.get(p) for p in ("p50", "p90", "p95", "p99")}
        result |= {f"{kind}_{name}_ms": v * scale for kind, v in pairs.items() if isinstance(v, int | float)}
    return [result]


def _aiperf_load(config: Result) -> tuple[Result, str | None]:
    """Concurrency and rate, and the model, of newer files (0.13: phases, models) and older ones (loadgen, endpoint)."""
    phases = [p for p in config.get("phases") or [] if isinstance(p, dict) and p.get("kind") == "profiling"]
    names = [m.get("name") for m in (config.get("models") or {}).get("items") or [] if isinstance(m, dict)]
    names += (config.get("endpoint") or {}).get("model_names") or []
    return phases[0] if phases else config.get("loadgen") or {}, next(iter(names), None)


def _llama_bench(value: Any) -> list[Result]:
    rows = value if isinstance(value, list) else [value]
    if len({row.get("model_filename") for row in rows}) == 1:
        return [_llama_table(rows)]
    return [_llama_table([row]) for row in rows]


def _llama_table(rows: list[Result]) -> Result:
    return {
        "kind": "pp-tg",
        "tool": "llama-bench",
        "model_id": rows[0].get("model_type") or rows[0].get("model_filename"),
        "backend": rows[0].get("backends"),
        "date": rows[0].get("test_time"),
        "rows": [_llama_row(row) for row in rows],
    }


def _llama_row(row: Result) -> Result:
    prompt, made, depth = row.get("n_prompt", 0), row.get("n_gen", 0), row.get("n_depth", 0)
    name = f"pp{prompt}+tg{made}" if prompt and made else f"pp{prompt}" if prompt else f"tg{made}"
    return {
        "test": f"{name}@d{depth}" if depth else name,
        "cold": True,
        "tokens": prompt + made,
        "mean_tok_s": row["avg_ts"],
        "std_tok_s": row.get("stddev_ts"),
        "tries": len(row.get("samples_ts") or []) or None,
    }


def _tidy(result: Result) -> Result:
    """Without what is not known; goodput and the like stay null only in our own files."""
    if str(result.get("tool", "")).startswith("moebox"):
        return result
    tidy = {key: value for key, value in result.items() if value is not None}
    for name in _FIGURES:
        if f"p50_{name}_ms" in tidy:
            tidy.setdefault(f"median_{name}_ms", tidy[f"p50_{name}_ms"])
    return tidy


_READERS: tuple[tuple[Callable[[Any], bool], Callable[[Any], list[Result]]], ...] = (
    (lambda value: _has(value, "format", "tool") or _has(value, "kind", "results"), _ours),
    (lambda value: _has(value, "benchmarks") and isinstance(value["benchmarks"], list), _guidellm),
    (lambda value: _has(value, "mean_e2e_latency_ms") or _has(value, "total_output_tokens_retokenized"), _sglang),
    (lambda value: _has(value, "request_throughput", "mean_ttft_ms"), _vllm),
    (lambda value: _has(value, "request_latency") and isinstance(value["request_latency"], dict), _aiperf),
    (lambda value: _has(value, "avg_ts"), _llama_bench),
    (lambda value: isinstance(value, list) and bool(value) and all(_has(row, "avg_ts") for row in value), _llama_bench),
    (
        lambda value: isinstance(value, list) and bool(value) and all(_has(row, "mean_ttft_ms") for row in value),
        lambda value: [
            result for row in value for result in (_sglang(row) if "mean_e2e_latency_ms" in row else _vllm(row))
        ],
    ),
)
