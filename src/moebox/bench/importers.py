"""Results of other tools, in the same field names: vllm bench serve, sglang.bench_serving, guidellm, aiperf,
llama-bench.

What a tool does not say is left out; nothing is guessed. Each result says which `tool` it came from.
"""

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from moebox.bench import json_files
from moebox.errors import BadInput
from moebox.loose import Document, Json, get_number, get_object, get_objects, get_path, get_text, get_texts, is_number

ToolResult = dict[str, Any]
_LATENCIES = ("ttft", "tpot", "itl", "e2el")


def load_results(path: Path) -> list[ToolResult]:
    """Every result in a file, whichever tool wrote it; BadInput where none of them did."""
    results = []
    for value in _read_documents(path):
        found = next((read(value) for recognise, read in _READERS if recognise(value)), None)
        if found is None:
            raise BadInput(
                f"{path}: not a result that can be read",
                hint="vllm bench serve, sglang.bench_serving, guidellm, aiperf and llama-bench (-o json or jsonl) are",
            )
        results += found
    return [{"format": 1, **_drop_unknown(result), "source": path.name} for result in results]


def _read_documents(path: Path) -> list[Any]:
    """The JSON documents of a file: one, or one a line."""
    text = json_files.read_json_text(path)
    if not text.strip():
        raise BadInput(f"{path}: empty")
    table = text[text.find("[") : text.rfind("]") + 1]  # ik_llama.cpp's llama-bench logs before and after its table
    for document in (text, table):
        with contextlib.suppress(BadInput):
            return [json_files.parse_json(document, str(path))]
    return [value for _, value in json_files.parse_json_lines(text, str(path))]


def _has_keys(value: Any, *keys: str) -> bool:
    return isinstance(value, dict) and all(key in value for key in keys)


def _read_moebox(value: ToolResult) -> list[ToolResult]:
    return list(value["results"]) if "results" in value else [value]


def _read_vllm(value: ToolResult) -> list[ToolResult]:
    keep = {key: inner for key, inner in value.items() if not isinstance(inner, list)}
    return [{"kind": "serving", "tool": "vllm bench serve", **keep}]


def _read_sglang(value: ToolResult) -> list[ToolResult]:
    """The same names but for end-to-end latency; its dataset settings are top-level keys."""
    plain = {key: inner for key, inner in value.items() if not isinstance(inner, list | dict)}
    keep = {key.replace("_e2e_latency_ms", "_e2el_ms"): inner for key, inner in plain.items()}
    total = keep.pop("total_throughput", None)
    if total is None and "input_throughput" in keep:
        total = keep["input_throughput"] + keep.get("output_throughput", 0.0)
    return [{"kind": "serving", "tool": "sglang.bench_serving", **keep, "total_token_throughput": total}]


# Its time per output token has the first token's in it; its inter-token latency is a request's mean (last token less
# first over the tokens between), which others call TPOT (guidellm 0.8.1, benchmark/schemas/metrics.py and a run).
_GUIDELLM_NAMES = {
    "ttft": "time_to_first_token_ms",
    "tpot": "inter_token_latency_ms",
    "e2el": "request_latency",  # seconds
}


def _read_guidellm(value: ToolResult) -> list[ToolResult]:
    return [_guidellm_level(level) for level in value["benchmarks"] if isinstance(level, dict)]


def _guidellm_level(level: ToolResult) -> ToolResult:
    def stats(name: str) -> Json:
        return get_object(level, f"metrics.{name}.successful") or get_object(level, f"metrics.{name}.total")

    totals = get_object(level, "metrics.request_totals", "request_totals")
    config = get_object(level, "config", "args")
    strategy = get_object(config, "strategy")
    result: ToolResult = {
        "kind": "serving",
        "tool": "guidellm",
        "model_id": get_path(config, "backend.model"),
        "max_concurrency": _as_count(get_number(strategy, "streams", "max_concurrency")),
        "request_rate": get_number(strategy, "rate") or "inf",
        "duration": level.get("duration"),
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
        found = stats(theirs)
        middle = {"mean": found.get("mean"), "median": found.get("median"), "std": found.get("std_dev")}
        scale = 1e3 if name == "e2el" else 1.0
        result |= _latency_fields(name, middle | _pick_percentiles(get_object(found, "percentiles")), scale)
    return result


def _pick_percentiles(row: Json) -> Document:
    return {name: row.get(name) for name in ("p50", "p90", "p95", "p99")}


def _latency_fields(name: str, figures: Document, scale: float) -> ToolResult:
    """One latency in the serving benchmark's names; `scale` makes milliseconds of it."""
    return {f"{kind}_{name}_ms": value * scale for kind, value in figures.items() if is_number(value)}


def _as_count(value: Any) -> Any:
    """A count as a whole number, where it is one."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


# Its inter-token latency is (latency - TTFT) / (tokens - 1) of a request: what others call TPOT.
_AIPERF_NAMES = {
    "ttft": "time_to_first_token",
    "tpot": "inter_token_latency",
    "chunk_gap": "inter_chunk_latency",
    "e2el": "request_latency",
}
_UNITS = {"ms": 1.0, "milliseconds": 1.0, "sec": 1e3, "s": 1e3, "seconds": 1e3, "us": 1e-3, "ns": 1e-6}


def _read_aiperf(value: ToolResult) -> list[ToolResult]:
    def average(*names: str) -> Any:
        return _as_count(get_number(value, *(f"{name}.avg" for name in names)))

    loadgen, model = _aiperf_load(get_object(value, "input_config"))
    result: ToolResult = {
        "kind": "serving",
        "tool": "aiperf",
        "model_id": model,
        "max_concurrency": loadgen.get("concurrency"),
        "request_rate": loadgen.get("request_rate") or "inf",
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
        middle = {"mean": found.get("avg"), "median": found.get("p50"), "std": found.get("std")}
        result |= _latency_fields(name, middle | _pick_percentiles(found), _UNITS.get(get_text(found, "unit"), 1.0))
    return [result]


def _aiperf_load(config: Json) -> tuple[Json, str | None]:
    """Concurrency and rate, and the model, of newer files (0.13: phases, models) and older ones (loadgen, endpoint)."""
    phases = [phase for phase in get_objects(config, "phases") if phase.get("kind") == "profiling"]
    names = [get_text(model, "name") for model in get_objects(config, "models.items")]
    names += get_texts(config, "endpoint.model_names")
    return [*phases, get_object(config, "loadgen")][0], next(iter(names), None)


def _read_llama_bench(value: Any) -> list[ToolResult]:
    tests = value if isinstance(value, list) else [value]
    if len({test.get("model_filename") for test in tests}) == 1:
        return [_llama_table(tests)]
    return [_llama_table([test]) for test in tests]


def _llama_table(tests: list[ToolResult]) -> ToolResult:
    first = tests[0]
    return {
        "kind": "pp-tg",
        "tool": "llama-bench",
        "model_id": first.get("model_type") or first.get("model_filename"),
        "backend": first.get("backends"),
        "date": first.get("test_time"),
        "rows": [_llama_row(test) for test in tests],
    }


def _llama_row(row: ToolResult) -> ToolResult:
    prompt, made, depth = row.get("n_prompt", 0), row.get("n_gen", 0), row.get("n_depth", 0)
    name = _llama_test(prompt, made)
    return {
        "test": f"{name}@d{depth}" if depth else name,
        "cold": True,
        "tokens": prompt + made,
        "mean_tok_s": row["avg_ts"],
        "std_tok_s": row.get("stddev_ts"),
        "tries": len(row.get("samples_ts") or []) or None,
    }


def _llama_test(prompt: int, made: int) -> str:
    if not prompt:
        return f"tg{made}"
    return f"pp{prompt}+tg{made}" if made else f"pp{prompt}"


def _drop_unknown(result: ToolResult) -> ToolResult:
    """Without what is not known; goodput and the like stay null only in our own files."""
    if str(result.get("tool", "")).startswith("moebox"):
        return result
    tidy = {key: value for key, value in result.items() if value is not None}
    for name in _LATENCIES:
        if f"p50_{name}_ms" in tidy:
            tidy.setdefault(f"median_{name}_ms", tidy[f"p50_{name}_ms"])
    return tidy


_READERS: tuple[tuple[Callable[[Any], bool], Callable[[Any], list[ToolResult]]], ...] = (
    (lambda value: _has_keys(value, "format", "tool") or _has_keys(value, "kind", "results"), _read_moebox),
    (lambda value: _has_keys(value, "benchmarks") and isinstance(value["benchmarks"], list), _read_guidellm),
    (
        lambda value: _has_keys(value, "mean_e2e_latency_ms") or _has_keys(value, "total_output_tokens_retokenized"),
        _read_sglang,
    ),
    (lambda value: _has_keys(value, "request_throughput", "mean_ttft_ms"), _read_vllm),
    (lambda value: _has_keys(value, "request_latency") and isinstance(value["request_latency"], dict), _read_aiperf),
    (lambda value: _has_keys(value, "avg_ts"), _read_llama_bench),
    (
        lambda value: isinstance(value, list) and bool(value) and all(_has_keys(row, "avg_ts") for row in value),
        _read_llama_bench,
    ),
    (
        lambda value: isinstance(value, list) and bool(value) and all(_has_keys(row, "mean_ttft_ms") for row in value),
        lambda value: [
            result
            for row in value
            for result in (_read_sglang(row) if "mean_e2e_latency_ms" in row else _read_vllm(row))
        ],
    ),
)
