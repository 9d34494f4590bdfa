"""A measurement to change a figure of."""

from dataclasses import replace
from typing import Any

from moebox.core.measure import Load, Workload
from moebox.core.result import ClientCheck, LatencyStats, Measurement

CLIENT = ClientCheck(
    clock="kernel",
    workers=1,
    cpu_s=0.1,
    cpu_share=0.01,
    peak_cpu_share=0.02,
    cpu_us_per_token=7.0,
    read_lag_p50_ms=0.1,
    read_lag_p99_ms=0.2,
    read_lag_max_ms=0.3,
    send_lag_p99_ms=0.1,
    merged_share=0.0,
    estimated_share=0.0,
    peak_ready=3,
    retried=0,
    bytes_per_chunk=11,
    peak_rss_bytes=2**25,
)
MEASUREMENT = Measurement(
    tool="moebox 0.1",
    date="20261115-120000",
    backend="openai-chat",
    endpoint_type="openai-chat",
    model_id="m",
    tokenizer_id="calibrated words",
    num_prompts=10,
    request_rate="inf",
    burstiness=1.0,
    max_concurrency=4,
    duration=10.0,
    completed=10,
    failed=0,
    truncated=0,
    empty=0,
    cancelled=0,
    total_input_tokens=2560,
    total_output_tokens=1000,
    request_throughput=1.0,
    request_goodput=None,
    output_throughput=100.0,
    total_token_throughput=356.0,
    max_output_tokens_per_s=120.0,
    max_concurrent_requests=4,
    cached_input_tokens=0,
    stopped_early=0,
    ttft=LatencyStats(mean=200.0, median=200.0, std=1.0, p50=200.0, p90=201.0, p95=201.0, p99=202.0),
    workload=Workload(),
    load=Load(concurrency=4, requests=10),
    token_counts="usage",
    prompts_exact=True,
    client_limited=False,
    client=CLIENT,
)


def measurement(**changes: Any) -> Measurement:
    """The measurement with these figures instead."""
    return replace(MEASUREMENT, **changes)
