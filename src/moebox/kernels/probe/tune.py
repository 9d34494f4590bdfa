"""Times candidates on the GPU at hand, under another architecture's shared-memory limit; checks each against float32.

    python -m moebox.kernels.probe.tune REQUEST.json OUT.json

First every candidate is compiled, in as many processes as there are cores and without the GPU: for the limit's
architecture, to learn whether it fits there, and for the GPU at hand, to fill Triton's cache. Then one process times
them: all of them shortly, the better third longer, the best few and the baselines longest (successive halving).
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

ROUNDS = ((10, 0.34), (40, 0.34), (120, 0.0))  # milliseconds a candidate, and the share that goes on
HOPELESS_RATIO = 2.5  # times slower than the best so far at first sight: not timed again
CRASH_SIGNALS = {signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSEGV}  # a program's own doing
MAX_RELATIVE_ERROR = 1e-2  # relative, of a bf16 answer against float32


def load_cases(request: TuneRequest) -> list["TuneCase"]:
    """The cases asked for, with the engine's files opened."""
    root = Path(request.root).resolve()
    engine = importlib.import_module(f"{__package__}.{request.engine}")
    engine.open_files(root, compile_target(request, request.capability))
    cases = engine.tuned_cases(root, request.shape, smem=request.limit, sms=request.sms)
    return [case for case in cases if request.only in case.name]


def compile_target(request: TuneRequest, capability: int) -> ProbeGpu:
    """The GPU that compilers are told of."""
    return ProbeGpu(capability, request.sms, request.device, memory=96 << 30, smem=1 << 30)


def compile_share(request: TuneRequest, capability: int, share: range) -> Iterator[tuple[str, int | None]]:
    """Compile a share of the candidates for an architecture that need not be there: the shared memory each asks for."""
    from . import driver

    notes = Path(request.cache) / f"tune-{capability}-{share.start}.json"
    driver.install_driver(
        driver.LaunchRecorder(target=compile_target(request, capability), root=Path("/"), notes=notes)
    )
    if capability != request.capability:
        driver.stop_after_layout()  # nothing of this architecture is run here
    jobs = kernels_to_compile(replace(request, capability=capability))
    if capability != request.limit_capability:
        fitting = set(json.loads((Path(request.cache) / "fits.json").read_text()))
        jobs = {name: job for name, job in jobs.items() if name in fitting}
    for name, (case, choice) in list(jobs.items())[share.start :: share.step]:
        try:
            yield name, case.build("meta").run(choice).metadata.shared
        except Exception as problem:
            print_problem(name, problem)
            yield name, None


def kernels_to_compile(request: TuneRequest) -> dict[str, tuple["TuneCase", Choice]]:
    """Every kernel that is to be compiled, once."""
    jobs: dict[str, tuple[TuneCase, Choice]] = {}
    for case in load_cases(request):
        for choice in [*case.candidates, *case.baselines.values()]:
            jobs.setdefault(kernel_key(case, choice), (case, choice))
    return jobs


def print_problem(name: str, problem: Exception) -> None:
    """A candidate that does not compile or run is no candidate, but it is named."""
    print(f"{name}: {type(problem).__name__} {str(problem)[:100]}", file=sys.stderr)


def kernel_key(case: "TuneCase", choice: Choice) -> str:
    """Candidates of one kind with one choice are one compiled kernel."""
    return f"{case.kind} {json.dumps(choice, sort_keys=True)}"


def compile_all(request: TuneRequest, path: str) -> dict[int, dict[str, int]]:
    """Both architectures, in parallel processes that never see the GPU."""
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
    """A share in a process of its own; where the compiler takes that down, another goes on behind the kernel."""
    command = [sys.executable, "-m", "moebox.kernels.probe.tune", path, "--share", str(capability)]
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    found: dict[str, int] = {}
    while True:
        done = subprocess.run(
            [*command, str(first), str(step)], env=env, stdout=subprocess.PIPE, text=True, check=False
        )
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        found |= {name: size for name, size in lines if size is not None}
        if -done.returncode not in CRASH_SIGNALS:
            done.check_returncode()  # the engine's files cannot be opened, or somebody interrupts
            return found
        print(f"the compiler died ({signal.Signals(-done.returncode).name}); going on", file=sys.stderr)
        first += step * (len(lines) + 1)


@dataclass(frozen=True)
class SmemLimit:
    """What fits: the shared memory of every compiled kernel, under another architecture's limit."""

    sizes: dict[str, int]
    most: int

    def shared_bytes(self, case: "TuneCase", choice: Choice) -> int | None:
        """Bytes of a choice; None where it does not compile."""
        return self.sizes.get(kernel_key(case, choice))

    def fits(self, case: "TuneCase", choice: Choice) -> bool:
        """Whether it can be launched there."""
        size = self.shared_bytes(case, choice)
        return size is not None and size <= self.most


def measure_case(case: "TuneCase", limit: SmemLimit) -> TunedRow:
    """The best candidate of a case beside the baselines."""
    bench = case.build("cuda")
    watch = CaseTimer(bench)
    fitting = [choice for choice in case.candidates if limit.fits(case, choice)]
    beside = [choice for choice in case.baselines.values() if limit.fits(case, choice)]
    finalists, times = run_rounds(watch, watch.drop_hopeless(fitting + beside), case.group)
    good = [choice for choice in finalists if watch.relative_error(choice) < MAX_RELATIVE_ERROR]
    timed = [TimedConfig(config=bench.config(choice), ms=times[json.dumps(choice)]) for choice in good]
    row = TunedRow(
        case=case.name,
        tried=len(fitting),
        of=len(case.candidates),
        best=None,
        ms=None,
        wrong=len(finalists) - len(good),
        field=timed,
        baselines=time_baselines(case, bench, watch, limit),
        groups=fastest_by_group(timed, case.group) if case.group else {},
    )
    return with_best(row, case, watch, limit, good[0]) if good else row


def fastest_by_group(timed: list[TimedConfig], group: str) -> dict[str, TimedConfig]:
    """The fastest for each value of the setting called `group`."""
    groups: dict[str, TimedConfig] = {}
    for candidate in timed:
        groups.setdefault(str(candidate.config[group]), candidate)
    return groups


def run_rounds(watch: "CaseTimer", field: list[Choice], group: str) -> tuple[list[Choice], dict[str, float]]:
    """Successive halving: the choices that were timed longest, fastest first, and their times."""
    times: dict[str, float] = {}
    for milliseconds, share in ROUNDS:
        times = {json.dumps(choice): watch.median_ms(choice, milliseconds) for choice in field}
        field = sorted(field, key=lambda choice: times[json.dumps(choice)])
        field = keep_fastest(field, share, group) if share else field
    return field, times


def time_baselines(
    case: "TuneCase", bench: "CaseBench", watch: "CaseTimer", limit: SmemLimit
) -> dict[str, TunedBaseline]:
    """What upstream chooses, timed whether it fits or not."""
    return {
        name: TunedBaseline(
            choice=choice,
            config=bench.config(choice),
            ms=watch.median_ms(choice, ROUNDS[-1][0]),
            shared_bytes=limit.shared_bytes(case, choice),
            fits=limit.fits(case, choice),
        )
        for name, choice in case.baselines.items()
    }


def with_best(row: TunedRow, case: "TuneCase", watch: "CaseTimer", limit: SmemLimit, best: Choice) -> TunedRow:
    """The row with the winner, timed once more."""
    return replace(
        row,
        best=watch.bench.config(best),
        ms=watch.median_ms(best, ROUNDS[-1][0]),
        shared_bytes=limit.shared_bytes(case, best),
        error=watch.relative_error(best),
    )


def keep_fastest(field: list[Choice], share: float, group: str) -> list[Choice]:
    """The share of a field, fastest first, that goes on; and the fastest of each group."""
    kept = field[: max(4, round(len(field) * share))]
    firsts: dict[int, Choice] = {}
    for choice in field:
        if group in choice:
            firsts.setdefault(choice[group], choice)
    return kept + [choice for choice in firsts.values() if choice not in kept]


class CaseTimer:
    """Times and checks the choices of one case on the GPU at hand."""

    def __init__(self, bench: "CaseBench") -> None:
        self.bench, self.wanted = bench, bench.references()
        self.graphs: dict[str, torch.cuda.CUDAGraph] = {}

    def median_ms(self, choice: Choice, milliseconds: int) -> float:
        """The median in ms, L2 flushed between launches; infinite for what does not run."""
        import torch
        from triton.testing import do_bench

        try:
            replay = self.capture_graph(choice).replay
            return float(do_bench(replay, warmup=5, rep=milliseconds, return_mode="median"))
        except Exception as problem:
            print_problem(json.dumps(choice), problem)
            torch.cuda.synchronize()
            return float("inf")

    def capture_graph(self, choice: Choice) -> Any:
        """The launch as a CUDA graph, as engines decode: an engine's Python takes longer than a small kernel."""
        import torch

        name = json.dumps(choice)
        if name not in self.graphs:
            self.bench.run(choice)  # compiled, loaded and sorted before anything is captured
            torch.cuda.synchronize()
            self.graphs[name] = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graphs[name]):
                self.bench.run(choice)
        return self.graphs[name]

    def drop_hopeless(self, field: list[Choice]) -> list[Choice]:
        """Without those that one launch shows to be far slower than the best."""
        seen = [(self.single_launch_ms(choice), choice) for choice in field]
        best = min((ms for ms, _ in seen), default=0.0)
        return [choice for ms, choice in seen if ms <= best * HOPELESS_RATIO and ms != float("inf")]

    def single_launch_ms(self, choice: Choice) -> float:
        """One launch after one to warm up, in ms."""
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
        except Exception as problem:
            print_problem(json.dumps(choice), problem)
            torch.cuda.synchronize()
            return float("inf")

    def relative_error(self, choice: Choice) -> float:
        """The largest relative error of what the choice computes."""
        self.bench.run(choice)
        pairs = zip(self.bench.outputs(), self.wanted, strict=True)
        return max(float((got - wanted).norm() / wanted.norm()) for got, wanted in pairs)


def main() -> int:
    """Compile a share for the parent, or do the whole job."""
    path = sys.argv[1]
    request = TuneRequest.from_json(json.loads(Path(path).read_text()))
    os.environ["TRITON_CACHE_DIR"] = request.cache
    Path(request.cache).mkdir(parents=True, exist_ok=True)
    if "--share" not in sys.argv:
        return tune_all(request, path, Path(sys.argv[2]))
    capability, first, step = (int(word) for word in sys.argv[-3:])
    if capability != request.capability:  # half-compiled kernels have a cache of their own
        os.environ["TRITON_CACHE_DIR"] = str(Path(request.cache) / "sizes")
    for found in compile_share(request, capability, range(first, sys.maxsize, step)):
        print(json.dumps(found), flush=True)
    return 0


def tune_all(request: TuneRequest, path: str, out: Path) -> int:
    """Compile everything, time one case after the other, and write down what is known after each."""
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
    """One case in a line."""
    best = "none fits" if row.best is None else f"{row.ms:.3f} ms {row.best} error {row.error:.4f}"
    beside = (f"{name} {base.ms:.3f}{'' if base.fits else ' (does not fit)'}" for name, base in row.baselines.items())
    return f"{row.case}: {best} | {'  '.join(beside)}"


if __name__ == "__main__":
    sys.exit(main())
