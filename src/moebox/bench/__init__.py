"""Endpoint to measurements: workloads, a load generator that is never the bottleneck, and every figure defined once."""

from typing import TYPE_CHECKING

from moebox.core.endpoint import Endpoint

if TYPE_CHECKING:
    from moebox.core.result import Measurement


def measure_quickly(
    endpoint: Endpoint,
    *,
    concurrency: int,
    requests: int,
    input_tokens: int,
    output_tokens: int,
    seed: int = 0,
    warmup: int = 0,
) -> "Measurement":
    """One closed-loop measurement of random prompts, with every figure of docs/metrics.md."""
    from moebox.bench.measure import measure_load, probe_endpoint
    from moebox.core.measure import Load, Workload

    subject = probe_endpoint(endpoint)
    workload = Workload(input_tokens=input_tokens, output_tokens=output_tokens, seed=seed)
    load = Load(concurrency=min(concurrency, requests), requests=requests)
    return measure_load(subject, workload, load, warmup=warmup).result
