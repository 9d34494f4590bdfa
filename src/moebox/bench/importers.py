"""Results of other tools under moebox's field names: vllm bench serve, sglang.bench_serving, guidellm, aiperf,
llama-bench.

What a tool does not report is left out; nothing is estimated. Each result names the `tool` it came from.
"""

import contextlib
from pathlib import Path
from typing import Any

from moebox.bench.prompts import parse_json, parse_json_lines, read_json_text
from moebox.errors import BadInput, refuse_if
from moebox.loose import Json, get_number, get_object, get_objects, get_path, get_text, get_texts

ToolResult = dict[str, Any]
_LATENCIES = ("ttft", "tpot", "itl", "e2el")
# guidellm's time per output token includes the first token's; its inter-token latency is a request's mean (last token
# less first over the tokens between), which others call TPOT (guidellm 0.8.1, benchmark/schemas/metrics.py and a run).
_GUIDELLM_NAMES = {
    "ttft": "time_to_first_token_ms",
    "tpot": "inter_token_latency_ms",
    "e2el": "request_latency",  # seconds
}
# aiperf's inter-token latency is (latency - TTFT) / (tokens - 1) of a request: what others call TPOT.
_AIPERF_NAMES = {
    "ttft": "time_to_first_token",
    "tpot": "inter_token_latency",
    "chunk_gap": "inter_chunk_latency",
    "e2el": "request_latency",
}
_UNITS = {"ms": 1.0, "milliseconds": 1.0, "sec": 1e3, "s": 1e3, "seconds": 1e3, "us": 1e-3, "ns": 1e-6}


def load_results(path: Path) -> list[ToolResult]:
    """Load every result in a file of any known tool. Raise BadInput if the format is unknown."""
    results = []
    for document in _read_documents(path):
        found = _read_result(document)
        if found is None:
            raise BadInput(
                f"{path}: not a result that can be read",
                hint="vllm bench serve, sglang.bench_serving, guidellm, aiperf and llama-bench (-o json or jsonl) are",
            )
        results += found
    return [{"format": 1, **_drop_unknown(result), "source": path.name} for result in results]


def _read_documents(path: Path) -> list[Any]:
    """Return the JSON documents of a file: one, or one a line."""
    text = read_json_text(path)
    refuse_if(not text.strip(), f"{path}: empty")
    table = text[text.find("[") : text.rfind("]") + 1]  # ik_llama.cpp's llama-bench logs before and after its table
    for document in (text, table):
        with contextlib.suppress(BadInput):
            return [parse_json(document, str(path))]
    return [value for _, value in parse_json_lines(text, str(path))]


def _read_result(value: Any) -> list[ToolResult] | None:
    """Return the results of one document, or None if no known tool wrote it."""
    if isinstance(value, list):
        rows = [row for row in value if isinstance(row, dict)]
        if not rows or len(rows) < len(value):
            return None
        if all("avg_ts" in row for row in rows):
            return _read_llama_bench(rows)
        if all("mean_ttft_ms" in row for row in rows):
            return [_read_sglang(row) if "mean_e2e_latency_ms" in row else _read_vllm(row) for row in rows]
        return None
    if not isinstance(value, dict):
        return None
    keys = value.keys()
    if {"format", "tool"} <= keys or {"kind", "results"} <= keys:  # moebox's own
        return list(value["results"]) if "results" in value else [value]
    if isinstance(value.get("benchmarks"), list):
        return [_read_guidellm(load) for load in value["benchmarks"] if isinstance(load, dict)]
    if "mean_e2e_latency_ms" in value or "total_output_tokens_retokenized" in value:
        return [_read_sglang(value)]
    if {"request_throughput", "mean_ttft_ms"} <= keys:
        return [_read_vllm(value)]
    if isinstance(value.get("request_latency"), dict):
        return [_read_aiperf(value)]
    return _read_llama_bench([value]) if "avg_ts" in value else None


def _read_vllm(value: ToolResult) -> ToolResult:
    kept = {key: inner for key, inner in value.items() if not isinstance(inner, list)}
    return {"kind": "serving", "tool": "vllm bench serve", **kept}


def _read_sglang(value: ToolResult) -> ToolResult:
    """vLLM's names but for end-to-end latency; its dataset settings are top-level keys."""
    plain = {key: inner for key, inner in value.items() if not isinstance(inner, list | dict)}
    kept = {key.replace("_e2e_latency_ms", "_e2el_ms"): inner for key, inner in plain.items()}
    total = kept.pop("total_throughput", None)
    if total is None and "input_throughput" in kept:
        total = kept["input_throughput"] + kept.get("output_throughput", 0.0)
    return {"kind": "serving", "tool": "sglang.bench_serving", **kept, "total_token_throughput": total}


def _read_guidellm(load: ToolResult) -> ToolResult:
    def stats(name: str) -> Json:
        return get_object(load, f"metrics.{name}.successful") or get_object(load, f"metrics.{name}.total")

    totals = get_object(load, "metrics.request_totals", "request_totals")
    config = get_object(load, "config", "args")
    strategy = get_object(config, "strategy")
    result: ToolResult = {
        "kind": "serving",
        "tool": "guidellm",
        "model_id": get_path(config, "backend.model"),
        "max_concurrency": _as_count(get_number(strategy, "streams", "max_concurrency")),
        "request_rate": get_number(strategy, "rate") or "inf",
        "duration": load.get("duration"),
        "completed": totals.get("successful"),
        "failed": totals.get("errored"),
        "cancelled": totals.get("incomplete"),
        "request_throughput": stats("requests_per_second").get("mean"),
        "output_throughput": stats("output_tokens_per_second").get("mean"),
        "total_token_throughput": stats("tokens_per_second").get("mean"),
        "total_input_tokens": _as_count(stats("prompt_token_count").get("total_sum")),
        "total_output_tokens": _as_count(stats("output_token_count").get("total_sum")),
    }
    for name, theirs in _GUIDELLM_NAMES.items():
        result |= _latency_fields(name, stats(theirs), 1e3 if name == "e2el" else 1.0)
    return result


def _read_aiperf(value: ToolResult) -> ToolResult:
    def average(*names: str) -> Any:
        return _as_count(get_number(value, *(f"{name}.avg" for name in names)))

    # Newer files (0.13) have phases and models, older ones loadgen and endpoint.
    config = get_object(value, "input_config")
    phases = [phase for phase in get_objects(config, "phases") if phase.get("kind") == "profiling"]
    load = [*phases, get_object(config, "loadgen")][0]
    models = [get_text(model, "name") for model in get_objects(config, "models.items")]
    models += get_texts(config, "endpoint.model_names")
    result: ToolResult = {
        "kind": "serving",
        "tool": "aiperf",
        "model_id": next(iter(models), None),
        "max_concurrency": load.get("concurrency"),
        "request_rate": load.get("request_rate") or "inf",
        "duration": average("benchmark_duration"),
        "completed": average("request_count"),
        "failed": average("error_request_count") or 0,
        "request_throughput": average("request_throughput"),
        "output_throughput": average("output_token_throughput"),
        "total_token_throughput": average("total_token_throughput"),
        "total_output_tokens": average("total_output_tokens", "total_osl"),
        "total_input_tokens": average("total_isl"),
        "token_counts": "tokenizer",
    }
    for name, theirs in _AIPERF_NAMES.items():
        found = get_object(value, theirs)
        result |= _latency_fields(name, found, _UNITS.get(get_text(found, "unit"), 1.0))
    return result


def _latency_fields(name: str, stats: Json, scale: float) -> ToolResult:
    """Return one latency under the serving benchmark's names; `scale` converts it to milliseconds."""
    theirs = {"mean": ("mean", "avg"), "median": ("median", "p50"), "std": ("std_dev", "std")}
    theirs |= {key: (key, f"percentiles.{key}") for key in ("p50", "p90", "p95", "p99")}
    figures = {kind: get_number(stats, *names) for kind, names in theirs.items()}
    return {f"{kind}_{name}_ms": value * scale for kind, value in figures.items() if value is not None}


def _as_count(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _read_llama_bench(tests: list[ToolResult]) -> list[ToolResult]:
    """Return one table for tests of one model, else one for each test."""
    if len({test.get("model_filename") for test in tests}) > 1:
        return [table for test in tests for table in _read_llama_bench([test])]
    rows = []
    for test in tests:
        prompt, made, depth = test.get("n_prompt", 0), test.get("n_gen", 0), test.get("n_depth", 0)
        name = f"pp{prompt}" if prompt else f"tg{made}"
        if prompt and made:
            name = f"pp{prompt}+tg{made}"
        row = {
            "test": f"{name}@d{depth}" if depth else name,
            "cold": True,
            "tokens": prompt + made,
            "mean_tok_s": test["avg_ts"],
            "std_tok_s": test.get("stddev_ts"),
            "tries": len(test.get("samples_ts") or []) or None,
        }
        rows.append(row)
    first = tests[0]
    table = {
        "kind": "pp-tg",
        "tool": "llama-bench",
        "model_id": first.get("model_type") or first.get("model_filename"),
        "backend": first.get("backends"),
        "date": first.get("test_time"),
        "rows": rows,
    }
    return [table]


def _drop_unknown(result: ToolResult) -> ToolResult:
    """Drop fields without a value; in moebox's own files goodput and the like stay null."""
    if str(result.get("tool", "")).startswith("moebox"):
        return result
    known = {key: value for key, value in result.items() if value is not None}
    for name in _LATENCIES:
        if f"p50_{name}_ms" in known:
            known.setdefault(f"median_{name}_ms", known[f"p50_{name}_ms"])
    return known
