"""Other tools' results in our names. The files are cut down from what the tools wrote (vLLM 0.32) or document."""

import json
from pathlib import Path
from typing import Any

import pytest

from moebox.bench.importers import load_results
from moebox.errors import BadInput

VLLM = {
    "date": "20261115-011433",
    "backend": "openai-chat",
    "model_id": "kimi",
    "num_prompts": 16,
    "request_rate": "inf",
    "max_concurrency": 4,
    "duration": 4.95,
    "completed": 16,
    "failed": 0,
    "request_throughput": 3.22,
    "request_goodput": None,
    "output_throughput": 103.25,
    "total_token_throughput": 336.3,
    "itls": [[0.1]],
    "mean_ttft_ms": 322.8,
    "p99_itl_ms": 152.3,
}
SGLANG = {
    "backend": "sglang",
    "max_concurrency": 8,
    "completed": 3,
    "request_throughput": 1.5,
    "input_throughput": 10.0,
    "output_throughput": 20.0,
    "mean_e2e_latency_ms": 900.0,
    "mean_ttft_ms": 50.0,
    "accept_length": 2.5,
}
GUIDELLM = {
    "benchmarks": [
        {
            "duration": 30.0,
            "config": {"strategy": {"type_": "concurrent", "streams": 16}},
            "metrics": {
                "request_totals": {"successful": 9, "errored": 1, "incomplete": 2},
                "requests_per_second": {"successful": {"mean": 0.3}},
                "output_tokens_per_second": {"successful": {"mean": 77.0}},
                "request_latency": {"successful": {"mean": 2.5, "percentiles": {"p99": 3.0}}},
                "time_to_first_token_ms": {"successful": {"mean": 60.0, "std_dev": 4.0, "percentiles": {"p50": 59.0}}},
            },
        }
    ]
}
AIPERF = {
    "request_throughput": {"unit": "requests/sec", "avg": 2.0},
    "output_token_throughput": {"unit": "tokens/sec", "avg": 200.0},
    "request_latency": {"unit": "ms", "avg": 1000.0, "p99": 1500.0},
    "time_to_first_token": {"unit": "ms", "avg": 80.0, "p50": 75.0, "std": 3.0},
    "inter_token_latency": {"unit": "ms", "avg": 9.0},
    "request_count": {"unit": "requests", "avg": 32.0},
    "input_config": {"loadgen": {"concurrency": 4}},
}
LLAMA = [
    {"model_type": "k2", "model_filename": "k.gguf", "n_prompt": 512, "n_gen": 0, "avg_ts": 300.5, "stddev_ts": 2.0},
    {
        "model_type": "k2",
        "model_filename": "k.gguf",
        "n_prompt": 0,
        "n_gen": 128,
        "avg_ts": 19.5,
        "samples_ts": [19, 20],
    },
]

RESULTS = Path(__file__).parent / "results"  # written by the tools against the schedule server, and cut down


def read(folder: Path, content: Any) -> list[dict[str, Any]]:
    """What importing this content gives."""
    path = folder / "result.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return load_results(path)


def test_vllms_names_are_kept(tmp_path: Path) -> None:
    """Figures pass through; lists of every request do not."""
    (result,) = read(tmp_path, VLLM)

    assert (result["tool"], result["mean_ttft_ms"], result["p99_itl_ms"]) == ("vllm bench serve", 322.8, 152.3)
    assert "itls" not in result
    assert result["source"] == "result.json"


def test_sglangs_lines_are_each_a_result(tmp_path: Path) -> None:
    """JSON lines, with end-to-end latency under our name."""
    results = read(tmp_path, json.dumps(SGLANG) + "\n" + json.dumps(SGLANG) + "\n")

    assert [result["mean_e2el_ms"] for result in results] == [900.0, 900.0]
    assert results[0]["total_token_throughput"] == 30.0


def test_guidellms_seconds_become_milliseconds(tmp_path: Path) -> None:
    """One result for each of its benchmarks."""
    (result,) = read(tmp_path, GUIDELLM)

    assert (result["tool"], result["max_concurrency"], result["completed"], result["failed"]) == ("guidellm", 16, 9, 1)
    assert (result["mean_e2el_ms"], result["p99_e2el_ms"], result["mean_ttft_ms"]) == (2500.0, 3000.0, 60.0)
    assert result["median_ttft_ms"] == 59.0


def test_aiperfs_blocks_are_flattened(tmp_path: Path) -> None:
    """Its inter-token latency is a request's mean: TPOT to everyone else."""
    (result,) = read(tmp_path, AIPERF)

    assert (result["mean_ttft_ms"], result["mean_tpot_ms"], result["max_concurrency"]) == (80.0, 9.0, 4)
    assert (result["output_throughput"], result["completed"]) == (200.0, 32.0)


def test_a_file_of_guidellm_0_8() -> None:
    """12 requests of 20 tokens, one each 20 ms: its inter-token latency is our TPOT, its time per token is not."""
    (result,) = load_results(RESULTS / "guidellm-0.8.1.json")

    assert (result["completed"], result["failed"], result["max_concurrency"]) == (12, 0, 4)
    assert (result["total_output_tokens"], result["model_id"]) == (240, "schedule")
    assert result["mean_tpot_ms"] == pytest.approx(19.86, abs=0.01)
    assert result["mean_ttft_ms"] == pytest.approx(206.92, abs=0.01)
    assert result["p99_e2el_ms"] == pytest.approx(594.0, abs=0.1)
    assert "p99_itl_ms" not in result, "it does not say"


def test_a_file_of_aiperf_0_13() -> None:
    """Its load is in phases, its model in a list; tokens are those of its own tokenizer."""
    (result,) = load_results(RESULTS / "aiperf-0.13.0.json")

    assert (result["completed"], result["max_concurrency"], result["model_id"]) == (12, 4, "schedule")
    assert (result["total_output_tokens"], result["token_counts"]) == (4560, "tokenizer")
    assert result["mean_chunk_gap_ms"] == pytest.approx(18.98, abs=0.01)
    assert result["mean_ttft_ms"] == pytest.approx(254.48, abs=0.01)
    assert "p99_itl_ms" not in result, "it does not say"


@pytest.mark.parametrize("around", ["{}", "main: n_ctx = 4096\n{}\nbuild: 1\n"])
def test_llama_bench_gives_prefill_and_decode(tmp_path: Path, around: str) -> None:
    """Rows named as llama.cpp's people name them, log lines around them or not."""
    (result,) = read(tmp_path, around.format(json.dumps(LLAMA)) if around != "{}" else LLAMA)

    assert [(row["test"], row["mean_tok_s"]) for row in result["rows"]] == [("pp512", 300.5), ("tg128", 19.5)]
    assert result["kind"] == "pp-tg"


@pytest.mark.parametrize("content", ["", "{}", "[]", "not json", '{"benchmarks": 3}', "[1, 2]", '"x"'])
def test_anything_else_is_refused_in_one_line(tmp_path: Path, content: str) -> None:
    """No traceback for a file of another kind."""
    with pytest.raises(BadInput, match=r"result\.json"):
        read(tmp_path, content)
