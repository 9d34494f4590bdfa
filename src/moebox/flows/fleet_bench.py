"""`moebox fleet bench`: how throughput grows with members, and what the router costs: added TTFT and CPU."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import psutil

from moebox.bench.measure import MeasuredLoad, measure_load
from moebox.bench.probe import probe_endpoint
from moebox.core.endpoint import Endpoint
from moebox.core.measure import Load, Workload
from moebox.errors import BadInput
from moebox.flows.fleet_record import FleetRecord
from moebox.flows.fleet_up import find_router_program, start_router
from moebox.serve.program import GuardedProgram
from moebox.serve.watch import Notify
from moebox.units import plural


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetLoad:
    """What is asked for each member count."""

    concurrency: int = 8  # for each member
    requests: int = 64  # for each member
    input_tokens: int = 256
    output_tokens: int = 64
    probes: int = 32  # requests one after another, for the added TTFT
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetBenchStep:
    """One number of members behind the router."""

    members: int
    output_throughput: float
    scaling: float  # of members times the throughput of one behind the router
    mean_ttft_ms: float
    p99_ttft_ms: float
    mean_tpot_ms: float
    completed: int
    failed: int
    direct_ttft_ms: float  # median of single requests, past the router
    routed_ttft_ms: float  # the same through it
    router_cpu_s: float  # of the loaded run
    router_cpu_share: float  # of one core, during it
    router_cpu_ms_per_request: float
    client_limited: bool

    @property
    def added_ttft_ms(self) -> float:
        """What the router adds to the first token of a lone request."""
        return self.routed_ttft_ms - self.direct_ttft_ms


def bench_fleet(
    record: FleetRecord, sizes: tuple[int, ...], load: FleetLoad, *, notify: Notify = lambda _: None
) -> list[FleetBenchStep]:
    """Measure with a router of its own in front of the first 1, 2, … members."""
    if not sizes or min(sizes) < 1 or max(sizes) > len(record.members):
        raise BadInput(f"{record.name} has {len(record.members)} members", hint="--members 1,2")
    steps: list[FleetBenchStep] = []
    for size in sizes:
        notify(f"{plural(size, 'member')} behind {record.router.kind}")
        steps.append(_step(record, size, load))
    return _scaled(steps)


def _scaled(steps: Sequence[FleetBenchStep]) -> list[FleetBenchStep]:
    """The steps with their throughput against that of a member alone."""
    alone = next((step.output_throughput / step.members for step in steps if step.output_throughput), 1.0)
    return [replace(step, scaling=step.output_throughput / (alone * step.members)) for step in steps]


def _step(record: FleetRecord, size: int, load: FleetLoad) -> FleetBenchStep:
    members = record.members[:size]
    direct = _median_ttft(record.member_endpoint(members[0]), load, offset=size << 20)
    with _router(record, size) as router:
        routed = _median_ttft(replace(router.endpoint, engine=record.engine), load, offset=(size << 20) + (1 << 16))
        before = _cpu(router)
        result = _loaded(router.endpoint, size, load).result
        spent = _cpu(router) - before
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


@contextmanager
def _router(record: FleetRecord, size: int) -> Iterator[GuardedProgram]:
    """A router of the fleet's kind on a port of its own."""
    settings = replace(record.router, port=0, metrics_port=0)
    members = record.members[:size]
    program = start_router(f"{record.name}-bench", settings, record.model, members, find_router_program(settings))
    try:
        yield program
    finally:
        program.stop()


def _median_ttft(endpoint: Endpoint, load: FleetLoad, *, offset: int) -> float:
    """Median TTFT of short requests, one after another; `offset` keeps prompts out of each other's prefix cache."""
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


def _loaded(endpoint: Endpoint, size: int, load: FleetLoad) -> MeasuredLoad:
    work = Workload(input_tokens=load.input_tokens, output_tokens=load.output_tokens, seed=load.seed + size)
    asked = Load(concurrency=load.concurrency * size, requests=load.requests * size)
    return measure_load(probe_endpoint(endpoint), work, asked, warmup=size, scrape_metrics=False)


def _cpu(program: GuardedProgram) -> float:
    """CPU seconds of the router and all its processes so far."""
    try:
        root = psutil.Process(program.instance.guard_state.engine)
        family = [root, *root.children(recursive=True)]
        return float(sum(sum(process.cpu_times()[:2]) for process in family))
    except psutil.Error:
        return 0.0
