"""Log lines of real engines to phases, progress, facts and errors."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moebox.core.registry import engine_names
from moebox.engines.engine import load_engine
from moebox.engines.events import LogEvent

LOGS = Path(__file__).parent / "logs"


def events(engine: str, log: str) -> list[LogEvent]:
    """Every event of a log."""
    lines = (LOGS / log).read_text().splitlines()
    return [event for line in lines if (event := load_engine(engine).parse_log_line(line))]


def facts(found: list[LogEvent]) -> dict[str, float]:
    """All facts together; the last one wins."""
    return {name: value for event in found for name, value in event.facts.items()}


def test_vllm_reports_its_memory_use():
    """The line of vLLM 0.26 on a GPU, as it logged it on an H200."""
    line = (
        "(EngineCore pid=8018) INFO 11-15 19:21:49 [gpu_worker.py:857] "
        "Free memory on device (139.29/139.8 GiB) on startup. "
        "Desired GPU memory utilization is (0.6, 83.88 GiB). Actual usage is 32.76 GiB for weight, 4.38 GiB for peak "
        "activation, 0.22 GiB for non-torch memory, and 0.0 GiB for CUDAGraph memory. Replace gpu_memory_utilization"
    )
    event = load_engine("vllm").parse_log_line(line)
    assert event
    assert {name: round(value / 2**30, 2) for name, value in event.facts.items()} == {
        "weights_bytes": 32.76,
        "activation_bytes": 4.38,
        "non_torch_bytes": 0.22,
        "graph_bytes": 0.0,
    }


def test_vllm_starting_up():
    """The phases in order, shards as progress, and what the cache holds (vLLM 0.32.0, CPU)."""
    found = events("vllm", "vllm-0.32.0-cpu.log")

    assert [event.phase for event in found if event.kind == "phase"] == ["starting", "loading weights"]
    assert [(event.done, event.total) for event in found if event.kind == "progress"] == [(0, 1), (1, 1)]
    assert facts(found) == {
        "load_s": 0.11,
        "kv_tokens": 310_688,
        "context": 8192,
        "max_concurrency": 37.93,
        "init_s": 3.02,
    }
    assert found[-1].kind == "ready"


@pytest.mark.parametrize(
    ("line", "wanted"),
    [  # formats of vLLM 0.32.0's gpu_worker.py and gpu_model_runner.py
        (
            "(Worker_TP3 pid=9) INFO 11-15 01:12:30 [gpu_model_runner.py:5150] "
            "Model loading took 72.33 GiB memory and 312.5 seconds",
            {"weights_bytes": 72.33 * 2**30, "load_s": 312.5},
        ),
        (
            "(Worker_TP3 pid=9) INFO 11-15 01:12:30 [gpu_worker.py:760] Available KV cache memory: 9.50 GiB",
            {"kv_bytes": 9.5 * 2**30},
        ),
        (
            "(Worker_TP3 pid=9) INFO [gpu_model_runner.py:6582] Graph capturing finished in 31 secs, took 1.25 GiB",
            {"graph_s": 31.0, "graph_bytes": 1.25 * 2**30},
        ),
    ],
)
def test_vllm_facts_of_one_gpu(line: str, wanted: dict[str, float]):
    """Memory per device is read with the rank it belongs to."""
    event = load_engine("vllm").parse_log_line(line)

    assert event is not None
    assert event.facts == wanted
    assert event.device in ("TP3", "")


def test_the_first_error_of_vllm_is_the_cause():
    """A worker that failed comes before the engine that followed it (vLLM 0.32.0)."""
    errors = [event for event in events("vllm", "vllm-0.32.0-moe-backend.log") if event.kind == "error"]

    assert "WorkerProc failed to start" in errors[0].text
    assert "No WNA16 MoE backend" in errors[1].text
    assert [event.kind for event in events("vllm", "vllm-0.32.0-port.log")] == ["error"]


@pytest.mark.parametrize(
    ("engine", "log", "compute"),
    [
        ("llama.cpp", "llama.cpp-b11669-cpu.log", 16.51),
        ("ik_llama.cpp", "ik_llama.cpp-2026-04-cpu.log", 61.69),
        ("ik_llama.cpp", "ik_llama.cpp-2026-08-cpu.log", 61.69),
    ],
)
def test_llama_servers_starting_up(engine: str, log: str, compute: float):
    """Buffers by device, the context, and ready at the end."""
    found = events(engine, log)

    assert facts(found) == {
        "weights_bytes": 46.01 * 2**20,
        "kv_tokens": 8192,
        "kv_bytes": 54.0 * 2**20,
        "activation_bytes": compute * 2**20,
    }
    assert {event.device for event in found if "weights_bytes" in event.facts} <= {"CPU", "CPU_Mapped"}
    assert found[0].phase == "starting"
    assert found[-1].kind == "ready"


@pytest.mark.parametrize(
    ("line", "kind", "wanted"),
    [  # formats of SGLang 0.5.23: model_runner.py, scheduler.py, cuda_graph_setup.py, http_server.py
        (
            "[2026-01-29 10:00:00 TP2] Load weight end. elapsed=210.55 s, type=DeepseekV3ForCausalLM, "
            "avail mem=12.24 GB, mem usage=73.87 GB.",
            "fact",
            {"load_s": 210.55, "weights_bytes": 73.87 * 2**30},
        ),
        (  # on an H200, which has 139.8 GiB: what SGLang calls GB is GiB
            "[2026-11-16 12:07:41] Load weight begin. avail mem=139.11 GB",
            "fact",
            {"free_bytes": 139.11 * 2**30},
        ),
        (
            "[2026-01-29 10:00:00] max_total_num_tokens=180191, chunked_prefill_size=8192, max_prefill_tokens=16384, "
            "max_running_requests=2048, context_len=131072, available_gpu_mem=5.10 GB",
            "fact",
            {"kv_tokens": 180191, "max_concurrency": 2048, "context": 131072},
        ),
        ("Loading safetensors checkpoint shards:  50% Completed | 62/124 [01:00<01:00, 1.0it/s]", "progress", {}),
        ("[..] Capture target decode CUDA graph begin. backend=full, avail mem=9.1 GB", "phase", {}),
        ("[2026-01-29 10:00:00] The server is fired up and ready to roll!", "ready", {}),
        ("[2026-01-29 10:00:00 TP0] Scheduler hit an exception: Traceback", "error", {}),
    ],
)
def test_sglang_lines(line: str, kind: str, wanted: dict[str, float]):
    """What SGLang prints while it starts."""
    event = load_engine("sglang").parse_log_line(line)

    assert event is not None
    assert (event.kind, event.facts) == (kind, wanted)


@given(st.text(max_size=200), st.sampled_from(engine_names()))
def test_no_line_breaks_the_reader(line: str, engine: str):
    """Logs hold anything."""
    event = load_engine(engine).parse_log_line(line)
    assert event is None or len(event.text) <= 500
