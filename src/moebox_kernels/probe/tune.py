"""Times candidates on this machine's GPU, under another architecture's shared-memory limit, and checks them.

    python -m moebox_kernels.probe.tune REQUEST.json OUT.json

First every candidate is compiled, in as many processes as there are cores and without the GPU: for the limit's
architecture, to find out whether it fits there, and for the GPU, to fill Triton's cache. Then one process times them:
all of them briefly, the better third longer, the best few and the baselines longest (successive halving). The result of
each finalist is compared with float32.
"""

import importlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .protocol import ProbeGpu, TimedConfig, TuneAnswer, TunedBaseline, TunedRow, TuneRequest
from .space import Choice

if TYPE_CHECKING:
    import torch

    from .tune_cases import CaseBench, TuneCase

ROUNDS = ((10, 0.34), (40, 0.34), (120, 0.0))  # milliseconds for each candidate, and the share that stays
HOPELESS_RATIO = 2.5  # a candidate this much slower than the best in one launch is dropped
CRASH_SIGNALS = {signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSEGV}  # its own fault
MAX_RELATIVE_ERROR = 1e-2  # of a bf16 result against float32


def load_cases(request: TuneRequest) -> list["TuneCase"]:
    """Make the engine's files importable and return the requested cases."""
    root = Path(request.root).resolve()
    engine = importlib.import_module(f"{__package__}.{request.engine}")
    engine.open_files(root, compile_target(request, request.capability))
    cases = engine.tuned_cases(root, request.shape, smem=request.limit, sms=request.sms)
    return [case for case in cases if request.only in case.name]


def compile_target(request: TuneRequest, capability: int) -> ProbeGpu:
    return ProbeGpu(capability, request.sms, request.device, memory=96 << 30, smem=1 << 30)


def compile_share(request: TuneRequest, capability: int, share: range) -> Iterator[tuple[str, int | None]]:
    """Compile a share of the candidates for any architecture; yield the shared memory of each, or None."""
    from . import driver

    notes = Path(request.cache) / f"tune-{capability}-{share.start}.json"
    driver.install_driver(
        driver.LaunchRecorder(target=compile_target(request, capability), root=Path("/"), notes=notes)
    )
    if capability != request.capability:
        driver.stop_after_layout()  # nothing is run on this architecture
    jobs: dict[str, tuple[TuneCase, Choice]] = {}  # every kernel once
    for case in load_cases(replace(request, capability=capability)):
        for choice in [*case.candidates, *case.baselines.values()]:
            jobs.setdefault(kernel_key(case, choice), (case, choice))
    if capability != request.limit_capability:
        fitting = set(json.loads((Path(request.cache) / "fits.json").read_text()))
        jobs = {name: job for name, job in jobs.items() if name in fitting}
    for name, (case, choice) in list(jobs.items())[share.start :: share.step]:
        try:
            yield name, case.build("meta").run(choice).metadata.shared
        except Exception as problem:  # the engine's own launch code runs here and raises anything
            print_problem(name, problem)
            yield name, None


def print_problem(name: str, problem: Exception) -> None:
    """Report a candidate that does not compile or run; it is dropped."""
    print(f"{name}: {type(problem).__name__} {str(problem)[:100]}", file=sys.stderr)


def kernel_key(case: "TuneCase", choice: Choice) -> str:
    """Return a name; candidates of one kind with one choice share a compiled kernel."""
    return f"{case.kind} {json.dumps(choice, sort_keys=True)}"


def compile_all(request: TuneRequest, path: str) -> dict[int, dict[str, int]]:
    """Compile for both architectures, in parallel processes that do not use the GPU."""
    workers = len(os.sched_getaffinity(0))
    sizes: dict[int, dict[str, int]] = {}
    for capability in dict.fromkeys((request.limit_capability, request.capability)):
        sizes[capability] = {}
        with ThreadPoolExecutor(workers) as pool:
            for found in pool.map(lambda n, c=capability: run_share(path, c, n, workers), range(workers)):
                sizes[capability] |= found
        fitting = [name for name, size in sizes[capability].items() if size <= request.limit]
        if capability == request.limit_capability:
            Path(request.cache, "fits.json").write_text(json.dumps(fitting))
    return sizes


def run_share(path: str, capability: int, first: int, step: int) -> dict[str, int]:
    """Compile a share in another process; if the compiler crashes, another one continues after that kernel."""
    command = [sys.executable, "-m", "moebox_kernels.probe.tune", path, "--share", str(capability)]
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    found: dict[str, int] = {}
    while True:
        done = subprocess.run(
            [*command, str(first), str(step)], env=env, stdout=subprocess.PIPE, text=True, check=False
        )
        lines = [*map(json.loads, done.stdout.splitlines())]
        found |= {name: size for name, size in lines if size is not None}
        if -done.returncode not in CRASH_SIGNALS:
            done.check_returncode()  # the engine's files cannot be opened, or the user interrupts
            return found
        print(f"the compiler died ({signal.Signals(-done.returncode).name}); going on", file=sys.stderr)
        first += step * (len(lines) + 1)


@dataclass(frozen=True)
class SmemLimit:
    """The shared memory of every compiled kernel, and another architecture's limit."""

    sizes: dict[str, int]
    most: int

    def shared_bytes(self, case: "TuneCase", choice: Choice) -> int | None:
        """Return the bytes of a choice, or None if it does not compile."""
        return self.sizes.get(kernel_key(case, choice))

    def fits(self, case: "TuneCase", choice: Choice) -> bool:
        size = self.shared_bytes(case, choice)
        return size is not None and size <= self.most


def measure_case(case: "TuneCase", limit: SmemLimit) -> TunedRow:
    """Return the best candidate of a case, beside the baselines, which are timed even if they do not fit."""
    bench = case.build("cuda")
    watch = CaseTimer(bench)
    fitting = [choice for choice in case.candidates if limit.fits(case, choice)]
    beside = [choice for choice in case.baselines.values() if limit.fits(case, choice)]
    finalists, times = run_rounds(watch, watch.drop_hopeless(fitting + beside), case.group)
    good = [choice for choice in finalists if watch.relative_error(choice) < MAX_RELATIVE_ERROR]
    timed = [TimedConfig(config=bench.config(choice), ms=times[json.dumps(choice)]) for choice in good]
    groups: dict[str, TimedConfig] = {}  # the fastest for each value of the case's group
    for candidate in timed if case.group else ():
        groups.setdefault(str(candidate.config[case.group]), candidate)
    baselines = {
        name: TunedBaseline(
            choice=choice,
            config=bench.config(choice),
            ms=watch.median_ms(choice, ROUNDS[-1][0]),
            shared_bytes=limit.shared_bytes(case, choice),
            fits=limit.fits(case, choice),
        )
        for name, choice in case.baselines.items()
    }
    best = next(iter(good), None)
    return TunedRow(
        case=case.name,
        tried=len(fitting),
        of=len(case.candidates),
        wrong=len(finalists) - len(good),
        field=timed,
        baselines=baselines,
        groups=groups,
        best=None if best is None else bench.config(best),
        ms=None if best is None else watch.median_ms(best, ROUNDS[-1][0]),  # the winner is timed once more
        shared_bytes=None if best is None else limit.shared_bytes(case, best),
        error=None if best is None else watch.relative_error(best),
    )


def run_rounds(watch: "CaseTimer", field: list[Choice], group: str) -> tuple[list[Choice], dict[str, float]]:
    """Return the choices that were timed longest, fastest first, and their times (successive halving)."""
    times: dict[str, float] = {}
    for milliseconds, share in ROUNDS:
        times = {json.dumps(choice): watch.median_ms(choice, milliseconds) for choice in field}
        field = sorted(field, key=lambda choice: times[json.dumps(choice)])
        field = keep_fastest(field, share, group) if share else field
    return field, times


def keep_fastest(field: list[Choice], share: float, group: str) -> list[Choice]:
    """Return the fastest share of `field`, which is sorted, and the fastest of each group."""
    kept = field[: max(4, round(len(field) * share))]
    firsts: dict[int, Choice] = {}
    for choice in field:
        if group in choice:
            firsts.setdefault(choice[group], choice)
    return kept + [choice for choice in firsts.values() if choice not in kept]


class CaseTimer:
    """Times and checks the choices of one case on this machine's GPU."""

    def __init__(self, bench: "CaseBench") -> None:
        self.bench, self.wanted = bench, bench.references()
        self.graphs: dict[str, torch.cuda.CUDAGraph] = {}

    def median_ms(self, choice: Choice, milliseconds: int) -> float:
        """Return the median in ms, with L2 flushed between launches; infinite if it does not run."""
        import torch
        from triton.testing import do_bench

        try:
            replay = self.capture_graph(choice).replay
            return float(do_bench(replay, warmup=5, rep=milliseconds, return_mode="median"))
        except Exception as problem:  # Triton and the engine's launch code raise anything
            print_problem(json.dumps(choice), problem)
            torch.cuda.synchronize()
            return float("inf")

    def capture_graph(self, choice: Choice) -> Any:
        """Return the launch as a CUDA graph: an engine's Python code takes longer than a small kernel."""
        import torch

        name = json.dumps(choice)
        if name not in self.graphs:
            self.bench.run(choice)  # compile, load and sort before the capture
            torch.cuda.synchronize()
            self.graphs[name] = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graphs[name]):
                self.bench.run(choice)
        return self.graphs[name]

    def drop_hopeless(self, field: list[Choice]) -> list[Choice]:
        """Drop the choices that are far slower than the best in one launch."""
        seen = [(self.single_launch_ms(choice), choice) for choice in field]
        best = min((ms for ms, _ in seen), default=0.0)
        return [choice for ms, choice in seen if ms <= best * HOPELESS_RATIO and ms != float("inf")]

    def single_launch_ms(self, choice: Choice) -> float:
        """Time one launch after a first one, in ms."""
        import torch

        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        try:
            self.bench.run(choice)
            torch.cuda.synchronize()
            start.record()
            self.bench.run(choice)
            end.record()
            torch.cuda.synchronize()
            return float(start.elapsed_time(end))
        except Exception as problem:  # Triton and the engine's launch code raise anything
            print_problem(json.dumps(choice), problem)
            torch.cuda.synchronize()
            return float("inf")

    def relative_error(self, choice: Choice) -> float:
        """Return the largest relative error of the choice's results."""
        self.bench.run(choice)
        pairs = zip(self.bench.outputs(), self.wanted, strict=True)
        return max(float((result - wanted).norm() / wanted.norm()) for result, wanted in pairs)


def main() -> int:
    """Compile a share for the parent process, or tune everything."""
    path = sys.argv[1]
    request = TuneRequest.from_json(json.loads(Path(path).read_text()))
    os.environ["TRITON_CACHE_DIR"] = request.cache
    Path(request.cache).mkdir(parents=True, exist_ok=True)
    if "--share" not in sys.argv:
        return tune_all(request, path, Path(sys.argv[2]))
    capability, first, step = map(int, sys.argv[-3:])
    if capability != request.capability:  # half-compiled kernels have a cache of their own
        os.environ["TRITON_CACHE_DIR"] = str(Path(request.cache) / "sizes")
    for found in compile_share(request, capability, range(first, sys.maxsize, step)):
        print(json.dumps(found), flush=True)
    return 0


def tune_all(request: TuneRequest, path: str, out: Path) -> int:
    """Compile everything, time one case after the other, and write the results after each."""
    import triton

    began = time.monotonic()
    sizes = compile_all(request, path)
    print(f"compiled {sum(map(len, sizes.values()))} kernels in {time.monotonic() - began:.0f} s", flush=True)
    limit = SmemLimit(sizes=sizes[request.limit_capability], most=request.limit)
    rows: list[TunedRow] = []
    for case in load_cases(request):
        if time.monotonic() - began > request.seconds:
            print(f"out of time before {case.name}", flush=True)
            break
        rows.append(measure_case(case, limit))
        print(row_text(rows[-1]), flush=True)
        answer = TuneAnswer(triton=triton.__version__, rows=rows)
        out.write_text(json.dumps({"request": asdict(request), **asdict(answer)}, indent=1))
    return 0


def row_text(row: TunedRow) -> str:
    best = "none fits" if row.best is None else f"{row.ms:.3f} ms {row.best} error {row.error:.4f}"
    beside = (f"{name} {base.ms:.3f}{'' if base.fits else ' (does not fit)'}" for name, base in row.baselines.items())
    return f"{row.case}: {best} | {'  '.join(beside)}"


if __name__ == "__main__":
    sys.exit(main())
