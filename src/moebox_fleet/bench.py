"""`moebox fleet bench`: throughput by number of members, and the cost of the router in TTFT and CPU."""

from dataclasses import dataclass, replace

import psutil

from moebox.bench.measure import measure_load
from moebox.bench.probe import probe_endpoint
from moebox.core.endpoint import Endpoint
from moebox.core.measure import Load, Workload
from moebox.errors import refuse_if
from moebox.serve.watch import Notify
from moebox.units import plural
from moebox_fleet.program import GuardedProgram
from moebox_fleet.up import FleetRecord, find_router_program, start_router


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetLoad:
    concurrency: int = 8  # per member
    requests: int = 64  # per member
    input_tokens: int = 256
    output_tokens: int = 64
    probes: int = 32  # single requests, for the added TTFT
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetBenchStep:
    """The result for one number of members."""

    members: int
    output_throughput: float
    scaling: float  # throughput relative to as many times that of one member
    mean_ttft_ms: float
    p99_ttft_ms: float
    mean_tpot_ms: float
    completed: int
    failed: int
    direct_ttft_ms: float  # median of single requests without the router
    routed_ttft_ms: float  # the same through the router
    router_cpu_s: float  # during the load
    router_cpu_share: float  # of one core, during the load
    router_cpu_ms_per_request: float
    client_limited: bool


def bench_fleet(
    record: FleetRecord, sizes: tuple[int, ...], load: FleetLoad, *, notify: Notify = lambda _: None
) -> list[FleetBenchStep]:
    """Measure with a separate router in front of the first 1, 2, … members."""
    text = f"{record.name} has {len(record.members)} members"
    refuse_if(not sizes or min(sizes) < 1 or max(sizes) > len(record.members), text, hint="--members 1,2")
    steps: list[FleetBenchStep] = []
    for size in sizes:
        notify(f"{plural(size, 'member')} behind {record.router.kind}")
        steps.append(_measure_size(record, size, load))
    alone = next((step.output_throughput / step.members for step in steps if step.output_throughput), 1.0)
    return [replace(step, scaling=step.output_throughput / (alone * step.members)) for step in steps]


def _measure_size(record: FleetRecord, size: int, load: FleetLoad) -> FleetBenchStep:
    members = record.members[:size]
    direct = _median_ttft(record.member_endpoint(members[0]), load, offset=size << 20)
    settings = replace(record.router, port=0, metrics_port=0)
    router = start_router(f"{record.name}-bench", settings, record.model, members, find_router_program(settings))
    try:
        routed = _median_ttft(replace(router.endpoint, engine=record.engine), load, offset=(size << 20) + (1 << 16))
        workload = Workload(input_tokens=load.input_tokens, output_tokens=load.output_tokens, seed=load.seed + size)
        whole = Load(concurrency=load.concurrency * size, requests=load.requests * size)
        before = _cpu_seconds(router)
        result = measure_load(
            probe_endpoint(router.endpoint), workload, whole, warmup=size, scrape_metrics=False
        ).result
        spent = _cpu_seconds(router) - before
    finally:
        router.stop()
    return FleetBenchStep(
        members=size,
        output_throughput=result.output_throughput,
        scaling=0.0,
        mean_ttft_ms=result.ttft.mean or 0.0,
        p99_ttft_ms=result.ttft.p99 or 0.0,
        mean_tpot_ms=result.tpot.mean or 0.0,
        completed=result.completed,
        failed=result.failed,
        direct_ttft_ms=direct,
        routed_ttft_ms=routed,
        router_cpu_s=spent,
        router_cpu_share=spent / result.duration if result.duration else 0.0,
        router_cpu_ms_per_request=spent * 1e3 / max(result.completed, 1),
        client_limited=result.client_limited,
    )


def _median_ttft(endpoint: Endpoint, load: FleetLoad, *, offset: int) -> float:
    """Median TTFT of single short requests; `offset` makes prompts differ, so that no prefix is cached."""
    work = Workload(input_tokens=load.input_tokens, output_tokens=2, seed=load.seed)
    found = measure_load(
        probe_endpoint(endpoint),
        work,
        Load(concurrency=1, requests=load.probes),
        warmup=2,
        scrape_metrics=False,
        offset=offset,
    )
    return float(found.result.ttft.median or 0.0)


def _cpu_seconds(program: GuardedProgram) -> float:
    try:
        root = psutil.Process(program.instance.guard_state.engine)
        family = [root, *root.children(recursive=True)]
        return float(sum(sum(process.cpu_times()[:2]) for process in family))
    except psutil.Error:
        return 0.0
